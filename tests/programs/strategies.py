"""Train networks whose operators are cut over ranks, and one process beside them: equal losses, gradients and weights.

    strategies.py [RANKS [NETWORK]]

Without arguments all cases on 1, 2, 4 and 8 ranks. Each is 5 steps of SGD in float64. Exit 0 when all are within the tolerance;
a line tells how far each was off. What each rank communicates has to be what the plan says: kind, ranks, bytes and order.
"""

import sys
from contextlib import contextmanager
from functools import partial

import torch
from ranks import fork_ranks
from shard_networks import NETWORKS, inputs_of, network_of

from launcher.mesh.boxes import whole as box_of
from launcher.sharding.plan import plan_of
from launcher.trainer.parallel import batch_norm
from launcher.trainer.parallel.world import open_world, this_place
from launcher.trainer.shard import functions, network
from launcher.trainer.shard.groups import open_groups
from launcher.trainer.shard.modes import cuttings_for
from launcher.trainer.shard.network import ShardedNetwork
from launcher.trainer.shard.trace import trace

CPU = torch.device("cpu")
STEPS, RATE = 5, 0.1
TOLERANCE, QUICKSTART_TOLERANCE = 1e-9, 1e-12
SEMI, DATA = "semi_auto_parallel", "data_parallel"

# Of each number of ranks: the network, the mode, and the strategies that are given; the rest is propagated.
CASES = {
    1: [(name, "stand_alone", {}) for name in NETWORKS],
    2: [
        *((name, DATA, {}) for name in NETWORKS),
        ("quickstart", SEMI, {"matmul": ((1, 2), (2, 1))}),
        ("quickstart", SEMI, {"matmul": ((2, 1), (1, 1)), "matmul2": ((1, 2), (2, 1))}),
        ("perceptron", SEMI, {"fc1": ((1, 1), (2, 1)), "head": ((1, 2), (1, 2))}),
        ("attention", SEMI, {"query": ((1, 1, 1), (2, 1))}),
        ("convolutions", SEMI, {"conv1": ((1, 1, 1, 1), (2, 1, 1, 1)), "conv2": ((1, 2, 1, 1), (1, 2, 1, 1))}),
        ("words", SEMI, {"table": ((1, 1), (2, 1))}),
        ("tied words", SEMI, {"table": ((1, 1), (2, 1))}),
        ("tied words", SEMI, {"table": ((2, 1), (1, 1)), "linear": ((1, 2), (1, 2))}),
    ],
    4: [
        *((name, DATA, {}) for name in NETWORKS),
        ("quickstart", SEMI, {"matmul": ((2, 2), (2, 1))}),
        ("quickstart", SEMI, {"matmul": ((1, 2), (2, 2)), "relu": ((4, 1),), "matmul2": ((2, 1), (1, 2))}),
        ("quickstart", SEMI, {"relu": ((1, 4),)}),
        ("quickstart", SEMI, {"matmul": ((2, 1), (1, 1)), "square": ((2, 1),)}),
        ("perceptron", SEMI, {"fc1": ((2, 1), (2, 1)), "fc2": ((2, 2), (1, 2)), "head.bias_add": ((1, 4), (4,))}),
        ("perceptron", SEMI, {"fc1": ((1, 4), (1, 4)), "norm": ((2, 1), (1,), (1,))}),
        ("attention", SEMI, {"query": ((2, 1, 1), (2, 1)), "output": ((2, 1, 2), (1, 2))}),
        ("attention", SEMI, {"softmax": ((1, 4, 1, 1),)}),
        ("attention", SEMI, {"softmax": ((2, 1, 2, 1),)}),
        ("convolutions", SEMI, {"conv1": ((2, 2, 1, 1), (1, 2, 1, 1)), "bn2": ((4, 1, 1, 1), (1,), (1,))}),
        ("convolutions", SEMI, {"bn1": ((2, 2, 1, 1), (2,), (2,)), "conv2": ((1, 1, 1, 1), (4, 1, 1, 1))}),
        ("words", SEMI, {"table": ((2, 1), (1, 2)), "fc": ((1, 4), (1, 4))}),
        ("tied words", SEMI, {"table": ((1, 1), (4, 1)), "linear": ((2, 1), (2, 1))}),
        ("tied words", SEMI, {"table": ((2, 1), (2, 1)), "linear": ((1, 1), (4, 1))}),
    ],
    8: [
        *((name, DATA, {}) for name in NETWORKS),
        ("quickstart", SEMI, {"matmul": ((2, 4), (4, 1))}),
        ("quickstart", SEMI, {"matmul": ((2, 1), (1, 4)), "matmul2": ((1, 2), (2, 4))}),
        ("quickstart", SEMI, {"matmul": ((1, 8), (8, 1)), "relu": ((2, 2),), "sub": ((1, 8), (1, 8))}),
        ("perceptron", SEMI, {"fc1": ((2, 2), (2, 2)), "fc2": ((4, 1), (2, 1))}),
        ("attention", SEMI, {"query": ((2, 1, 1), (4, 1)), "output": ((2, 1, 4), (1, 4))}),
        ("attention", SEMI, {"matmul": ((2, 2, 2, 1), (2, 2, 1, 1))}),
        ("convolutions", SEMI, {"conv1": ((4, 1, 1, 1), (2, 1, 1, 1)), "fc": ((2, 2), (2, 2))}),
        ("words", SEMI, {"table": ((2, 1), (4, 1))}),
    ],
}  # fmt: skip


