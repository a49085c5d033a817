"""Moments of a run that are worth a mark: what its agent told, and what its training measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from launcher.core.events import AttemptStarted, Cause, Continued, Event, Hung, Judged, Paused, Slow, Stopping
from launcher.core.frozen import frozen
from launcher.core.metrics import Record, Saved, Validation
from launcher.core.text import ranges
from launcher.core.verdict import Verdict

MAX_TEXT_CHARS = 200
MAX_OF_A_KIND = 1000  # even; of what a program may write as often as it likes

MarkKind = Literal[
    "validation", "saved", "slow", "hung", "failure", "stopping", "restart", "paused", "continued"
]  # fmt: skip


@frozen
class Mark:
    """A moment. `text` is one line, and may hold what a program wrote: show it as safe text."""

    time_ns: int
    kind: MarkKind
    text: str
    global_rank: int | None = None  # None: it concerns no rank, or several
    count: int = 1  # of so many of its kind, one after the other, it is the first


class ThinnedMarks:
    """However many marks of one kind come: evenly spread ones, the first and the last among them."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []  # every `_every`th
        self._every = 1
        self._seen = 0
        self._last: Mark | None = None

    def add(self, mark: Mark) -> None:
        """Add a mark. Marks come in the order of their times."""
        if self._seen == MAX_OF_A_KIND * self._every:
            del self._marks[1::2]
            self._every *= 2
        if self._seen % self._every == 0:
            self._marks.append(mark)
        self._seen += 1
        self._last = mark

    def marks(self) -> Iterator[Mark]:
        """`MAX_OF_A_KIND` and one at most; each counts for those that follow it and are left out."""
        rest = (self._seen - 1) % self._every  # after the last that is kept, up to the very last
        for mark in self._marks:
            is_last = mark is self._marks[-1]
            yield replace(mark, count=max(1, rest) if is_last else self._every)
        if rest and self._last is not None:
            yield self._last


def marks_of_event(event: Event, time_ns: int) -> Iterator[Mark]:
    match event:
        case Slow():
            text = f"{event.busy_s:.3g} s a step for {event.steps} steps, the others {event.median_s:.3g} s"
            yield Mark(time_ns, "slow", text, event.global_rank)
        case Hung():
            ranks = event.global_ranks
            text = f"no progress for {event.seconds:.3g} s: {'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"
            yield Mark(time_ns, "hung", _line(text), ranks[0] if len(ranks) == 1 else None)
        case Judged():
            yield _of_verdict(event.verdict, time_ns)
        case Stopping():
            why = event.cause.value
            if event.cause is Cause.STOPPED and event.asked_by:
                why = _line(f"asked for by {event.asked_by}")
            text = f"every rank is ended{', to be started again' if event.restarts else ''}: {why}"
            yield Mark(time_ns, "stopping", text)
        case AttemptStarted() if event.number > 0:
            yield Mark(time_ns, "restart", f"attempt {event.number}")
        case Paused():
            yield Mark(time_ns, "paused", "every rank is stopped")
        case Continued():
            yield Mark(time_ns, "continued", "every rank goes on")
        case _:
            pass


def marks_of_record(record: Record) -> Iterator[Mark]:
    match record:
        case Validation():
            numbers = (("validation loss", record.validation_loss), ("perplexity", record.perplexity))
            told = ", ".join(f"{name} {value:.4g}" for name, value in numbers if value is not None)
            yield Mark(record.time_ns, "validation", f"{told or 'validation'} after step {record.step}")
        case Saved():
            yield Mark(record.time_ns, "saved", _line(f"{record.saved} after step {record.step}"))
        case _:
            pass


def _of_verdict(verdict: Verdict, time_ns: int) -> Mark:
    """At the time of the failure itself, where one is known."""
    cause = next((failure for failure in verdict.failures if failure.global_rank == verdict.culprit), None)
    if cause is None:
        return Mark(time_ns, "failure", _line(verdict.reason), verdict.culprit)
    failed_ns = time_ns if cause.time_ns is None else min(cause.time_ns, time_ns)
    return Mark(failed_ns, "failure", _line(cause.what), verdict.culprit)


def _line(text: str) -> str:
    """Return `text` as one line of bounded length."""
    return " ".join(text.split())[:MAX_TEXT_CHARS]
