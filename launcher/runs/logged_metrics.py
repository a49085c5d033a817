"""Read the training history from a rank's log, for programs that write no metrics.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from launcher.core.frozen import frozen
from launcher.core.metrics import StepMetrics
from launcher.core.run_dir import RunDir
from launcher.logs.figures import Figures, figures_in
from launcher.logs.log_file import bytes_between, opened
from launcher.runs.event_reader import EventReader
from launcher.runs.rank_figures import FiguresReader
from launcher.runs.rank_logs import AttemptStarts, RankLogs
from launcher.runs.status import RunState

if TYPE_CHECKING:
    from launcher.logs.select import Matcher

END_BYTES = 8 << 20  # of the end of the log that are read
END_LINES = 100_000  # of the end of the log that are read; takes a few seconds
HEAD_BYTES = 1 << 18  # of an attempt that are searched for its first epoch


@frozen
class LoggedSteps:
    global_rank: int | None = None  # None: no rank has logged steps
    steps: tuple[StepMetrics, ...] = ()
    counts_samples: bool = False  # `step` counts samples
    at_least: bool = False  # `step` is a lower bound: steps of an epoch after its last line were not logged


def logged_steps(state: RunState, pattern: Matcher | None = None) -> LoggedSteps:
    """Return the training steps logged by the lowest rank whose log ends with training figures such as the loss.

    A step's time is the time of its line, or 0 if the line has none. If step or sample numbers restart with each epoch,
    the epochs are added up. Only the end of a long log is read; steps are left out if it does not show their number.

    Raises UsageError if searching for the pattern takes too long.
    """
    reader = FiguresReader(state.run_dir, pattern)
    newest = ((rank.global_rank, reader.logged(rank.global_rank)) for rank in state.ranks)
    told = ((rank, found) for rank, found in newest if found is not None and not found.is_bare)
    global_rank, figures = next(told, (None, None))
    if reader.refused is not None:
        raise reader.refused
    if global_rank is None or figures is None:
        return LoggedSteps()
    steps, at_least = _steps(state.run_dir, global_rank, state.started_ns or 0, pattern)
    return LoggedSteps(global_rank, steps, figures.counts_samples, at_least)


def _steps(
    run_dir: RunDir, global_rank: int, near_ns: int, pattern: Matcher | None
) -> tuple[tuple[StepMetrics, ...], bool]:
    """Return a rank's logged steps, and True if their step numbers are only lower bounds."""
    logs = RankLogs(run_dir, [global_rank], near_ns)
    logs.note_attempts()
    log = logs.of_rank.get(global_rank)
    if log is None:
        return (), False
    try:
        skipped = log.skip_to_last_bytes(END_BYTES, END_LINES)
        printed = tuple(
            (line.time_ns or 0, line.attempt or 0, found)
            for line in log.with_partial()
            for found in reversed(tuple(figures_in(line.raw + b"\n" * line.ends, pattern)))
            if found.step is not None and not found.is_bare
        )
    finally:
        log.close()
    first_attempt = printed[0][1] if printed else 0
    first_base: int | None = 0
    if skipped and printed:
        of_first = [found for _, number, found in printed if number == first_attempt]
        first_base = _steps_before(of_first, _first_figures(run_dir, global_rank, first_attempt, pattern))
    steps: list[StepMetrics] = []
    at_least = bool(first_base)
    attempt, last, last_of_epoch, base = first_attempt, 0, None, first_base or 0  # `last` is the last step as printed
    for time_ns, number, found in printed:
        step = found.step or 0
        if number != attempt:
            base = 0
        elif (found.epoch is not None or found.counts_samples) and step < last:
            base += last
            at_least |= last != last_of_epoch
        attempt, last, last_of_epoch = number, step, found.last_step
        if attempt == first_attempt and first_base is None:
            continue
        steps.append(StepMetrics(
            time_ns, attempt, base + step, found.loss, tokens_per_s=found.tokens_per_s,
            step_s=None if not found.steps_per_s else 1 / found.steps_per_s,
        ))  # fmt: skip
    return tuple(steps), at_least


def _steps_before(end: Sequence[Figures], begin: Figures | None) -> int | None:
    """Return the number of training steps before the first epoch in `end`. Return None if the number is uncertain.

    `end` has the figures from the end of a log, `begin` the first figures of the attempt. The result is 0 if steps are
    numbered across epochs. It is None if samples are counted and no epoch is logged.

    Example: an attempt starts with epoch 1, and `end` with step 500 of epoch 46. Step 1 of epoch 47 follows step 1000,
    so an epoch has 1000 steps, and (46 - 1) * 1000 came before.
    """
    with_epoch = [each for each in end if each.epoch is not None]
    if not with_epoch and end[0].counts_samples:
        return None
    if not with_epoch or (begin is not None and begin.epoch == with_epoch[0].epoch):
        return 0
    for before, after in pairwise(with_epoch):
        if (after.step or 0) < (before.step or 0):
            if begin is None or begin.epoch is None:
                return None
            return round(((with_epoch[0].epoch or 0) - begin.epoch) * (before.step or 0))
        if after.epoch != before.epoch:
            return 0
    return None


def _first_figures(run_dir: RunDir, global_rank: int, attempt: int, pattern: Matcher | None) -> Figures | None:
    """Return an attempt's first logged figures that have a step number, or None if the start of its log has none."""
    starts = AttemptStarts()
    for stamped in EventReader(run_dir.events).read():
        starts.apply(stamped.event)
    offset = next((offset for offset, number in starts.of(global_rank) if number == attempt), 0)
    with suppress(OSError), opened(run_dir.train_log(global_rank)) as log:
        lines = bytes_between(log, offset, offset + HEAD_BYTES).splitlines(keepends=True)
        found = (each for line in lines for each in figures_in(line, pattern))
        return next((each for each in found if each.step is not None and not each.is_bare), None)
    return None
