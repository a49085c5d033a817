"""The time of training steps, by what a rank did in it."""

from __future__ import annotations

from dataclasses import astuple
from operator import add

from launcher.core.frozen import frozen


@frozen
class StepTime:
    """The seconds of one step or more, and what they went into on this rank."""

    seconds: float = 0.0
    communication_s: float = 0.0  # in collectives: to wait for other ranks, and to transfer
    bubble_s: float = 0.0  # in messages between pipeline stages: to wait for neighbours, and to transfer
    data_s: float = 0.0  # to choose, pad and copy sentence pairs

    def __add__(self, other: StepTime) -> StepTime:
        return StepTime(*map(add, astuple(self), astuple(other)))

    @property
    def busy_s(self) -> float:
        """The seconds in which this rank did not wait for others."""
        return self.seconds - self.communication_s - self.bubble_s

    @property
    def compute_s(self) -> float:
        """The seconds that are left for forward, backward and optimizer."""
        return self.busy_s - self.data_s
