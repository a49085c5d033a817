"""Follow several logs at once while ranks write them: one reader, bounded memory, no line lost or torn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.logs.changes import Changes
from launcher.logs.growing import GrowingLog, fair_shares
from launcher.logs.lines import OVERWRITES, PIECE_BYTES, Begun, last_state, piece_end
from launcher.logs.tail import CHUNK_BYTES


class Follower:
    """Gives the lines that appear in `logs` (by global rank), each once, as they are completed. Close it at the end."""

    def __init__(self, logs: Mapping[int, GrowingLog], chunk_bytes: int = CHUNK_BYTES) -> None:
        """Closes `logs` too. `chunk_bytes`: about so much is given at once: nobody waits long for the caller."""
        self._logs = {global_rank: _Log(log, chunk_bytes) for global_rank, log in logs.items()}
        self._changes = Changes({global_rank: log.path for global_rank, log in logs.items()})

    def next_block(self, *, ended: bool = False) -> tuple[int, bytes] | None:
        """A global rank and some new complete lines of it; None if there are none.

        Does not block. Logs take turns. With `ended` nobody writes any more, and an unfinished last line counts as one.
        """
        for global_rank in self._changes.due(ended=ended):
            log = self._logs[global_rank]
            block = log.next_block()
            if block is None and ended:
                block = log.unfinished_line()
            if block is not None:
                self._changes.later(global_rank)
                return global_rank, block
            self._changes.nothing_new(global_rank)
        return None

    def begun(self) -> dict[int, Begun]:
        """What has been read of lines that are not ended, by global rank."""
        return {global_rank: begun for global_rank, log in self._logs.items() if (begun := log.begun)}

    def wait(self, seconds: float) -> None:
        """Sleep until something may have come, at most so long."""
        self._changes.wait(seconds)

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        """Leave out all but the last `keep_bytes` of what is unread, all logs together.

        Gives the global rank of each log that is shortened, and how many bytes of it are left out.
        """
        kept_bytes = fair_shares({rank: log.unread_bytes for rank, log in self._logs.items()}, keep_bytes)
        for global_rank, log in self._logs.items():
            if skipped := log.skip_to_last(kept_bytes[global_rank]):
                yield global_rank, skipped

    def close(self) -> None:
        self._changes.close()
        for log in self._logs.values():
            log.close()


class _Log:
    def __init__(self, log: GrowingLog, chunk_bytes: int) -> None:
        self._log = log
        self._chunk_bytes = chunk_bytes
        self._partial, self._partial_at = b"", 0
        self._line_at = 0  # of the line that `_partial` belongs to

    def next_block(self) -> bytes | None:
        while True:
            offset, chunk = self._log.read(self._chunk_bytes)
            if not chunk:
                return None
            if self._partial and offset != self._partial_at + len(self._partial):  # it began anew
                self._partial += b"\n"
            complete, newline, self._partial = (self._partial + chunk).rpartition(b"\n")
            self._partial_at = offset + len(chunk) - len(self._partial)
            if newline:
                self._line_at = self._partial_at
                return complete + newline
            if len(self._partial) >= PIECE_BYTES:
                return self._taken(piece_end(self._partial, len(self._partial) - 1))

    def unfinished_line(self) -> bytes | None:
        """The start of a line whose end was not written; None if there is none."""
        return self._taken(len(self._partial)).rstrip(OVERWRITES) or None

    @property
    def begun(self) -> Begun | None:
        return Begun(self._line_at, last_state(self._partial)) if self._partial else None

    def _taken(self, size_bytes: int) -> bytes:
        line, self._partial = self._partial[:size_bytes], self._partial[size_bytes:]
        self._partial_at += size_bytes
        return line

    @property
    def unread_bytes(self) -> int:
        return self._log.unread_bytes

    def skip_to_last(self, keep_bytes: int) -> int:
        """How many bytes were left out, up to the start of a line."""
        skipped = self._log.skip_to_last(keep_bytes)
        if skipped:
            skipped += len(self._partial)
            self._partial = b""
        return skipped

    def close(self) -> None:
        self._log.close()
