"""The common part of the programs that train a network at a constant learning rate: the quickstart network and ResNet-50.

A `NetworkTraining` takes their steps: with the whole network on every rank (`replicated.py`), or with a network whose operators
are cut by strategies (`sharded.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from launcher.core.frozen import frozen
from launcher.recipes.strategies import HYBRID
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.own.cut.groups import Groups, open_groups
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import Transport, World
from launcher.trainer.programs.program import AnyBatch, Program
from launcher.trainer.programs.strategy_recorder import StepRecorder
from launcher.trainer.saved import gather


@frozen
class NetworkResult:
    loss: float  # mean over the global batch
    is_finite: bool
    votes: tuple[float, ...]
    tokens: None = None
    padding_share: None = None


class NetworkTraining(ABC):
    """One rank's part of a network, its optimizer, and the steps that all ranks take together. Methods that say so must be called by all ranks."""

    parameters: Mapping[str, nn.Parameter]  # this rank's parts
    buffers: Mapping[str, Tensor]  # whole, those of floating-point numbers
    optimizer: ShardedOptimizer

    @abstractmethod
    def placements(self, rank: int) -> Mapping[str, Placement]:
        """Return the parts of parameters that a model-parallel rank holds."""

    @abstractmethod
    def train_step(
        self, inputs: tuple[Tensor, ...], learning_rate: float, votes: Callable[[], tuple[float, ...]], *, count: int
    ) -> NetworkResult:
        """Take one step on this rank's or its copy's share of a global batch of `count` rows. All ranks must call it."""

    @abstractmethod
    def settle_buffers(self) -> None:
        """Make `buffers` what is to be saved of the present state, the same on all ranks. All ranks must call it."""

    @abstractmethod
    def take_buffers(self) -> None:
        """Go on from `buffers`, which were read from a checkpoint."""

    @abstractmethod
    def full_model(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Return the model, of which `make` returns one, to be evaluated; `train_again` ends that. All ranks must call it."""

    @abstractmethod
    def train_again(self) -> None:
        """Have the model trained after an evaluation."""

    @abstractmethod
    def step_recorder(self, path: Path | None, recipe: str, attempt: int) -> StepRecorder:
        """Return what records a step for `tlaunch plan operators`, where there is a path."""

    def strategies_line(self) -> str:
        """Return the line of the log about strategies; nothing where there are none."""
        return ""


class NetworkProgram(Program[AnyBatch, NetworkResult]):
    """A program whose steps a `NetworkTraining` takes."""

    _training: NetworkTraining

    def learning_rate(self, batch: AnyBatch) -> float:
        del batch
        return float(self.settings.train.learning_rate)

    def step_recorder(self, path: Path | None, attempt: int) -> StepRecorder:
        return self._training.step_recorder(path, self.name, attempt)

    def layout_line(self, *more: str) -> str:
        """Return the line of the log about who computes what. Where operators are cut over all ranks, no axes are told apart."""
        place, mode = self.world.place, self.settings.parallel.mode
        is_one_group = place.layout.mp == place.world_size > 1 and mode != HYBRID
        layout = f"{place.world_size} ranks" if is_one_group else str(place.layout)
        held = sum(parameter.numel() for parameter in self._training.parameters.values())
        how = f"{' '.join((layout, *more))}, {mode} on {self.world.device.type}"
        return f"layout: {how}, {held} parameters on this rank"

    def full_parameters(self) -> dict[str, Tensor] | None:
        """Return all parameters on rank 0; None elsewhere. All ranks must call it."""
        return gather(self.world, self._training.parameters, lambda place: self._training.placements(place.mp))


def plan_groups(settings: Any, world: World) -> AbstractContextManager[Groups]:
    """Give the groups in which the ranks of a plan communicate: those of a data-parallel copy. Errors as `open_groups` has them."""
    place = world.place
    return open_groups(
        place.global_rank,
        place.world_size,
        ranks=place.layout.mp,
        device=world.device,
        transport=cast("Transport", settings.parallel.transport),
        existing=(world.mp, world.dp),
    )
