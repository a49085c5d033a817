"""Train networks whose operators are cut over ranks, and one process beside them: equal losses, gradients and weights.

    strategies.py [RANKS [NETWORK]]     all cases, of so many ranks, of one network
    strategies.py share                 a few of each kind

Each case is 5 steps of SGD in float64. Exit 0 when all are within the tolerance; a line tells how far each was off. What each
rank communicates has to be what the plan says: kind, ranks, bytes and order.
"""

import random
import sys
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch._dynamo  # else each rank imports it where it makes an optimizer of torch
from ranks import fork_ranks
from shard_networks import NETWORKS, inputs_of, network_of

from launcher.mesh.boxes import full_box as box_of
from launcher.sharding.cost import Costs
from launcher.sharding.expression import cuttings
from launcher.sharding.plan import plan_of
from launcher.trainer.own.cut import communication, sharded_network
from launcher.trainer.own.cut.calibrate import calibrated
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.modes import cuttings_for
from launcher.trainer.own.cut.operator_graph import trace
from launcher.trainer.own.cut.sharded_network import ShardedNetwork
from launcher.trainer.parallel import batch_norm
from launcher.trainer.parallel.place import this_place
from launcher.trainer.parallel.world import open_world

CPU = torch.device("cpu")
STEPS, RATE = 5, 0.1
TOLERANCE, QUICKSTART_TOLERANCE = 1e-9, 1e-12
SEMI, DATA, HYBRID, AUTO = "semi_auto_parallel", "data_parallel", "hybrid_parallel", "auto_parallel"
RANDOM, LOCAL, EVALUATION, MEASURED = "random", "local statistics", "evaluation", "auto_parallel by measured costs"
# Of processors so slow that even what is as small as these networks is worth being cut.
SLOW = Costs(flops_per_s=1e6, bytes_per_s=1e6, operator_s=0.0)
COPIES = 2  # of the network in hybrid_parallel
TUTORIAL = {"matmul": ((2, 4), (4, 1))}

# Of each number of ranks: the network, the mode, and the strategies that are given, of which the rest is propagated, or searched.
# At random: the seed by which every operator gets one.
CASES = {
    1: [(name, "stand_alone", {}) for name in NETWORKS],
    2: [*((name, mode, {}) for name in NETWORKS for mode in (DATA, AUTO)),
        ("quickstart", SEMI, {"matmul": ((1, 2), (2, 1))}),
        ("quickstart", SEMI, {"matmul": ((2, 1), (1, 1)), "matmul2": ((1, 2), (2, 1))}),
        ("perceptron", SEMI, {"fc1": ((1, 1), (2, 1)), "head": ((1, 2), (1, 2))}),
        ("attention", SEMI, {"query": ((1, 1, 1), (2, 1))}),
        ("convolutions", SEMI, {"conv1": ((1, 1, 1, 1), (2, 1, 1, 1)), "conv2": ((1, 2, 1, 1), (1, 2, 1, 1))}),
        ("words", SEMI, {"table": ((1, 1), (2, 1))}), ("tied words", SEMI, {"table": ((1, 1), (2, 1))}),
        ("tied words", SEMI, {"table": ((2, 1), (1, 1)), "linear": ((1, 2), (1, 2))}), ("convolutions", LOCAL, {}),
        ("convolutions", EVALUATION, {}), *((name, RANDOM, seed) for seed in range(4) for name in NETWORKS)],
    4: [*((name, mode, {}) for name in NETWORKS for mode in (DATA, AUTO)),
        ("attention", MEASURED, {"query": ((1, 1, 2), (2, 2))}), ("quickstart", SEMI, {"matmul": ((2, 2), (2, 1))}),
        ("quickstart", SEMI, {"matmul": ((1, 2), (2, 2)), "relu": ((4, 1),), "matmul2": ((2, 1), (1, 2))}),
        ("quickstart", SEMI, {"relu": ((1, 4),)}),
        ("quickstart", SEMI, {"matmul": ((2, 1), (1, 1)), "square": ((2, 1),)}),
        ("perceptron", SEMI, {"fc1": ((2, 1), (2, 1)), "fc2": ((2, 2), (1, 2)), "head.bias_add": ((1, 4), (4,))}),
        ("perceptron", SEMI, {"fc1": ((1, 4), (1, 4)), "norm": ((2, 1), (1,), (1,))}),
        ("attention", SEMI, {"query": ((2, 1, 1), (2, 1)), "output": ((2, 1, 2), (1, 2))}),
        ("attention", SEMI, {"softmax": ((1, 4, 1, 1),)}), ("attention", SEMI, {"softmax": ((2, 1, 2, 1),)}),
        ("convolutions", SEMI, {"conv1": ((2, 2, 1, 1), (1, 2, 1, 1)), "bn2": ((4, 1, 1, 1), (1,), (1,))}),
        ("convolutions", SEMI, {"bn1": ((2, 2, 1, 1), (2,), (2,)), "conv2": ((1, 1, 1, 1), (4, 1, 1, 1))}),
        ("words", SEMI, {"table": ((2, 1), (1, 2)), "fc": ((1, 4), (1, 4))}),
        ("tied words", SEMI, {"table": ((1, 1), (4, 1)), "linear": ((2, 1), (2, 1))}),
        ("tied words", SEMI, {"table": ((2, 1), (2, 1)), "linear": ((1, 1), (4, 1))}),
        ("perceptron", HYBRID, {"fc1": ((1, 1), (2, 1))}), ("words", HYBRID, {"table": ((1, 1), (2, 1))}),
        ("convolutions", LOCAL, {}), ("convolutions", EVALUATION, {}),
        *((name, RANDOM, seed) for seed in range(4) for name in NETWORKS)],
    8: [*((name, mode, {}) for name in NETWORKS for mode in (DATA, AUTO)), ("quickstart", SEMI, TUTORIAL),
        ("quickstart", SEMI, {"matmul": ((2, 1), (1, 4)), "matmul2": ((1, 2), (2, 4))}),
        ("quickstart", SEMI, {"matmul": ((1, 8), (8, 1)), "relu": ((2, 2),), "sub": ((1, 8), (1, 8))}),
        ("perceptron", SEMI, {"fc1": ((2, 2), (2, 2)), "fc2": ((4, 1), (2, 1))}),
        ("attention", SEMI, {"query": ((2, 1, 1), (4, 1)), "output": ((2, 1, 4), (1, 4))}),
        ("attention", SEMI, {"matmul": ((2, 2, 2, 1), (2, 2, 1, 1))}),
        ("convolutions", SEMI, {"conv1": ((4, 1, 1, 1), (2, 1, 1, 1)), "fc": ((2, 2), (2, 2))}),
        ("words", SEMI, {"table": ((2, 1), (4, 1))}), ("quickstart", HYBRID, {"matmul": ((2, 2), (2, 1))}),
        ("attention", HYBRID, {"query": ((1, 1, 1), (4, 1))}),
        *((name, RANDOM, seed) for seed in range(4) for name in NETWORKS)],
    6: [(name, RANDOM, seed) for seed in range(2) for name in NETWORKS],
}  # fmt: skip


