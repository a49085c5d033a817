"""The types and helpers for descriptions of operators.

A description is a function with the arguments of the torch function that it describes, but with tensors without
storage (`Value`). It records one or more operators: the index expression, and a function that computes a rank's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box
from launcher.sharding.expression import Expression, Partition
from launcher.trainer.parallel.collectives import ALONE, Group

Dims = tuple[str | None, ...]  # the index of each dim of a tensor
Local = Callable[..., Tensor]  # from a rank's parts of the inputs to its part of the output, or its summand


@frozen
class Value:
    """A tensor in the traced network: its name in the graph, and a meta tensor with its shape and dtype."""

    name: str
    meta: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.meta.shape


@frozen
class State:
    """A buffer that an operator updates in each step, such as a running mean."""

    name: str
    meta: Tensor
    like: int | None = None  # the input whose layout it has; None if it is replicated


@frozen
class OpContext:
    """The data that a rank needs to compute its part of an operator."""

    cutting: Partition
    rank: int
    input_shapes: tuple[tuple[int, ...], ...]  # of the full tensors
    shape: tuple[int, ...]  # of the full output
    shared: Group = ALONE  # the group that exchanges statistics
    states: tuple[Tensor, ...] = ()  # this rank's parts

    def input_box(self, number: int) -> Box:
        """Return the index ranges of this rank's part of input `number`, one range for each dim."""
        return self.cutting.inputs[number].box_of(self.rank, self.input_shapes[number])

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's part of the output."""
        return self.cutting.output.local_shape(self.shape)


class Recorder(Protocol):
    def __call__(
        self,
        kind: str,
        inputs: Sequence[Value],
        expression: Expression,
        output: Tensor,
        local: Callable[[OpContext], Local],
        *,
        flops: int = 0,
        suffix: str = "",
        states: Sequence[State] = (),
    ) -> Value:
        """Record an operator and return its output.

        `output` is a meta tensor. `local` returns the function that computes a rank's part. `suffix` is appended to
        the name if one call has several operators. `flops` is only set for products; the cost of other operators
        depends on their bytes.
        """


def everywhere(local: Local) -> Callable[[OpContext], Local]:
    """Wrap `local` in a function that ignores its context, for operators that all ranks compute in the same way."""
    return lambda _site: local


# Letters for the indices of elements, and for the indices of batches of matrices.
ELEMENTS, BATCHES = "ijlmnopqrst", "bcdefgh"


def broadcast_dims(shape: Sequence[int], output: Sequence[int], letters: str = ELEMENTS) -> Dims:
    """Return an index letter for each dim of a tensor that is broadcast to `output`. Dims of size 1 get None.

    >>> broadcast_dims((3, 1), (2, 3, 5))
    ('j', None)
    """
    missing = len(output) - len(shape)
    return tuple(letters[missing + dim] if size > 1 else None for dim, size in enumerate(shape))


def sizes_of(dims: Dims, shape: Sequence[int]) -> dict[str, int]:
    """Return a dict from index letters to sizes. Dims without a letter are left out."""
    return {index: size for index, size in zip(dims, shape, strict=True) if index is not None}


def refuse(reason: str, hint: str | None = None) -> NoReturn:
    """Raise a UsageError for the current operator. `trace` adds the operator's name to the message."""
    raise UsageError(reason, hint=hint)
