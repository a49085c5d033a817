"""What a bundled program is to the training loop (`loop.py`): one rank's part of a training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from launcher.core.errors import TlaunchError
from launcher.core.frozen import frozen
from launcher.trainer.checkpoint.state import NONE, State
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.strategy_recorder import StepRecorder
from launcher.trainer.telemetry.metrics_writer import Metrics
from launcher.trainer.telemetry.step_time import StepTime


class Batch(Protocol):
    """What all ranks together train on in one optimizer step. All numbers count from 1."""

    @property
    def epoch(self) -> int: ...
    @property
    def step_of_epoch(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def last_step(self) -> int: ...  # of the training
    @property
    def is_last(self) -> bool: ...


class Result(Protocol):
    """What came out of a step, the same on all ranks but for `padding_share`."""

    @property
    def loss(self) -> float: ...  # mean over the global batch
    @property
    def is_finite(self) -> bool: ...  # False: the gradient is not, and the model is that of the step before
    @property
    def votes(self) -> tuple[float, ...]: ...  # summed over all ranks
    @property
    def tokens(self) -> int | None: ...  # of the global batch; None: what is trained on is no text
    @property
    def padding_share(self) -> float | None: ...  # of this rank's positions


@frozen
class Validated:
    loss: float
    line: str  # that tells it
    of_tokens: bool = False  # the loss is the mean per token, in nats, so that it has a perplexity
    bleu: float | None = None  # of some translations; None: nothing was translated


AnyBatch = TypeVar("AnyBatch", bound=Batch)
AnyResult = TypeVar("AnyResult", bound=Result)


class Program(ABC, Generic[AnyBatch, AnyResult]):
    """One rank's part of a training. Methods that say so must be called by all ranks."""

    name: str  # in the catalogue
    settings: Any  # of that recipe
    world: World
    optimizer: State
    buffers: Mapping[str, Tensor] = NONE  # the same on all ranks, and saved with the state
    dtype: torch.dtype  # of weights and arithmetic
    shapes: Mapping[str, tuple[int, ...]]  # of every parameter of the single-device model, in its order
    digest: str  # of what is trained on: nothing else can go on from its checkpoints
    tokenizer: bytes | None = None  # kept with checkpoints and model

    @abstractmethod
    def begin(self) -> None:
        """Do what is due once before the first step, and say what is trained on what. All ranks must call it."""

    @abstractmethod
    def batches(self, first_step: int) -> Iterator[AnyBatch]:
        """Yield the batches of the training from `first_step` on: the same, whatever came before."""

    @abstractmethod
    def learning_rate(self, batch: AnyBatch) -> float:
        """Return the learning rate of the step on a batch."""

    @abstractmethod
    def train_step(self, batch: AnyBatch, learning_rate: float, votes: Callable[[], tuple[float, ...]]) -> AnyResult:
        """Take an optimizer step, with which the sums over all ranks of what `votes` returns come. All ranks must call it."""

    @abstractmethod
    def line(self, batch: AnyBatch, result: AnyResult, seconds: float) -> str:
        """Return the line of the log about a step that took so many seconds."""

    def not_finite(self, batch: AnyBatch, result: AnyResult) -> TlaunchError:
        """Return the error for a step whose gradient is not finite, the same on every rank; lines may tell more."""
        return TlaunchError(
            f"epoch {batch.epoch} step {batch.step_of_epoch}: the gradient is not finite, and the loss is {result.loss}; "
            "that step has changed no weight",
            hint="use a smaller learning rate",
        )

    @abstractmethod
    def weights(self) -> dict[str, Tensor] | None:
        """Return the tensors of the trained model, buffers included, on rank 0; None elsewhere. All ranks must call it."""

    def step_recorder(self, path: Path | None, attempt: int) -> StepRecorder:
        """Return what records a step in this attempt of the run for `tlaunch plan operators`, if there is a path; nothing by default."""
        del path, attempt
        return StepRecorder()

    def settle(self) -> None:
        """Make `buffers` what is to be saved of the present state, the same on all ranks. All ranks must call it."""

    def take_buffers(self) -> None:
        """Go on from `buffers`, which were read from a checkpoint."""

    def validate(self) -> Validated | None:
        """Validate the present state; None: there is nothing to validate with. All ranks must call it."""
        return None

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiply two matrices as the model does: by this the peak is measured that `model_flops` are compared with."""
        return torch.mm(left, right)

    def model_flops(self, batch: AnyBatch) -> float | None:
        """Return the floating-point operations that a step on a batch needs, on all ranks together; None: that is not known."""
        del batch
        return None

    def ended(self, spent: StepTime, last_step: int, metrics: Metrics) -> None:
        """Tell what is known after the last step; `spent`: by all steps of this process but the first. All ranks must call it."""

    def show(self, weights: Mapping[str, Tensor]) -> None:
        """Show, on rank 0, what the trained model can do."""


def line_of(batch: Batch, loss: float) -> str:
    """Return the tutorials' line about a step."""
    return f"epoch: {batch.epoch} step: {batch.step_of_epoch}, loss is {loss:.4f}"
