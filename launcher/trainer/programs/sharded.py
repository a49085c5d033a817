"""The parts of a program whose operators are cut by strategies: its plan, this rank's part of the network, and its optimizer.

The ranks of a data-parallel copy, which are the world's mp group, execute one plan. The mean over copies is the optimizer's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.recipes.strategies import AUTO, DYNAMIC_PROGRAMMING
from launcher.sharding.cost import Costs
from launcher.sharding.plan import ShardingPlan, parameters_of, plan_of
from launcher.trainer.optimizer.rules import Rule
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import World
from launcher.trainer.shard.calibrate import calibrated
from launcher.trainer.shard.groups import Groups
from launcher.trainer.shard.modes import cuttings_for
from launcher.trainer.shard.network import ShardedNetwork
from launcher.trainer.shard.trace import Traced


@frozen
class StepResult:
    loss: float  # mean over the global batch
    is_finite: bool
    votes: tuple[float, ...]
    tokens: None = None
    padding_share: None = None


def sharding_plan(traced: Traced, settings: Any, ranks: int, costs: Costs | None = None) -> ShardingPlan:
    """Return the plan that the settings of a recipe ask for on so many ranks.

    Errors as `cuttings_for` has them. Where a search finds it, it takes these costs, or the default ones.
    """
    parallel = settings.parallel
    cuttings = cuttings_for(
        traced, parallel.mode, settings.strategies, ranks, search_mode=parallel.search_mode, costs=costs
    )
    return plan_of(traced.graph, cuttings, ranks)


def placements_of(plan: ShardingPlan, rank: int) -> dict[str, Placement]:
    """Return the parts of parameters that a rank of the plan holds."""
    found = {}
    for leaf, layout in parameters_of(plan):
        box = layout.box_of(rank, leaf.shape)
        copies = plan.ranks // math.prod(layout.cuts)
        first = next(other for other in range(plan.ranks) if layout.box_of(other, leaf.shape) == box)
        found[leaf.name] = Placement(torch.Size(leaf.shape), box, copies, is_first=rank == first)
    return found


class ShardedTraining:
    """One rank's part of a network that is cut by strategies, and the steps that all ranks take together."""

    def __init__(
        self,
        traced: Traced,
        settings: Any,
        world: World,
        groups: Groups,
        rule: Rule,
        weights: Callable[[str], Tensor],
    ) -> None:
        """Make it on this rank; all ranks must do so. `weights` gives the whole initial parameters and buffers by name.

        Raises:
            UsageError, RefusedLayoutError: on every rank alike, as `cuttings_for`.
        """
        parallel = settings.parallel
        costs = None
        if (parallel.mode, parallel.search_mode) == (AUTO, DYNAMIC_PROGRAMMING) and groups.ranks > 1:
            costs = calibrated(traced.graph, groups, world.device)
        self.plan = sharding_plan(traced, settings, groups.ranks, costs)
        self._world = world
        self.network = ShardedNetwork(
            traced, self.plan, groups, device=world.device, weights=weights, sums_copies=False
        )
        self.parameters = dict(self.network.named_parameters())
        self.optimizer = ShardedOptimizer(
            self.parameters,
            placements_of(self.plan, groups.rank),
            rule,
            gradient_groups=parallel.gradient_groups,
            dp=world.dp,
            mp=world.mp,
            pp=world.pp,
        )

    def train_step(
        self, inputs: tuple[Tensor, ...], learning_rate: float, votes: Callable[[], tuple[float, ...]]
    ) -> StepResult:
        """Take one step on this copy's share of a global batch, whole or this rank's part of it. All ranks must call it."""
        self.optimizer.zero_gradients()
        loss = self.network(*inputs) / self._world.dp.size
        loss.backward()
        self.network.sum_gradients()
        norm = self.optimizer.step(learning_rate, votes)
        total = float(all_reduce(loss.detach().clone(), self._world.dp))
        return StepResult(total, math.isfinite(norm), self.optimizer.votes)

    def strategies(self) -> Mapping[str, Any]:
        """Return the strategy of every operator, in their order."""
        return {planned.operator.name: planned.cutting.strategy for planned in self.plan.operators}
