"""Hold batch norm over the ranks of a group against torch's own on the whole batch in one process. Exit 0 when they agree.

On two and on four ranks forked from this process: images in parts of unequal numbers, of which one is empty; both orders of
dims in memory; channels whose mean is far larger than their deviation; a small network with two norms; running statistics
of three steps, and evaluation by them.
"""

import functools
from itertools import pairwise
from types import SimpleNamespace

import torch
import torch.distributed.tensor  # else each rank imports it in its first assert_close
from ranks import fork_ranks, own_world
from torch import nn

from launcher.trainer.optimizer.update_rules import Momentum
from launcher.trainer.parallel.batch_norm import SynchronisedBatchNorm, synchronise_batch_norms
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.programs.replicated import ReplicatedTraining
from launcher.trainer.telemetry.recording import Recorder
from launcher.trainer.telemetry.watch import watching

BOUNDS = {2: ((0, 3, 8), (0, 8, 8)), 4: ((0, 2, 4, 6, 8), (0, 5, 5, 6, 8))}  # of each rank's images, of 8
close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def network():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 5, 3, stride=2, bias=False), nn.BatchNorm2d(5, momentum=0.3), nn.ReLU()
    ).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def images(step, layout):
    generator = torch.Generator().manual_seed(step)
    image_BCHW = torch.randn(8, 3, 7, 6, dtype=torch.float64, generator=generator)
    image_BCHW[:, 1] += 300
    return image_BCHW.contiguous(memory_format=layout)


def check(group, bounds, layout):
    own = list(map(slice, *zip(*pairwise(bounds), strict=True)))[group.index]
    expected, ours = network(), network()
    synchronise_batch_norms(ours, group)
    assert isinstance(ours[0], SynchronisedBatchNorm)
    assert list(ours.state_dict()) == list(expected.state_dict())
    for step in range(3):
        whole, part = images(step, layout).requires_grad_(), images(step, layout)[own].requires_grad_()
        wanted, found = expected(whole), ours(part)
        close(found, wanted[own])
        upstream = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        wanted.backward(upstream)
        found.backward(upstream[own])
        close(part.grad, whole.grad[own])
    for mine, theirs in zip(ours.parameters(), expected.parameters(), strict=True):
        close(all_reduce(mine.grad.clone(), group), theirs.grad)
    for mine, theirs in zip(ours.state_dict().values(), expected.state_dict().values(), strict=True):
        close(mine, theirs)
    ours.eval()
    expected.eval()
    close(ours(images(9, layout)), expected(images(9, layout)))


def check_narrow(group):
    """Means far larger than deviations, in float32 and in bfloat16: as exact as torch's own in that type."""
    bounds = BOUNDS[group.size][0]
    own = list(map(slice, *zip(*pairwise(bounds), strict=True)))[group.index]
    image_BCHW = images(1, torch.contiguous_format)
    exact = nn.BatchNorm2d(3, dtype=torch.float64)(image_BCHW)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        given = image_BCHW if dtype == torch.float32 else image_BCHW - 300 * (image_BCHW > 100)
        norm = nn.Sequential(nn.BatchNorm2d(3, dtype=dtype))
        synchronise_batch_norms(norm, group)
        part = given.to(dtype)[own].requires_grad_()
        found = norm(part)
        found.sum().backward()
        assert found.dtype == part.grad.dtype == norm[0].weight.grad.dtype == dtype
        torch.testing.assert_close(found.double(), exact[own], rtol=tolerance, atol=tolerance)


def check_recorded(world):
    """What a data-parallel step is told to communicate: a norm's statistics forward, their sums backward, each at the norm."""
    settings = SimpleNamespace(
        model=SimpleNamespace(batch_norm="synchronised"), parallel=SimpleNamespace(gradient_groups=1)
    )
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 7 * 6, 2)).double()
    weights = dict(model.named_parameters())
    training = ReplicatedTraining(
        model, settings, world, Momentum(0.9), lambda name, _: weights[name].detach().clone(), torch.float64
    )
    recorder = Recorder(world.place.global_rank)
    with watching(training.model, recorder):
        inputs = images(1, torch.contiguous_format)[: 8 // world.dp.size], torch.zeros(8 // world.dp.size, dtype=int)
        training.train_step(inputs, 0.1, lambda: (), count=8)
    told = [(one.operator, one.phase, one.kind, one.what) for one in recorder.collectives()]
    assert told[:2] == [("0", "forward", "all_gather", "statistics"), ("0", "backward", "all_reduce", "statistics")]
    assert {phase for _, phase, *_ in told[2:]} == {"optimizer"}, told


def all_cases():
    with own_world("auto") as world:
        for bounds in BOUNDS[world.dp.size]:
            for layout in (torch.contiguous_format, torch.channels_last):
                check(world.dp, bounds, layout)
        check_narrow(world.dp)
        check_recorded(world)


if __name__ == "__main__":
    for dp in BOUNDS:
        fork_ranks(f"dp={dp}", all_cases, dp=dp)
