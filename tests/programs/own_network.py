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
from torch.nn import functional

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
        with pytest.raises(UsageError, match="were not summed"):
            cut(*inputs)


def accumulated(*, mode, set_to_none):
    """Gradients of several backward passes are those of one process: summed once, after each, twice, and by halves."""
    whole, batches = network_of("attention"), [inputs_of("attention", step) for step in range(3)]
    expected = torch.optim.SGD(whole.parameters(), lr=RATE)
    with sharded(network_of("attention"), batches[0], mode=mode) as cut:
        optimizer = torch.optim.SGD(cut.parameters(), lr=RATE)
        for sums in ((0, 1, 2), (2,), (1, 2), (0, 0, 2, 2)):
            expected.zero_grad()
            optimizer.zero_grad(set_to_none=set_to_none)
            for number, batch in enumerate(batches):
                whole(*batch).backward()
                cut(*batch).backward()
                for _ in range(sums.count(number)):
                    cut.sum_gradients()
            check_gradients(cut, whole)
            expected.step()
            optimizer.step()
        cut(*batches[0]).backward()  # of gradients that are thrown away
        optimizer.zero_grad()
        whole.zero_grad()
        whole(*batches[1]).backward()
        cut(*batches[1]).backward()
        cut.sum_gradients()
        check_gradients(cut, whole)


def check_gradients(cut, whole):
    for name, gradient in cut.whole_gradients().items():
        wanted = whole.get_parameter(name).grad
        assert float((gradient - wanted).abs().max()) <= TOLERANCE * float(wanted.abs().max()), name


class Kind(nn.Module):
    """A layer, and a loss of its own by the name `kind`."""

    def __init__(self, kind, *, norm=False):
        super().__init__()
        self.kind = kind
        self.head, self.weight = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 4) * 0.3)
        if norm:
            self.conv, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)

    def forward(self, rows, other, wanted):
        return self.kind(self, rows, other, wanted)


def normed(net, images, table, wanted):
    hidden = torch.relu(net.norm(net.conv(images))).mean((2, 3))
    return functional.mse_loss(net.head(hidden) + (table @ net.weight).sum(), wanted)


def summed(net, rows, table, wanted):
    return functional.mse_loss(net.head(rows) * (table @ net.weight).mean(), wanted, reduction="sum")


def masked(net, rows, mask, wanted):
    return (((net.head(rows) @ net.weight - wanted) ** 2).mean(1) * mask).sum() / mask.sum()


def centred(net, rows, _mask, wanted):
    hidden = net.head(rows) @ net.weight
    return functional.mse_loss(hidden - hidden.mean(0), wanted)


def product(net, rows, table, wanted):
    return functional.mse_loss(net.head(rows) @ (table @ net.weight).mean(0, keepdim=True).t() + 0 * wanted, wanted)


def flat(net, rows, labels, wanted):
    """Labels of every position, in one dim."""
    logits = net.head(rows.reshape(-1, 6)) @ net.weight
    return functional.cross_entropy(logits, labels) + 0 * wanted.mean()


def of_shape(*shape, step):
    return torch.randn(shape, generator=torch.Generator().manual_seed(step))


def batch_of(kind, step=0):
    """Return a batch of eight rows, in which what stands second is no batch but in `masked` and `flat`."""
    wanted = of_shape(8, 4, step=step + 10)
    if kind is flat:
        return of_shape(8, 3, 6, step=step), torch.arange(24) % 4, wanted
    if kind is normed:
        return of_shape(8, 2, 4, 4, step=step), of_shape(3, 4, step=step + 20), wanted
    if kind is product:
        return of_shape(8, 6, step=step), of_shape(4, 4, step=step + 20), of_shape(8, 1, step=step + 10)
    other = of_shape(4, 4, step=step + 20) if kind is summed else (torch.arange(8) < 5) + 0.5
    return of_shape(8, 6, step=step), other, wanted


def compared(kind, *, is_equal, norm=False, **options):
    """Two copies train as one process does; or the first call is refused, on every rank, unless that is accepted."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    net, whole = Kind(kind, norm=norm), Kind(kind, norm=norm)
    whole.load_state_dict(net.state_dict())
    examples = tuple(torch.zeros_like(each) for each in batch_of(kind))  # whose values do not matter
    with sharded(net, examples, mode=HYBRID, **options) as cut:
        optimizers = [torch.optim.SGD(each.parameters(), lr=RATE) for each in (cut, whole)]
        if not is_equal:
            for _ in range(2):
                with pytest.raises(RefusedLayoutError, match="the mean over 2 parts"):
                    cut(*batch_of(kind))
            return
        for step in range(STEPS):
            batch = batch_of(kind, step)
            found = cut.mean_over_copies(stepped(optimizers[0], partial(cut, *batch), cut.sum_gradients))
            wanted = stepped(optimizers[1], partial(whole, *batch))
            assert options or abs(float(found - wanted.detach())) <= TOLERANCE, (kind, step, found, wanted)


COMPARED = [
    ("a shared norm", partial(compared, normed, norm=True, is_equal=False)),
    ("norms of copies", partial(compared, normed, norm=True, is_equal=True, batch_norm_is_shared=False)),
    ("a sum", partial(compared, summed, is_equal=False)),
    ("a sum that is accepted", partial(compared, summed, is_equal=True, parts_may_differ=True)),
    ("a mask", partial(compared, masked, is_equal=False)),
    ("rows that meet", partial(compared, centred, is_equal=False)),
    ("a table", partial(compared, product, is_equal=True)),
    ("gradients of a table", partial(compared, product, is_equal=True, check_gradients=True)),
    ("flat labels", partial(compared, flat, is_equal=True)),
]


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
        fork_ranks(name, work, dp=copies, mp=4 // copies)
    fork_ranks("not summed", not_summed, mp=2)
    for mode, dp, mp in ((DATA, 1, 2), (AUTO, 1, 2), (HYBRID, 2, 2)):
        work = partial(accumulated, mode=mode, set_to_none=dp == 1)
        fork_ranks("accumulated", work, dp=dp, mp=mp)
    for name, work in COMPARED:
        fork_ranks(name, work, dp=2)
    fork_ranks("refused", refused, mp=2)


if __name__ == "__main__":
    main()
