"""The interface between programs and the training loop (`loop.py`)."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from launcher.checkpoint.index import LOSS
from launcher.core.env import TLAUNCH_RUN_DIR
from launcher.core.errors import TlaunchError
from launcher.core.frozen import frozen
from launcher.trainer.checkpoint.state import NONE, State
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.strategy_recorder import StepRecorder
from launcher.trainer.telemetry.metrics_writer import Metrics
from launcher.trainer.telemetry.step_time import StepTime


class Batch(Protocol):
    """A global batch: the data of one optimizer step on all ranks. Epochs and steps count from 1."""

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
    """The result of a step. It is the same on all ranks, except for `padding_share`."""

    @property
    def loss(self) -> float: ...  # mean over the global batch
    @property
    def gradient_norm(self) -> float: ...  # of the full model, before clipping
    @property
    def is_finite(self) -> bool: ...  # False: the gradient is not finite, and the weights were not updated
    @property
    def votes(self) -> tuple[float, ...]: ...  # summed over all ranks
    @property
    def tokens(self) -> int | None: ...  # of the global batch; None: the data is not text
    @property
    def padding_share(self) -> float | None: ...  # of this rank's positions


@frozen
class Validated:
    loss: float | None  # None: there is no validation data
    line: str  # the log line, without the step
    of_tokens: bool = False  # the loss is a mean per token in nats, and has a perplexity
    bleu: float | None = None  # of some translations; None: nothing was translated


NOTHING_VALIDATED = Validated(None, "")

AnyBatch = TypeVar("AnyBatch", bound=Batch)
AnyResult = TypeVar("AnyResult", bound=Result)


class Program(ABC, Generic[AnyBatch, AnyResult]):
    """A model, its data and its optimizer on one rank. The training loop (`loop.py`) calls its methods."""

    name: str  # in the catalogue
    settings: Any  # of that recipe
    world: World
    optimizer: State
    buffers: Mapping[str, Tensor] = NONE  # equal on all ranks, and saved with the state
    best_metric = LOSS  # or BLEU: which value of a validation shows an improvement
    clip_norm = 0.0  # norm to which gradients are scaled down; 0: gradients are not clipped
    dtype: torch.dtype  # of weights and arithmetic
    shapes: Mapping[str, tuple[int, ...]]  # of every parameter of the single-device model, in its order
    digest: str  # of the training data; checkpoints can only be resumed with the same digest
    tokenizer: bytes | None = None  # saved with checkpoints and model

    @abstractmethod
    def begin(self) -> None:
        """Prepare the training, and log the model and data. All ranks must call it before the first step."""

    @abstractmethod
    def batches(self, first_step: int) -> Iterator[AnyBatch]:
        """Yield the batches of the training from `first_step` on. A resumed training gets the same batches."""

    @abstractmethod
    def learning_rate(self, batch: AnyBatch) -> float:
        """Return the learning rate for the step of `batch`."""

    @abstractmethod
    def train_step(self, batch: AnyBatch, learning_rate: float, votes: Callable[[], tuple[float, ...]]) -> AnyResult:
        """Train one step, and sum the numbers that `votes` returns over all ranks. All ranks must call it."""

    def line(self, batch: AnyBatch, result: AnyResult, seconds: float) -> str:
        """Return the log line of a step that took `seconds`, without the gradient norm."""
        del seconds
        return line_of(batch, result.loss)

    def not_finite(self, batch: AnyBatch, result: AnyResult) -> TlaunchError:
        """Return the error for a step with a non-finite gradient. All ranks return the same error."""
        return TlaunchError(
            f"step {batch.step} (epoch {batch.epoch}): the gradient is not finite, and the loss is {result.loss}; "
            "the weights were not updated in this step",
            hint="use a smaller learning rate",
        )

    @abstractmethod
    def weights(self) -> dict[str, Tensor] | None:
        """Return the model's parameters and buffers on rank 0, and None on other ranks. All ranks must call it."""

    def step_recorder(self, path: Path | None, attempt: int) -> StepRecorder:
        """Return a recorder that writes the operators and collectives of one step to `path`."""
        del path, attempt
        return StepRecorder()

    def settle(self) -> None:
        """Copy the model's buffers to `buffers` for saving, with equal values on all ranks. All ranks must call it."""

    def take_buffers(self) -> None:
        """Copy the restored values in `buffers` to the model."""

    def validate(self) -> Validated | None:
        """Validate the model. Return None if there is no validation data. All ranks must call it."""
        return None

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiply two square matrices in the same way as the model's layers, to measure the peak FLOP/s of a rank."""
        return torch.mm(left, right)

    def model_flops(self, batch: AnyBatch) -> float | None:
        """Return the number of floating-point operations of all ranks in a step, or None if it is unknown."""
        del batch
        return None

    def ended(self, spent: StepTime, last_step: int, metrics: Metrics) -> None:
        """Log and record statistics after the last step. All ranks must call it.

        `spent` is the time of all steps except this process's first.
        """

    def show(self, weights: Mapping[str, Tensor]) -> None:
        """Log examples of the trained model's output on rank 0."""


def line_of(batch: Batch, loss: float) -> str:
    """Return the log line of a step, such as "epoch: 1 step: 10, loss is 2.3026".

    In the first epoch it has MindSpore's form. Later lines also have the step since the start of the training, which
    checkpoints, validations and metrics are numbered by: "epoch: 2 step: 3, total step: 13, loss is 2.3026".
    """
    total = f", total step: {batch.step}" if batch.step != batch.step_of_epoch else ""
    return f"epoch: {batch.epoch} step: {batch.step_of_epoch}{total}, loss is {loss:.4f}"


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter in the model's order."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def say(line: str) -> None:
    """Write a line to this rank's log with one call, so that lines of several threads do not mix."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_of_all(line: str, world: World) -> None:
    """Write a line to this rank's log. Without a run directory, all ranks share a log and only rank 0 writes."""
    if world.is_first or TLAUNCH_RUN_DIR in os.environ:
        say(line)


def say_layout(layout: str, held: Iterable[Tensor], world: World) -> None:
    """Log the layout and the number of parameters on this rank."""
    count = sum(parameter.numel() for parameter in held)
    say_of_all(f"layout: {layout} on {world.device.type}, {count} parameters on this rank", world)
