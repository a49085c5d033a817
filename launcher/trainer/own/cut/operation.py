"""Strategies that modules are given in code, and modules that are one operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from launcher.core.errors import UsageError
from launcher.sharding.expression import Strategy
from launcher.sharding.strategy import strategy_from

ATTRIBUTE = "in_strategy"  # of a module, as the strategies of inputs are called there

Module = TypeVar("Module", bound=nn.Module)


def shard(module: Module, strategy: Strategy) -> Module:
    """Give a module that is one operator, as nn.Linear or nn.ReLU, a strategy, and return it.

    Of a module that is several, as a linear layer with its bias, it is the strategy of the first.

    Raises:
        UsageError: it is no strategy.
    """
    try:
        parts = strategy_from(strategy)
    except ValueError as error:
        told = f"the strategy {strategy!r} of a {type(module).__name__} is none"
        raise UsageError(told, hint=f"a strategy is {error}") from None
    # Past nn.Module's own setter, which looks for parameters.
    object.__setattr__(module, ATTRIBUTE, parts)
    return module


def given_strategies(network: nn.Module) -> Iterator[tuple[str, Strategy]]:
    """Yield the modules of a network that have been given a strategy, by their paths."""
    for path, module in network.named_modules():
        strategy = getattr(module, ATTRIBUTE, None)
        if strategy is not None:
            yield path, strategy


class Operation(nn.Module):
    """A module that calls one function, with options that it is made with."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, *inputs: Tensor) -> Tensor:
        return type(self).function(*inputs, **self.options)

    def shard(self, strategy: Strategy) -> Operation:
        """Give it a strategy: of each input, the number of parts of each dim."""
        return shard(self, strategy)
