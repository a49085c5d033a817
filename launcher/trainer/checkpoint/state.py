"""The state of a training on one rank, as checkpoints are written of it and read into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from launcher.trainer.optimizer.sharded import OwnedBox

# Of a model without buffers. Those of one that has some, such as the running means of norms, are the same on all ranks, each of
# which holds them whole: rank 0 writes them, and all read them.
NONE: Mapping[str, Tensor] = {}


class State(Protocol):
    """What is divided over the ranks: boxes of parameters, each with as many values as there are kinds."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the values of each box: the weights first, then what the optimizer keeps beside them."""

    @property
    def state_dtype(self) -> torch.dtype:
        """The type of all values, which may be more precise than that of the model's own weights."""

    def owned_boxes(self) -> Iterator[OwnedBox]:
        """Yield what this rank owns, in an order that is always the same. Values are written to and read from the views."""

    def restored(self, steps: int) -> None:
        """Take what was written to the views as the state after so many steps. All ranks must call it."""


def shapes_of(buffers: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each buffer, as an index has it."""
    return {name: tuple(buffer.shape) for name, buffer in buffers.items()}
