"""The time of training steps, divided by activity."""

from __future__ import annotations

from dataclasses import astuple
from operator import add

from launcher.core.frozen import frozen


@frozen
class StepTime:
    """The duration of one or more steps on this rank, and its parts."""

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
        """The remaining seconds, for forward, backward and optimizer."""
        return self.busy_s - self.data_s
