"""Join the metrics of a training over all attempts of a run and the runs it was resumed from. Every step counts once.

An attempt that resumes from a checkpoint repeats steps of an earlier attempt. From its first step on, its records
replace the earlier ones, as in TensorBoard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from launcher.core.events import Cause
from launcher.core.frozen import frozen
from launcher.core.metrics import Record, StepMetrics
from launcher.core.records import Layout, ResumedFrom
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Attempt
from launcher.runs.metrics_reader import KINDS, Metrics, read_metrics
from launcher.runs.record import continued_by

MAX_RUNS = 1000  # in a chain of resumed runs

Of = TypeVar("Of", bound=Record)


def standing(records: Iterable[Of], steps: Sequence[StepMetrics], below: float = inf) -> list[Of]:
    """Return records of steps before `below`, except steps that were repeated later. `steps` has the run's steps."""
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
    """Return the run that `run_dir` resumed from, or None if it is gone. The recorded path is tried first."""
    if continued.run is None:
        return None
    for root in (continued.checkpoint.parent.parent, run_dir.root.parent / continued.run):
        if os.path.isfile(RunDir(root).run_json):  # noqa: PTH113 - Path.is_file raises if a name is too long
            return RunDir(root)
    return None


def runs_before(run_dir: RunDir) -> Iterator[tuple[RunDir, ResumedFrom]]:
    """Yield the runs that a run was resumed from, latest first, each with the checkpoint that was loaded."""
    seen = {run_dir.root}
    while (continued := continued_by(run_dir)) and len(seen) < MAX_RUNS:
        earlier = earlier_run(run_dir, continued)
        if earlier is None or earlier.root in seen:
            return
        yield earlier, continued
        run_dir = earlier
        seen.add(run_dir.root)


def own_course(metrics: Metrics, below: float = inf) -> Metrics:
    """Return a run's metrics below step `below`. If an attempt repeated earlier steps, return only its new records."""
    records: dict[str, Any] = {kind: tuple(standing(getattr(metrics, kind), metrics.steps, below)) for kind in KINDS}
    return replace(metrics, **records)


def full_history(run_dir: RunDir, own: Metrics, read: Callable[[Path], Metrics] = read_metrics) -> Metrics:
    """Return the metrics of all runs that a run was resumed from, followed by the run's own metrics."""
    course = own
    for earlier, continued in runs_before(run_dir):
        first = course.steps[0].step if course.steps else continued.step + 1
        before = own_course(read(earlier.metrics), first)
        records: dict[str, Any] = {kind: getattr(before, kind) + getattr(course, kind) for kind in KINDS}
        course = replace(course, **records)
    return course


# --- elastic runs ---


@frozen
class Change:
    """A device change between two attempts of an elastic run. Devices are identified by rank in the full rank table."""

    attempt: int
    cause: Cause  # why the previous attempt ended
    layout: Layout
    devices: int
    left_out: tuple[int, ...]
    taken_back: tuple[int, ...]
    cost_s: float | None  # from the last step before the change to the first one after; None if metrics lack either
    repeated_steps: int | None  # steps that the previous attempt had already computed


def changes_of(attempts: Sequence[Attempt], steps: Sequence[StepMetrics]) -> tuple[Change, ...]:
    """Return the device changes between consecutive attempts of an elastic run."""
    found = []
    for before, after in pairwise(attempts):
        if before.allotment is None or after.allotment is None:
            continue
        last = next((step for step in reversed(steps) if step.attempt == before.number), None)
        first = next((step for step in steps if step.attempt == after.number), None)
        had, has = set(before.allotment.devices), set(after.allotment.devices)
        found.append(
            Change(
                attempt=after.number,
                cause=before.cause,
                layout=after.allotment.layout,
                devices=len(has),
                left_out=tuple(sorted(had - has)),
                taken_back=tuple(sorted(has - had)),
                cost_s=(first.time_ns - last.time_ns) / 1e9 if first and last else None,
                repeated_steps=max(0, last.step - first.step + 1) if first and last else None,
            )
        )
    return tuple(found)
