"""Timers that divide a step into loading data, waiting for other ranks, and this rank's own work.

On CPU backends collectives and receives block until the other ranks take part. The time inside them counts as waiting,
including the transfer. On accelerators both run in the background, so their waiting time is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from launcher.trainer.telemetry.step_time import StepTime

Item = TypeVar("Item")


class Timer:
    """A context manager that adds up the seconds spent inside it. Not reentrant."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since_s = 0.0

    def __enter__(self) -> None:
        self._since_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since_s

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield `items`, and add up the seconds that the iterator takes."""
        iterator = iter(items)
        while True:
            try:
                with self:
                    item = next(iterator)
            except StopIteration:
                return
            yield item


# The timers of this process. At most one of them runs at a time.
waiting = Timer()  # in collectives, including the transfer
bubble = Timer()  # in messages between pipeline stages, including the transfer
loading = Timer()  # choosing, padding and copying the sentence pairs of a step


class Stopwatch:
    """A stopwatch that starts at its creation."""

    def __init__(self) -> None:
        self._before = _readings()

    def read(self) -> StepTime:
        """Return the time since the stopwatch was created."""
        return StepTime(*(now - before for now, before in zip(_readings(), self._before, strict=True)))


def _readings() -> tuple[float, float, float, float]:
    return time.perf_counter(), waiting.seconds, bubble.seconds, loading.seconds
