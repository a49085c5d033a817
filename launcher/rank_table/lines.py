"""Lines and columns of offsets into a long text, without a list of all lines."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

_BLOCK = 4096  # characters: what is looked through for one answer


class Lines:
    """Knows how many lines end before each block of `text`; memory is a thousandth of the text, whatever is in it."""

    def __init__(self, text: str) -> None:
        self._text = text
        counts = (text.count("\n", at, at + _BLOCK) for at in range(0, len(text), _BLOCK))
        self._ended = [0, *accumulate(counts)]  # lines that end before block i

    def position(self, offset: int) -> tuple[int, int]:
        """The line of the character at `offset`, from 1, and the offset at which that line starts."""
        block = min(offset, len(self._text)) // _BLOCK
        ended = self._ended[block] + self._text.count("\n", block * _BLOCK, offset)
        if ended == 0:
            return 1, 0
        at = self._block_of_end(ended) * _BLOCK
        return ended + 1, self._text.rindex("\n", at, min(at + _BLOCK, offset)) + 1

    def start(self, number: int) -> int:
        """The offset of the first character of line `number`, which the text has."""
        if number == 1:
            return 0
        block = self._block_of_end(number - 1)
        at = block * _BLOCK - 1
        for _ in range(number - 1 - self._ended[block]):
            at = self._text.index("\n", at + 1)
        return at + 1

    def _block_of_end(self, ended: int) -> int:
        """The block in which line `ended` ends."""
        return bisect_left(self._ended, ended) - 1
