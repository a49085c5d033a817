"""Claim: a network executed by a sharding plan costs no more than the same network in torch's own data parallelism.

    python benchmarks/sharded.py [--only NAME] [--rounds N]

The network is a perceptron with four hidden layers, cross entropy and SGD, in float32, on two ranks with one thread
each. It is traced and partitioned by mode data_parallel, with collectives over shared memory and over gloo. The peer
is DistributedDataParallel over gloo, with gradients as views of its buckets. "small" measures mostly the overhead of
operators, "large" matrix products. In each round all programs take steps in turn; a ratio is the median of the
rounds'. CPU time excludes waiting, and so has less noise. The plan of a single rank is also compared with the network
itself. Exits with 1 if a ratio misses its limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import torch
import torch.distributed as dist
from common.checks import Bound, Checks, median_ratio
from common.options import parser
from torch import Tensor, nn
from training.layouts import in_ranks

from launcher.sharding.plan import plan_of
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.modes import cuttings_for
from launcher.trainer.own.cut.operator_graph import trace
from launcher.trainer.own.cut.sharded_network import ShardedNetwork
from launcher.trainer.parallel.world import Transport, World
from launcher.trainer.shard.modules import WithLoss

CPU = torch.device("cpu")
CLASSES, LAYERS = 16, 4
SIZES = {"small": (64, 64, 20), "middle": (512, 256, 4), "large": (1024, 256, 2)}  # features, rows, steps of a round
ROUNDS = 15
Step = Callable[[], None]


def network_of(features: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(features, features), nn.ReLU())]
    return WithLoss(nn.Sequential(*layers, nn.Linear(features, CLASSES)), nn.CrossEntropyLoss())


def step_of(network: nn.Module, inputs: tuple[Tensor, ...], sums: Callable[[], None] | None = None) -> Step:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        network(*inputs).backward()
        if sums is not None:
            sums()
        optimizer.step()

    return step


def measured(size: str, rounds: int, world: World) -> list[dict[str, float]]:
    """Return of each round the seconds of a step of each, elapsed and of the processor."""
    features, rows, count = SIZES[size]
    place = world.place
    inputs = (torch.randn(rows, features), torch.randint(CLASSES, (rows,)))
    own = tuple(each.chunk(place.world_size)[place.global_rank] for each in inputs)
    traced = trace(network_of(features), inputs)
    plan = plan_of(traced.graph, cuttings_for(traced, "data_parallel", {}, place.world_size), place.world_size)
    steps: dict[str, Step] = {"torch": step_of(network_of(features), own)}
    transports: tuple[Transport, ...] = ("auto", "backend") if place.world_size > 1 else ("backend",)
    if place.world_size > 1:
        parallel = nn.parallel.DistributedDataParallel(network_of(features), gradient_as_bucket_view=True)
        steps["torch"] = step_of(parallel, own)
    ranks = place.world_size
    with ExitStack() as stack:
        for transport in transports:
            opening = Groups(place.global_rank, ranks, ranks=ranks, device=CPU, transport=transport)
            sharded = ShardedNetwork(traced, plan, stack.enter_context(opening), device=CPU)
            steps[transport] = step_of(sharded, own, sharded.sum_gradients)
        return [timed(steps, count, world) for _ in range(rounds + 1)][1:]


def timed(steps: Mapping[str, Step], count: int, world: World) -> dict[str, float]:
    row = {}
    for name, step in steps.items():
        meet(world)
        began_s, used_s = time.perf_counter(), time.process_time()
        for _ in range(count):
            step()
        row[f"{name} processor"] = (time.process_time() - used_s) / count
        meet(world)
        row[name] = (time.perf_counter() - began_s) / count
    return row


def meet(world: World) -> None:
    if world.place.world_size > 1:
        dist.barrier()


def main() -> int:
    options = parser(__doc__, tuple(SIZES)).parse_args()
    checks = Checks()
    for size in options.only or SIZES:
        features, rows, _ = SIZES[size]
        print(f"{size}: {LAYERS} layers of {features} features, {rows} rows", flush=True)
        alone = in_ranks(partial(measured, size, options.rounds or ROUNDS))
        told = "one rank: processor time of the plan / the network itself"
        checks.tell(told, median_ratio(alone, "backend processor", "torch processor"), Bound(1.1, 1.0))
        found = in_ranks(partial(measured, size, options.rounds or ROUNDS), mp=2)
        for transport, carried in (("auto", "shared memory"), ("backend", "gloo")):
            told = f"two ranks by {carried} / DistributedDataParallel"
            bound = Bound(1.0, 0.9) if transport == "auto" else None
            processor = median_ratio(found, f"{transport} processor", "torch processor")
            checks.tell(f"{told}, processor time", processor, bound)
            checks.tell(f"{told}, elapsed", median_ratio(found, transport, "torch"))
    return 1 if checks.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
