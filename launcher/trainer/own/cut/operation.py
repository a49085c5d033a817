"""Strategies of modules that are set in code, and modules that are one operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from launcher.core.errors import UsageError
from launcher.sharding.expression import Strategy
from launcher.sharding.strategy import strategy_from

ATTRIBUTE = "in_strategy"  # attribute of a module, with MindSpore's name

Module = TypeVar("Module", bound=nn.Module)


def shard(module: Module, strategy: Strategy) -> Module:
    """Set the strategy of a module that is an operator, such as nn.Linear or nn.ReLU; return the module.

    If the module has several operators, such as a linear layer and its bias, the strategy applies to the first.

    Raises:
        UsageError: `strategy` is not a valid strategy.
    """
    try:
        parts = strategy_from(strategy)
    except ValueError as error:
        told = f"the strategy {strategy!r} of a {type(module).__name__} is invalid"
        raise UsageError(told, hint=f"pass {error}") from None
    # Bypass nn.Module's setter, which looks for parameters.
    object.__setattr__(module, ATTRIBUTE, parts)
    return module


def given_strategies(network: nn.Module) -> Iterator[tuple[str, Strategy]]:
    """Yield the path and strategy of each module that has one."""
    for path, module in network.named_modules():
        strategy = getattr(module, ATTRIBUTE, None)
        if strategy is not None:
            yield path, strategy


class Operation(nn.Module):
    """A module that calls one function with fixed options."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, *inputs: Tensor) -> Tensor:
        return type(self).function(*inputs, **self.options)

    def shard(self, strategy: Strategy) -> Operation:
        """Set the strategy: for each input, the number of parts along each dim. Return the module."""
        return shard(self, strategy)
