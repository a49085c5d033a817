"""Collect the facts about one run for its report as text, JSON or HTML."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from launcher.cli.text.columns import counted
from launcher.cli.text.run_text import as_json, culprit, describe_run, shown_name
from launcher.cli.text.stdout import say
from launcher.core.codec import encode
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.heartbeat import read_heartbeat
from launcher.core.records import ResumedFrom
from launcher.core.run_dir import RunDir
from launcher.runs.logged_metrics import LoggedSteps, logged_steps
from launcher.runs.metrics_reader import Metrics, mean_of, median_of, part_shares, read_metrics
from launcher.runs.progress import State
from launcher.runs.rank_figures import pattern_for
from launcher.runs.record import continued_by, read_fields
from launcher.runs.status import RunState, look
from launcher.runs.timeline import Timeline, timeline
from launcher.runs.training_history import Change, changes_of, full_history, own_course

if TYPE_CHECKING:
    from launcher.logs.select import Matcher

MAX_VALUE = 1e300  # the difference of two larger numbers may be infinite

Point = tuple[float, float | None]  # step, and the value if it is finite


@frozen
class Totals:
    """Totals over all attempts of a run. Unknown figures are None."""

    attempts: int
    duration_s: float | None
    steps: int | None  # the highest number; samples if the program printed samples
    ended_early_of: int | None  # the planned steps of a run that succeeded with fewer, as with train.early_stopping
    final_loss: float | None  # of the last line with a loss, which may be a mean; None if not finite
    best_loss: float | None  # the lowest training loss
    best_loss_step: int | None
    validation_loss: float | None  # the last one
    validation_step: int | None
    perplexity: float | None
    best_validation_loss: float | None
    best_validation_step: int | None
    bleu: float | None  # the last one
    bleu_step: int | None
    best_bleu: float | None
    best_bleu_step: int | None
    tokens_per_s: float | None  # median over all steps
    peak_memory_bytes: int | None  # only of the rank that writes metrics: its accelerator's, else its process's
    step_s: float | None  # median over all steps, like the fields below
    step_shares: Mapping[str, float]  # shares of step_s on the rank that writes metrics: compute, communication, ...
    padding_share: float | None
    utilisation: float | None  # share of the ranks' peak compute
    gradient_norm: float | None  # before clipping
    clipped_share: float | None  # mean share of steps with a clipped gradient
    stage_busy: tuple[float, ...]  # share of step time that each pipeline stage computes; empty if unknown


@frozen
class Measured:
    """The measurements from which the charts of a run are drawn."""

    state: RunState
    metrics: Metrics  # everything that the run recorded
    course: Metrics  # without recomputed steps, and including the runs that it was resumed from
    continued: ResumedFrom | None
    printed: LoggedSteps  # without metrics.jsonl, the steps of `metrics` come from here

    @property
    def name(self) -> str:
        """The run's name, with control characters escaped."""
        return shown_name(self.state)

    @property
    def unit(self) -> str:
        """The unit of the step axis: "step", or "sample" if the program printed sample counts instead of steps."""
        return "sample" if self.printed.counts_samples else "step"


@frozen
class RunFacts(Measured):
    record: Mapping[str, Any]  # run.json; empty if unreadable
    totals: Totals
    times: Timeline
    ended_ns: int | None  # None while the run is active

    @property
    def changes(self) -> tuple[Change, ...]:
        return changes_of(self.state.attempts, self.metrics.steps)

    @property
    def sentence(self) -> str:
        """The state and verdict of the run, such as "failed after 12 s with exit code 1; rank 3 failed first: ..."."""
        return sentence_of(self.state)

    @property
    def has_failed(self) -> bool:
        return self.state.state in {State.FAILED, State.HUNG, State.LOST}

    @property
    def first_rank(self) -> Mapping[str, Any]:
        """The entry of the first rank in run.json, or an empty mapping if there is none."""
        ranks = self.record.get("ranks")
        return mapping(ranks[0]) if isinstance(ranks, list) and ranks else {}

    @property
    def command(self) -> list[str]:
        """The command that every rank runs, as recorded in run.json, with secrets masked."""
        argv = self.first_rank.get("argv")
        return [str(word) for word in argv] if isinstance(argv, list) else []

    def to_json(self) -> dict[str, Any]:
        return {
            **as_json(self.state),
            "ended_ns": self.ended_ns,
            **asdict(self.totals),
            "changes": encode(self.changes),
            "step_records": len(self.metrics.steps),
            "validation_records": len(self.metrics.validations),
            "strange_lines": self.metrics.strange,
            "first_strange_line": self.metrics.first_strange,
            "metrics_unreadable": self.metrics.unreadable,
            "printed_by": self.printed.global_rank,
            "counts_samples": self.printed.counts_samples,
            "steps_at_least": self.printed.at_least,
        }


def sentence_of(state: RunState) -> str:
    """Return a sentence with the state and the verdict of a run."""
    words = describe_run(state, restarts=False)
    if failure := culprit(state):
        who, _, what = failure.partition(": ")
        is_rank = who.startswith("rank ") and state.state is not State.HUNG
        words += f"; {who} failed first: {what}" if is_rank else f"; {failure}"
    restarts = state.progress.restarts
    return f"{words}; {counted(restarts, 'restart')}" if restarts else words


