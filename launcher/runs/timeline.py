"""Build the timeline of a run as plain data: its attempts, their ranks, and notable moments (marks).

It is derived from metrics and events.jsonl, and from heartbeats if a run was interrupted without a last event. Its size
is limited: a record per rank and attempt, a mark per event, and a thousand marks of each kind of metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Literal

from launcher.core import events
from launcher.core.events import Cause, Event
from launcher.core.frozen import frozen
from launcher.core.heartbeat import read_heartbeat
from launcher.core.metrics import Record, Saved, StepMetrics, Validation
from launcher.core.run_dir import RunDir
from launcher.core.text import ranges
from launcher.core.verdict import Role
from launcher.runs.event_reader import EventReader
from launcher.runs.progress import Progress
from launcher.runs.status import read_report

MAX_TEXT_CHARS = 200
MAX_OF_A_KIND = 1000  # even; limits marks that a program can write without bound

MarkKind = Literal["validation", "saved", "slow", "hung", "failure", "stopping", "restart", "paused", "continued"]
RankRole = Literal["well", "culprit", "consequence", "ended", "running", "hung"]


@frozen
class Mark:
    """A notable moment in a run. `text` is one line and may contain program output, so escape it for display."""

    time_ns: int
    kind: MarkKind
    text: str
    global_rank: int | None = None  # None: no rank, or several
    count: int = 1  # number of consecutive marks of its kind that it represents


@frozen
class RankSpan:
    """One rank in one attempt. Times are nanoseconds since 1970."""

    global_rank: int
    started_ns: int  # or when its start failed
    first_step_ns: int | None  # of the attempt, from its metrics; None without metrics
    ended_ns: int | None  # if not recorded: its last heartbeat, or the end of the run
    status: int | None  # as in subprocess; None: running, or not recorded
    # "culprit" and "consequence" as in the verdict, for any status; otherwise "well" for status 0, "hung" for a rank
    # without progress, and "ended" for other ranks that are over, usually ended by the launcher.
    role: RankRole


@frozen
class AttemptSpan:
    """One attempt, from the start of all ranks to their end. Times are nanoseconds since 1970."""

    number: int
    started_ns: int
    ended_ns: int | None  # of the last rank; None while a rank runs or is not started yet
    imports_ended_ns: int | None  # end of preloading; None if this attempt did not preload
    ranks: tuple[RankSpan, ...]  # ascending; without ranks that were not to be started


@frozen
class Timeline:
    """The attempts and marks of a run. Times are nanoseconds since 1970."""

    started_ns: int  # 0 if unknown
    ended_ns: int | None  # of an interrupted run: its last sign of life; None: running, or on another machine
    attempts: tuple[AttemptSpan, ...]
    marks: tuple[Mark, ...]  # sorted by time


def timeline(run_dir: RunDir, records: Iterable[Record]) -> Timeline:
    """Return the run's timeline up to now. `records` are the records in the run's metrics.jsonl."""
    now_ns = time.time_ns()
    metrics = _MetricsSeen(now_ns)
    for record in records:
        metrics.add(record)
    seen = _EventsSeen(metrics.first_step_ns)
    reader = EventReader(run_dir.events)
    seen.read(reader)
    if seen.ended_ns is None and not (seen.progress.agent and seen.progress.agent.lives):
        seen.read(reader)  # the last event may have been written between the two checks
    started_ns, ended_ns = seen.progress.first_ns or 0, seen.ended_ns
    beats = {} if ended_ns else seen.last_beats(run_dir, now_ns)
    report = None if started_ns and ended_ns else read_report(run_dir)
    if not started_ns:
        with suppress(OSError):
            started_ns = report.started_ns if report else run_dir.run_json.stat().st_mtime_ns
    if not ended_ns and report:
        ended_ns = report.ended_ns
    elif not ended_ns and seen.broke_off:
        ended_ns = max(seen.progress.last_ns, metrics.last_ns, *beats.values())
    marks = (*seen.marks, *metrics.marks_within(started_ns, max(started_ns, ended_ns or now_ns)))
    by_time = tuple(sorted(marks, key=lambda mark: mark.time_ns))
    return Timeline(started_ns, ended_ns, seen.attempts(ended_ns, beats), by_time)


# --- metrics.jsonl ---


class ThinnedMarks:
    """An evenly spaced sample of the marks of one kind, which includes the first and the last mark."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []  # every `_every`th
        self._every = 1
        self._seen = 0
        self._last: Mark | None = None

    def add(self, mark: Mark) -> None:
        """Add a mark. Marks must be added in time order."""
        if self._seen == MAX_OF_A_KIND * self._every:
            del self._marks[1::2]
            self._every *= 2
        if self._seen % self._every == 0:
            self._marks.append(mark)
        self._seen += 1
        self._last = mark

    def marks(self) -> Iterator[Mark]:
        """Yield the sampled marks. The `count` of a mark includes the omitted marks that follow it."""
        rest = (self._seen - 1) % self._every  # marks after the last one that is kept
        for mark in self._marks:
            is_last = mark is self._marks[-1]
            yield replace(mark, count=max(1, rest) if is_last else self._every)
        if rest and self._last is not None:
            yield self._last


