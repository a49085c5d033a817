"""The line charts of a report, as plain data: loss, learning rate, tokens/s and memory over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from launcher.cli.commands.report.facts import Point, RunFacts, lines
from launcher.cli.text.columns import UNITS, counted
from launcher.core.frozen import frozen
from launcher.logs.terminal import one_line, printable, without_colours

MAX_LABEL = 60  # characters
SPIKE = 0.2  # an axis on which the bulk of the values takes a smaller part is flattened by extremes
# Field, title, and whether the axis begins at zero.
QUANTITIES = (
    ("loss", "loss", False),
    ("learning_rate", "learning rate", True),
    ("tokens_per_s", "tokens/s", True),
    ("memory_bytes", "memory of one rank", True),
)


@frozen
class Series:
    """One quantity of one run."""

    label: str
    lines: tuple[tuple[Point, ...], ...]  # one per attempt
    style: int = 0  # which colour and dashes
    rings: bool = False  # a ring at each point, for values that come rarely

    @property
    def values(self) -> list[float]:
        """The finite values of all attempts."""
        return [y for line in self.lines for _, y in line if y is not None]


@frozen
class Chart:
    """Lines over the steps; some of its series may have no values."""

    title: str  # with its unit: "memory (GiB)"
    series: tuple[Series, ...]
    divisor: float = 1.0  # from values to numbers on the axis: 2**30 for GiB
    from_zero: bool = False
    is_log: bool = False
    restarts: tuple[tuple[float, str], ...] = ()  # after which step an attempt ended, and which one began then
    note: str = ""  # how many points cannot be shown


def charts_of(runs: Sequence[RunFacts]) -> Iterator[Chart]:
    """Yield a chart for each quantity of which any run has a finite value."""
    alone = len(runs) == 1
    restarts = [(step, text if alone else f"{facts.name}: {text}") for facts in runs for step, text in _restarts(facts)]
    for field, title, from_zero in QUANTITIES:
        series = []
        for number, facts in enumerate(runs):
            label = facts.name if not alone else "training" if field == "loss" else title
            series.append(Series(short(label), tuple(lines(facts.metrics.steps, field)), number))
            if field == "loss" and facts.metrics.validations:
                label = "validation" if alone else f"{facts.name}, validation"
                validations = tuple(lines(facts.metrics.validations, "validation_loss"))
                series.append(Series(short(label), validations, 1 if alone else number, rings=True))
        values = [value for each in series for value in each.values]
        if not values:
            continue
        divisor, unit = 1.0, ""
        if field == "memory_bytes":
            power = max((power for power in range(len(UNITS)) if max(values) >= 1024**power), default=0)
            divisor, unit = 1024.0**power, f" ({UNITS[power]})"
        is_log = field == "loss" and _is_flattened(values)
        title_and_scale = f"{title}{unit}{', log scale' if is_log else ''}"
        yield Chart(title_and_scale, tuple(series), divisor, from_zero, is_log, tuple(restarts), _gaps(series))


def safe(text: str) -> str:
    """Return a text line by line without colours, control sequences and halves of surrogate pairs."""
    text = "\n".join(without_colours(printable(line)) for line in text.split("\n"))
    return text.encode(errors="backslashreplace").decode()


def short(text: str) -> str:
    """Return a text as a label: on one line, safe to show, and not long."""
    text = safe(one_line(text))
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _restarts(facts: RunFacts) -> Iterator[tuple[float, str]]:
    attempts = [list(steps) for _, steps in groupby(facts.metrics.steps, lambda each: each.attempt)]
    for before, after in pairwise(attempts):
        last, first = before[-1].step, after[0].step
        yield last, f"attempt {after[0].attempt} begins at step {first:,}, after step {last:,}"


def _is_flattened(values: Sequence[float]) -> bool:
    """Return whether a few extremes press all other values onto an edge of a linear axis, and a log axis would not."""
    ordered = sorted(values)
    if len(ordered) < 3 or ordered[0] < 1e-300:
        return False
    cut = max(1, len(ordered) // 50)
    is_flat = ordered[-1 - cut] - ordered[cut] < SPIKE * (ordered[-1] - ordered[0])
    return is_flat and ordered[-1] > 2 * ordered[0]


def _gaps(series: Sequence[Series]) -> str:
    counts = [(each.label, sum(map(len, each.lines)) - len(each.values)) for each in series if each.values]
    texts = [counted(count, "point") + (f" of {label}" if len(series) > 1 else "") for label, count in counts if count]
    return f"{' and '.join(texts)} without a finite value: the line stops there." if texts else ""
