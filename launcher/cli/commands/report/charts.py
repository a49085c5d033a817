"""The charts of a report as plain data: curves over the training steps, and a timeline of the ranks."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise

from launcher.cli.commands.report.facts import Measured, Point, RunFacts, points, unit_of
from launcher.cli.text.columns import UNITS, counted, duration
from launcher.cli.text.run_text import continued_from
from launcher.cli.text.verdict_text import describe_status, rank_list
from launcher.core.frozen import frozen
from launcher.logs.terminal import one_line, printable, without_colours
from launcher.runs.metrics_reader import mean_of
from launcher.runs.timeline import AttemptSpan, Mark, RankSpan

MAX_LABEL = 60  # characters
SPIKE = 0.2  # outliers flatten a linear axis if most values take a smaller share of it
# Field, title, and whether the axis begins at zero.
QUANTITIES = (
    ("loss", "loss", False),
    ("bleu", "BLEU", False),
    ("learning_rate", "learning rate", True),
    ("gradient_norm", "gradient norm", False),
    ("tokens_per_s", "tokens/s", True),
    ("utilisation", "utilisation", True),
    ("memory_bytes", "memory of one rank", True),
)


@frozen
class Series:
    label: str
    points: tuple[Point, ...]
    style: int = 0  # index of colour and dashes
    rings: bool = False  # a ring at each point, for sparse values

    @property
    def values(self) -> list[float]:
        return [y for _, y in self.points if y is not None]


@frozen
class Chart:
    """A chart with one curve per series over the training steps. Some series may have no values."""

    title: str  # with its unit: "memory (GiB)"
    series: tuple[Series, ...]
    divisor: float = 1.0  # from values to numbers on the axis: 2**30 for GiB
    from_zero: bool = False
    is_log: bool = False
    restarts: tuple[tuple[float, str], ...] = ()  # first step of an attempt or resumed run, and a text about it
    note: str = ""  # number of points that cannot be shown, and how often the gradient was clipped
    unit: str = "step"  # of the x axis; "sample" if programs printed numbers of samples


def charts_of(runs: Sequence[Measured]) -> Iterator[Chart]:
    """Yield a chart for each quantity that has a finite value in any run."""
    alone = len(runs) == 1
    restarts = []
    for facts in runs:
        whose = "" if alone else f"{facts.name}: "
        if facts.continued:
            restarts.append((facts.continued.step, f"{whose}continues {continued_from(facts.continued)}"))
        attempts = [list(steps) for _, steps in groupby(facts.metrics.steps, lambda each: each.attempt)]
        for before, after in pairwise(attempts):
            last, first, unit = before[-1].step, after[0].step, facts.unit
            restarts.append(
                (first, f"{whose}attempt {after[0].attempt} starts at {unit} {first:,}, after {unit} {last:,}")
            )
    for field, title, from_zero in QUANTITIES:
        series = []
        for number, facts in enumerate(runs):
            label = facts.name if not alone else "training" if field == "loss" else title
            is_bleu = field == "bleu"  # measured by validations
            records = facts.course.validations if is_bleu else facts.course.steps
            series.append(Series(short(label), points(records, field), number, rings=is_bleu))
            if field == "loss" and facts.course.validations:
                label = "validation" if alone else f"{facts.name}, validation"
                validations = points(facts.course.validations, "validation_loss")
                series.append(Series(short(label), validations, 1 if alone else number, rings=True))
        values = [value for each in series for value in each.values]
        if not values:
            continue
        divisor, unit = 1.0, ""
        if field == "memory_bytes":
            power = max((power for power in range(len(UNITS)) if max(values) >= 1024**power), default=0)
            divisor, unit = 1024.0**power, f" ({UNITS[power]})"
        is_log = field in {"loss", "gradient_norm"} and _is_flattened(values)
        title_and_scale = f"{title}{unit}{', log scale' if is_log else ''}"
        gaps = [(each.label, len(each.points) - len(each.values)) for each in series if each.values]
        texts = [
            f"{counted(count, 'point')}{f' of {label}' if len(series) > 1 else ''}" for label, count in gaps if count
        ]
        note = f"{' and '.join(texts)} without a finite value: the line has a gap there." if texts else ""
        if field == "gradient_norm" and alone and (share := mean_of(runs[0].course.steps, "clipped_share")) is not None:
            note = f"The gradient was clipped in {share:.0%} of steps. {note}".strip()
        yield Chart(title_and_scale, tuple(series), divisor, from_zero, is_log, tuple(restarts), note, unit_of(runs))


def axis_number(value: float) -> str:
    """Format a number for an axis: "0.15", "20,000", "2.5M", "2e-05"."""
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if unit <= abs(value) < 1e15:
            return f"{value / unit:.6g}{suffix}"
    return f"{value:,.6g}"


def safe(text: str) -> str:
    """Return the text without colours and control sequences, and with lone surrogates escaped."""
    text = "\n".join(without_colours(printable(line)) for line in text.split("\n"))
    return text.encode(errors="backslashreplace").decode()


def short(text: str) -> str:
    """Shorten a text to a label on one line, without control characters."""
    text = safe(one_line(text))
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _is_flattened(values: Sequence[float]) -> bool:
    """Return True if outliers would flatten the other values on a linear axis."""
    ordered = sorted(values)
    if len(ordered) < 3 or ordered[0] < 1e-300:
        return False
    cut = max(1, len(ordered) // 50)
    is_flat = ordered[-1 - cut] - ordered[cut] < SPIKE * (ordered[-1] - ordered[0])
    return is_flat and ordered[-1] > 2 * ordered[0]


MAX_ROWS = 64  # of single ranks
GROUPS = 32  # number of groups that all ranks are divided into, if there are more than MAX_ROWS
DEVIATION = 0.05  # share of the run's time: a rank that differs more from the median has a separate row
KINDS = {
    "imports": "imports",
    "starting": "until the first step",
    "well": "succeeded",
    "running": "still running",
    "culprit": "failed first",
    "consequence": "failed as a consequence",
    "hung": "no progress",
    "ended": "was stopped",
}


@frozen
class Bar:
    """A bar in a row of the rank timeline. Times are in seconds after the run's start."""

    start_s: float
    end_s: float
    kind: str  # a key of KINDS
    text: str