class Recorder:
    """Notes what this rank really communicates, as (kind, ranks, bytes), while it is told to."""

    def __init__(self):
        self.seen, self.listens = [], False
        for module in (communication, sharded_network, batch_norm):
            for name in ("all_reduce", "all_gather", "all_to_all"):
                if hasattr(module, name):
                    setattr(module, name, partial(self._called, name, getattr(module, name)))

    def _called(self, name, function, output, *rest, **options):
        group = rest[-1]
        if self.listens and group.size > 1:
            self.seen.append((name, group.ranks, output.nbytes))
        return function(output, *rest, **options)

    @contextmanager
    def listening(self):
        self.listens, self.seen = True, []
        yield
        self.listens = False


def planned(plan, groups):
    """Return what the plan says that this rank communicates in a step; the gradients of parameters in their messages."""
    rank, first = groups.rank, groups.copy * groups.ranks
    found = [each for each in plan.collectives() if each.kind != "slice"]
    summed = sum(len(each.parameters) for each in plan.parameter_sums)
    told = [(each.kind, each.group_of(rank), each.bytes) for each in found[: len(found) - summed]]
    later = iter(found[len(found) - summed :])
    for each in plan.parameter_sums if groups.copies == 1 else ():
        parts = [next(later) for _ in each.parameters]
        told.append(("all_reduce", parts[0].group_of(rank), sum(part.bytes for part in parts)))
    return [(kind, tuple(first + member for member in group), size) for kind, group, size in told]


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


def cuttings_of(traced, mode, chosen, groups):
    """Return how the operators are cut: as the mode says, or at random by a seed."""
    ranks = groups.ranks
    if mode == MEASURED:
        return cuttings_for(traced, AUTO, chosen, ranks, costs=calibrated(traced.graph, groups, CPU))
    if mode != RANDOM:
        found = cuttings_for(traced, mode, chosen, ranks, costs=SLOW)
        assert mode != AUTO or max(each.used for each in found.values()) == ranks, "the search leaves no rank idle"
        return found
    numbers = random.Random(chosen)
    return {each.name: numbers.choice(list(cuttings(each.expression, ranks))) for each in traced.graph.operators}


def share_of(tensor, copy, copies):
    return tensor.chunk(copies)[copy]


