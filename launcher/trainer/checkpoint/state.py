"""The state of a training on one rank, as checkpoints are written of it and read into it, and the facts that go with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Protocol

import torch
from torch import Tensor

from launcher.core.errors import TlaunchError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.trainer.optimizer.sharded import OwnedBox, norm_of

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


@frozen
class Training:
    """The facts that a checkpoint holds about its training, the same after every step."""

    program: str
    settings: Mapping[str, Any]
    layout: Layout
    text: str
    data: str
    shapes: Mapping[str, tuple[int, ...]]
    tokenizer: bytes | None  # None: the program has none
    named: frozenset[str] = frozenset()  # the settings that a person has set
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of all settings, which older checkpoints may lack

    @property
    def tokenizer_digest(self) -> str | None:
        return None if self.tokenizer is None else hashlib.sha256(self.tokenizer).hexdigest()


def check_finite(state: State, of: str) -> None:
    """Raise if the weights that this rank owns are not finite; `of` names the state in the error.

    Weights whose squares overflow count as not finite: training cannot continue from them.

    Raises:
        TlaunchError: the norm of some parameter is NaN or infinite.
    """
    for each in state.owned_boxes():
        if not norm_of(each.values[0].reshape(-1)).isfinite():
            raise TlaunchError(f"{of}: weights of {each.name} are not finite")


def shapes_of(buffers: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each buffer, as an index has it."""
    return {name: tuple(buffer.shape) for name, buffer in buffers.items()}
