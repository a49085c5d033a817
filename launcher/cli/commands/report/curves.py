"""Charts as compact JSON for the live page, of limited size for any number of points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from launcher.cli.commands.report.charts import Chart, Series, axis_number
from launcher.cli.commands.report.facts import Point
from launcher.logs.terminal import without_colours

SIDE = 1000  # of the square for paths; the page stretches it
MAX_BUCKETS = 300  # of points per line; more are too close to distinguish
ROOM = 0.04  # margin at both ends of the y axis, as a share of it
GRID_LINES = 3


def drawn(chart: Chart) -> dict[str, Any]:
    """Return a chart as JSON: SVG paths (`d`) in a square, axis labels, and restarts."""
    shown = [series for series in chart.series if series.values]
    steps = [x for series in shown for x, _ in series.points]
    values = list(chain.from_iterable(series.values for series in shown))
    low, high = min(values), max(values)
    low = min(0.0, low) if chart.from_zero else low
    first, last = min(steps), max(steps)
    to_x, to_y = _scale(first, last, 0.0), _scale(_place(low, chart), _place(high, chart), ROOM)

    def path(series: Series) -> str:
        pieces, is_down = [], False
        for x, y in thinned(series.points):
            if y is None:
                is_down = False
                continue
            at = f"{to_x(x):.0f} {SIDE - to_y(_place(y, chart)):.0f}"
            # A single point is drawn as a dot.
            pieces.append(f"L{at}" if is_down else f"M{at}h0")
            is_down = not series.rings
        return "".join(pieces)

    marks = [low, high] if low == high else [low + (high - low) * part / (GRID_LINES - 1) for part in range(GRID_LINES)]
    if chart.is_log:
        marks = [low, math.sqrt(low) * math.sqrt(high), high]
    lines = {f"{mark / chart.divisor:.3g}": SIDE - to_y(_place(mark, chart)) for mark in marks}
    return {
        "title": chart.title,
        "note": chart.note,
        "unit": chart.unit,
        "steps": [axis_number(first), axis_number(last)],
        "grid": [[axis_number(float(text)), round(y)] for text, y in lines.items()],
        "restarts": [[round(to_x(x)), without_colours(text)] for x, text in chart.restarts if first <= x <= last],
        "series": [
            {
                "label": series.label,
                "last": axis_number(float(f"{series.values[-1] / chart.divisor:.5g}")),
                "style": series.style % 6,
                "dots": series.rings,
                "d": path(series),
            }
            for series in shown
        ],
    }


def thinned(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the points of a line, thinned to the minimum, maximum and first gap of each bucket.

    >>> [y for _, y in thinned([(float(x), abs(x - 500.0)) for x in range(1000)])][248:252]
    [4.0, 1.0, 0.0, 3.0]
    """
    size = -(-len(points) // MAX_BUCKETS)
    for begin in range(0, len(points), size):
        part = points[begin : begin + size]
        known = [(y, place) for place, (_, y) in enumerate(part) if y is not None]
        if not known:
            yield part[0]
            continue
        kept = {min(known)[1], max(known)[1]}
        if begin + size >= len(points):
            kept.add(known[-1][1])
        kept.update([place for place, (_, y) in enumerate(part) if y is None][:1])
        yield from (part[place] for place in sorted(kept))


def _place(value: float, chart: Chart) -> float:
    """Return a value's position on its axis, before scaling."""
    return math.log(value) if chart.is_log else value


def _scale(low: float, high: float, room: float) -> Any:
    """Return a function that maps an interval to the side of the square, with a margin at both ends."""
    span = high / 2 - low / 2  # halves, because the difference of two floats may overflow
    return lambda value: SIDE * (room + (1 - 2 * room) * ((value / 2 - low / 2) / span if span > 0 else 0.5))
