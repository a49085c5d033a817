"""Optimizers with the names and arguments of MindSpore and torch.

Weight decay applies only to matrices, not to norms and biases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.trainer.optimizer import update_rules

LearningRate = float | Callable[[int], float]  # a constant, or a function of the step, counted from 1


class Optimizer(Protocol):
    @property
    def learning_rate(self) -> LearningRate: ...

    def rule(self) -> update_rules.Rule:
        """Return the update rule, which computes new values of a parameter from its gradient."""


class _WithRate:
    learning_rate: LearningRate

    def __post_init__(self) -> None:
        """Raise a UsageError if the caller passes parameters, as to torch's optimizers, instead of a learning rate."""
        if hasattr(self.learning_rate, "__iter__"):
            raise UsageError(
                f"{type(self).__name__}: learning_rate is a {type(self.learning_rate).__name__}",
                hint="set learning_rate to a number or a function of the step; do not pass parameters",
            )


@frozen
class AdamWeightDecay(_WithRate):
    """MindSpore's `nn.AdamWeightDecay`: AdamW without bias correction of the moments."""

    learning_rate: LearningRate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0

    def rule(self) -> update_rules.Rule:
        return update_rules.AdamW(self.beta1, self.beta2, self.eps, self.weight_decay, corrects_bias=False)


@frozen
class AdamW(_WithRate):
    """torch's AdamW with the same defaults."""

    learning_rate: LearningRate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def rule(self) -> update_rules.Rule:
        return update_rules.AdamW(self.beta1, self.beta2, self.eps, self.weight_decay)


@frozen
class Momentum(_WithRate):
    """MindSpore's `nn.Momentum`: gradient descent with momentum."""

    learning_rate: LearningRate
    momentum: float
    weight_decay: float = 0.0

    def rule(self) -> update_rules.Rule:
        return update_rules.Momentum(self.momentum, self.weight_decay)


def in_words(optimizer: Optimizer) -> str:
    """Return an optimizer's class and arguments as text, such as "AdamW(learning_rate=0.001, ...)"."""
    fields = {name: getattr(optimizer, name) for name in getattr(optimizer, "__dataclass_fields__", ())}
    numbers = (
        f"{name}={getattr(value, '__qualname__', type(value).__name__) if callable(value) else value}"
        for name, value in fields.items()
    )
    return f"{type(optimizer).__name__}({', '.join(numbers)})"
