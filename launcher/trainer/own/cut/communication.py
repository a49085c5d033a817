"""The communication of a plan, as differentiable functions on a rank's part of a tensor.

Every rank that holds a replica of a tensor also has the tensor's full gradient. So the backward of each function is:

    all-gather         slice the gradient, without communication
    slice              all-gather the gradients
    sum of outputs     pass the gradient on
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from launcher.sharding.redistribution import Step
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.parallel.collectives import Group, all_gather, all_reduce, all_to_all

Function = Callable[[Tensor], Tensor]


def redistribution(step: Step, groups: Groups, *, has_gradient: bool) -> Function:
    """Return a function that runs one step of resharding a tensor: a slice, an all-gather or an all-to-all.

    A slice without a gradient does not communicate, so it opens no process group.
    """
    if step.kind == "slice" and not has_gradient:
        members = step.group_of(groups.rank)
        return partial(_sliced, dim=step.dim, index=members.index(groups.rank), parts=len(members))
    group = groups.along(step.before.devices, step.axes)
    if step.kind == "slice":
        return lambda tensor: _Slice.apply(tensor, step.dim, group)
    if step.kind == "all_gather":
        return lambda tensor: _AllGather.apply(tensor, step.dim, group)
    assert step.from_dim is not None, "an exchange gathers a dim"
    from_dim: int = step.from_dim
    return lambda tensor: _Exchange.apply(tensor, step.dim, from_dim, group)


def sum_of_outputs(group: Group) -> Function:
    """Return a function that all-reduces a partial output in forward and passes the gradient through in backward."""
    return lambda part: _SumOfOutputs.apply(part, group)


def sum_of_gradients(group: Group) -> Function:
    """Return a function that returns its argument in forward and all-reduces the gradient in backward."""
    return lambda tensor: _SumOfGradients.apply(tensor, group)


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _sliced(tensor, dim, group.index, group.size)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(upstream[0], ctx.dim, ctx.group), None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _gathered(tensor, dim, group)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        return _sliced(upstream[0], ctx.dim, ctx.group.index, ctx.group.size), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, from_dim: int, group: Group) -> Tensor:
        ctx.dims, ctx.group = (dim, from_dim), group
        return _exchanged(tensor, dim, from_dim, group)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        dim, from_dim = ctx.dims
        return _exchanged(upstream[0], from_dim, dim, ctx.group), None, None, None


class _SumOfOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Group) -> Tensor:
        # In place unless other tensors may share the storage.
        if part._is_view() or not part.is_contiguous():  # noqa: SLF001 - torch has no other name for it
            return all_reduce(part.clone(memory_format=torch.contiguous_format), group)
        ctx.mark_dirty(part)
        return all_reduce(part, group)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return upstream[0], None


class _SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return all_reduce(upstream[0].clone(memory_format=torch.contiguous_format), ctx.group), None


def _sliced(tensor: Tensor, dim: int, index: int, parts: int) -> Tensor:
    length = tensor.shape[dim] // parts
    return tensor.narrow(dim, index * length, length).contiguous()


def _gathered(part: Tensor, dim: int, group: Group) -> Tensor:
    parts = part.new_empty(group.size, *part.shape)
    all_gather(parts.view(-1), part.contiguous().view(-1), group)
    return parts.movedim(0, dim).flatten(dim, dim + 1)


def _exchanged(tensor: Tensor, dim: int, from_dim: int, group: Group) -> Tensor:
    """Reshard a tensor from `from_dim` to `dim` with an all-to-all."""
    sent = tensor.unflatten(dim, (group.size, -1)).movedim(dim, 0).contiguous()
    received = torch.empty_like(sent)
    all_to_all(received.view(-1), sent.view(-1), group)
    return received.movedim(0, from_dim).flatten(from_dim, from_dim + 1)
