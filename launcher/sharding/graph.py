"""The graph of a network's operators, reduced to shapes and sharding. The tracer of a network builds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from typing import ClassVar

from launcher.core.frozen import frozen
from launcher.sharding.expression import Expression

VIEWS = frozenset({"reshape", "transpose"})  # kinds of operators whose output is a view of their input


@frozen
class Leaf:
    """A tensor that no operator computes: a parameter or an input of the network."""

    name: str
    shape: tuple[int, ...]
    is_parameter: bool
    item_bytes: int = 4


@frozen
class Operator:
    """An operator with one output, which has the same name as the operator."""

    name: str  # "matmul", "layer1.0.conv1"
    kind: str  # key in the table of computations: "matmul", "relu", "conv2d"
    inputs: tuple[str, ...]  # names of operators and leaves, in the order of the expression's inputs
    shape: tuple[int, ...]  # of the output
    expression: Expression
    flops: int  # of forward on one device; 0 for pure data movement
    item_bytes: int = 4

    is_parameter: ClassVar[bool] = False


@frozen
class Graph:
    leaves: tuple[Leaf, ...]
    operators: tuple[Operator, ...]  # Invariant: each comes after the operators that compute its inputs
    output: str  # the operator that computes the loss or the result

    @cached_property
    def by_name(self) -> Mapping[str, Leaf | Operator]:
        tensors: tuple[Leaf | Operator, ...] = (*self.leaves, *self.operators)
        return {each.name: each for each in tensors}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[tuple[Operator, int], ...]]:
        """Map each tensor's name to its uses. A use consists of an operator and an input index."""
        found: dict[str, list[tuple[Operator, int]]] = {name: [] for name in self.by_name}
        for operator in self.operators:
            for number, name in enumerate(operator.inputs):
                found[name].append((operator, number))
        return {name: tuple(uses) for name, uses in found.items()}

    @cached_property
    def needs_gradient(self) -> frozenset[str]:
        """The names of all parameters and of all tensors that depend on a parameter."""
        found = {leaf.name for leaf in self.leaves if leaf.is_parameter}
        for operator in self.operators:
            if not found.isdisjoint(operator.inputs):
                found.add(operator.name)
        return frozenset(found)

    def edges(self) -> Iterator[tuple[Operator, Operator, int]]:
        """Yield (producer, consumer, input index) for each input that another operator computes."""
        for operator in self.operators:
            for number, name in enumerate(operator.inputs):
                producer = self.by_name[name]
                if isinstance(producer, Operator):
                    yield producer, operator, number


def bytes_of(tensor: Leaf | Operator) -> int:
    return prod(tensor.shape) * tensor.item_bytes
