"""What comes to a log while it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from launcher.logs.stored import CHUNK_BYTES, StoredLog
from launcher.logs.tail import offset_of_last

T = TypeVar("T")


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
        self.trouble: str | None = None  # why nothing came of the last `read`, or of what was asked since

    def read(self, limit_bytes: int = CHUNK_BYTES) -> tuple[int, bytes]:
        """Bytes that are new, at most about so many, and the logical offset of the first. Does not block.

        A log that may not be read has none.
        """
        self.trouble = None
        found = self._try(lambda: self._read(limit_bytes), (0, b""))
        self.trouble = self.trouble or self.stored.trouble
        return found

    @property
    def position(self) -> int:
        """The logical offset of what is to be read next."""
        return self._try(self._next_offset, 0)

    @property
    def end(self) -> int:
        """The logical offset behind what was written until now; 0 where it may not be read."""
        return self._try(lambda: self.stored.end, 0)

    def skip_to_last_lines(self, count: int) -> None:
        """Read on at the last `count` lines of the log as it is now; go on as before where it may not be read."""
        self._offset = self._try(lambda: offset_of_last(self.stored, count), self._offset)
        self._renewals = self.stored.renewals

    def before(self, limit_bytes: int) -> Iterator[tuple[int, bytes]]:
        """What stands right before that which is to be read next, at most so many bytes; nothing where it may not be read."""
        with suppress(OSError):
            position = self._next_offset()
            yield from self.stored.chunks(max(self.stored.start, position - limit_bytes), position)

    def unread_from(self, offset: int) -> None:
        """Read again from logical `offset` on, which the last `read` gave."""
        self._offset = offset

    @property
    def unread_bytes(self) -> int:
        """As far as it was written until now; 0 where it may not be read."""
        return self._try(self._unread_bytes, 0)

    def skip_to_last(self, keep_bytes: int, unshown_bytes: int) -> int:
        """Leave out all but the last `keep_bytes`, and what is left of the line before them.

        How many bytes were left out, `unshown_bytes` among them, which have been read and not been shown; 0: none, and
        those are to be shown. Of a log that may not be read there is nothing to leave out.
        """
        return self._try(lambda: self._skip_to_last(keep_bytes, unshown_bytes), 0)

    def close(self) -> None:
        self.stored.close()

    def _try(self, look: Callable[[], T], otherwise: T) -> T:
        """Whoever looks at other logs too goes on, whatever happens to this one."""
        try:
            return look()
        except OSError as error:
            self.trouble = error.strerror or str(error)
            return otherwise

    def _read(self, limit_bytes: int) -> tuple[int, bytes]:
        offset = self._next_offset()
        chunk = self.stored.read(offset, limit_bytes)
        if self._note_renewal():
            offset = self._next_offset()
            chunk = self.stored.read(offset, limit_bytes)
        self._offset = self.stored.next_offset
        return offset, chunk

    def _unread_bytes(self) -> int:
        end = self.stored.end
        self._note_renewal()
        return end - self._next_offset()

    def _skip_to_last(self, keep_bytes: int, unshown_bytes: int) -> int:
        end = self.stored.end
        unshown_bytes = 0 if self._note_renewal() else unshown_bytes
        offset = self._next_offset()
        if end - offset <= keep_bytes:
            return 0
        self._offset = end - keep_bytes
        _, last = self._read(keep_bytes)
        whole_lines = last.partition(b"\n")[2]
        self._offset -= len(whole_lines)
        return self._offset - offset + unshown_bytes

    def _note_renewal(self) -> bool:
        """Whether the log began anew since this was asked last; then all that it holds is unread."""
        if self.stored.renewals == self._renewals:
            return False
        if self._offset is not None:
            self._offset = self.stored.start
        self._renewals = self.stored.renewals
        return True

    def _next_offset(self) -> int:
        return self.stored.told_from if self._offset is None else self._offset
