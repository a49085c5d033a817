"""Training of the quickstart tutorial's network, sharded by strategies: two matrix products with a ReLU in between."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from launcher.recipes.quickstart.quickstart_recipe import QuickstartSettings
from launcher.trainer.model.initial import generator_of
from launcher.trainer.optimizer.update_rules import Momentum
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.operator_graph import Traced, trace
from launcher.trainer.own.train.samples import SampleBatch, SampleOrder
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.loop import run
from launcher.trainer.programs.network_program import NetworkProgram, NetworkResult, plan_groups
from launcher.trainer.programs.program import say, shapes_of
from launcher.trainer.programs.sharded import ShardedTraining
from launcher.trainer.shard.modules import MatMul, ReduceMean, ReLU, Square, Sub
from launcher.trainer.training_files import Files


class Network(nn.Module):
    """The network of the quickstart tutorial, which returns the mean squared error for inputs and labels."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, hidden))
        self.weight2 = nn.Parameter(torch.empty(hidden, outputs))
        self.matmul, self.relu, self.matmul2 = MatMul(), ReLU(), MatMul()
        self.sub, self.square, self.mean = Sub(), Square(), ReduceMean()

    def forward(self, inputs: Tensor, label: Tensor) -> Tensor:
        hidden = self.relu(self.matmul(inputs, self.weight))
        return self.mean(self.square(self.sub(self.matmul2(hidden, self.weight2), label)))


def train(settings: QuickstartSettings, world: World, files: Files) -> None:
    """Train the quickstart network on this rank. All ranks must call it.

    Raises:
        TlaunchError: a strategy does not fit, checkpoints are unusable, or a gradient is not finite.
    """
    with plan_groups(settings, world) as groups:
        run(lambda: Quickstart(settings, world, groups), settings.checkpoint, world, files)


class Quickstart(NetworkProgram[SampleBatch]):
    name = "quickstart"

    def __init__(self, settings: QuickstartSettings, world: World, groups: Groups) -> None:
        """Create this rank's part of the network and of the data. All ranks must call it.

        Raises:
            UsageError, RefusedLayoutError: a strategy does not fit. All ranks raise it.
        """
        self.settings: QuickstartSettings = settings
        self.world = world
        self.dtype = getattr(torch, settings.train.precision)
        # Uniform in [0, 1), from numpy's legacy generator, as in the tutorial.
        numbers, shapes = np.random.RandomState(settings.data.seed), (settings.model.inputs, settings.model.outputs)
        rows = [numbers.rand(settings.train.batch_size, columns).astype(np.float32) for columns in shapes]

        def initial(name: str, shape: torch.Size) -> Tensor:
            generator = generator_of(name, settings.train.seed)
            return torch.normal(0.0, settings.model.weight_std, shape, generator=generator).to(self.dtype)

        rule = Momentum(settings.train.momentum)
        graph = traced(settings, world.place.layout.dp)
        self._training = ShardedTraining(graph, settings, world, groups, rule, initial)
        self._inputs = tuple(
            torch.from_numpy(each).chunk(groups.copies)[groups.copy].to(world.device, self.dtype) for each in rows
        )
        self.optimizer = self._training.optimizer
        self.shapes = shapes_of(_meta_network(settings))
        self.digest = hashlib.sha256(b"".join(each.tobytes() for each in rows)).hexdigest()

    def begin(self) -> None:
        self.say_layout()
        if self.world.is_first:
            say(self._training.strategies_line())

    def batches(self, first_step: int) -> Iterator[SampleBatch]:
        """Yield one batch per step. All steps train on the same rows, so a batch is used only for its step number."""
        train, per_epoch = self.settings.train, self.settings.data.steps_per_epoch
        order = SampleOrder(per_epoch, batch_size=1, seed=0, shuffle=False)
        return order.batches(first_step, train.steps or train.epochs * per_epoch)

    def train_step(
        self, batch: SampleBatch, learning_rate: float, votes: Callable[[], tuple[float, ...]]
    ) -> NetworkResult:
        del batch
        return self._training.train_step(self._inputs, learning_rate, votes, count=self.settings.train.batch_size)


def traced(settings: QuickstartSettings, copies: int) -> Traced:
    """Trace the network for the batch of one replica. `copies` is the number of replicas."""
    model, rows = settings.model, settings.train.batch_size // copies
    dtype = getattr(torch, settings.train.precision)
    with torch.device("meta"):
        examples = torch.empty(rows, model.inputs, dtype=dtype), torch.empty(rows, model.outputs, dtype=dtype)
    return trace(_meta_network(settings).to(dtype), examples)


def _meta_network(settings: QuickstartSettings) -> Network:
    with torch.device("meta"):
        return Network(settings.model.inputs, settings.model.hidden, settings.model.outputs)
