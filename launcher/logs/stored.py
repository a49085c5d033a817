"""Read a log as one sequence of bytes, wherever they are: in the live file, or moved into compressed parts beside it.

Readers take no lock, so that none, stopped or slow, can keep anybody waiting. The rotator (launcher/logs/rotation.py)
replaces the index before it takes anything away and again afterwards; a reader looks whether the index is still the one
that it went by, and reads again if it is not.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from launcher.core.frozen import frozen
from launcher.logs.index import PLAIN, Index, describes, index_path, is_marked, parse, part_path, renewed, settled
from launcher.logs.parts import Part

CHUNK_BYTES = 1 << 16  # much larger ones are slower: memory of such a size is taken from the system anew every time
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # what has a log's name may be a pipe
T = TypeVar("T")


@frozen
class _Extent:
    """What can be read at one moment."""

    index: Index
    start: int
    end: int


@frozen
class _Piece:
    data: bytes
    next_offset: int  # that of the byte behind it
    lost_bytes: int = 0


class StoredLog:
    """One log, by logical offsets: how many bytes were ever written to it before. Close it at the end.

    A log that does not exist yet is empty. One that somebody empties, or removes and makes again, begins anew: at 0, or
    if parts were made of it, where it was last known to end. Nothing here blocks for those who write.
    """

    def __init__(self, path: Path) -> None:
        self.next_offset = 0  # where to go on after the last `read`
        self.lost_bytes = 0  # in whose place the last `read` gave a line
        self._path, self._index_path = path, index_path(path)
        self._live: int | None = None
        self._index = PLAIN
        # Open as long as it is the one gone by: so no later one can get its inode.
        self._index_file: int | None = None
        self._first_part = 0  # parts before it have been removed
        self._part: Part | None = None
        self._verified: tuple[Index, int] | None = None  # this index describes the live file of that size
        self._extent: _Extent | None = None  # as last seen
        self._own_renewals = 0
        self._line_broken_at: int | None = None  # the last byte that was read ended no line; the offset behind it

    @property
    def start(self) -> int:
        """The first logical offset that can be read.

        Raises:
            OSError: the log exists, but may not be read.
        """
        self._follow_name()
        return self._look().start

    @property
    def end(self) -> int:
        """The logical offset behind the last byte that was written until now.

        Raises:
            OSError: the log exists, but may not be read.
        """
        self._follow_name()
        return self._look().end

    @property
    def renewals(self) -> int:
        """How often the log was found to have begun anew. Changes only in `read`, `start` and `end`."""
        return self._own_renewals + (self._extent.index.renewals if self._extent else 0)

    def read(self, offset: int, limit_bytes: int = CHUNK_BYTES) -> bytes:
        """Bytes from logical `offset` on, at most so many, perhaps fewer; none at the end.

        Go on at `next_offset`. It is `offset` plus their number, but for two cases: in place of bytes that are lost
        stands a line that says so (however small `limit_bytes` is), after a newline where the last `read` ended there
        within a line; and when the log is found to have begun anew, nothing is given, and `next_offset` is its start.

        Raises:
            OSError: the log exists, but may not be read.
        """
        known = None if self._extent is None else self.renewals
        piece = self._consistently(lambda index: self._piece(self._seen(index), offset, limit_bytes))
        if not piece.data and self._follow_name():
            known = -1
        if known not in {None, self.renewals}:
            piece = _Piece(b"", self._look().start)
        self.next_offset, self.lost_bytes = piece.next_offset, piece.lost_bytes
        if piece.data:
            self._line_broken_at = None if piece.data.endswith(b"\n") else piece.next_offset
        return piece.data

    def chunks(self, offset: int, end: float = math.inf) -> Iterator[tuple[int, bytes]]:
        """All that stands from logical `offset` on, or up to `end`, with the logical offset of each chunk.

        Raises:
            OSError: the log exists, but may not be read.
        """
        while offset < end and (chunk := self.read(offset, int(min(CHUNK_BYTES, end - offset)))):
            yield offset, chunk
            offset = self.next_offset

    def close(self) -> None:
        """May be called twice."""
        for descriptor in (self._live, self._index_file):
            if descriptor is not None:
                os.close(descriptor)
        self._live = self._index_file = None
        self._close_part()

    # --- what there is ---

    def _look(self) -> _Extent:
        return self._consistently(self._seen)

    def _consistently(self, look: Callable[[Index], T]) -> T:
        """What `look` finds while nothing is being moved."""
        self._open()
        while True:
            self._load_index()
            before, extent, own_renewals = self._marked(), self._extent, self._own_renewals
            found = look(settled(self._index, marked=before))
            if self._index_is_current() and before == self._marked():
                return found
            self._extent, self._own_renewals = extent, own_renewals

    def _marked(self) -> bool:
        return self._live is not None and is_marked(self._index, self._live)

    def _seen(self, index: Index) -> _Extent:
        index, end = self._described(index)
        start = (index.parts[self._first_part :] or (index.freed,))[0]
        last, self._extent = self._extent, _Extent(index, start, end)
        if last is not None and end < last.end and index.renewals == last.index.renewals:
            self._own_renewals += 1
        return self._extent

    def _described(self, index: Index) -> tuple[Index, int]:
        """An index that holds for the live file, and the logical end."""
        if self._live is None:
            return index, index.freed
        size_bytes = os.fstat(self._live).st_size
        known = self._verified is not None and self._verified[0] is index and size_bytes == self._verified[1]
        if known or describes(index, self._live, size_bytes):
            self._verified = (index, size_bytes)
        else:
            index = renewed(index)
        return index, index.base + size_bytes

    # --- bytes ---

    def _piece(self, extent: _Extent, offset: int, limit_bytes: int) -> _Piece:
        index = extent.index
        if offset >= extent.end:
            return _Piece(b"", offset)
        if offset < extent.start:
            return self._lost(offset, extent.start, "no longer kept")
        if offset < index.freed:
            return self._part_piece(index, offset, limit_bytes)
        assert self._live is not None
        data = os.pread(self._live, limit_bytes, offset - index.base)
        return _Piece(data, offset + len(data))

    def _part_piece(self, index: Index, offset: int, limit_bytes: int) -> _Piece:
        number = bisect_right(index.parts, offset)
        start, end = index.parts[number - 1], (*index.parts[number : number + 1], index.freed)[0]
        name = part_path(self._path, start).name
        try:
            part = self._open_part(start, end)
        except OSError as error:
            return self._lost(offset, end, f"{name}: {error.strerror}")
        try:
            data = part.read(offset)[:limit_bytes]
        except OSError as error:
            return self._lost(offset, part.readable_from(offset), f"{name}: {error.strerror}")
        except ValueError as error:
            return self._lost(offset, part.readable_from(offset), f"{name}: {error}")
        return _Piece(data, offset + len(data))

    def _lost(self, offset: int, until: int, reason: str) -> _Piece:
        """The line that stands in place of bytes."""
        newline = "\n" if offset == self._line_broken_at else ""
        notice = f"{newline}[{until - offset} bytes lost: {reason}]\n"
        return _Piece(notice.encode(errors="replace"), until, until - offset)

    def _open_part(self, start: int, end: int) -> Part:
        if self._part is None or (self._part.start, self._part.end) != (start, end):
            self._close_part()
            self._part = Part(part_path(self._path, start), start, end)
        return self._part

    def _close_part(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    # --- files ---

    def _open(self) -> None:
        if self._live is None:
            with suppress(FileNotFoundError):
                self._live = os.open(self._path, _OPEN)

    def _follow_name(self) -> bool:
        """Go to the file that has the log's name now; whether it is another one. If none has, stay."""
        if self._live is None:
            return False
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._live)):
                return False
            made_again = os.open(self._path, _OPEN)
        except FileNotFoundError:
            return False
        os.close(self._live)
        self._live, self._verified, self._extent = made_again, None, None
        self._own_renewals += 1
        return True

    def _index_is_current(self) -> bool:
        try:
            inode = self._index_path.stat().st_ino
        except FileNotFoundError:  # removed with its log, which can be read as long as it is open
            return self._index_file is None or not self._path.exists()
        return self._index_file is not None and os.fstat(self._index_file).st_ino == inode

    def _load_index(self) -> None:
        if self._index_is_current():
            return
        if self._index_file is not None:
            os.close(self._index_file)
        self._index_file, self._index, self._first_part = None, PLAIN, 0
        with suppress(FileNotFoundError):
            self._index_file = os.open(self._index_path, _OPEN)
            self._index = _parsed(self._index_file)
            self._first_part = self._removed_parts()

    def _removed_parts(self) -> int:
        """How many of the oldest parts are no longer there."""
        paths = (part_path(self._path, start) for start in self._index.parts)
        return sum(1 for _ in takewhile(lambda path: not path.exists(), paths))


def _parsed(index_file: int) -> Index:
    """What an index says; one that makes no sense says nothing."""
    with suppress(ValueError):
        return parse(os.pread(index_file, os.fstat(index_file).st_size, 0))
    return PLAIN
