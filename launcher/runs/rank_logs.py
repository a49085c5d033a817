"""The logs of a run's ranks as lines: all that there is, the last ones, and what comes as they grow."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core.events import AttemptStarted, RankStarted
from launcher.core.run_dir import RunDir
from launcher.logs.lines import Line, Splitter, offset_of_last, with_attempts
from launcher.logs.stored import StoredLog
from launcher.logs.times import Clock
from launcher.runs.live import EventReader

CHUNK_BYTES = 1 << 18
LONGEST_LINE_BYTES = 1 << 20  # of a block; a longer line is given in pieces
Look = tuple[int, int, int]  # inode, bytes, and time of the last change


class RankLog:
    """The lines of one rank in their order, with times and attempts. Close it at the end."""

    def __init__(self, global_rank: int, path: Path, near_ns: int) -> None:
        """`near_ns`: about when the rank ran, nanoseconds since 1970, for lines that tell a time without a year."""
        self.starts: list[tuple[int, int]] = []  # offset, and attempt that begins there; grows
        self._path = str(path)
        self._stored = StoredLog(path)
        self._splitter = Splitter(global_rank)
        self._clock = Clock(near_ns)
        self._global_rank = global_rank
        self._seen: tuple[int, int, int] | None = None
        self._offset: int | None = None  # of what is to be read next; None: from the start

    def skip_to_last(self, count: int) -> None:
        """Leave out all but the last `count` lines. Call it first.

        Raises:
            OSError: the log may not be read.
        """
        self._offset = offset_of_last(self._stored.read, self._stored.end, self._stored.start, count)

    def whole(self) -> Iterator[Line]:
        """All lines up to the log's present end, an unfinished last one too.

        Raises:
            OSError: the log may not be read.
        """
        for offset, chunk in self._present():
            yield from self._told(self._splitter.put(offset, chunk))
        yield from self.rest()

    def blocks(self) -> Iterator[bytes]:
        """As `whole`, in blocks of whole lines, each with its newline; only an unfinished last line has none.

        Raises:
            OSError: the log may not be read.
        """
        partial = b""
        for _, chunk in self._present():
            complete, newline, partial = (partial + chunk).rpartition(b"\n")
            if newline:
                yield complete + newline
            elif len(partial) > LONGEST_LINE_BYTES:
                yield partial
                partial = b""
        if partial:
            yield partial

    def new_lines(self) -> list[Line]:
        """Complete lines that came since the last call, as many as one chunk holds. Does not block.

        Raises:
            OSError: the log may not be read.
        """
        look = self._look()
        if look is None or look == self._seen:
            return []
        offset = self._stored.start if self._offset is None else self._offset
        chunk = self._stored.read(offset, CHUNK_BYTES)
        self._offset = self._stored.next_offset
        if not chunk and self._offset == offset:
            self._seen = look
        return list(self._told(self._splitter.put(offset, chunk))) if chunk else []

    def _present(self) -> Iterator[tuple[int, bytes]]:
        """What is unread, up to the present end: whoever writes meanwhile does not keep us for ever."""
        end = self._stored.end
        start = self._stored.start if self._offset is None else self._offset
        for offset, chunk in self._stored.chunks(start, CHUNK_BYTES):
            self._offset = min(offset + len(chunk), end)
            yield offset, chunk[: end - offset] if offset < end else b""
            if self._offset >= end:
                return

    def rest(self) -> Iterator[Line]:
        """The start of a line whose end was never written."""
        return self._told(self._splitter.rest())

    def close(self) -> None:
        self._stored.close()

    def _told(self, lines: Iterator[Line]) -> Iterator[Line]:
        return map(self._clock.stamped, with_attempts(lines, self.starts))

    def _look(self) -> Look | None:
        """Cheap: most logs have not changed since the last look."""
        with suppress(OSError):
            found = os.stat(self._path)  # noqa: PTH116 - a thousand of them, many times a second
            return found.st_ino, found.st_size, found.st_mtime_ns
        return None


class RankLogs:
    """The logs of some ranks of one run."""

    def __init__(
        self, run_dir: RunDir, global_ranks: Collection[int], near_ns: int, *, environment: bool = False
    ) -> None:
        """`environment`: env.log of each rank instead of train.log."""
        path_of = run_dir.env_log if environment else run_dir.train_log
        self.of_rank = {rank: RankLog(rank, path_of(rank), near_ns) for rank in sorted(global_ranks)}
        self._events = EventReader(run_dir.events)
        self._attempt = 0

    def note_attempts(self) -> None:
        """Look where attempts that have begun since the last call begin in each log."""
        for stamped in self._events.read():
            match stamped.event:
                case AttemptStarted(number=number):
                    self._attempt = number
                case RankStarted(global_rank=global_rank, log_offset=offset) if global_rank in self.of_rank:
                    self.of_rank[global_rank].starts.append((offset, self._attempt))

    def close(self) -> None:
        for log in self.of_rank.values():
            log.close()
