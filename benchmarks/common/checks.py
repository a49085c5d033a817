"""Print measured figures, and check those that must hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Bound(NamedTuple):
    """What a figure may be at most, and what is aimed at."""

    must: float
    aim: float


class Checks:
    """Prints figures, and keeps in mind whether one that must hold did not."""

    def __init__(self) -> None:
        self.failed = False

    def tell(
        self, what: str, value: float, bound: Bound | None = None, *, least: float | None = None, form: str = ".4g"
    ) -> None:
        """Print a figure, which must not be above `bound`, nor below `least`."""
        verdict = ""
        if bound is not None:
            holds = value <= bound.must
            self.failed |= not holds
            verdict = f"  {'OK' if holds else 'NOT'}: must be <= {bound.must:g}, aim {bound.aim:g}"
        elif least is not None:
            holds = value >= least
            self.failed |= not holds
            verdict = f"  {'OK' if holds else 'NOT'}: must be >= {least:g}"
        print(f"  {what}: {value:{form}}{verdict}", flush=True)


def median_ratio(rows: Sequence[Mapping[str, float]], name: str, peer: str) -> float:
    """Of each round's ratio: what disturbs a round disturbs both."""
    return statistics.median(row[name] / row[peer] for row in rows)
