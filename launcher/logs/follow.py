"""Follow several logs at once while ranks write them: one reader, bounded memory, no line lost or torn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.logs.changes import Changes
from launcher.logs.growing import GrowingLog, fair_shares
from launcher.logs.lines import OVERWRITES, Begun, LineReader
from launcher.logs.tail import CHUNK_BYTES


class Follower:
    """Gives the lines that are appended to `logs` (by global rank), each once. Close it at the end; it closes `logs`."""

    def __init__(self, logs: Mapping[int, GrowingLog]) -> None:
        self._logs = logs
        self._readers = {global_rank: LineReader(global_rank) for global_rank in logs}
        self._changes = Changes({global_rank: log.path for global_rank, log in logs.items()})

    def next_block(self, *, ended: bool = False) -> tuple[int, bytes] | None:
        """Return a global rank and some new whole lines of it, or a piece of a very long one; None if there are none.

        Does not block. Logs take turns. `ended`: nothing writes any more, so an unfinished last line is returned too.
        """
        for global_rank in self._changes.due(ended=ended):
            block = self._next_of(global_rank)
            if not block and ended:
                block = self._readers[global_rank].rest().rstrip(OVERWRITES)
            if block:
                self._changes.later(global_rank)
                return global_rank, block
            self._changes.nothing_new(global_rank)
        return None

    def _next_of(self, global_rank: int) -> bytes:
        while True:
            offset, chunk = self._logs[global_rank].read(CHUNK_BYTES)
            if not chunk:
                return b""
            if blocks := self._readers[global_rank].blocks(offset, chunk):
                return b"".join(block for _, block in blocks)

    def begun(self) -> dict[int, Begun]:
        """Return the unfinished lines by global rank."""
        return {global_rank: begun for global_rank, reader in self._readers.items() if (begun := reader.begun)}

    def wait(self, seconds: float) -> None:
        """Sleep until something may have been written, at most that long."""
        self._changes.wait(seconds)

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        """Skip all but the last `keep_bytes` of what is unread in all logs together.

        Yields the global rank of each log of which something is skipped, and how many bytes.
        """
        kept_bytes = fair_shares({rank: log.unread_bytes for rank, log in self._logs.items()}, keep_bytes)
        for global_rank, log in self._logs.items():
            if skipped := log.skip_to_last(kept_bytes[global_rank]):
                yield global_rank, skipped + len(self._readers[global_rank].rest())

    def close(self) -> None:
        """Close the logs."""
        self._changes.close()
        for log in self._logs.values():
            log.close()
