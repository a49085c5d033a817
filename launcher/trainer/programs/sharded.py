"""Training of a network that is sharded by strategies: the plan, this rank's part of the network, and the optimizer.

The ranks of a data-parallel replica, which are the world's mp group, run one plan. The optimizer averages the gradients
over the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launcher.mesh.boxes import full_box
from launcher.sharding.plan import ShardingPlan, parameters_of
from launcher.sharding.strategy_report import StrategyReport
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.optimizer.update_rules import Rule
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.modes import measured_plan
from launcher.trainer.own.cut.operator_graph import Traced
from launcher.trainer.own.cut.sharded_network import ShardedNetwork
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.network_program import NetworkTraining
from launcher.trainer.programs.strategy_recorder import StepRecorder
from launcher.trainer.telemetry.recording import Recorder

TOLD = 8  # operators that the log line lists


def placements_of(plan: ShardingPlan, rank: int) -> dict[str, Placement]:
    """Return the shard of each parameter that rank `rank` of the plan holds."""
    found = {}
    for leaf, layout in parameters_of(plan):
        box = layout.box_of(rank, leaf.shape)
        found[leaf.name] = Placement(torch.Size(leaf.shape), box, layout.copies, is_first=layout.is_first(rank))
    return found


class ShardedTraining(NetworkTraining):
    """One rank's part of a network that is sharded by strategies, with its optimizer and training step."""

    def __init__(
        self,
        traced: Traced,
        settings: Any,
        world: World,
        groups: Groups,
        rule: Rule,
        weights: Callable[[str, torch.Size], Tensor],
    ) -> None:
        """Create this rank's part of the network. `weights(name, shape)` returns the full initial value of a parameter.

        All ranks must call it. Raises the errors of `cuttings_for` on all ranks.
        """
        parallel = settings.parallel
        self.plan = measured_plan(
            traced, parallel.mode, settings.strategies, parallel.search_mode, groups, world.device
        )
        self.world, self._groups = world, groups
        self.buffers = {
            name: torch.full(buffer.shape, float(name.endswith("running_var")), dtype=buffer.dtype, device=world.device)
            for name, buffer in traced.buffers.items()
            if buffer.is_floating_point()
        }

        def initial(name: str) -> Tensor:
            if name in traced.parameters:
                return weights(name, traced.parameters[name].shape)
            return self.buffers[name] if name in self.buffers else torch.zeros_like(traced.buffers[name], device="cpu")

        self.network = ShardedNetwork(
            traced, self.plan, groups, device=world.device, weights=initial, sums_copies=False
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

    def placements(self, rank: int) -> Mapping[str, Placement]:
        return placements_of(self.plan, rank)

    def forward_and_backward(self, inputs: tuple[Tensor, ...], count: int) -> Tensor:
        del count  # all replicas have the same number of rows
        loss = self.network(*inputs) / self.world.dp.size
        loss.backward()
        self.network.sum_gradients()
        return loss.detach().clone()

    @torch.no_grad()
    def settle_buffers(self) -> None:
        """Gather the full running statistics from all ranks, and average the parts that several ranks hold."""
        if not self.buffers:
            return
        sums, counts = ({name: torch.zeros_like(buffer) for name, buffer in self.buffers.items()} for _ in range(2))
        for name in self.buffers:
            self._own(sums, name).copy_(self.network.part_held(name))
            self._own(counts, name).fill_(1)
        flat = torch.cat([each.view(-1) for each in (*sums.values(), *counts.values())])
        for group in (self.world.mp, self.world.dp):
            all_reduce(flat, group)
        found, holders = flat.chunk(2)
        means = (found / holders).split([each.numel() for each in sums.values()])
        for buffer, mean in zip(self.buffers.values(), means, strict=True):
            buffer.copy_(mean.view_as(buffer))
        self.take_buffers()

    def take_buffers(self) -> None:
        for name in self.buffers:
            self.network.part_held(name).copy_(self._own(self.buffers, name))

    def _own(self, full: Mapping[str, Tensor], name: str) -> Tensor:
        """Return this rank's part of the full tensor `name` as a view."""
        return full[name][self.network.box_held(name).within(full_box(full[name].shape))]

    def full_model(self, make: Callable[[], nn.Module]) -> AbstractContextManager[nn.Module]:
        with torch.device("meta"):
            model = make()
        state: dict[str, Tensor] = {**self.network.whole_parameters(), **self.buffers}
        for name, buffer in model.named_buffers():
            state.setdefault(name, torch.zeros(buffer.shape, dtype=buffer.dtype, device=self.world.device))
        model.load_state_dict(state, assign=True)
        return nullcontext(model.eval())

    def step_recorder(self, path: Path | None, recipe: str, attempt: int) -> StepRecorder:
        """Return a recorder that writes the sharding plan, and the optimizer's collectives in one step, to `path`."""
        place = self.world.place

        def report_of(recorder: Recorder, step: int) -> StrategyReport:
            del step
            more = [each for each in recorder.collectives() if each.phase == "optimizer"]
            return self.network.strategy_report(recipe, str(place.layout), attempt, more)

        return StepRecorder(path, place.global_rank, report_of, None)

    def strategies_line(self) -> str:
        """Return a log line with the strategies of the first operators and the number of further operators."""
        strategies = self.network.strategies
        shown = [f"{name} {strategy}" for name, strategy in islice(strategies.items(), TOLD)]
        count = len(strategies)
        rest = f", and {count - TOLD} more operators; use --save-strategy to save all" if count > TOLD else ""
        most = max(each.cutting.used for each in self.plan.operators)
        alike = f"; operators have at most {most} parts, for {self.plan.ranks} ranks"
        return f"strategies: {', '.join(shown)}{rest}{alike if most < self.plan.ranks else ''}"
