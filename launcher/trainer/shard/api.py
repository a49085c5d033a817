"""`sharded`, which shards a custom network over the ranks of a job started by `tlaunch run -- python ...`.

    net = Net()
    net.matmul.shard(((2, 4), (4, 1)))
    with sharded(net, (inputs, label), mode="semi_auto_parallel") as network:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.2)
        for _ in range(20):
            optimizer.zero_grad()
            loss = network(inputs, label)
            loss.backward()
            network.sum_gradients()
            optimizer.step()
        weights = network.whole_parameters()

The bundled programs use the same modules (launcher/trainer/programs/sharded.py).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.recipes.strategies import DYNAMIC_PROGRAMMING, SEMI_AUTO, operators_layout
from launcher.sharding.expression import Strategy
from launcher.sharding.strategy_report import save_report
from launcher.trainer.own.check import Comparison, checked_division
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.modes import measured_plan
from launcher.trainer.own.cut.operator_graph import checked_strategy, trace
from launcher.trainer.own.cut.sharded_network import ShardedNetwork
from launcher.trainer.own.divide import Division, of_rank_0, share_of_copy
from launcher.trainer.own.trace import class_name
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.place import Place, choose_device, this_place
from launcher.trainer.parallel.world import Transport, World, open_world
from launcher.trainer.shard.modules import WithLoss
from launcher.trainer.telemetry.metrics_writer import attempt_in
from launcher.trainer.training_files import own_run


@contextmanager
def sharded(
    network: nn.Module,
    example_inputs: Sequence[Tensor],
    *,
    loss: nn.Module | None = None,
    mode: str = SEMI_AUTO,
    strategies: Mapping[str, Strategy] | None = None,
    search_mode: str = DYNAMIC_PROGRAMMING,
    batch_norm_is_shared: bool = True,
    transport: Transport = "auto",
    parts_may_differ: bool = False,
    check_gradients: bool = False,
) -> Iterator[ShardedNetwork]:
    """Shard `network` over all ranks, and yield this rank's part, which returns the loss of a batch.

    All ranks must enter and leave the context.

    `network` is called with tensors like `example_inputs`, which are a full batch, and returns the loss. With `loss`,
    the network is called with the first input, and `loss` with the network's output and the second input, the labels.
    All ranks start with rank 0's weights. The original network is not trained.

    `mode` is one of MindSpore's modes: stand_alone, data_parallel, semi_auto_parallel (given strategies; the other
    operators follow), auto_parallel (the others are searched by `search_mode`: dynamic_programming or
    sharding_propagation) or hybrid_parallel. The keys of `strategies` are operator or module names. They override
    strategies set by `shard`, which stand_alone and data_parallel ignore.

    In hybrid_parallel there are TLAUNCH_DP replicas, each sharded over TLAUNCH_MP ranks. A replica takes its share of
    the rows of the first input, and of inputs whose first dim is a multiple of these rows; it takes other inputs in
    full. The first call raises an error if the batch's loss is not the mean over the shares, unless `parts_may_differ`
    is set. `check_gradients` compares gradients, too.

    In `tlaunch run`, the strategy report of the last sharded network is saved in the run directory, and `tlaunch plan
    operators` shows it.

    The returned network has:

        strategies          the strategy of each operator
        parameters()        this rank's parts, for an elementwise optimizer such as SGD or Adam
        sum_gradients()     to be called after backward
        whole_parameters()  all parameters

    In hybrid_parallel the loss is the loss of a replica's rows, and `mean_over_copies(loss)` the loss of the batch.
    Shared batch norms use a replica's rows.

    If torch.distributed is not initialised, this initialises it from the environment, and closes it on exit, except
    after an error.

    Raises:
        UsageError: an operator is unknown, a strategy does not fit, or the environment has no rendezvous address. All
            ranks raise it.
        RefusedLayoutError: the mode cannot use this number of ranks, or the batch is not divisible by them.
    """
    place = this_place(micro_batches=1)
    _check(place)
    device = choose_device(place, "auto", os.environ)
    layout = operators_layout(mode, place.layout)
    ranks = layout.mp
    given = {name: checked_strategy(strategy, name) for name, strategy in (strategies or {}).items()}
    whole = network if loss is None else WithLoss(network, loss)
    copies = place.world_size // ranks
    traced = trace(whole, share_of_copy(example_inputs, copies), batch_norm_is_shared=batch_norm_is_shared)
    sources = {**traced.parameters, **traced.buffers}
    with ExitStack() as opened:
        if dist.is_initialized():
            world = World(place, device, dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
        else:
            world = opened.enter_context(open_world(place, device, transport))
        existing = (world.mp, world.dp)
        groups = Groups(place.global_rank, place.world_size, ranks, device, transport=transport, existing=existing)
        opened.enter_context(groups)
        plan = measured_plan(traced, mode, given, search_mode, groups, device)
        made = ShardedNetwork(
            traced, plan, groups, device=device, weights=lambda name: of_rank_0(sources[name], device)
        )
        if copies > 1:
            how = Comparison(keeps_norms=not batch_norm_is_shared, gradients=check_gradients)
            check = partial(_check_shares, world, whole, example_inputs, copies, how=how, may_differ=parts_may_differ)
            made.before_first = check
        if run := own_run():
            with suppress(OSError):  # does not end the training
                report = made.strategy_report(class_name(whole), str(layout), attempt_in(os.environ))
                save_report(run.strategy_of(place.global_rank), report)
        yield made


def _check(place: Place) -> None:
    layout = place.layout
    if dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) != (place.global_rank, place.world_size):
        raise UsageError(
            f"torch.distributed is initialised as rank {dist.get_rank()} of {dist.get_world_size()}, but the "
            f"environment has rank {place.global_rank} of {place.world_size}",
            hint="call init_process_group() without a rank, or leave the initialisation to `sharded`",
        )
    if layout.pp > 1 or layout.micro_batches > 1:
        raise RefusedLayoutError(
            f"pp = {layout.pp} and micro_batches = {layout.micro_batches}, but sharding by strategies supports "
            "only pp = 1 and micro_batches = 1",
            hint="use `--pp 1 --micro-batches 1`",
        )


def _check_shares(
    world: World,
    network: nn.Module,
    examples: Sequence[Tensor],
    copies: int,
    inputs: Sequence[Tensor],
    *,
    how: Comparison,
    may_differ: bool,
) -> None:
    """Raise on all ranks if a batch's loss is not the mean of the replicas' losses. With `may_differ`, only warn."""
    shapes = [[each.shape for each in given] for given in (inputs, examples)]
    batch = tuple(inputs if shapes[0] == shapes[1] else examples)  # the call may have only this rank's part
    remarks: list[str] = []

    def check() -> None:
        division = Division(batch, [[share_of_copy(batch, copies, copy)] for copy in range(copies)])
        remarks.extend(checked_division(network, [division] * 2, how, layout=f"dp = {copies}", may_differ=may_differ))

    world.while_others_wait(check if world.is_first else None)
    for remark in remarks:
        warnings.warn(remark, stacklevel=2)