def marks_of_record(record: Record) -> Iterator[Mark]:
    match record:
        case Validation():
            numbers = (
                ("validation loss", record.validation_loss), ("perplexity", record.perplexity), ("BLEU", record.bleu),
            )  # fmt: skip
            measured = ", ".join(f"{name} {value:.4g}" for name, value in numbers if value is not None)
            yield Mark(record.time_ns, "validation", f"{measured or 'validation'} after step {record.step}")
        case Saved():
            yield Mark(record.time_ns, "saved", _line(f"{record.saved} after step {record.step}"))
        case _:
            pass


class _MetricsSeen:
    """Collects records of metrics.jsonl. Ignores times in the future, because any program can write the file."""

    def __init__(self, now_ns: int) -> None:
        self.first_step_ns: dict[int, int] = {}  # by attempt
        self.last_ns = 0
        self._now_ns = now_ns
        self._marks: dict[MarkKind, ThinnedMarks] = {}

    def add(self, record: Record) -> None:
        if record.time_ns <= self._now_ns:
            self.last_ns = max(self.last_ns, record.time_ns)
            if isinstance(record, StepMetrics):
                self.first_step_ns.setdefault(record.attempt, record.time_ns)
        for mark in marks_of_record(record):
            self._marks.setdefault(mark.kind, ThinnedMarks()).add(mark)

    def marks_within(self, first_ns: int, last_ns: int) -> Iterator[Mark]:
        """Yield all marks. A mark's time is clamped to the range from `first_ns` to `last_ns`."""
        for mark in chain.from_iterable(thinned.marks() for thinned in self._marks.values()):
            yield replace(mark, time_ns=min(max(mark.time_ns, first_ns), last_ns))


# --- events.jsonl ---


def marks_of_event(event: Event, time_ns: int) -> Iterator[Mark]:
    match event:
        case events.Slow():
            text = f"{event.busy_s:.3g} s a step for {event.steps} steps, the others {event.median_s:.3g} s"
            yield Mark(time_ns, "slow", text, event.global_rank)
        case events.NotExiting():
            yield Mark(time_ns, "failure", _line(f"{event.what}; it does not exit"), event.global_rank)
        case events.Hung():
            ranks = event.global_ranks
            text = f"no progress for {event.seconds:.3g} s: {'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"
            yield Mark(time_ns, "hung", _line(text), ranks[0] if len(ranks) == 1 else None)
        case events.Judged():
            verdict = event.verdict
            cause = next((failure for failure in verdict.failures if failure.global_rank == verdict.culprit), None)
            failed_ns = min(cause.time_ns, time_ns) if cause and cause.time_ns is not None else time_ns
            yield Mark(failed_ns, "failure", _line(cause.what if cause else verdict.reason), verdict.culprit)
        case events.Stopping():
            why = event.cause.value
            if event.cause is Cause.STOPPED and event.asked_by:
                why = _line(f"asked for by {event.asked_by}")
            text = f"every rank is ended{', to be started again' if event.restarts else ''}: {why}"
            yield Mark(time_ns, "stopping", text)
        case events.AttemptStarted() if event.number > 0:
            yield Mark(time_ns, "restart", f"attempt {event.number}")
        case events.Paused():
            yield Mark(time_ns, "paused", "every rank is stopped")
        case events.Continued():
            yield Mark(time_ns, "continued", "every rank continues")
        case _:
            pass


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_TEXT_CHARS]


