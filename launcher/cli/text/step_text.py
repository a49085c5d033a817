"""The time of training steps as text, by what it went into."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from launcher.cli.text.columns import number
from launcher.core.metrics import StepMetrics

PARTS = ("compute", "communication", "bubble", "data")


def part_shares(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """Return which share of their time `steps` spent on each of `PARTS`, where that was measured."""
    shares = {}
    for part in PARTS:
        known = [(getattr(step, f"{part}_s"), step.step_s) for step in steps]
        pairs = [(spent, seconds) for spent, seconds in known if spent is not None and seconds is not None]
        whole = sum(seconds for _, seconds in pairs)
        share = sum(spent for spent, _ in pairs) / whole if whole else math.nan
        if math.isfinite(share):  # of any program: numbers may be too large to be added
            shares[part] = share
    return shares


def median_of(steps: Sequence[StepMetrics], field: str) -> float | None:
    """Return the median of a field over the steps that have it; None where none has."""
    known = [value for step in steps if (value := getattr(step, field)) is not None]
    return statistics.median(known) if known else None


def to_text(step_s: float | None, shares: Mapping[str, float]) -> str:
    """Return "0.774 s: compute 80%, communication 12%, bubble 7%, data 1%", without what took nothing; "-" where it is unknown."""
    parts = ", ".join(f"{part} {number(share, '.0%')}" for part, share in shares.items() if share)
    seconds = "-" if step_s is None else f"{number(step_s, '.3g')} s"
    return f"{seconds}: {parts}" if parts else seconds
