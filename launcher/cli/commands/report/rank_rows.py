"""What a run's ranks did over time, as rows of a picture: one per rank, or one per many ranks that did alike."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from launcher.cli.text.columns import duration
from launcher.cli.text.verdict_text import describe_status, rank_list
from launcher.core.frozen import frozen
from launcher.runs.timeline import AttemptSpan, Mark, RankSpan, Timeline

MAX_ROWS = 64  # with one rank each
GROUPS = 32  # rows of ranks that did alike, of as many ranks each
FEW = 8  # ranks that did alike, and no other did, have rows of their own
DEVIATES = 0.05  # of the run's whole time: a rank that reached something so much earlier or later has its own row
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
Times = tuple[float | None, ...]  # of one rank: when it reached what can be compared, seconds after the run's start


@frozen
class Bar:
    """Seconds after the run's start."""

    start_s: float
    end_s: float
    kind: str  # "imports", "starting", or a role
    text: str


@frozen
class RankMark:
    """Something at one moment."""

    at_s: float
    kind: str
    text: str
    count: int = 1  # of so many, one after the other, it is the first


@frozen
class Row:
    label: str
    bars: tuple[Bar, ...]
    marks: tuple[RankMark, ...] = ()


def rows_of(timeline: Timeline, until_ns: int) -> list[Row]:
    """Ascending by rank. What goes on is drawn up to `until_ns`."""
    global_ranks = sorted({span.global_rank for attempt in timeline.attempts for span in attempt.ranks})
    groups = [(rank,) for rank in global_ranks] if len(global_ranks) <= MAX_ROWS else _groups(timeline, until_ns)
    spans = [{span.global_rank: span for span in attempt.ranks} for attempt in timeline.attempts]
    marks: dict[int, list[RankMark]] = {}
    for mark in timeline.marks:
        if mark.global_rank is not None:
            marks.setdefault(mark.global_rank, []).append(_mark(mark, timeline))
    return [_row(group, timeline, spans, marks, until_ns) for group in groups]


def run_marks(timeline: Timeline) -> list[RankMark]:
    """What concerns all ranks."""
    return [_mark(mark, timeline) for mark in timeline.marks if mark.global_rank is None]


def _mark(mark: Mark, timeline: Timeline) -> RankMark:
    at_s = _seconds(mark.time_ns, timeline)
    return RankMark(at_s, mark.kind, f"{duration(at_s)}: {mark.text or mark.kind}", mark.count)


def _row(
    group: tuple[int, ...],
    timeline: Timeline,
    spans: list[dict[int, RankSpan]],
    marks: dict[int, list[RankMark]],
    until_ns: int,
) -> Row:
    bars: list[Bar] = []
    for attempt, of_rank in zip(timeline.attempts, spans, strict=True):
        if present := [of_rank[rank] for rank in group if rank in of_rank]:
            bars += _bars(present, attempt, timeline, until_ns)
    name = rank_list(group)
    return Row(f"{name} ({len(group)})" if len(group) > 1 else name, tuple(bars), tuple(marks.get(group[0], ())))


def _bars(spans: list[RankSpan], attempt: AttemptSpan, timeline: Timeline, until_ns: int) -> Iterator[Bar]:
    """Of ranks that did alike: from the first that began something to the last that ended it."""
    started_ns = min(span.started_ns for span in spans)
    ended_ns = max(until_ns if span.ended_ns is None else span.ended_ns for span in spans)
    imported_ns = _within(attempt.imports_ended_ns, attempt.started_ns, ended_ns)
    first_ns = _within(_latest(span.first_step_ns for span in spans), started_ns, ended_ns)
    who, number = rank_list(span.global_rank for span in spans), attempt.number

    def bar(start_ns: int, end_ns: int, kind: str, what: str) -> Bar:
        start_s, end_s = _seconds(start_ns, timeline), _seconds(end_ns, timeline)
        text = f"{who}, attempt {number}: {what}, {duration(start_s)} to {duration(end_s)} after the start"
        return Bar(start_s, end_s, kind, text)

    if imported_ns is not None:
        yield bar(min(attempt.started_ns, started_ns), imported_ns, "imports", KINDS["imports"])
        started_ns = max(started_ns, imported_ns)
    if first_ns is not None and first_ns > started_ns:
        yield bar(started_ns, first_ns, "starting", KINDS["starting"])
        started_ns = first_ns
    yield bar(started_ns, max(started_ns, ended_ns), spans[0].role, _outcome(spans[0]))


def _outcome(span: RankSpan) -> str:
    how = "" if not span.status else f" ({describe_status(span.status)})"
    return f"{KINDS[span.role]}{how}"


def _latest(moments: Iterator[int | None]) -> int | None:
    known = [moment for moment in moments if moment is not None]
    return max(known) if known else None


def _within(moment_ns: int | None, low_ns: int, high_ns: int) -> int | None:
    return moment_ns if moment_ns is not None and low_ns < moment_ns <= high_ns else None


def _seconds(time_ns: int, timeline: Timeline) -> float:
    return max(0.0, (time_ns - timeline.started_ns) / 1e9)


def _groups(timeline: Timeline, until_ns: int) -> list[tuple[int, ...]]:
    """Ranks with the same roles in every attempt together; those that deviate alone."""
    roles: dict[int, list[str | None]] = {}
    times: dict[int, list[float | None]] = {}
    for number, attempt in enumerate(timeline.attempts):
        for span in attempt.ranks:
            nothing: list[str | None] = [None] * number
            roles.setdefault(span.global_rank, nothing).append(span.role)
            ended_ns = until_ns if span.ended_ns is None else span.ended_ns
            moments = (span.started_ns, span.first_step_ns, ended_ns)
            times.setdefault(span.global_rank, []).extend(
                None if moment is None else _seconds(moment, timeline) for moment in moments
            )
    alike: dict[tuple[str | None, ...], list[int]] = {}
    for rank, its_roles in sorted(roles.items()):
        alike.setdefault(tuple(its_roles), []).append(rank)
    marked = {mark.global_rank for mark in timeline.marks if mark.global_rank is not None}
    size = -(-len(roles) // GROUPS)
    tolerance_s = DEVIATES * _seconds(until_ns, timeline)
    found = [group for ranks in alike.values() for group in _split(ranks, times, marked, size, tolerance_s)]
    return sorted(found)


def _split(
    ranks: list[int], times: dict[int, list[float | None]], marked: set[int], size: int, tolerance_s: float
) -> Iterator[tuple[int, ...]]:
    odd = _odd_ones({rank: tuple(times[rank]) for rank in ranks}, tolerance_s)
    alone = {rank for rank in ranks if rank in marked or rank in odd} if len(ranks) > FEW else set(ranks)
    if len(alone) > MAX_ROWS:  # most of them do: that is how this run is
        alone = alone & marked if len(alone & marked) <= MAX_ROWS else set()
    yield from ((rank,) for rank in sorted(alone))
    rest = [rank for rank in ranks if rank not in alone]
    yield from (tuple(rest[start : start + size]) for start in range(0, len(rest), size))


def _odd_ones(times: dict[int, Times], tolerance_s: float) -> set[int]:
    """The ranks of which some time lies far from the others' median."""
    length = Counter(map(len, times.values())).most_common(1)[0][0]
    odd = {rank for rank, its in times.items() if len(its) != length}
    for position in range(length):
        column = {rank: its[position] for rank, its in times.items() if rank not in odd}
        known = {rank: moment for rank, moment in column.items() if moment is not None}
        if known:
            median = statistics.median(known.values())
            odd |= {rank for rank, moment in known.items() if abs(moment - median) > tolerance_s}
    return odd
