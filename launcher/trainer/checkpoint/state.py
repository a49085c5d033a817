"""The state of a training on one rank, which checkpoints save and restore, and the facts stored with it."""

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

# For a model without buffers. Buffers, such as running means of norms, are replicated on all ranks: rank 0 writes them,
# and all ranks read them.
NONE: Mapping[str, Tensor] = {}


class State(Protocol):
    """Training state sharded over ranks. Each box (part) of a parameter has one tensor per kind (weight, moments)."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the tensors that each box has: first the weight, then the optimizer's state."""

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of all values, which may be more precise than the model's weights."""

    def owned_boxes(self) -> Iterator[OwnedBox]:
        """Yield this rank's boxes in a fixed order. The values of a box are views of the state."""

    def restored(self, steps: int) -> None:
        """Finish a restore: the owned boxes now hold the state after `steps` steps. All ranks must call it."""


@frozen
class Training:
    """The information that each checkpoint contains about its training."""

    program: str
    settings: Mapping[str, Any]
    layout: Layout
    text: str
    data: str
    shapes: Mapping[str, tuple[int, ...]]
    tokenizer: bytes | None  # None: no tokenizer
    init_from: str = ""  # path of the model that the training started from; "": random weights
    named: frozenset[str] = frozenset()  # settings that the user has set
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of all settings; older checkpoints may lack some

    @property
    def tokenizer_digest(self) -> str | None:
        return None if self.tokenizer is None else hashlib.sha256(self.tokenizer).hexdigest()


def check_finite(state: State, of: str) -> None:
    """Raise an error if a weight that this rank owns is not finite. `of` names the state in the message.

    Weights whose squares overflow count as not finite: training cannot continue from them.

    Raises:
        TlaunchError: the norm of a parameter is NaN or infinite.
    """
    for each in state.owned_boxes():
        if not norm_of(each.values[0].reshape(-1)).isfinite():
            raise TlaunchError(f"{of}: weights of {each.name} are not finite")


def shapes_of(buffers: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(buffer.shape) for name, buffer in buffers.items()}
