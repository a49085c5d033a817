"""From numbers to places on a chart: axes with round ticks, and lines thinned to what an eye can tell apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from launcher.core.frozen import frozen

Point = tuple[float, float | None]  # x, and y where there is one
MAX_POINTS = 1000  # of one line
MIN_SPAN = 1e-9  # of an axis, as a part of its numbers: floats tell no more apart
NO_HALVES = 1 << 52  # from there on floats are whole numbers
SPIKE = 0.2  # a line whose bulk takes less than this part of a linear axis is flattened by its extremes
BULK = 0.02  # left out at either end, to find the bulk
MAX_LOG_TICKS = 7
SMALLEST = 1e-300  # below it powers of ten are no floats
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
TIME_STEPS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30,
    60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, DAY_S,
)  # fmt: skip


@frozen
class Axis:
    low: float
    high: float  # Invariant: above `low`
    ticks: tuple[tuple[float, str], ...]  # ascending, within low .. high
    is_log: bool = False  # then `low` is above 0

    def share(self, value: float) -> float:
        """Where `value` lies: 0 at the low end, 1 at the high one."""
        if self.is_log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def linear_axis(low: float, high: float, about: int, *, rounded: bool = True) -> Axis:
    """With about so many ticks, at round numbers; where it is `rounded`, it begins and ends at one."""
    low, high = _apart(low, high)
    step = round_step((high - low) / about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if rounded:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        low, high = min(low, first * step), max(high, last * step)  # which rounding may have moved by a hair
    return Axis(low, high, tuple((count * step, label(count * step, step)) for count in range(first, last + 1)))


def whole_axis(low: float, high: float, about: int) -> Axis:
    """For counts: ticks at whole numbers only, one at least, and the axis ends where the numbers do.

    Calculated in whole numbers: floats beyond 2**53 do not tell neighbours apart.
    """
    low, high = math.floor(low), math.ceil(high)
    largest = max(abs(low), abs(high))
    step = int(round_step(max(1.0, (high - low) / about, MIN_SPAN * largest)))
    values = range(-(-low // step) * step, high + 1, step) or (low,)
    margin = 0 if low < high else 0.5 if largest < NO_HALVES else 1
    return Axis(low - margin, high + margin, tuple((value, label(value, step)) for value in values))


def log_axis(low: float, high: float) -> Axis:
    """From and to 1, 2 or 5 times powers of ten, or fewer of them where these are too many. `low` is above 0."""
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = _log_ticks(low, high, factors)
        if len(ticks) <= MAX_LOG_TICKS:
            break
    shown = ticks[:: max(1, -(-len(ticks) // MAX_LOG_TICKS))]
    return Axis(ticks[0], ticks[-1], tuple((value, label(value, value)) for value in shown), is_log=True)


def _log_ticks(low: float, high: float, factors: tuple[int, ...]) -> list[float]:
    """At least two: none above `low`, none below `high`, and all between."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    first = max(index for index, value in enumerate(ticks) if value <= low * (1 + MIN_SPAN))
    last = min(index for index, value in enumerate(ticks) if value >= high * (1 - MIN_SPAN))
    return ticks[first : max(last, first + 1) + 1]


def time_axis(seconds: float, about: int) -> Axis:
    """From 0 s to `seconds`, ticks at what clocks show."""
    seconds = max(seconds, 0.001)
    wanted = seconds / about
    step = next((step for step in TIME_STEPS_S if step >= wanted), DAY_S * round_step(wanted / DAY_S))
    count = math.floor(seconds / step + 1e-9)
    return Axis(0.0, seconds, tuple((tick * step, time_label(tick * step, step)) for tick in range(count + 1)))


def flattened(values: Sequence[float]) -> bool:
    """Whether a few extremes would press all other values onto one edge of a linear axis, and a log axis would not."""
    ordered = sorted(values)
    if len(ordered) < 3 or ordered[0] < SMALLEST:
        return False
    cut = max(1, int(BULK * len(ordered)))
    bulk = ordered[-1 - cut] - ordered[cut]
    whole = ordered[-1] - ordered[0]
    return bulk < SPIKE * whole and ordered[-1] > 2 * ordered[0]


def round_step(at_least: float) -> float:
    """The next of 1, 2 or 5 times a power of ten, `SMALLEST` at least.

    >>> round_step(0.3), round_step(7)
    (0.5, 10.0)
    """
    at_least = max(at_least, SMALLEST)
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= at_least * (1 - 1e-9))


def label(value: float, step: float) -> str:
    """With as many digits as tell it from its neighbours, `step` away.

    >>> label(0.15, 0.05), label(20000, 5000), label(2.5e6, 5e5), label(2e-5, 1e-5)
    ('0.15', '20,000', '2.5M', '2e-5')
    """
    if abs(value) < max(step / 2, SMALLEST):
        return "0"
    size = abs(value)
    if size >= 1e15 or (step < 1e-4 and size < 1000 * step):
        digits = max(0, _power(size) - _power(step))
        mantissa, _, power = f"{value:.{digits}e}".partition("e")
        return f"{mantissa}e{int(power)}"
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= unit:
            return f"{value / unit:,.{_decimals(step / unit)}f}{suffix}"
    return f"{value:,.{_decimals(step)}f}"


def time_label(seconds: float, step_s: float) -> str:
    """As a person says how long after the start.

    >>> time_label(0.5, 0.1), time_label(90, 30), time_label(5400, 1800), time_label(7200, 3600)
    ('0.5 s', '1:30 min', '1:30 h', '2 h')
    """
    if seconds == 0:
        return "0"
    if seconds < MINUTE_S:
        return f"{seconds:.{_decimals(step_s)}f} s"
    for unit_s, unit, part_s in ((DAY_S, "d", HOUR_S), (HOUR_S, "h", MINUTE_S), (MINUTE_S, "min", 1)):
        if seconds >= unit_s:
            whole, rest = divmod(round(seconds), unit_s)
            if unit == "d":
                return f"{whole} d {rest // part_s} h" if rest else f"{whole} d"
            return f"{whole}:{rest // part_s:02} {unit}" if rest else f"{whole} {unit}"
    raise AssertionError(seconds)


def thinned(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """`points` themselves, or the lowest and the highest of each of as many parts as make `most`, in order, gaps kept."""
    if len(points) <= most:
        return list(points)
    of_each = 3 if any(y is None for _, y in points) else 2
    parts = max(1, most // of_each)
    return [
        point
        for part in range(parts)
        for point in _extremes(points[part * len(points) // parts : (part + 1) * len(points) // parts])
    ]


def _extremes(points: Sequence[Point]) -> Iterator[Point]:
    """The lowest, the highest, and the first gap between, before or after them."""
    values = {index: y for index, (_, y) in enumerate(points) if y is not None}
    kept = {min(values, key=values.__getitem__), max(values, key=values.__getitem__)} if values else set()
    if len(values) < len(points):
        kept.add(next(index for index, (_, y) in enumerate(points) if y is None))
    return (points[index] for index in sorted(kept))


def _apart(low: float, high: float) -> tuple[float, float]:
    """The same numbers, or some around them where they lie too close together."""
    largest = max(abs(low), abs(high))
    if high - low > max(MIN_SPAN * largest, SMALLEST):
        return low, high
    margin = 0.1 * largest if largest > SMALLEST / MIN_SPAN else 1.0
    return low - margin, high + margin


def _decimals(step: float) -> int:
    return max(0, -_power(step))


def _power(value: float) -> int:
    return math.floor(math.log10(value) + 1e-9)