class Recorder:
    """Notes what this rank really communicates, as (kind, ranks, bytes), while it is told to."""

    def __init__(self):
        self.seen, self.listens = [], False
        for module in (functions, network, batch_norm):
            for name in ("all_reduce", "all_gather", "all_to_all"):
                if hasattr(module, name):
                    setattr(module, name, partial(self._called, name, getattr(module, name)))

    def _called(self, name, function, output, *rest):
        group = rest[-1]
        if self.listens and group.size > 1:
            self.seen.append((name, group.ranks, output.nbytes))
        return function(output, *rest)

    @contextmanager
    def listening(self):
        self.listens, self.seen = True, []
        yield
        self.listens = False


def planned(plan, rank):
    """Return what the plan says that this rank communicates in a step; the gradients of parameters in their messages."""
    found = [each for each in plan.collectives() if each.kind != "slice"]
    summed = sum(len(each.parameters) for each in plan.parameter_sums)
    later = iter(found[len(found) - summed :])
    told = [(each.kind, each.group_of(rank), each.bytes) for each in found[: len(found) - summed]]
    for each in plan.parameter_sums:
        parts = [next(later) for _ in each.parameters]
        told.append(("all_reduce", parts[0].group_of(rank), sum(part.bytes for part in parts)))
    return told


def trained_alone(name):
    """Return the losses, gradients and weights of each step of one process that has the whole batch, and its buffers."""
    whole = network_of(name)
    optimizer = torch.optim.SGD(whole.parameters(), lr=RATE)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = whole(*inputs_of(name, step))
        loss.backward()
        gradients = {path: parameter.grad.clone() for path, parameter in named(whole.named_parameters())}
        optimizer.step()
        weights = {path: parameter.detach().clone() for path, parameter in named(whole.named_parameters())}
        found.append((loss.item(), gradients, weights))
    return found, dict(named(whole.named_buffers()))


def named(tensors):
    return [(path.removeprefix("network."), tensor) for path, tensor in tensors]


def largest_difference(name, mode, strategies, groups, recorder):
    """Train the network cut so; return the largest difference to one process."""
    whole = network_of(name)
    traced = trace(whole, inputs_of(name, 0))
    plan = plan_of(traced.graph, cuttings_for(traced, mode, strategies, groups.ranks), groups.ranks)
    sharded = ShardedNetwork(traced, plan, groups, device=CPU)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=RATE)
    steps, buffers = trained_alone(name)
    differences = []
    for step, (whole_loss, whole_gradients, whole_weights) in enumerate(steps):
        optimizer.zero_grad()
        with recorder.listening():
            loss = sharded(*inputs_of(name, step))
            loss.backward()
            sharded.sum_gradients()
        assert recorder.seen == planned(plan, groups.rank), (recorder.seen, planned(plan, groups.rank))
        gradients = sharded.whole_gradients()
        optimizer.step()
        differences.append(abs(loss.item() - whole_loss))
        for ours, theirs in ((gradients, whole_gradients), (sharded.whole_parameters(), whole_weights)):
            assert ours.keys() == theirs.keys()
            differences += [float((value - theirs[path]).abs().max()) for path, value in ours.items()]
    held = dict(sharded.named_buffers())
    assert held.keys() == buffers.keys()
    # Running statistics are cut as their channels are; that all ranks together are right is known from each of them.
    for path, buffer in held.items():
        first = sharded.box_held(path)
        differences.append(float((buffer - buffers[path][first.within(box_of(buffers[path].shape))]).abs().max()))
    return max(differences)


def ranks_work(only, transport):
    place = this_place(micro_batches=1)
    torch.set_num_threads(1)
    with open_world(place, CPU, transport) as world:
        ranks = place.world_size
        with open_groups(place.global_rank, ranks, ranks=ranks, device=CPU, transport=transport) as groups:
            recorder = Recorder()
            for name, mode, strategies in CASES[ranks]:
                if only not in {None, name}:
                    continue
                worst = largest_difference(name, mode, strategies, groups, recorder)
                tolerance = QUICKSTART_TOLERANCE if name == "quickstart" else TOLERANCE
                told = f"{ranks} ranks, {name}, {mode} {strategies}: {worst:.1e}"
                if world.is_first:
                    print(told, flush=True)
                assert worst <= tolerance, told


if __name__ == "__main__":
    chosen = [int(sys.argv[1])] if len(sys.argv) > 1 else list(CASES)
    only = sys.argv[2] if len(sys.argv) > 2 else None
    for count in chosen:
        transport = "auto" if count > 1 else "backend"
        fork_ranks(f"{count} ranks", dp=1, mp=count, pp=1, micro_batches=1, work=partial(ranks_work, only, transport))
