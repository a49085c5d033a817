"""Follow several logs at once while ranks write them: one reader, bounded memory, no line lost or torn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from launcher.logs.stored import CHUNK_BYTES, StoredLog
from launcher.logs.terminal import printable_lines

LONGEST_LINE_BYTES = 1 << 16  # a longer one is given in pieces


class Follower:
    """Gives the lines that appear in `paths` (by global rank), each once, as they are completed. Close it at the end.

    A log may not exist yet. One that begins anew, emptied or made again, is read again from its start. What was moved
    into compressed parts before it was read is read from there.
    """

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._logs = {global_rank: _Log(path) for global_rank, path in paths.items()}
        self._turns = deque(self._logs)

    def next_lines(self, *, ended: bool = False) -> tuple[int, list[str]] | None:
        """A global rank and some new complete lines of it, safe to show; None if no log has any. Does not block.

        Gives little at once, so that nobody waits long for the caller; logs take turns. With `ended` nobody writes
        any more, and an unfinished last line counts as a line.
        """
        for _ in range(len(self._turns)):
            global_rank = self._turns[0]
            self._turns.rotate(-1)
            log = self._logs[global_rank]
            if lines := log.next_lines() or (log.unfinished_line() if ended else []):
                return global_rank, lines
        return None

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        """Leave out all but the last `keep_bytes` of what is unread, all logs together.

        Gives the global rank of each log that is shortened, and how many bytes of it are left out.
        """
        for global_rank, log in self._logs.items():
            if skipped := log.skip_to_last(keep_bytes // len(self._logs)):
                yield global_rank, skipped

    def close(self) -> None:
        for log in self._logs.values():
            log.close()


class _Log:
    def __init__(self, path: Path) -> None:
        self._stored = StoredLog(path)
        self._renewals = 0
        self._offset = 0
        self._partial = b""

    def next_lines(self) -> list[str]:
        while chunk := self._read():
            complete, newline, self._partial = (self._partial + chunk).rpartition(b"\n")
            if newline:
                return _shown(complete)
            if len(self._partial) >= LONGEST_LINE_BYTES:
                return self.unfinished_line()
        return []

    def unfinished_line(self) -> list[str]:
        """The start of a line whose end was not written; empty if there is none."""
        line, self._partial = self._partial, b""
        return _shown(line) if line else []

    def skip_to_last(self, keep_bytes: int) -> int:
        """How many bytes were left out, up to the start of a line."""
        with suppress(OSError):  # it may not be read: then there is nothing to leave out
            end = self._stored.end
            self._began_anew()
            first = self._offset - len(self._partial)
            if end - self._offset > keep_bytes:
                self._offset, self._partial = end - keep_bytes, b""
                whole_lines = self._read().partition(b"\n")[2]
                self._offset -= len(whole_lines)
                return self._offset - first
        return 0

    def close(self) -> None:
        self._stored.close()

    def _read(self) -> bytes:
        try:
            chunk = self._stored.read(self._offset, CHUNK_BYTES)
            if self._began_anew():
                chunk = self._stored.read(self._offset, CHUNK_BYTES)
        except OSError:  # it may not be read: then there is nothing to show
            return b""
        self._offset = self._stored.next_offset
        return chunk

    def _began_anew(self) -> bool:
        """Whether the log did since this was asked last; then all that it holds is unread."""
        if self._stored.renewals == self._renewals:
            return False
        self._offset, self._partial = self._stored.start, b""
        self._renewals = self._stored.renewals
        return True


def _shown(block: bytes) -> list[str]:
    return printable_lines(block.decode("utf-8", errors="replace"))