class _EventsSeen:
    """Builds attempt spans and marks from events, which must be read in order."""

    def __init__(self, first_step_ns: Mapping[int, int]) -> None:
        self.progress = Progress()
        self.ended_ns: int | None = None  # None until the agent has ended
        self.marks: list[Mark] = []
        self._first_step_ns = first_step_ns
        self._past: list[AttemptSpan] = []
        self._has_begun = False  # an attempt
        self._first_mark = 0  # of the current attempt: an index of `marks`
        self._imports_ended_ns: int | None = None
        self._hung: frozenset[int] = frozenset()  # ranks of the attempt

    def read(self, reader: EventReader) -> None:
        for stamped in reader.read():
            self._take(stamped.event, stamped.time_ns)
            self.progress.take(stamped)
            self.progress.past.clear()  # spans replace them, and their verdicts hold tracebacks of all ranks
            if isinstance(stamped.event, events.Judged):  # one mark for each failure
                culprit = stamped.event.verdict.culprit
                of_attempt = self.marks[self._first_mark :]
                self.marks[self._first_mark :] = [
                    mark for mark in of_attempt if mark.kind != "failure" or mark.global_rank != culprit
                ]
            self.marks.extend(marks_of_event(stamped.event, stamped.time_ns))

    def _take(self, event: Event, time_ns: int) -> None:
        match event:
            case events.AgentEnded():
                self.ended_ns = time_ns
            case events.AttemptStarted():
                if self._has_begun:
                    self._past.append(self._span(time_ns, {}))
                    self._imports_ended_ns = None
                self._has_begun, self._hung = True, frozenset()
                self._first_mark = len(self.marks)
            case events.Preloaded():
                self._imports_ended_ns = time_ns
            case events.Hung():
                self._hung |= frozenset(event.global_ranks)  # each server reports its own ranks
            case _:
                pass

    @property
    def broke_off(self) -> bool:
        """True if agent and launcher are gone but wrote no last event. Always False for processes on other machines."""
        agent, head = self.progress.agent, self.progress.head
        return agent is not None and agent.is_local and not agent.lives and (head is None or not head.lives)

    def last_beats(self, run_dir: RunDir, now_ns: int) -> dict[int, int]:
        """Return the time of the last heartbeat of each rank that has no recorded end, by global rank."""
        beats: dict[int, int] = {}
        current = self.progress.current
        for global_rank in current.starts.keys() - current.exits.keys():
            beat = read_heartbeat(run_dir.heartbeat(global_rank))
            # Ignore heartbeats of earlier attempts and of other processes.
            if beat is not None and current.starts[global_rank].time_ns < beat.time_ns <= now_ns:
                beats[global_rank] = beat.time_ns
        return beats

    def attempts(self, ended_ns: int | None, beats: Mapping[int, int]) -> tuple[AttemptSpan, ...]:
        """Return all attempts. `ended_ns` is the end of the run, or None while the run is active."""
        return (*self._past, self._span(ended_ns, beats)) if self._has_begun else ()

    def _span(self, over_ns: int | None, beats: Mapping[int, int]) -> AttemptSpan:
        """Return the span of the current attempt. `over_ns` is its latest possible end, or None while it is active."""
        attempt = self.progress.current
        first_step_ns = self._first_step_ns.get(attempt.number, -1)
        roles: dict[int, RankRole] = {}
        if (verdict := attempt.verdict) is not None:
            roles = {
                each.global_rank: "culprit" if each.role is Role.CAUSE else "consequence" for each in verdict.failures
            }
            if verdict.culprit is not None:
                roles[verdict.culprit] = "culprit"
        spans: list[RankSpan] = []
        for global_rank in sorted(attempt.starts.keys() | attempt.exits.keys()):
            start, end = attempt.starts.get(global_rank), attempt.exits.get(global_rank)
            ended_ns = end.ended_ns if end else over_ns and beats.get(global_rank, over_ns)
            started_ns = start.time_ns if start else ended_ns or 0
            took_it = started_ns <= first_step_ns and (ended_ns is None or first_step_ns <= ended_ns)
            status = end.status if end else None
            if status == 0:
                role: RankRole = "well"
            elif global_rank in self._hung:
                role = "hung"
            else:
                role = "running" if over_ns is None and end is None else "ended"
            role = roles.get(global_rank, role)
            first_ns = first_step_ns if took_it else None
            spans.append(RankSpan(global_rank, started_ns, first_ns, ended_ns, status, role))
        ends = [span.ended_ns for span in spans if span.ended_ns is not None]
        is_over = over_ns is not None or len(ends) >= max(1, self.progress.rank_count)
        last_ns = max(ends, default=over_ns) if is_over else None
        return AttemptSpan(attempt.number, attempt.started_ns, last_ns, self._imports_ended_ns, tuple(spans))
