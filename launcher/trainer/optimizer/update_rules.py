"""The interface of an optimizer's update rule, which updates lists of tensors element by element."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from launcher.core.frozen import frozen


@frozen
class Step:
    """The parameters of one step, the same for all elements."""

    number: int  # of the step in the training, from 1
    learning_rate: float
    divisor: float | None = None  # gradients are first divided by it, in place


class Tensors(NamedTuple):
    """The tensors that a step reads and updates: lists of equal length, element by element."""

    weights: list[Tensor]
    gradients: list[Tensor]
    state: tuple[list[Tensor], ...]  # in the order of the rule's `state`, zero before the first step


class Rule(Protocol):
    """The update rule of an optimizer. It is independent of ranks and of the memory layout."""

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the state tensors of a weight, which have the weight's shape. Checkpoints use these names."""

    def update(self, tensors: Tensors, step: Step, *, decays: bool) -> None:
        """Take a step in place, with weight decay if `decays`. All tensors have the same type and device."""
