"""Compare each attempt of an elastic run with the previous one: its devices, and the time that the change took."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from launcher.core.events import Cause
from launcher.core.frozen import frozen
from launcher.core.metrics import StepMetrics
from launcher.core.records import Layout
from launcher.core.run_report import Attempt


@frozen
class Change:
    """The difference between the devices of an attempt and of the previous one.

    Devices are named by their rank in the complete rank table.
    """

    attempt: int
    cause: Cause  # why the previous attempt ended
    layout: Layout
    devices: int
    left_out: tuple[int, ...]
    taken_back: tuple[int, ...]
    cost_s: float | None  # from the last step before the change to the first one after; None if metrics lack either
    repeated_steps: int | None  # steps that the previous attempt had already computed


def changes_of(attempts: Sequence[Attempt], steps: Sequence[StepMetrics]) -> tuple[Change, ...]:
    """Return a change for each attempt of an elastic run after the first. `steps` are all steps of its metrics."""
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