def largest_difference(name, mode, chosen, groups, recorder):
    """Train the network cut so, each copy on its share of the batch; return the largest difference to one process."""

    def inputs(step):
        return [share_of(each, groups.copy, groups.copies) for each in inputs_of(name, step)]

    # The graph needs no weights; they are given by name, as by a program that makes its own part alone.
    with torch.device("meta"):
        without_weights = network_of(name)
    weights = {**dict(named(network_of(name).named_parameters())), **dict(named(network_of(name).named_buffers()))}
    traced = trace(without_weights, inputs(0))
    plan = plan_of(traced.graph, cuttings_of(traced, mode, chosen, groups), groups.ranks)
    sharded = ShardedNetwork(traced, plan, groups, device=CPU, weights=weights.__getitem__)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=RATE)
    steps, buffers = trained_alone(name)
    differences = []
    for step, (whole_loss, whole_gradients, whole_weights) in enumerate(steps):
        optimizer.zero_grad()
        with recorder.listening():
            loss = sharded(*inputs(step))
            loss.backward()
            if groups.copies > 1:  # more messages than the plan of one copy has
                recorder.listens = False
            sharded.sum_gradients()
        told = planned(plan, groups)
        assert recorder.seen == told, (recorder.seen, told)
        gradients = sharded.whole_gradients()
        optimizer.step()
        differences.append(abs(sharded.mean_over_copies(loss).item() - whole_loss))
        for ours, theirs in ((gradients, whole_gradients), (sharded.whole_parameters(), whole_weights)):
            assert ours.keys() == theirs.keys()
            differences += [float((value - theirs[path]).abs().max()) for path, value in ours.items()]
    held = dict(sharded.named_buffers())
    assert held.keys() == buffers.keys()
    for path, buffer in held.items():
        part = sharded.box_held(path).within(box_of(buffers[path].shape))
        differences.append(float((buffer - buffers[path][part]).abs().max()))
    return max(differences)


def local_statistics(groups):
    """Batch norms that share no statistics train as the mean of networks that have a part of the batch each."""
    name = "convolutions"
    traced = trace(network_of(name), inputs_of(name, 0), batch_norm_is_shared=False)
    plan = plan_of(traced.graph, cuttings_for(traced, DATA, {}, groups.ranks), groups.ranks)
    sharded = ShardedNetwork(traced, plan, groups, device=CPU)
    sharded(*inputs_of(name, 0)).backward()
    sharded.sum_gradients()
    whole = network_of(name)
    for part in range(groups.ranks):
        loss = whole(*(share_of(each, part, groups.ranks) for each in inputs_of(name, 0))) / groups.ranks
        loss.backward()
    theirs = {path: parameter.grad for path, parameter in named(whole.named_parameters())}
    return max(float((value - theirs[path]).abs().max()) for path, value in sharded.whole_gradients().items())


def evaluated(groups):
    """A network in evaluation normalises by the running statistics of its training."""
    name = "convolutions"
    whole = network_of(name)
    optimizer = torch.optim.SGD(whole.parameters(), lr=RATE)
    whole(*inputs_of(name, 0)).backward()
    optimizer.step()
    small = [each[:4] for each in inputs_of(name, 1)]
    traced = trace(whole.eval(), small)
    cut = cuttings_for(traced, SEMI, {"conv1": ((1, 1, 1, 1), (groups.ranks, 1, 1, 1))}, groups.ranks)
    evaluation = ShardedNetwork(traced, plan_of(traced.graph, cut, groups.ranks), groups, device=CPU)
    with torch.no_grad():
        return abs(evaluation(*small).item() - whole(*small).item())


def ranks_work(cases, transport):
    place = this_place(micro_batches=1)
    torch.set_num_threads(1)
    with open_world(place, CPU, transport) as world, ExitStack() as stack:
        opened, recorder = {}, Recorder()
        for name, mode, chosen in cases:
            ranks = place.world_size // COPIES if mode == HYBRID else place.world_size
            if ranks not in opened:
                opening = Groups(
                    place.global_rank, place.world_size, ranks, CPU, transport=transport, existing=[world.mp]
                )
                opened[ranks] = stack.enter_context(opening)
            if mode in {LOCAL, EVALUATION}:
                worst = (local_statistics if mode == LOCAL else evaluated)(opened[ranks])
            else:
                worst = largest_difference(name, mode, chosen, opened[ranks], recorder)
            tolerance = QUICKSTART_TOLERANCE if name == "quickstart" else TOLERANCE
            told = f"{place.world_size} ranks, {name}, {mode} {chosen}: {worst:.1e}"
            if world.is_first:
                print(told, flush=True)
            assert worst <= tolerance, told


def share():
    """Return a few cases of each kind."""
    networks = {name: (name, mode, chosen) for name, mode, chosen in CASES[4] if mode == SEMI}
    kinds = {mode: (name, mode, chosen) for name, mode, chosen in CASES[4]}
    return {8: [("quickstart", SEMI, TUTORIAL)], 4: [*networks.values(), *kinds.values()]}


if __name__ == "__main__":
    if sys.argv[1:] == ["share"]:
        chosen = share()
    else:
        counts = [int(sys.argv[1])] if len(sys.argv) > 1 else list(CASES)
        chosen = {
            count: [case for case in CASES[count] if case[0] in sys.argv[2:3] or not sys.argv[2:3]] for count in counts
        }
    for count, cases in chosen.items():
        carried_by = "auto" if count != 2 else "backend"
        fork_ranks(f"{count} ranks", partial(ranks_work, cases, carried_by), mp=count)
