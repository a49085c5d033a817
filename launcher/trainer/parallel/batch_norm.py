"""Synchronized batch norm: statistics over the images of all ranks of a group, as in a single process.

In forward each rank computes count, mean and biased variance of its own elements of each channel. One all-gather
exchanges them. They are combined as in Chan, Golub and LeVeque 1983 ("Algorithms for computing the sample variance", eq.
2.1), which avoids differences of large squares:

    mean = sum n_r mean_r / n        variance = sum n_r (variance_r + (mean_r - mean)^2) / n        n = sum n_r

Backward (Ioffe and Szegedy 2015, arXiv:1502.03167, section 3), with x^ = (x - mean) s and s = (variance +
epsilon)^-1/2, needs two sums over all elements of the group, in one message:

    dx = weight s (dy - sum(dy) / n - x^ sum(dy x^) / n)

The gradients of weight and bias, sum(dy x^) and sum(dy), cover only the rank's own elements. Like every gradient, they
are summed over the data-parallel ranks later.

Shapes: B images, C channels, H and W pixels, R ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from launcher.trainer.parallel.collectives import ALONE, Group, all_gather, all_reduce
from launcher.trainer.telemetry import recording


class SynchronisedBatchNorm(nn.BatchNorm2d):
    """A batch norm over the images of all ranks of `group`. In training, all of these ranks must call it together.

    Ranks may have different numbers of images, including none. Parameters, buffers and their names are the same as in
    nn.BatchNorm2d.
    """

    group: Group = ALONE

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        if self.group.size == 1 or not self.training:
            return super().forward(input)
        assert self.momentum is not None, "its running statistics have a momentum"
        assert self.num_batches_tracked is not None, "running statistics are tracked"
        self.num_batches_tracked += 1
        running = (self.running_mean, self.running_var)
        return synchronised(input, self.weight, self.bias, running, self.momentum, self.eps, self.group)


def synchronised(
    input_BCHW: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    running_C: tuple[Tensor | None, Tensor | None],
    momentum: float,
    epsilon: float,
    group: Group,
) -> Tensor:
    """Batch-normalize this rank's images with the statistics of all ranks. All ranks of the group must call it.

    If `running_C` has a running mean and (unbiased) variance, they move towards the new statistics by `momentum`.
    """
    normalised_BCHW, mean_C, variance_C, count = _Normalised.apply(input_BCHW, weight_C, bias_C, epsilon, group)
    running_mean_C, running_variance_C = running_C
    if running_mean_C is not None and running_variance_C is not None:
        unbiased_C = variance_C * (float(count) / (float(count) - 1))
        running_mean_C.lerp_(mean_C.to(running_mean_C.dtype), momentum)
        running_variance_C.lerp_(unbiased_C.to(running_variance_C.dtype), momentum)
    return normalised_BCHW


def synchronise_batch_norms(model: nn.Module, group: Group) -> None:
    """Make the batch norms of `model` compute their statistics over all ranks of `group`.

    Parameters and buffers stay the same tensors. In a group of one rank, nothing changes.
    """
    for module in model.modules() if group.size > 1 else ():
        if type(module) is nn.BatchNorm2d:
            assert module.affine, "it has a weight and a bias"
            module.__class__ = SynchronisedBatchNorm
            module.group = group  # type: ignore[assignment]


class _Normalised(torch.autograd.Function):
    """An autograd function that returns normalized images, and the mean, biased variance and count of the group."""

    @staticmethod
    def forward(
        ctx: Any, input_BCHW: Tensor, weight_C: Tensor, bias_C: Tensor, epsilon: float, group: Group
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Statistics of narrow types are float32, as in torch's kernels.
        exact = torch.promote_types(input_BCHW.dtype, torch.float32)
        count, mean_C, variance_C = _joined(*_own_statistics(input_BCHW, exact), group)
        ctx.save_for_backward(input_BCHW, weight_C, mean_C, variance_C)
        ctx.epsilon, ctx.group, ctx.count = epsilon, group, float(count)
        ctx.operator = recording.operator()
        ctx.mark_non_differentiable(mean_C, variance_C, count)
        normalised_BCHW = torch.empty_like(input_BCHW)
        if input_BCHW.numel():  # torch's CPU kernels divide by it
            normalised_BCHW = functional.batch_norm(
                input_BCHW, mean_C, variance_C, weight_C.to(exact), bias_C.to(exact), eps=epsilon
            )
        return normalised_BCHW, mean_C, variance_C, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        input_BCHW, weight_C, mean_C, variance_C = ctx.saved_tensors
        upstream_BCHW = upstream[0]
        exact = mean_C.dtype
        own_2C = mean_C.new_zeros(2, len(mean_C))
        if input_BCHW.numel():
            # torch's kernel for fixed statistics sums dy x^ and dy over the rank's own elements.
            _, *sums_C = torch.ops.aten.native_batch_norm_backward(
                upstream_BCHW, input_BCHW, weight_C.to(exact), mean_C, variance_C, None, None,
                False, ctx.epsilon, [False, True, True],
            )  # fmt: skip
            own_2C = torch.stack(sums_C)
        with recording.within(ctx.operator):
            means_2C = all_reduce(own_2C.clone(), ctx.group, what="statistics") / ctx.count
        # dx = a dy + b x + c, with the same a, b and c for all elements of a channel.
        inverse_C = torch.rsqrt(variance_C + ctx.epsilon)
        of_upstream_C = weight_C.to(exact) * inverse_C
        of_input_C = -of_upstream_C * inverse_C * means_2C[0]
        number_C = -of_upstream_C * means_2C[1] - of_input_C * mean_C
        dtype = input_BCHW.dtype
        gradient_BCHW = torch.addcmul(_over_pixels(number_C, dtype), input_BCHW, _over_pixels(of_input_C, dtype))
        gradient_BCHW.addcmul_(upstream_BCHW, _over_pixels(of_upstream_C, dtype))
        return gradient_BCHW, *own_2C.to(weight_C.dtype), None, None


def _own_statistics(input_BCHW: Tensor, exact: torch.dtype) -> tuple[int, Tensor, Tensor]:
    """Return the number of this rank's elements per channel, and the mean and biased variance of each channel."""
    count = input_BCHW.numel() // input_BCHW.shape[1]
    if count == 0:
        nothing_C = input_BCHW.new_zeros(input_BCHW.shape[1], dtype=exact)
        return 0, nothing_C, nothing_C
    input_BCHW = input_BCHW.to(exact)
    if input_BCHW.device.type == "cpu" and input_BCHW.is_contiguous(memory_format=torch.channels_last):
        return count, *torch.batch_norm_update_stats(input_BCHW, None, None, 0.0)
    # For channels that are not the last dim, this takes a third of the time of torch's CPU kernel, a tenth of
    # `var_mean`.
    mean_C = input_BCHW.mean(dim=(0, 2, 3))
    centred_BCHW = functional.batch_norm(input_BCHW, mean_C, torch.ones_like(mean_C), eps=0.0)
    return count, mean_C, centred_BCHW.mul_(centred_BCHW).mean(dim=(0, 2, 3))


def _joined(count: int, mean_C: Tensor, variance_C: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """Return the count, mean and biased variance over the images of all ranks. All ranks get the same result."""
    channels = len(mean_C)
    own = torch.cat([mean_C, variance_C, mean_C.new_tensor([count])])
    gathered = own.new_empty(group.size * len(own))
    all_gather(gathered, own, group, what="statistics")
    mean_RC, variance_RC, count_R1 = gathered.view(group.size, -1).split([channels, channels, 1], dim=1)
    total = count_R1.sum()
    joined_C = (count_R1 * mean_RC).sum(dim=0) / total
    deviations_C = (count_R1 * (variance_RC + (mean_RC - joined_C) ** 2)).sum(dim=0)
    return total, joined_C, deviations_C / total


def _over_pixels(value_C: Tensor, dtype: torch.dtype) -> Tensor:
    return value_C.to(dtype)[:, None, None]
