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
from launcher.logs.index import (
    Index,
    describes,
    index_path,
    is_marked,
    parse,
    part_path,
    part_starts,
    rebuilt,
    renewed,
    settled,
)
from launcher.logs.parts import Part

CHUNK_BYTES = 1 << 16  # much larger ones are slower: memory of such a size is taken from the system anew every time
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # what has a log's name may be a pipe
_GONE = (FileNotFoundError, IsADirectoryError)
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
        self.trouble: str | None = None  # why bytes that are there could not be read, the last time that it was so
        self._path, self._index_path = path, index_path(path)
        self._live: int | None = None
        self._live_stat: os.stat_result | None = None  # of the last one that was open
        self._is_other = False  # than it was when something was told of it last
        self._index: Index | None = None  # None: not looked for yet
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
        return self._look_anew().start

    @property
    def told_from(self) -> int:
        """`start`, or where bytes before it began that are left out: whoever reads from there is told of them.

        Raises:
            OSError: the log exists, but may not be read.
        """
        extent = self._look_anew()
        return min(extent.start, *extent.index.parts[:1], *part_starts(self._path)) if extent.start else 0

    @property
    def end(self) -> int:
        """The logical offset behind the last byte that was written until now.

        Raises:
            OSError: the log exists, but may not be read.
        """
        return self._look_anew().end

    @property
    def renewals(self) -> int:
        """How often the log was found to have begun anew. Changes only in `read`, `start` and `end`."""
        return self._own_renewals + (self._extent.index.renewals if self._extent else 0)

    def read(self, offset: int, limit_bytes: int = CHUNK_BYTES) -> bytes:
        """Bytes from logical `offset` on, at most so many, perhaps fewer; none at the end.

        Go on at `next_offset`. It is `offset` plus their number, but for two cases: in place of bytes that are lost
        stands a line that says so (however small `limit_bytes` is), and where the last `read` ended there within a line,
        first a newline, behind which to go on at the same `offset`; and when the log is found to have begun anew, nothing is given, and `next_offset` is its start.

        Raises:
            OSError: the log exists, but may not be read.
        """
        known = None if self._extent is None else self.renewals
        piece = self._consistently(lambda index: self._piece(self._seen(index), offset, limit_bytes))
        if not piece.data:
            self._follow_name()
        if self._is_other or known not in {None, self.renewals}:
            piece = _Piece(b"", self._look().start)
        self._is_other = False
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
        self._close_live()
        self._close_index()
        self._close_part()

    # --- what there is ---

    def _look_anew(self) -> _Extent:
        self._follow_name()
        extent = self._look()
        self._is_other = False
        return extent

    def _look(self) -> _Extent:
        return self._consistently(self._seen)

    def _consistently(self, look: Callable[[Index], T]) -> T:
        """What `look` finds while nothing is being moved."""
        self._open()
        while True:
            try:
                found = self._unless_moved(self._load_index(), look)
            except OSError:
                self._close_live()  # its name may have another one soon
                raise
            if found is not None:
                return found[0]

    def _unless_moved(self, index: Index, look: Callable[[Index], T]) -> tuple[T] | None:
        """What `look` finds; None if something was moved meanwhile."""
        before, extent, own_renewals = self._marked(index), self._extent, self._own_renewals
        found = look(settled(index, marked=before))
        if self._index_is_current() and before == self._marked(index):
            return (found,)
        self._extent, self._own_renewals = extent, own_renewals
        return None

    def _marked(self, index: Index) -> bool:
        return self._live is not None and is_marked(index, self._live)

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
            return self._left_out(offset, extent.start)
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
            return self._unread(offset, end, name, error)
        try:
            data = part.read(offset)[:limit_bytes]
        except OSError as error:
            return self._unread(offset, part.readable_from(offset), name, error)
        except ValueError as error:
            return self._notice(offset, part.readable_from(offset), f"lost: {name}: {error}")
        return _Piece(data, offset + len(data))

    def _unread(self, offset: int, until: int, name: str, error: OSError) -> _Piece:
        """In place of what is gone, or is there and cannot be read now."""
        if isinstance(error, _GONE):
            return self._notice(offset, until, f"lost: {name}: {error.strerror}")
        self.trouble = f"{name}: {error.strerror}"
        return self._notice(offset, until, f"cannot be read: {name}: {error.strerror}")

    def _left_out(self, offset: int, start: int) -> _Piece:
        if any(offset <= part < start for part in part_starts(self._path)):
            why = f"left out: the log was emptied, or made again; zcat reads {self._path.name}.*.gz"
            return self._notice(offset, start, why)
        return self._notice(offset, start, "lost: no longer kept")

    def _notice(self, offset: int, until: int, why: str) -> _Piece:
        """The line that stands in place of bytes; before it what ends a line that was broken there."""
        if offset == self._line_broken_at:
            return _Piece(b"\n", offset)
        return _Piece(f"[{until - offset} bytes {why}]\n".encode(errors="replace"), until, until - offset)

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
                self._take(os.open(self._path, _OPEN))

    def _follow_name(self) -> None:
        """Go to the file that has the log's name now. If none has, stay."""
        with suppress(FileNotFoundError):
            last = self._live_stat
            if last and (self._live is None or not os.path.samestat(self._path.stat(), last)):
                self._take(os.open(self._path, _OPEN))

    def _take(self, live: int) -> None:
        """Read that file from now on, which may be the last one again."""
        self._close_live()
        last, self._live, self._live_stat = self._live_stat, live, os.fstat(live)
        if last is not None and not os.path.samestat(last, self._live_stat):
            self._verified = self._extent = None
            self._own_renewals += 1
            self._is_other = True

    def _close_live(self) -> None:
        if self._live is not None:
            os.close(self._live)
            self._live = None

    def _index_is_current(self) -> bool:
        try:
            inode = self._index_path.stat().st_ino
        except FileNotFoundError:  # removed with its log, which can be read as long as it is open
            return self._index_file is None or not self._path.exists()
        return self._index_file is not None and os.fstat(self._index_file).st_ino == inode

    def _load_index(self) -> Index:
        if self._index is None or not self._index_is_current():
            self._close_index()
            with suppress(FileNotFoundError):
                self._index_file = os.open(self._index_path, _OPEN)
            try:
                self._index = self._found_index()
                self._first_part = _removed_parts(self._path, self._index)
            except OSError:
                self._close_index()
                raise
        return self._index

    def _found_index(self) -> Index:
        if self._index_file is not None:
            with suppress(ValueError):
                return parse(os.pread(self._index_file, os.fstat(self._index_file).st_size, 0))
        return rebuilt(self._path, self._live)

    def _close_index(self) -> None:
        if self._index_file is not None:
            os.close(self._index_file)
        self._index_file = self._index = None


def _removed_parts(log: Path, index: Index) -> int:
    """How many of the oldest parts are no longer there."""
    return sum(1 for _ in takewhile(lambda start: not part_path(log, start).exists(), index.parts))
