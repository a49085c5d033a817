"""The common part of programs with a constant learning rate: the quickstart network and ResNet-50.

A `NetworkTraining` runs their steps. It has a replica of the network on every rank (`replicated.py`), or operators that
are sharded by strategies (`sharded.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from launcher.core.frozen import frozen
from launcher.recipes.strategies import HYBRID
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import Transport, World
from launcher.trainer.programs.program import AnyBatch, Program, say_layout
from launcher.trainer.programs.strategy_recorder import StepRecorder
from launcher.trainer.saved import gather
from launcher.trainer.telemetry import recording


@frozen
class NetworkResult:
    loss: float  # mean over the global batch
    gradient_norm: float  # of the full network, before clipping
    votes: tuple[float, ...]
    tokens: None = None
    padding_share: None = None

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.gradient_norm)


class NetworkTraining(ABC):
    """One rank's part of a network, with its optimizer and training step."""

    world: World
    backward_passes = 0  # per step; the last one may start to sum gradients over ranks. 0: only `step` sums them
    parameters: Mapping[str, nn.Parameter]  # this rank's parts
    buffers: Mapping[str, Tensor]  # full floating-point buffers
    optimizer: ShardedOptimizer

    @abstractmethod
    def placements(self, rank: int) -> Mapping[str, Placement]:
        """Return the shard of each parameter that model-parallel rank `rank` holds."""

    def train_step(
        self, inputs: tuple[Tensor, ...], learning_rate: float, votes: Callable[[], tuple[float, ...]], *, count: int
    ) -> NetworkResult:
        """Train one step on this replica's share of a global batch of `count` rows. All ranks must call it.

        `votes` returns numbers to sum over all ranks along with the gradient norm; the sums are in the result.
        """
        self.optimizer.zero_gradients(backward_passes=self.backward_passes)
        total = self.forward_and_backward(inputs, count)
        recording.enter_phase("optimizer")
        norm = self.optimizer.step(learning_rate, votes)
        return NetworkResult(float(all_reduce(total, self.world.dp)), norm, self.optimizer.votes)

    @abstractmethod
    def forward_and_backward(self, inputs: tuple[Tensor, ...], count: int) -> Tensor:
        """Run forward and backward, and return this replica's contribution to the mean loss of the global batch."""

    @abstractmethod
    def settle_buffers(self) -> None:
        """Copy the model's buffers to `buffers` for saving, with equal values on all ranks. All ranks must call it."""

    @abstractmethod
    def take_buffers(self) -> None:
        """Copy the restored values in `buffers` to the model."""

    @abstractmethod
    def full_model(self, make: Callable[[], nn.Module]) -> AbstractContextManager[nn.Module]:
        """Return a context manager with the full trained model in evaluation mode. All ranks must call it.

        `make` creates a model of the same architecture.
        """

    @abstractmethod
    def step_recorder(self, path: Path | None, recipe: str, attempt: int) -> StepRecorder:
        """Return a recorder that writes the operators and collectives of one step to `path`."""

    def strategies_line(self) -> str:
        """Return a log line with the sharding strategies of the operators, or "" if there are none."""
        return ""


class NetworkProgram(Program[AnyBatch, NetworkResult]):
    """A program whose steps are run by a `NetworkTraining`."""

    _training: NetworkTraining

    def learning_rate(self, batch: AnyBatch) -> float:
        del batch
        return float(self.settings.train.learning_rate)

    def step_recorder(self, path: Path | None, attempt: int) -> StepRecorder:
        return self._training.step_recorder(path, self.name, attempt)

    def say_layout(self, *more: str) -> None:
        """Log the layout of ranks. If operators are sharded over all ranks, log only the number of ranks."""
        place, mode = self.world.place, self.settings.parallel.mode
        is_one_group = place.layout.mp == place.world_size > 1 and mode != HYBRID
        layout = f"{place.world_size} ranks" if is_one_group else str(place.layout)
        say_layout(f"{' '.join((layout, *more))}, {mode}", self._training.parameters.values(), self.world)

    def weights(self) -> dict[str, Tensor] | None:
        return gather(self.world, self._training.parameters, lambda place: self._training.placements(place.mp))


def plan_groups(settings: Any, world: World) -> Groups:
    """Return the process groups for a sharding plan over the ranks of one replica."""
    place, transport = world.place, cast("Transport", settings.parallel.transport)
    existing = (world.mp, world.dp)
    return Groups(
        place.global_rank, place.world_size, place.layout.mp, world.device, transport=transport, existing=existing
    )
