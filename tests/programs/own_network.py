"""Train a user's own networks through `sharded` on several ranks, and in one process: equal losses and weights, in float64.

    own_network.py

Weights differ on all ranks but rank 0 before; one case has opened torch.distributed itself. Exit 0 when all are equal.
"""

import os
from functools import partial

import pytest
import torch
import torch._dynamo  # else each rank imports it where it makes an optimizer of torch
import torch.distributed as dist
from ranks import fork_ranks
from shard_networks import Attention, Convolutions, Perceptron, Quickstart, inputs_of, network_of
from torch import nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.trainer.shard.api import sharded
from launcher.trainer.shard.modules import shard

STEPS, RATE, TOLERANCE = 3, 0.1, 1e-12
SEMI, DATA, HYBRID, AUTO = "semi_auto_parallel", "data_parallel", "hybrid_parallel", "auto_parallel"
TUTORIAL = ((2, 2), (2, 1))


def quickstart():
    network = Quickstart()
    network.matmul.shard(TUTORIAL)
    return network


def perceptron():
    network = Perceptron()
    shard(network.fc1, ((1, 1), (2, 1)))
    return network


# Of each case: the network's name in NETWORKS, what makes it, its loss if it has none, copies, mode, strategies by name, and the
# strategies that come of them.
CASES = [
    ("quickstart", quickstart, None, 1, SEMI, {}, {"matmul": TUTORIAL, "relu": ((2, 2),), "matmul2": TUTORIAL}),
    ("quickstart", quickstart, None, 1, SEMI, {"matmul": ((4, 1), (1, 1))}, {"relu": ((4, 1),)}),
    ("quickstart", quickstart, None, 1, DATA, {}, {"matmul": ((4, 1), (1, 1)), "mean": ((4, 1),)}),
    ("attention", Attention, None, 1, AUTO, {"query": ((2, 1, 1), (2, 1))}, {}),
    ("perceptron", perceptron, nn.CrossEntropyLoss, 2, HYBRID, {}, {"fc1.matmul": ((1, 1), (2, 1))}),
    ("convolutions", Convolutions, nn.CrossEntropyLoss, 1, DATA, {}, {}),
]


def trained_alone(name):
    whole = network_of(name)
    optimizer = torch.optim.SGD(whole.parameters(), lr=RATE, momentum=0.9)
    losses = [stepped(optimizer, partial(whole, *inputs_of(name, step))) for step in range(STEPS)]
    return losses, {path.removeprefix("network."): each.detach() for path, each in whole.named_parameters()}


def stepped(optimizer, call, sums=lambda: None):
    optimizer.zero_grad()
    loss = call()
    loss.backward()
    sums()
    optimizer.step()
    return loss


def works(case, *, opened):
    """Train as one rank, and compare."""
    name, make, loss, _, mode, strategies, expected = case
    losses, weights = trained_alone(name)
    torch.manual_seed(int(os.environ["RANK"]))  # as those of `network_of` on rank 0 alone
    network = make().double()
    if opened:
        dist.init_process_group("gloo")
    with sharded(network, inputs_of(name, 0), loss=loss and loss(), mode=mode, strategies=strategies) as cut:
        found = cut.strategies
        assert expected.items() <= found.items(), found
        optimizer = torch.optim.SGD(cut.parameters(), lr=RATE, momentum=0.9)
        for step in range(STEPS):
            ours = stepped(optimizer, partial(cut, *inputs_of(name, step)), cut.sum_gradients)
            assert abs(cut.mean_over_copies(ours).item() - losses[step].item()) <= TOLERANCE, (step, ours, losses)
        ours = cut.whole_parameters()
    assert dist.is_initialized() == opened, "who has opened it closes it"
    assert ours.keys() == weights.keys()
    off = max(float((ours[path] - each).abs().max() / each.abs().max()) for path, each in weights.items())
    assert off <= TOLERANCE, off
    if os.environ["RANK"] == "0":
        print(f"{name} in {mode}: {off:.1e}", flush=True)


def not_summed():
    """Weights that were changed by a part of their gradients are refused in the next step, not trained further."""
    inputs = inputs_of("quickstart", 0)
    with sharded(network_of("quickstart"), inputs, mode=DATA) as cut:
        optimizer = torch.optim.SGD(cut.parameters(), lr=RATE)
        cut(*inputs).backward()
        cut(*inputs).backward()  # accumulated
        cut.sum_gradients()
        optimizer.step()
        cut(*inputs).backward()
        optimizer.step()
        with pytest.raises(UsageError, match="had not been summed"):
            cut(*inputs)


def refused():
    """Every rank is refused alike, before anything is opened or after."""
    inputs = inputs_of("quickstart", 0)
    cases = (
        (UsageError, "semi_auto_parallel", {"matmul": ((2, 1, 1), (1, 1))}),
        (UsageError, "data_parallel", {"matmul": ((2, 1), (1, 1))}),
        (RefusedLayoutError, "stand_alone", {}),
    )
    dist.init_process_group("gloo")
    for error, mode, strategies in cases:
        with pytest.raises(error) as told, sharded(network_of("quickstart"), inputs, mode=mode, strategies=strategies):
            pass
        assert told.value.hint, mode
    os.environ["RANK"] = str(1 - int(os.environ["RANK"]))  # another one than torch.distributed's
    with pytest.raises(UsageError), sharded(network_of("quickstart"), inputs):
        pass


def main():
    for number, case in enumerate(CASES):
        name, _, _, copies, *_ = case
        work = partial(works, case, opened=number == 1)
        fork_ranks(name, dp=copies, mp=4 // copies, pp=1, micro_batches=1, work=work)
    fork_ranks("not summed", dp=1, mp=2, pp=1, micro_batches=1, work=not_summed)
    fork_ranks("refused", dp=1, mp=2, pp=1, micro_batches=1, work=refused)


if __name__ == "__main__":
    main()
