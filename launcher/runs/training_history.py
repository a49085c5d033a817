"""Join the records of a training over all attempts of its run, and the runs that it goes on from: every step counts once.

An attempt that goes on from a checkpoint computes steps again that one before had computed. With its first step all
records of that step and later ones cease to count that earlier attempts have left, as TensorBoard has it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import TypeVar

from launcher.core.metrics import Record, StepMetrics
from launcher.core.records import ResumedFrom
from launcher.core.run_dir import RunDir
from launcher.runs.metrics_reader import Metrics, read_metrics
from launcher.runs.record import continued_by

MAX_RUNS = 1000  # one after the other

Of = TypeVar("Of", bound=Record)


def standing(records: Iterable[Of], steps: Sequence[StepMetrics], below: float = inf) -> list[Of]:
    """Return the records of a run that no later attempt has computed again, of steps less than `below`.

    `steps` are all that the run has recorded.
    """
    found = list(records)
    first: dict[int, int] = {}
    for each in steps:
        first.setdefault(each.attempt, each.step)
    limits: dict[int, float] = {}
    for attempt in sorted({record.attempt for record in chain(found, steps)}, reverse=True):
        limits[attempt] = below
        below = min(below, first.get(attempt, inf))
    return [record for record in found if record.step < limits[record.attempt]]


def earlier_run(run_dir: RunDir, continued: ResumedFrom) -> RunDir | None:
    """Return the run that `run_dir` goes on from, where its directory is still there, or has been moved with that one."""
    if continued.run is None:
        return None
    for root in (continued.checkpoint.parent.parent, run_dir.root.parent / continued.run):
        if os.path.isfile(RunDir(root).run_json):  # noqa: PTH113 - Path.is_file raises where a name is too long
            return RunDir(root)
    return None


def runs_before(run_dir: RunDir) -> Iterator[tuple[RunDir, ResumedFrom]]:
    """Yield the runs that a run goes on from, the last one first, each with the checkpoint that was read of it."""
    seen = {run_dir.root}
    while (continued := continued_by(run_dir)) and len(seen) < MAX_RUNS:
        earlier = earlier_run(run_dir, continued)
        if earlier is None or earlier.root in seen:
            return
        yield earlier, continued
        run_dir = earlier
        seen.add(run_dir.root)


def own_course(metrics: Metrics, below: float = inf) -> Metrics:
    """Return the metrics of a run without what a later attempt has computed again, of steps less than `below`."""
    return replace(
        metrics,
        steps=tuple(standing(metrics.steps, metrics.steps, below)),
        validations=tuple(standing(metrics.validations, metrics.steps, below)),
        saved=tuple(standing(metrics.saved, metrics.steps, below)),
        stages=tuple(standing(metrics.stages, metrics.steps, below)),
    )


def whole_course(run_dir: RunDir, own: Metrics, read: Callable[[Path], Metrics] = read_metrics) -> Metrics:
    """Return a run's `own_course` after those of the runs that it goes on from, as far as these have files.

    `read` gives the metrics of an earlier run.
    """
    course = own
    for earlier, continued in runs_before(run_dir):
        first = course.steps[0].step if course.steps else continued.step + 1
        before = own_course(read(earlier.metrics), first)
        course = replace(
            course,
            steps=before.steps + course.steps,
            validations=before.validations + course.validations,
            saved=before.saved + course.saved,
            stages=before.stages + course.stages,
        )
    return course
