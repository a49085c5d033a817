"""Operators as modules by the names that the tutorials have, which can be given a strategy: `net.matmul.shard(((2, 4), (4, 1)))`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

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


class MatMul(Operation):
    function = staticmethod(torch.matmul)


class BatchMatMul(Operation):
    function = staticmethod(torch.matmul)


class Add(Operation):
    function = staticmethod(torch.add)


class Sub(Operation):
    function = staticmethod(torch.sub)


class Mul(Operation):
    function = staticmethod(torch.mul)


class Div(Operation):
    function = staticmethod(torch.div)


class Square(Operation):
    function = staticmethod(torch.square)


class ReLU(Operation):
    function = staticmethod(torch.relu)


class GeLU(Operation):
    function = staticmethod(functional.gelu)


class Sigmoid(Operation):
    function = staticmethod(torch.sigmoid)


class Tanh(Operation):
    function = staticmethod(torch.tanh)


class Softmax(Operation):
    """Softmax along `dim`."""

    function = staticmethod(torch.softmax)

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class ReduceMean(Operation):
    """The mean over `dim`, or over all."""

    function = staticmethod(torch.mean)


class ReduceSum(Operation):
    """The sum over `dim`, or over all."""

    function = staticmethod(torch.sum)


class Transpose(Operation):
    """The dims in another order."""

    function = staticmethod(torch.permute)

    def __init__(self, *order: int) -> None:
        super().__init__(dims=order)


class WithLoss(nn.Module):
    """A network and its loss as one, called with the network's input and the label; names of the network stay as they are."""

    def __init__(self, network: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.loss = loss

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return self.loss(self.network(x), label)


def class_name(network: nn.Module) -> str:
    """Return the name of a network's class: within `WithLoss`, of the network that a person has written."""
    return type(network.network if isinstance(network, WithLoss) else network).__name__


def own_name(network: nn.Module, path: str) -> str:
    """Return how what lies at a path of a network is named, which is the path, but for what is within `WithLoss`."""
    return path.removeprefix("network.") if isinstance(network, WithLoss) else path
