"""A series of numbers as one line of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.:-=+*#"  # where stdout's encoding has no block elements
NOTHING = " "


def sparkline(values: Sequence[float | None], width: int, *, plain: bool = False) -> str:
    """Return a character per value, or per mean of several where there are more than `width`; a blank for no value.

    >>> sparkline([1, 2, None, 4, 8], 10)
    '▁▂ ▄█'
    """
    means = list(_means(values, width))
    present = [mean for mean in means if mean is not None]
    if not present:
        return NOTHING * len(means)
    low, high = min(present), max(present)
    levels = PLAIN if plain else BLOCKS
    return "".join(NOTHING if mean is None else levels[_level(mean, low, high, len(levels))] for mean in means)


def has_blocks(encoding: str | None) -> bool:
    """Return whether text of this encoding can hold block elements."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _means(values: Sequence[float | None], width: int) -> Iterator[float | None]:
    columns = min(width, len(values))
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        present = [value for value in part if value is not None and math.isfinite(value)]
        yield math.fsum(value / len(present) for value in present) if present else None


def _level(value: float, low: float, high: float, count: int) -> int:
    """Return one of `count` levels; the middle one where all values are alike."""
    span = high / 2 - low / 2  # halves: the difference of two floats may be none
    return count // 2 if span <= 0 else min(count - 1, int((value / 2 - low / 2) / span * count))
