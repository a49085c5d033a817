"""Norms and softmax.

Normalised dims cannot be sharded, except the batch of a batch norm, for which ranks share statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from launcher.sharding.expression import Expression
from launcher.trainer.own.cut.operators.record import (
    Local,
    OpContext,
    Recorder,
    State,
    Value,
    broadcast_dims,
    everywhere,
    refuse,
    sizes_of,
)
from launcher.trainer.parallel.batch_norm import synchronised


def layer_norm(
    record: Recorder,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    """Record a layer norm and return its output. Its normalised dims cannot be sharded."""
    shape = tuple(normalized_shape)
    free = x.meta.dim() - len(shape)
    dims = (*broadcast_dims(x.shape, x.shape)[:free], *(None,) * len(shape))
    affine = [each for each in (weight, bias) if each is not None]

    def norm(x: Tensor, *affine: Tensor) -> Tensor:
        given = iter(affine)
        own_weight = None if weight is None else next(given)
        return functional.layer_norm(x, shape, own_weight, None if bias is None else next(given), eps)

    inputs = (dims, *((None,) * len(shape) for _ in affine))
    expression = Expression(inputs, dims, sizes_of(dims, x.shape))
    return record("layer_norm", [x, *affine], expression, torch.empty_like(x.meta), everywhere(norm))


def along_dim(kind: str, function: Callable[..., Tensor]) -> Callable[..., Value]:
    """Return a function that records a softmax or log_softmax. The dim of the softmax cannot be sharded."""

    def describe(record: Recorder, x: Value, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
        if dim is None or dtype is not None:
            refuse(f"{kind} without a dim, or with a dtype, is not supported", hint=f"call it as {kind}(x, dim=-1)")

        dims = list(broadcast_dims(x.shape, x.shape))
        dims[dim] = None
        expression = Expression((tuple(dims),), tuple(dims), sizes_of(tuple(dims), x.shape))
        return record(kind, [x], expression, torch.empty_like(x.meta), everywhere(partial(function, dim=dim)))

    return describe


def batch_norm(
    record: Recorder,
    x: Value,
    running: Sequence[State],
    weight: Value | None,
    bias: Value | None,
    *,
    uses_batch: bool,
    is_shared: bool,
    momentum: float | None,
    eps: float,
) -> Value:
    """Record a batch norm of images and return its output.

    `running` has the running mean, the running variance and the number of batches, or is empty. If the batch is
    sharded and `is_shared` is set, the statistics are computed over the full batch. Otherwise each rank uses its own
    part. Unless `uses_batch` is set, the running statistics are used.
    """
    if x.meta.dim() != 4 or weight is None or bias is None:
        refuse("a batch norm needs an input with 4 dims, a weight and a bias", hint="use nn.BatchNorm2d(channels)")
    if momentum is None:
        refuse("a batch norm with a cumulative average (momentum=None) is not supported", hint="set momentum=0.1")
    dims = ("n", "c", None, None)
    shared = ("n",) if uses_batch and is_shared else ()
    expression = Expression((dims, ("c",), ("c",)), dims, {"n": x.shape[0], "c": x.shape[1]}, shared)

    def local(site: OpContext) -> Local:
        mean, variance, count = site.states or (None, None, None)

        def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            if uses_batch and count is not None:
                count.add_(1)
            if site.shared.size > 1:
                return synchronised(x, weight, bias, (mean, variance), momentum, eps, site.shared)
            return functional.batch_norm(x, mean, variance, weight, bias, uses_batch, momentum, eps)

        return norm

    output = torch.empty_like(x.meta)
    return record("batch_norm", [x, weight, bias], expression, output, local, states=running)