@frozen
class Row:
    """A row of the rank timeline, for one rank or several similar ranks."""

    label: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...] = ()


@frozen
class RankChart:
    """The timeline of a run: a row for each rank or group, and the events that concern all ranks."""

    rows: tuple[Row, ...]
    marks: tuple[Mark, ...]
    started_ns: int
    seconds: float  # from the start of the run to its end, or to now

    def second(self, time_ns: int) -> float:
        """Return a time in seconds after the run's start."""
        return max(0.0, (time_ns - self.started_ns) / 1e9)


def rank_chart(facts: RunFacts) -> RankChart:
    """Return the timeline of all ranks. The bars of running ranks end at the current time."""
    times = facts.times
    until_ns = facts.ended_ns or times.ended_ns or facts.state.looked_ns
    of_rank: dict[int, list[tuple[AttemptSpan, RankSpan]]] = {}
    for attempt in times.attempts:
        for span in attempt.ranks:
            of_rank.setdefault(span.global_rank, []).append((attempt, span))
    marks: dict[int | None, list[Mark]] = {}
    for mark in times.marks:
        marks.setdefault(mark.global_rank, []).append(mark)
    chart = RankChart((), tuple(marks.get(None, ())), times.started_ns, max(0.0, (until_ns - times.started_ns) / 1e9))
    groups: Iterable[tuple[int, ...]] = ((rank,) for rank in of_rank)
    if len(of_rank) > MAX_ROWS:
        groups = _grouped(of_rank, {rank for rank in marks if rank is not None}, chart, until_ns)
    rows = []
    for group in sorted(groups):
        spans: dict[int, list[tuple[AttemptSpan, RankSpan]]] = {}
        for attempt, span in chain.from_iterable(of_rank[rank] for rank in group):
            spans.setdefault(attempt.number, []).append((attempt, span))
        bars = chain.from_iterable(_bars(found, chart, until_ns) for _, found in sorted(spans.items()))
        label = f"{rank_list(group)} ({len(group)})" if len(group) > 1 else rank_list(group)
        rows.append(Row(label, tuple(bars), tuple(mark for rank in group for mark in marks.get(rank, ()))))
    return replace(chart, rows=tuple(rows))


def _bars(found: list[tuple[AttemptSpan, RankSpan]], chart: RankChart, until_ns: int) -> Iterator[Bar]:
    """Yield the timeline bars for one attempt of a group of ranks, from the earliest start to the latest end."""
    attempt, spans = found[0][0], [span for _, span in found]
    started_ns = min(span.started_ns for span in spans)
    ended_ns = max(until_ns if span.ended_ns is None else span.ended_ns for span in spans)
    first_steps = [span.first_step_ns for span in spans if span.first_step_ns is not None]

    def bar(start_ns: int, end_ns: int, kind: str, outcome: str = "") -> Bar:
        start_s, end_s = chart.second(start_ns), chart.second(end_ns)
        text = f"attempt {attempt.number}: {KINDS[kind]}{outcome}, {duration(start_s)} to {duration(end_s)}"
        return Bar(start_s, end_s, kind, text)

    imported_ns = attempt.imports_ended_ns
    if imported_ns is not None and attempt.started_ns < imported_ns <= ended_ns:
        yield bar(min(attempt.started_ns, started_ns), imported_ns, "imports")
        started_ns = max(started_ns, imported_ns)
    if first_steps and started_ns < max(first_steps) <= ended_ns:
        yield bar(started_ns, max(first_steps), "starting")
        started_ns = max(first_steps)
    status = spans[0].status
    yield bar(started_ns, max(started_ns, ended_ns), spans[0].role, f" ({describe_status(status)})" if status else "")


def _grouped(
    of_rank: Mapping[int, list[tuple[AttemptSpan, RankSpan]]], marked: set[int], chart: RankChart, until_ns: int
) -> Iterator[tuple[int, ...]]:
    """Group ranks that have the same role in each attempt. A rank with a mark or with unusual times is not grouped."""
    alike: dict[tuple[tuple[int, str], ...], list[int]] = defaultdict(list)
    for rank, spans in sorted(of_rank.items()):
        alike[tuple((attempt.number, span.role) for attempt, span in spans)].append(rank)
    for ranks in alike.values():
        moments = {
            rank: [
                chart.second(moment)
                for _, span in of_rank[rank]
                for moment in (span.started_ns, span.first_step_ns or span.started_ns, span.ended_ns or until_ns)
            ]
            for rank in ranks
        }
        medians = [statistics.median(column) for column in zip(*moments.values(), strict=True)]
        limit_s = DEVIATION * chart.seconds
        alone = marked.intersection(ranks) | {
            rank
            for rank, own in moments.items()
            if any(abs(moment - median) > limit_s for moment, median in zip(own, medians, strict=True))
        }
        if len(alone) > MAX_ROWS:  # with this many, unusual times are normal for the run
            alone &= marked if len(marked) <= MAX_ROWS else set()
        yield from ((rank,) for rank in alone)
        rest = [rank for rank in ranks if rank not in alone]
        size = -(-len(of_rank) // GROUPS)
        yield from (tuple(rest[first : first + size]) for first in range(0, len(rest), size))
