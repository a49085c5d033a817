"""What comes to a log while it grows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launcher.logs.stored import StoredLog

CHUNK_BYTES = 1 << 16  # much larger ones are slower: memory of such a size is taken from the system anew every time


def fair_shares(needs: Mapping[int, int], total: int) -> dict[int, int]:
    """By key: as much as it needs, or of what others leave of `total` as much as those that need more."""
    shares: dict[int, int] = {}
    for at, key in enumerate(sorted(needs, key=lambda key: needs[key])):
        shares[key] = min(needs[key], (total - sum(shares.values())) // (len(needs) - at))
    return shares


class GrowingLog:
    """Gives each byte that a log holds, and what comes to it, once. Close it at the end.

    A log may not exist yet. One that begins anew, emptied or made again, is read again from its start. What was moved
    into compressed parts before it was read is read from there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored = StoredLog(path)
        self._renewals = 0
        self._offset: int | None = None  # of what is to be read next; None: from the start

    def read(self, limit_bytes: int = CHUNK_BYTES) -> tuple[int, bytes]:
        """Bytes that are new, at most about so many, and the logical offset of the first. Does not block.

        A log that may not be read has none.
        """
        with suppress(OSError):
            offset = self._next_offset()
            chunk = self.stored.read(offset, limit_bytes)
            if self._note_renewal():
                offset = self._next_offset()
                chunk = self.stored.read(offset, limit_bytes)
            self._offset = self.stored.next_offset
            return offset, chunk
        return 0, b""

    @property
    def position(self) -> int:
        """The logical offset of what is to be read next."""
        with suppress(OSError):
            return self._next_offset()
        return 0

    def go_to(self, offset: int) -> None:
        """Read on from logical `offset`, of the log as it is now."""
        self._offset, self._renewals = offset, self.stored.renewals

    @property
    def unread_bytes(self) -> int:
        """As far as it was written until now; 0 where it may not be read."""
        with suppress(OSError):
            end = self.stored.end
            self._note_renewal()
            return end - self._next_offset()
        return 0

    def skip_to_last(self, keep_bytes: int, unshown_bytes: int) -> int:
        """Leave out all but the last `keep_bytes`, and what is left of the line before them.

        How many bytes were left out, `unshown_bytes` among them, which have been read and not been shown; 0: none, and
        those are to be shown.
        """
        with suppress(OSError):  # it may not be read: then there is nothing to leave out
            end = self.stored.end
            unshown_bytes = 0 if self._note_renewal() else unshown_bytes
            offset = self._next_offset()
            if end - offset > keep_bytes:
                self._offset = end - keep_bytes
                _, last = self.read(keep_bytes)
                whole_lines = last.partition(b"\n")[2]
                self._offset -= len(whole_lines)
                return self._offset - offset + unshown_bytes
        return 0

    def close(self) -> None:
        self.stored.close()

    def _note_renewal(self) -> bool:
        """Whether the log began anew since this was asked last; then all that it holds is unread."""
        if self.stored.renewals == self._renewals:
            return False
        self._offset, self._renewals = None, self.stored.renewals
        return True

    def _next_offset(self) -> int:
        return self.stored.start if self._offset is None else self._offset
