"""Fit the growth of figures with the number of servers."""

from __future__ import annotations

import math
from collections.abc import Sequence


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the straight line that comes closest, by least squares."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the power of x that comes closest; all must be positive.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return slope([math.log(x) for x in xs], [math.log(max(y, 1e-9)) for y in ys])
