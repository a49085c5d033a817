"""Hold the vocabulary-parallel head and loss against torch's own on one device. Exit 0 when they agree.

On two and on four ranks forked from this process, for a vocabulary that neither divides: in float64 with small chunks, and
in float32 with those of every training, by the products that are fast on this machine.
"""

import functools
import itertools

import torch
import torch.distributed.tensor  # else each rank imports it in its first assert_close
from ranks import fork_ranks, own_world
from torch import nn
from torch.nn import functional

from launcher.trainer.parallel import head_loss as module
from launcher.trainer.parallel.styles import part_bounds

VOCABULARY, D_MODEL = 67, 16
TOKENS = (0, 1, 511, 513)
SMOOTHING, SCALES = (0.0, 0.1), (1.0, 100.0)  # where logits are large, each rank's largest is another one
LARGE_VOCABULARY, MANY_TOKENS = 10_241, 1500


def check(tokens, smoothing, scale, group):
    torch.manual_seed(tokens)
    hidden = (scale * torch.randn(tokens, D_MODEL, dtype=torch.float64)).requires_grad_()
    head = nn.Linear(D_MODEL, VOCABULARY, bias=False, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (tokens,))
    expected = functional.cross_entropy(head(hidden), labels, reduction="sum") / 7
    smoothed = functional.cross_entropy(head(hidden), labels, label_smoothing=smoothing, reduction="sum") / 7
    hidden_gradient, weight_gradient = torch.autograd.grad(3 * smoothed, [hidden, head.weight])

    own = slice(*part_bounds(VOCABULARY, group))
    head.weight = nn.Parameter(head.weight.detach()[own].clone())
    loss = module.head_loss(hidden, head, labels, group=group, smoothing=smoothing, scale=1 / 7)
    ours = torch.autograd.grad(3 * loss, [hidden, head.weight])
    with torch.no_grad():
        alone = module.head_loss(hidden, head, labels, group=group, smoothing=smoothing, scale=1 / 7)

    close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12 * scale)
    close(loss, expected)
    close(alone, expected)
    close(ours[0], hidden_gradient)
    close(ours[1], weight_gradient[own])


def check_in_float32(group):
    torch.manual_seed(1)
    hidden = torch.randn(MANY_TOKENS, D_MODEL, requires_grad=True)
    head = nn.Linear(D_MODEL, LARGE_VOCABULARY, bias=False)
    labels = torch.randint(LARGE_VOCABULARY, (MANY_TOKENS,))
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, head.weight)]
    expected = functional.cross_entropy(exact[0] @ exact[1].t(), labels, reduction="sum")
    smoothed = functional.cross_entropy(exact[0] @ exact[1].t(), labels, label_smoothing=0.1, reduction="sum")
    hidden_gradient, weight_gradient = torch.autograd.grad(smoothed, exact)

    own = slice(*part_bounds(LARGE_VOCABULARY, group))
    head.weight = nn.Parameter(head.weight.detach()[own].clone())
    loss = module.head_loss(hidden, head, labels, group=group, smoothing=0.1)
    ours = torch.autograd.grad(loss, [hidden, head.weight])

    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    for found, theirs in zip(ours, (hidden_gradient, weight_gradient[own]), strict=True):
        assert (found.double() - theirs).norm() < 1e-5 * theirs.norm()


def all_cases():
    with own_world() as world:
        check_in_float32(world.mp)
        module.CPU_BYTES, module.MIN_CHUNK_TOKENS = 1, 100  # several chunks, the last of them smaller
        for case in itertools.product(TOKENS, SMOOTHING, SCALES):
            check(*case, world.mp)


if __name__ == "__main__":
    for mp in (2, 4):
        fork_ranks(f"mp={mp}", all_cases, mp=mp)