def unit_of(runs: Sequence[Measured]) -> str:
    """Return the unit of the step axis that all runs share, or "step" if their units differ."""
    return "sample" if all(facts.printed.counts_samples for facts in runs) else "step"


def with_printed(metrics: Metrics, state: RunState, pattern: Matcher | None) -> tuple[LoggedSteps, Metrics]:
    """If a run has no metrics.jsonl, parse its steps from a rank's output and add them to its metrics.

    `pattern` replaces the built-in formats for figures in the rank's output. Raises UsageError if it takes too long.
    """
    if metrics.found or metrics.unreadable is not None:
        return LoggedSteps(), metrics
    printed = logged_steps(state, pattern)
    return printed, replace(metrics, steps=printed.steps)


def gather(run_dir: RunDir, progress_regex: str | None = None) -> RunFacts:
    """Read all facts about a run from its files. Damaged files do not raise errors.

    `progress_regex` replaces the run's own --progress-regex. Raises UsageError if it is not a valid regular expression.
    """
    pattern = pattern_for(run_dir, progress_regex)
    state, metrics = look(run_dir), read_metrics(run_dir.metrics)
    times = timeline(run_dir, chain(metrics.steps, metrics.validations, metrics.saved))
    ended_ns = state.ended_ns
    if state.state in {State.LOST, State.UNWATCHED, State.ENDED} and state.report is None:
        ended_ns = times.ended_ns or ended_ns  # after a crash, heartbeats and metrics may be newer than the last event
    record = read_fields(run_dir)
    duration_s = None
    if state.started_ns is not None and (state.engine is None or ended_ns is not None):
        duration_s = max(0.0, ((ended_ns or state.looked_ns) - state.started_ns) / 1e9)
    printed = LoggedSteps()
    try:
        printed, metrics = with_printed(metrics, state, pattern)
    except UsageError as error:
        say(f"warning: {error}")
    own = own_course(metrics)
    course = full_history(run_dir, own)
    totals = _totals(state, duration_s, metrics, own, course)
    return RunFacts(state, metrics, course, continued_by(run_dir), printed, record, totals, times, ended_ns)


def _totals(state: RunState, duration_s: float | None, metrics: Metrics, own: Metrics, course: Metrics) -> Totals:
    """Compute the totals. Losses and steps include the runs from which this run was resumed."""
    with_loss = [each for each in course.validations if each.validation_loss is not None]
    validation = next(reversed(with_loss or course.validations), None)
    best_loss, best_loss_step = min(_known(course.steps, "loss"), key=itemgetter(0), default=(None, None))
    validated = _known(course.validations, "validation_loss")
    best_validation, best_validation_step = min(validated, key=itemgetter(0), default=(None, None))
    translated = _known(course.validations, "bleu")
    bleu, bleu_step = translated[-1] if translated else (None, None)
    best_bleu, best_bleu_step = max(translated, key=itemgetter(0), default=(None, None))
    steps = max((each.step for each in chain(course.steps, metrics.steps)), default=None)
    memory = chain.from_iterable((each.peak_memory_bytes, each.memory_bytes) for each in metrics.steps)
    speeds = [speed for each in own.steps if (speed := finite(each.tokens_per_s)) is not None]
    return Totals(
        attempts=len(state.attempts),
        duration_s=duration_s,
        steps=steps,
        ended_early_of=_planned_steps(state, steps),
        final_loss=finite(next((each.loss for each in reversed(course.steps) if each.loss is not None), None)),
        best_loss=best_loss,
        best_loss_step=best_loss_step,
        validation_loss=finite(validation.validation_loss) if validation else None,
        validation_step=validation.step if validation else None,
        perplexity=validation.perplexity if validation else None,
        best_validation_loss=best_validation,
        best_validation_step=best_validation_step,
        bleu=bleu,
        bleu_step=bleu_step,
        best_bleu=best_bleu,
        best_bleu_step=best_bleu_step,
        tokens_per_s=statistics.median(speeds) if speeds else None,
        peak_memory_bytes=max((size for size in memory if size is not None), default=None),
        step_s=finite(median_of(own.steps, "step_s")),
        step_shares=part_shares(own.steps),
        padding_share=finite(median_of(own.steps, "padding_share")),
        utilisation=finite(median_of(own.steps, "utilisation")),
        gradient_norm=finite(median_of(own.steps, "gradient_norm")),
        clipped_share=finite(mean_of(own.steps, "clipped_share")),
        stage_busy=own.stages[-1].stage_busy if own.stages else (),
    )


def _planned_steps(state: RunState, steps: int | None) -> int | None:
    """Return the number of steps that a run has planned, if it has succeeded with fewer, else None."""
    if state.state is not State.FINISHED or steps is None:
        return None
    beat = read_heartbeat(state.run_dir.heartbeat(0))
    planned = None if beat is None else beat.beat.last_step
    return planned if planned is not None and steps < planned else None


def _known(records: Iterable[Any], field: str) -> list[tuple[float, int]]:
    """Return the finite values of a field, each with its step."""
    return [(value, each.step) for each in records if (value := finite(getattr(each, field))) is not None]


def points(records: Iterable[Any], field: str) -> tuple[Point, ...]:
    return tuple((each.step, finite(getattr(each, field))) for each in records)


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is not finite or is extremely large."""
    return value if value is not None and -MAX_VALUE < value < MAX_VALUE else None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}
