"""The lines of a log: cut from its bytes, which come in chunks in the order of their offsets.

A logical offset counts all bytes that were ever written to a log. Everything here is pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from launcher.core.frozen import frozen
from launcher.logs.terminal import printable

PIECE_BYTES = 1 << 16  # a longer line is given in pieces
STATE_BYTES = 4096
OVERWRITES = b"\r"  # a progress bar may be one line for hours
CHARACTER_BYTES = 4  # the most that UTF-8 needs for one


@frozen
class Begun:
    """What there is of a line that has not been ended."""

    line_offset: int  # logical, of the first byte of the line
    state: bytes  # of text that is overwritten (progress bars) the last part; at most `STATE_BYTES`


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
    overwritten: bool = (
        False  # a piece of which nothing is to be seen any more: what follows begins at the line's start
    )


class Splitter:
    """Cuts lines from chunks: a line is given when its newline, or a piece of it, has come.

    Where bytes are missing a line ends.
    """

    def __init__(self, global_rank: int) -> None:
        self._global_rank = global_rank
        self._offset = 0  # of `_begun`
        self._begun = bytearray()  # never more than `PIECE_BYTES` between two calls
        self._line_offset = 0  # of the line that `_begun` belongs to

    def put(self, offset: int, chunk: bytes) -> Iterator[Line]:
        """The lines that end in `chunk`. All of them must be taken before the next call."""
        if offset != self._offset + len(self._begun):
            yield from self.rest()
            self._offset = self._line_offset = offset
        *complete, begun = chunk.split(b"\n")
        for end in complete:
            yield from self._whole(end)
            self._line_offset = self._offset
        self._begun += begun
        yield from self._pieces()

    def rest(self) -> Iterator[Line]:
        """The start of a line whose end has not come; nothing if there is none."""
        if self._begun:
            yield self._taken(len(self._begun), ends=False)

    @property
    def begun(self) -> Begun | None:
        """None where the last line is ended."""
        return Begun(self._line_offset, last_state(self._begun)) if self._begun else None

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
            size_bytes = piece_end(self._begun, PIECE_BYTES)
            yield self._taken(
                size_bytes, ends=False, overwritten=self._begun[size_bytes - 1 : size_bytes] == OVERWRITES
            )

    def _taken(self, size_bytes: int, *, ends: bool, overwritten: bool = False) -> Line:
        raw = bytes(self._begun[:size_bytes])
        line = Line(self._global_rank, self._offset, raw, ends=ends, overwritten=overwritten)
        del self._begun[:size_bytes]  # costs what is moved, which is little: a bytearray drops its front in place
        self._offset += size_bytes + ends
        return line


def last_state(begun: bytes | bytearray) -> bytes:
    r"""The last part of text that is overwritten by carriage returns, its beginning if that is long.

    >>> last_state(b"10%\r20%\r")
    b'20%'
    """
    end = len(begun.rstrip(OVERWRITES))
    start = begun.rfind(OVERWRITES, 0, end) + 1
    return bytes(begun[start : min(end, start + STATE_BYTES)])


def piece_end(begun: bytes | bytearray, limit: int) -> int:
    """Where to end a piece of at most `limit` bytes of a longer line that goes on: between two states of what is overwritten.

    A piece that ends with a carriage return is overwritten by what follows, and nothing of it is to be seen. That needs
    something that follows: neither a newline, which may come after the last byte, nor another carriage return.
    """
    at = begun.rfind(OVERWRITES, 0, limit)
    while at >= 0 and not begun[at + 1 : at + 2].strip(OVERWRITES):
        at = begun.rfind(OVERWRITES, 0, at)
    return at + 1 or character_start(begun, limit)


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
        yield Line(
            line.global_rank, line.offset, line.raw, line.time_ns, attempt, line.dated, line.ends, line.overwritten
        )


def attempt_at(offset: int, starts: Sequence[tuple[int, int]]) -> tuple[int, float, int | None]:
    """The attempt to which `offset` belongs, and of which offsets that holds: from the first to before the second."""
    at = bisect_right(starts, offset, key=lambda start: start[0])
    first, attempt = starts[at - 1] if at else (0, None)
    return first, starts[at][0] if at < len(starts) else math.inf, attempt


def shown(line: Line) -> str:
    """Its text, safe for a terminal; of text that is overwritten (progress bars) the last part."""
    return printable(line.raw.decode("utf-8", errors="replace"))
