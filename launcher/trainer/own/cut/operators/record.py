"""What the description of an operator is made of, as `trace` asks for it and `network` computes it.

A description is a function that is called with tensors without storage (`Value`) where torch's own function would be called
with tensors. It records one operator or more, each with its index expression and with how a rank computes its part.
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

Dims = tuple[str | None, ...]  # of a tensor, the index of each dim
Local = Callable[..., Tensor]  # from a rank's parts of the inputs to its part of the output, or of the sum


@frozen
class Value:
    """A tensor of the traced network: its name in the graph, and a tensor on the meta device of its shape and type."""

    name: str
    meta: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.meta.shape


@frozen
class State:
    """A buffer that an operator keeps between steps, as a running mean."""

    name: str
    meta: Tensor
    like: int | None = None  # the input whose layout it has; None: every rank holds it whole


@frozen
class OpContext:
    """The rank on which an operator is computed, and how the operator is cut."""

    cutting: Partition
    rank: int
    input_shapes: tuple[tuple[int, ...], ...]  # of the whole tensors
    shape: tuple[int, ...]  # of the whole output
    shared: Group = ALONE  # over which statistics are exchanged
    states: tuple[Tensor, ...] = ()  # this rank's parts

    def input_box(self, number: int) -> Box:
        """Return this rank's part of an input."""
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
        """Record an operator of a kind, and return its output.

        `output` is a tensor on the meta device. `local` makes what computes it on a rank. `suffix` is appended to the name
        of the module, or of what else called it, where that is more than one operator. `flops` are of products alone:
        the time of all else is that of its bytes.
        """


def everywhere(local: Local) -> Callable[[OpContext], Local]:
    """Return what makes `local` on every rank, whatever it holds."""
    return lambda _site: local


# The indices of elements, and those of batches of matrices.
ELEMENTS, BATCHES = "ijlmnopqrst", "bcdefgh"


def broadcast_dims(shape: Sequence[int], output: Sequence[int], letters: str = ELEMENTS) -> Dims:
    """Return the indices of a tensor that is broadcast to the shape of an output; dims of size 1 have none.

    >>> broadcast_dims((3, 1), (2, 3, 5))
    ('j', None)
    """
    missing = len(output) - len(shape)
    return tuple(letters[missing + dim] if size > 1 else None for dim, size in enumerate(shape))


def sizes_of(dims: Dims, shape: Sequence[int]) -> dict[str, int]:
    """Return the sizes of the indices of a tensor."""
    return {index: size for index, size in zip(dims, shape, strict=True) if index is not None}


def refuse(reason: str, hint: str | None = None) -> NoReturn:
    """Refuse an operator; `trace` says which.

    Raises:
        UsageError: always.
    """
    raise UsageError(reason, hint=hint)
