"""Ranks over time as rows of a chart: one per rank, or one per many ranks that did alike."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from launcher.cli.commands.report.facts import RunFacts
from launcher.cli.text.columns import duration
from launcher.cli.text.verdict_text import describe_status, rank_list
from launcher.core.frozen import frozen
from launcher.runs.timeline import AttemptSpan, Mark, RankSpan

MAX_ROWS = 64  # with a rank each
GROUPS = 32  # rows of ranks that did alike, with as many ranks each
DEVIATION = 0.05  # of the run's time: a rank that reached something so much earlier or later has a row to itself
KINDS = {
    "imports": "imports",
    "starting": "until the first step",
    "well": "ended well",
    "running": "still runs",
    "culprit": "failed of its own",
    "consequence": "failed because another had",
    "hung": "no progress",
    "ended": "was ended",
}


@frozen
class Bar:
    """A span of time of the ranks of a row, in seconds after the run's start."""

    start_s: float
    end_s: float
    kind: str  # a key of KINDS
    text: str


@frozen
class Row:
    """One rank, or several that did alike."""

    label: str
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...] = ()


@frozen
class RankChart:
    """The rows of a run, and the marks that concern all ranks."""

    rows: tuple[Row, ...]
    marks: tuple[Mark, ...]
    started_ns: int
    seconds: float  # from the start of the run to its end, or to now

    def second(self, time_ns: int) -> float:
        """Return a moment in seconds after the run's start."""
        return max(0.0, (time_ns - self.started_ns) / 1e9)


def rank_chart(facts: RunFacts) -> RankChart:
    """Return the rows of all ranks, ascending; what has no end yet is drawn up to now."""
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
    """Yield one attempt of ranks that did alike: from the first that began something to the last that ended it."""
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
    """Yield ranks with the same roles in every attempt together, and those with a mark or unusual times alone."""
    alike: dict[tuple[tuple[int, str], ...], list[int]] = {}
    for rank, spans in sorted(of_rank.items()):
        alike.setdefault(tuple((attempt.number, span.role) for attempt, span in spans), []).append(rank)
    for ranks in alike.values():
        moments = {
            rank: [
                chart.second(moment)
                for _, span in of_rank[rank]
                for moment in (span.started_ns, span.first_step_ns or span.started_ns, span.ended_ns or until_ns)
            ]
            for rank in ranks
        }
        alone = _unusual(moments, DEVIATION * chart.seconds) | marked.intersection(ranks)
        if len(alone) > MAX_ROWS:  # most ranks are unusual: that is how this run is
            alone &= marked if len(marked) <= MAX_ROWS else set()
        yield from ((rank,) for rank in alone)
        rest = [rank for rank in ranks if rank not in alone]
        size = -(-len(of_rank) // GROUPS)
        yield from (tuple(rest[first : first + size]) for first in range(0, len(rest), size))


def _unusual(moments: Mapping[int, Sequence[float]], tolerance_s: float) -> set[int]:
    """Return the ranks that reached some moment far from the median of all."""
    medians = [statistics.median(column) for column in zip(*moments.values(), strict=True)]
    return {
        rank
        for rank, own in moments.items()
        if any(abs(moment - median) > tolerance_s for moment, median in zip(own, medians, strict=True))
    }
