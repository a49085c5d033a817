"""The lines of a log: cut from its bytes, forwards from any offset or backwards from its end.

A logical offset counts all bytes that were ever written to a log. Everything here is pure: bytes come from a function
`read(offset, limit_bytes)` that gives b"" where there is nothing more, or from chunks in the order of their offsets.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from launcher.core.frozen import frozen
from launcher.logs.terminal import printable

PIECE_BYTES = 1 << 16  # a longer line is given in pieces
BLOCK_BYTES = 1 << 16  # that are read at once; going backwards ever more, as far as `LARGEST_BLOCK_BYTES`
LARGEST_BLOCK_BYTES = 1 << 20
CHARACTER_BYTES = 4  # the most that UTF-8 needs for one

Read = Callable[[int, int], bytes]


@frozen
class Line:
    """A line of one rank, or a piece of one that is very long."""

    global_rank: int
    offset: int  # logical, of its first byte
    raw: bytes  # without its newline; at most `PIECE_BYTES`
    time_ns: int | None = None  # since 1970; of the line before where it carries none itself; None before any did
    attempt: int | None = None  # None: nobody has said
    dated: bool = False  # its time stands in the line itself
    ends: bool = True  # a newline follows; not so after a piece, nor after an unfinished last line


def split(global_rank: int, chunks: Iterable[tuple[int, bytes]]) -> Iterator[Line]:
    """The lines of `chunks` (logical offset, bytes), an unfinished last one too. Where bytes are missing a line ends."""
    splitter = Splitter(global_rank)
    for offset, chunk in chunks:
        yield from splitter.put(offset, chunk)
    yield from splitter.rest()


class Splitter:
    """As `split`, for a log that still grows: a line is given when its newline, or a whole piece of it, has come."""

    def __init__(self, global_rank: int) -> None:
        self._global_rank = global_rank
        self._offset = 0  # of `_begun`
        self._begun = bytearray()  # never more than `PIECE_BYTES` between two calls

    def put(self, offset: int, chunk: bytes) -> Iterator[Line]:
        """The lines that end in `chunk`. All of them must be taken before the next call."""
        if offset != self._offset + len(self._begun):
            yield from self.rest()
            self._offset = offset
        *complete, begun = chunk.split(b"\n")
        for end in complete:
            yield from self._whole(end)
        self._begun += begun
        yield from self._pieces()

    def rest(self) -> Iterator[Line]:
        """The start of a line whose end has not come; nothing if there is none."""
        if self._begun:
            yield self._taken(len(self._begun), ends=False)

    def _whole(self, end: bytes) -> Iterator[Line]:
        if not self._begun and len(end) <= PIECE_BYTES:  # nearly every line
            yield Line(self._global_rank, self._offset, end)
            self._offset += len(end) + 1
            return
        self._begun += end
        yield from self._pieces()
        yield self._taken(len(self._begun), ends=True)

    def _pieces(self) -> Iterator[Line]:
        while len(self._begun) > PIECE_BYTES:
            yield self._taken(character_start(self._begun, PIECE_BYTES), ends=False)

    def _taken(self, size_bytes: int, *, ends: bool) -> Line:
        line = Line(self._global_rank, self._offset, bytes(self._begun[:size_bytes]), ends=ends)
        del self._begun[:size_bytes]  # costs what is moved, which is little: a bytearray drops its front in place
        self._offset += size_bytes + ends
        return line


def character_start(data: bytes | bytearray, limit: int) -> int:
    """The last place up to `limit` at which a character of UTF-8 begins; `limit` where this is no UTF-8."""
    starts = (at for at in range(limit, limit - CHARACTER_BYTES, -1) if data[at] & 0xC0 != 0x80)
    return next(starts, limit)


def with_attempts(lines: Iterable[Line], starts: Sequence[tuple[int, int]]) -> Iterator[Line]:
    """Lines of one rank with their attempt. `starts`: ascending offsets, each with the attempt that begins there.

    `starts` may grow meanwhile. What stands before the first of them has no attempt.
    """
    first, behind, known = 0, 0.0, -1
    attempt: int | None = None
    for line in lines:
        if not first <= line.offset < behind or known != len(starts):
            known = len(starts)
            first, behind, attempt = attempt_at(line.offset, starts)
        yield Line(line.global_rank, line.offset, line.raw, line.time_ns, attempt, line.dated, line.ends)


def attempt_at(offset: int, starts: Sequence[tuple[int, int]]) -> tuple[int, float, int | None]:
    """The attempt to which `offset` belongs, and of which offsets that holds: from the first to before the second."""
    at = bisect_right(starts, offset, key=lambda start: start[0])
    first, attempt = starts[at - 1] if at else (0, None)
    return first, starts[at][0] if at < len(starts) else math.inf, attempt


def chunks(read: Read, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """What `read` gives from logical offset `start` up to `end`, or as far as there is something."""
    while start < end and (chunk := read(start, min(BLOCK_BYTES, end - start))):
        yield start, chunk
        start += len(chunk)


def last_lines(global_rank: int, read: Read, end: int, start: int, count: int) -> Iterator[Line]:
    """The last `count` lines before logical offset `end`, none of them from before `start`. Reads as it is asked for.

    An unfinished last line counts. Memory is bounded however long the lines are.
    """
    begin = offset_of_last(read, end, start, count)
    return split(global_rank, chunks(read, begin, end))


def offset_of_last(read: Read, end: int, start: int, count: int) -> int:
    """Where the last `count` lines before `end` begin; `start` where there are fewer after it."""
    if count <= 0 or start >= end:
        return end
    wanted = count + 1  # newlines from the end on: the last line's own, then one before each line
    block_bytes = BLOCK_BYTES
    block_end = end
    while block_end > start:
        begin = max(start, block_end - block_bytes)
        block = b"".join(chunk for _, chunk in chunks(read, begin, block_end))
        if block_end == end and not block.endswith(b"\n"):
            wanted -= 1
        newlines = block.count(b"\n")
        if newlines >= wanted:
            return begin + _nth_last_newline(block, wanted) + 1
        wanted -= newlines
        block_end, block_bytes = begin, min(2 * block_bytes, LARGEST_BLOCK_BYTES)
    return start


def _nth_last_newline(block: bytes, number: int) -> int:
    at = len(block)
    for _ in range(number):
        at = block.rindex(b"\n", 0, at)
    return at


def shown(line: Line) -> str:
    """Its text, safe for a terminal; of text that is overwritten (progress bars) the last part."""
    return printable(line.raw.decode("utf-8", errors="replace"))
