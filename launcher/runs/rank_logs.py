"""The logs of a run's ranks as lines: all that there is, the last ones, and what comes as they grow."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from launcher.core.events import AttemptStarted, RankStarted
from launcher.core.run_dir import RunDir
from launcher.logs.changes import Changes
from launcher.logs.follow import Follower
from launcher.logs.growing import CHUNK_BYTES, GrowingLog
from launcher.logs.lines import Line, Splitter, offset_of_last, with_attempts
from launcher.logs.times import Clock
from launcher.runs.live import EventReader

LONGEST_LINE_BYTES = 1 << 20  # of a block; a longer line is given in pieces
AT_ONCE_BYTES = 1 << 20  # of all logs together, before whoever reads them has a turn


class RankLog:
    """The lines of one rank in their order, with times and attempts. Close it at the end."""

    def __init__(self, global_rank: int, log: GrowingLog, near_ns: int) -> None:
        """`near_ns`: about when the rank ran, nanoseconds since 1970, for lines that tell a time without a year."""
        self.starts: list[tuple[int, int]] = []  # offset, and attempt that begins there; grows
        self._log = log
        self._splitter = Splitter(global_rank)
        self._clock = Clock(near_ns)

    def skip_to_last(self, count: int) -> None:
        """Leave out all but the last `count` lines. Call it first.

        Raises:
            OSError: the log may not be read.
        """
        stored = self._log.stored
        self._log.go_to(offset_of_last(stored.read, stored.end, stored.start, count))

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

    def read(self) -> tuple[int, bytes]:
        """Bytes that came since the last call, at most a chunk, and the logical offset of the first. Does not block."""
        return self._log.read()

    def lines(self, offset: int, chunk: bytes) -> list[Line]:
        """The lines that end in what `read` gave. Call it once for each chunk, in their order."""
        return list(self._told(self._splitter.put(offset, chunk)))

    def rest(self) -> Iterator[Line]:
        """The start of a line whose end was never written."""
        return self._told(self._splitter.rest())

    def skip_to_last_bytes(self, keep_bytes: int) -> int:
        """Leave out all but so many of the bytes that are unread; how many were left out, up to the start of a line."""
        return self._log.skip_to_last(keep_bytes, 0)

    def close(self) -> None:
        self._log.close()

    def _present(self) -> Iterator[tuple[int, bytes]]:
        """What is unread, up to the present end: whoever writes meanwhile does not keep us for ever."""
        end = self._log.stored.end
        while True:
            offset, chunk = self._log.read()
            yield offset, chunk[: max(0, end - offset)]
            if not chunk or offset + len(chunk) >= end:
                return

    def _told(self, lines: Iterator[Line]) -> Iterator[Line]:
        return map(self._clock.stamped, with_attempts(lines, self.starts))


class RankLogs:
    """The logs of some ranks of one run."""

    def __init__(
        self, run_dir: RunDir, global_ranks: Collection[int], near_ns: int, *, environment: bool = False
    ) -> None:
        """`environment`: env.log of each rank instead of train.log."""
        path_of = run_dir.env_log if environment else run_dir.train_log
        paths = {rank: path_of(rank) for rank in sorted(global_ranks)}
        self._growing = {rank: GrowingLog(path) for rank, path in paths.items()}
        self.of_rank = {rank: RankLog(rank, log, near_ns) for rank, log in self._growing.items()}
        self._changes = Changes(paths)
        self._events = EventReader(run_dir.events)
        self._attempt = 0

    def new_lines(self, *, ended: bool = False) -> Iterator[list[Line]]:
        """Lines that came since the last call, some of each rank; nothing once there are none. Does not block.

        With `ended` nobody writes any more, and no change is waited for.
        """
        came_bytes = 0
        for global_rank in self._changes.due(ended=ended):
            log = self.of_rank[global_rank]
            offset, chunk = log.read()
            if chunk:
                self._changes.later(global_rank)
                self.note_attempts()  # now: what was just read may be the first of an attempt
                yield log.lines(offset, chunk)
            else:
                self._changes.nothing_new(global_rank)
            came_bytes += len(chunk)
            if came_bytes >= AT_ONCE_BYTES:
                return

    def look_at(self, global_rank: int) -> None:
        """Read this log to its present end, whether anybody told that it has changed or not: `is_read` tells when."""
        self._changes.look_at(global_rank)

    def is_read(self, global_rank: int) -> bool:
        """Whether all that is known to have come was given by `new_lines`."""
        return not self._changes.is_due(global_rank)

    def follower(self) -> Follower:
        """Gives what is unread as it is, instead of `new_lines`."""
        return Follower(self._growing, CHUNK_BYTES)

    def wait(self, seconds: float) -> None:
        """Sleep until something may have come, at most so long."""
        self._changes.wait(seconds)

    def note_attempts(self) -> None:
        """Look where attempts that have begun since the last call begin in each log."""
        for stamped in self._events.read():
            match stamped.event:
                case AttemptStarted(number=number):
                    self._attempt = number
                case RankStarted(global_rank=global_rank, log_offset=offset) if global_rank in self.of_rank:
                    self.of_rank[global_rank].starts.append((offset, self._attempt))

    def close(self) -> None:
        self._changes.close()
        for log in self.of_rank.values():
            log.close()
