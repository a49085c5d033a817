"""The time of a step, divided into that for data, for waiting for other ranks, and for this rank's own work.

On CPU backends a collective blocks until the others have come, and so does taking a message: the time spent there is
waiting, with the transfer in it. Accelerators run both in the background, so that nothing is known of their waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from launcher.trainer.telemetry.step_time import StepTime

Item = TypeVar("Item")


class Timer:
    """Adds up the seconds spent inside `with`. Not for nested use."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since_s = 0.0

    def __enter__(self) -> None:
        self._since_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since_s

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield `items`, and add up the seconds that each takes to come."""
        iterator = iter(items)
        while True:
            try:
                with self:
                    item = next(iterator)
            except StopIteration:
                return
            yield item


# Of this process. No two of them ever run at the same time.
waiting = Timer()  # for the other ranks of a collective, transfer included
bubble = Timer()  # for the neighbours in the pipeline, transfer included
loading = Timer()  # for the sentence pairs of a step: to choose, pad and copy them


class Stopwatch:
    """Runs from its making on."""

    def __init__(self) -> None:
        self._before = _readings()

    def read(self) -> StepTime:
        """Return the time since the stopwatch was made."""
        return StepTime(*(now - before for now, before in zip(_readings(), self._before, strict=True)))


def _readings() -> tuple[float, float, float, float]:
    return time.perf_counter(), waiting.seconds, bubble.seconds, loading.seconds
