"""What an optimizer's update rule is to the rest of it: an update of lists of tensors, element by element."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from launcher.core.frozen import frozen


@frozen
class Step:
    """The numbers of one step, the same for all elements."""

    number: int  # of the step in the training, from 1
    learning_rate: float
    divisor: float | None = None  # gradients are divided by it first, in place


class Tensors(NamedTuple):
    """The tensors that a step reads and changes, element by element: lists of equal length."""

    weights: list[Tensor]
    gradients: list[Tensor]
    state: tuple[list[Tensor], ...]  # in the order of the rule's `state`, zero before the first step


class Rule(Protocol):
    """The update rule of an optimizer, which knows nothing of ranks, of shared memory and of where its tensors lie."""

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the tensors that it keeps for each weight, of the weight's shape; checkpoints hold them by these."""

    def update(self, tensors: Tensors, step: Step, *, decays: bool) -> None:
        """Take a step in place, with weight decay where `decays`. All tensors are of one type and on one device."""
