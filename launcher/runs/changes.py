"""Compare the attempts of an elastic run: the devices of each beside those of the one before, and the cost of the change."""

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
    """The devices of an attempt beside those of the one before. Devices are called by the rank that the whole table gives them."""

    attempt: int
    cause: Cause  # of the end of the attempt before
    layout: Layout
    devices: int
    left_out: tuple[int, ...]
    taken_back: tuple[int, ...]
    cost_s: float | None  # from the last step before to the first one after; None where metrics do not show both
    repeated_steps: int | None  # that the attempt before had taken already


def changes_of(attempts: Sequence[Attempt], steps: Sequence[StepMetrics]) -> tuple[Change, ...]:
    """Return a change for each attempt of an elastic run after its first one. `steps` are all that metrics hold."""
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
