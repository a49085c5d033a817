"""Split the bytes of a log into lines. Bytes arrive in chunks, ordered by offset. Reads no file."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from launcher.core.frozen import frozen
from launcher.logs.terminal import printable

PIECE_BYTES = 1 << 16  # longer lines are returned in pieces
MAX_STATE_BYTES = 4096
OVERWRITES = b"\r"  # a progress bar may stay one line for hours
MAX_CHARACTER_BYTES = 4  # of UTF-8


@frozen
class PartialLine:
    line_offset: int  # of the line's first byte
    state: bytes  # for overwritten text (progress bars) the last part; at most `MAX_STATE_BYTES`


@frozen
class Line:
    """A line of one rank, or a piece of a very long line."""

    global_rank: int
    offset: int  # of its first byte
    raw: bytes  # without the newline; at most `PIECE_BYTES`
    time_ns: int | None = None  # since 1970; the previous line's time if it has none itself; None if no line had one
    attempt: int | None = None  # None if unknown
    dated: bool = False  # the time is its own: written in the line, or its arrival
    ends: bool = True  # a newline follows; False for a piece and for an unfinished last line
    overwritten: bool = False  # an invisible piece: the next text starts at the beginning of the line


class LineReader:
    """Splits the chunks of one rank's log into lines, or into blocks of whole lines.

    A line is returned once its newline arrived; a line longer than `piece_bytes` is returned in pieces before that. A
    gap between two chunks ends a line.
    """

    def __init__(self, global_rank: int = 0, piece_bytes: int = PIECE_BYTES) -> None:
        self._global_rank, self._piece_bytes = global_rank, piece_bytes
        self._offset = 0  # of `_begun`
        self._begun = bytearray()  # the unfinished line; at most `piece_bytes` between two calls
        self._line_offset = 0  # of the line to which `_begun` belongs

    def blocks(self, offset: int, chunk: bytes) -> list[tuple[int, bytes]]:
        """Return blocks with their offsets: first all lines that end in `chunk`, then pieces of a very long line."""
        blocks: list[tuple[int, bytes]] = []
        if offset != self._offset + len(self._begun):
            if self._begun:
                blocks.append((self._offset, bytes(self._begun) + b"\n"))
            self._begun.clear()
            self._offset = self._line_offset = offset
        behind = chunk.rfind(b"\n") + 1
        if behind:
            block = b"".join((self._begun, memoryview(chunk)[:behind]))
            blocks.append((self._offset, block))
            self._offset = self._line_offset = self._offset + len(block)
            self._begun = bytearray(chunk[behind:])
        else:
            self._begun += chunk
        while len(self._begun) > self._piece_bytes:
            size_bytes = piece_end(self._begun, self._piece_bytes)
            blocks.append((self._offset, bytes(self._begun[:size_bytes])))
            del self._begun[:size_bytes]  # cheap: a bytearray drops its front in place
            self._offset += size_bytes
        return blocks

    def lines(self, offset: int, chunk: bytes) -> list[Line]:
        """Return the lines that end in `chunk`. A very long line is returned in pieces, even before its end."""
        lines: list[Line] = []
        for at, block in self.blocks(offset, chunk):
            if not block.endswith(b"\n"):
                lines.append(self._piece(at, block))
                continue
            for raw in block[:-1].split(b"\n"):
                while len(raw) > PIECE_BYTES:
                    size_bytes = piece_end(raw, PIECE_BYTES)
                    lines.append(self._piece(at, raw[:size_bytes]))
                    raw, at = raw[size_bytes:], at + size_bytes  # noqa: PLW2901 - the remaining bytes
                lines.append(Line(self._global_rank, at, raw))
                at += len(raw) + 1  # noqa: PLW2901 - as above
        return lines

    def rest(self) -> bytes:
        """Remove and return the unfinished line, without the pieces of it that were already returned."""
        rest = bytes(self._begun)
        self._begun.clear()
        self._offset += len(rest)
        return rest

    def last_line(self) -> list[Line]:
        """Remove and return the unfinished line. Return an empty list if there is none."""
        offset, rest = self._offset, self.rest()
        return [Line(self._global_rank, offset, rest, ends=False)] if rest else []

    @property
    def partial(self) -> PartialLine | None:
        return PartialLine(self._line_offset, last_state(self._begun)) if self._begun else None

    def _piece(self, offset: int, raw: bytes) -> Line:
        return Line(self._global_rank, offset, raw, ends=False, overwritten=raw.endswith(OVERWRITES))


def last_state(begun: bytes | bytearray) -> bytes:
    r"""Return what a terminal shows of a line with carriage returns, up to `MAX_STATE_BYTES`.

    >>> last_state(b"10%\r20%\r")
    b'20%'
    """
    end = len(begun.rstrip(OVERWRITES))
    start = begun.rfind(OVERWRITES, 0, end) + 1
    return bytes(begun[start : min(end, start + MAX_STATE_BYTES)])


def piece_end(begun: bytes | bytearray, limit: int) -> int:
    """Choose the size of the next piece of a long line: at most `limit`, and if possible up to a carriage return.

    A piece that ends with a carriage return is invisible, because the following text overwrites it. Therefore text must
    follow: not a newline, which may come after the last byte, and not another carriage return.
    """
    at = begun.rfind(OVERWRITES, 0, limit)
    while at >= 0 and not begun[at + 1 : at + 2].strip(OVERWRITES):
        at = begun.rfind(OVERWRITES, 0, at)
    if at >= 0:
        return at + 1
    # Otherwise at the start of a UTF-8 character, or at `limit` if this is not UTF-8.
    starts = (at for at in range(limit, limit - MAX_CHARACTER_BYTES, -1) if begun[at] & 0xC0 != 0x80)
    return next(starts, limit)


def with_attempts(lines: Iterable[Line], starts: Sequence[tuple[int, int]]) -> Iterator[Line]:
    """Yield each line with its attempt. `starts` has the start offset of each attempt, and may grow meanwhile."""
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
    """Return the start offset, the end offset and the number of the attempt that wrote the byte at `offset`."""
    at = bisect_right(starts, offset, key=lambda start: start[0])
    first, attempt = starts[at - 1] if at else (0, None)
    return first, starts[at][0] if at < len(starts) else math.inf, attempt


def shown(line: Line) -> str:
    """Return the text of a line, made safe for a terminal. For a progress bar, return only its last state."""
    return printable(line.raw.decode("utf-8", errors="replace"))


def without_mark(text: str, global_rank: int) -> str:
    """Return a line without torch's rank prefix, since the line is shown with its own prefix.

    >>> without_mark("[rank3]: ValueError: no", 3), without_mark("[rank3]:[W1127 12:00:00 ...", 3)
    ('ValueError: no', '[W1127 12:00:00 ...')
    """
    mark = f"[rank{global_rank}]:"
    return text[len(mark) :].removeprefix(" ") if text.startswith(mark) else text


def without_marks(block: bytes, global_rank: int) -> bytes:
    """Remove torch's rank prefix, such as `[rank0]:`, from the start of every line in `block`."""
    mark = f"[rank{global_rank}]:".encode()
    return re.sub(rb"(?m)^" + re.escape(mark) + b" ?", b"", block) if mark in block else block
