"""The time of training steps, divided into loading data, waiting for other ranks, and this rank's own work.

On CPU backends collectives and receives block until the other ranks take part. The time inside them counts as waiting,
including the transfer. On accelerators both run in the background, so their waiting time is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from operator import add
from typing import TypeVar

from launcher.core.frozen import frozen

Item = TypeVar("Item")


@frozen
class StepTime:
    """The duration of one or more steps on this rank, divided into parts."""

    seconds: float = 0.0
    communication_s: float = 0.0  # in collectives: waiting for other ranks, and transfer
    bubble_s: float = 0.0  # in messages between pipeline stages: waiting for neighbours, and transfer
    data_s: float = 0.0  # choosing, padding and copying sentence pairs

    def __add__(self, other: StepTime) -> StepTime:
        return StepTime(*map(add, astuple(self), astuple(other)))

    @property
    def busy_s(self) -> float:
        """The seconds in which this rank did not wait for other ranks."""
        return self.seconds - self.communication_s - self.bubble_s

    @property
    def compute_s(self) -> float:
        """The seconds spent in forward, backward and optimizer, without waiting and without loading data."""
        return self.busy_s - self.data_s


class Timer:
    """A context manager that adds up the seconds spent inside it. It is not reentrant."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since_s = 0.0

    def __enter__(self) -> None:
        self._since_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since_s

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield `items`, and add up the seconds that their iterator takes to produce them."""
        iterator = iter(items)
        while True:
            try:
                with self:
                    item = next(iterator)
            except StopIteration:
                return
            yield item


# The timers of this process. At most one of them runs at a time.
waiting = Timer()  # in collectives
bubble = Timer()  # in messages between pipeline stages
loading = Timer()  # of data


class Stopwatch:
    def __init__(self) -> None:
        self._before = _readings()

    def read(self) -> StepTime:
        return StepTime(*(now - before for now, before in zip(_readings(), self._before, strict=True)))


def _readings() -> tuple[float, float, float, float]:
    return time.perf_counter(), waiting.seconds, bubble.seconds, loading.seconds
