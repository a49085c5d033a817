"""The optimizers of the tutorials, by their names. They decay matrices alone: norms and biases never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.trainer.optimizer import adamw, momentum
from launcher.trainer.optimizer.update_rules import Rule

LearningRate = float | Callable[[int], float]  # of each step, or of a step by its number, from 1


class Optimizer(Protocol):
    """The protocol of what `train` takes: the optimizers below."""

    @property
    def learning_rate(self) -> LearningRate: ...

    def rule(self) -> Rule:
        """Return the update rule, which knows nothing of ranks."""


class _WithRate:
    learning_rate: LearningRate

    def __post_init__(self) -> None:
        """Raises a UsageError for what is no rate: optimizers elsewhere take the parameters first."""
        if hasattr(self.learning_rate, "__iter__"):
            raise UsageError(
                f"{type(self).__name__}: learning_rate is a {type(self.learning_rate).__name__}",
                hint="a number, or a function of the step; parameters are not given: `train` knows the network's",
            )


@frozen
class AdamWeightDecay(_WithRate):
    """MindSpore's `nn.AdamWeightDecay`: AdamW that does not correct the bias of its moments."""

    learning_rate: LearningRate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0

    def rule(self) -> Rule:
        return adamw.AdamW(self.beta1, self.beta2, self.eps, self.weight_decay, corrects_bias=False)


@frozen
class AdamW(_WithRate):
    """torch's AdamW, with its defaults."""

    learning_rate: LearningRate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def rule(self) -> Rule:
        return adamw.AdamW(self.beta1, self.beta2, self.eps, self.weight_decay)


@frozen
class Momentum(_WithRate):
    """MindSpore's `nn.Momentum`: gradient descent with momentum."""

    learning_rate: LearningRate
    momentum: float
    weight_decay: float = 0.0

    def rule(self) -> Rule:
        return momentum.Momentum(self.momentum, self.weight_decay)


def in_words(optimizer: Optimizer) -> str:
    """Return an optimizer with its numbers; a function of the step goes by its name."""
    fields = {name: getattr(optimizer, name) for name in getattr(optimizer, "__dataclass_fields__", ())}
    numbers = (
        f"{name}={getattr(value, '__qualname__', type(value).__name__) if callable(value) else value}"
        for name, value in fields.items()
    )
    return f"{type(optimizer).__name__}({', '.join(numbers)})"
