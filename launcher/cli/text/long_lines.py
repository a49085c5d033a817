"""Lines so long that they come in pieces: a person at a terminal sees the beginning, and that there is more."""

from __future__ import annotations

from launcher.logs.lines import OVERWRITES, Line
from launcher.logs.terminal import LONGEST_LINE

MARK = "… and more"
KEPT_CHARS = 900  # with a prefix and the mark still shorter than what is shown of any line


class Beginnings:
    """Of lines of several ranks, each rank's in their order."""

    def __init__(self) -> None:
        self._goes_on_at: dict[int, int] = {}  # by global rank: offset of the next piece of a line that was cut
        self._goes_on: set[int] = set()  # ranks whose last block ended within a line that was cut

    def of_line(self, line: Line) -> Line | None:
        """`line`, or if it is the first piece of a longer one, its beginning; None for a piece after that."""
        goes_on = self._goes_on_at.pop(line.global_rank, None) == line.offset
        if not _is_cut(line.raw, goes_on=goes_on, ends=line.ends):
            return line
        if not line.ends:
            self._goes_on_at[line.global_rank] = line.offset + len(line.raw)
        return None if goes_on else _with_raw(line, _cut(line.raw))

    def forget(self, global_rank: int) -> None:
        """The beginning of this rank's line has been overwritten."""
        self._goes_on.discard(global_rank)

    def of_block(self, global_rank: int, block: bytes) -> bytes:
        """As `of_line`, for whole lines, or one piece of a line. May be empty."""
        goes_on = global_rank in self._goes_on
        self._goes_on.discard(global_rank)
        if goes_on:
            rest, newline, following = block.partition(b"\n")
            if newline and _is_cut(rest, goes_on=True, ends=True):
                return following
        if block.endswith(b"\n") or not _is_cut(block, goes_on=goes_on, ends=False):
            return block
        self._goes_on.add(global_rank)
        return b"" if goes_on else _cut(block)


def _is_cut(raw: bytes, *, goes_on: bool, ends: bool) -> bool:
    """A line that ends in its first piece is left to whoever shows it."""
    return OVERWRITES not in raw and (goes_on or (not ends and len(raw) > LONGEST_LINE))


def _cut(raw: bytes) -> bytes:
    beginning = raw[: 4 * KEPT_CHARS].decode(errors="replace")[:KEPT_CHARS]
    return f"{beginning}{MARK}".encode()


def _with_raw(line: Line, raw: bytes) -> Line:
    return Line(line.global_rank, line.offset, raw, line.time_ns, line.attempt, line.dated, line.ends, line.overwritten)
