"""Sums and means over dims, losses, and pooling of images.

If a reduced dim is sharded, each rank computes a partial sum. A mean divides by the number of elements of the full
tensor, so that the ranks' results add up to the mean. Pooling can be sharded along batch and channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from torch import Tensor
from torch.nn import functional

from launcher.sharding.expression import Expression
from launcher.trainer.own.cut.operators.record import Recorder, Value, broadcast_dims, everywhere, refuse, sizes_of

# An ignore_index that no label has. So a label of -100 is an error in torch, and is not left out of the mean.
NO_LABEL = -(1 << 62)


def reduction(kind: str) -> Callable[..., Value]:
    """Return a function that records a sum or a mean over some or all dims."""

    def describe(
        record: Recorder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
    ) -> Value:
        if dtype is not None:
            refuse(f"{kind} with a dtype is not supported", hint="convert the input instead")
        if kind == "mean" and not x.meta.is_floating_point():
            refuse("the mean of integers is not supported", hint="convert them to floating-point numbers")
        size = max(x.meta.dim(), 1)
        named = range(size) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
        over = sorted(each % size for each in named)[: x.meta.dim()]
        count = prod(x.shape[each] for each in over) if kind == "mean" else 1
        dims = broadcast_dims(x.shape, x.shape)
        kept = [None if each in over else index for each, index in enumerate(dims) if keepdim or each not in over]

        def reduced(x: Tensor) -> Tensor:
            total = x.sum(over, keepdim) if over else x.clone()
            return total / count if count > 1 else total

        expression = Expression((dims,), tuple(kept), sizes_of(dims, x.shape))
        output = x.meta.sum(over, keepdim) if over else x.meta
        return record(kind, [x], expression, output, everywhere(reduced))

    return describe


def mse_loss(
    record: Recorder,
    x: Value,
    target: Value,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Value:
    if (size_average, reduce, weight) != (None, None, None):
        refuse("mse_loss with size_average, reduce or weight is not supported", hint="use `reduction`")
    if x.shape != target.shape:
        refuse(
            f"mse_loss of the shapes {tuple(x.shape)} and {tuple(target.shape)} is not supported",
            hint="pass tensors of the same shape",
        )
    divisor = _divisor("mse_loss", reduction, x.shape.numel())
    dims = broadcast_dims(x.shape, x.shape)

    def squared(x: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(x, target, reduction="sum") / divisor

    expression = Expression((dims, dims), (), sizes_of(dims, x.shape))
    return record("mse_loss", [x, target], expression, x.meta.new_empty(()), everywhere(squared))


def cross_entropy(
    record: Recorder,
    logits: Value,
    target: Value,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Value:
    """Record a cross entropy with class indices as labels, and return its output. The class dim cannot be sharded."""
    if (size_average, reduce, weight) != (None, None, None) or ignore_index != -100:
        refuse("cross_entropy with weight, ignore_index, size_average or reduce is not supported")
    if target.meta.is_floating_point() or logits.meta.dim() < 2:
        refuse(
            "cross_entropy with class probabilities, or without a batch dim, is not supported",
            hint="pass class indices as labels, and logits with a batch dim",
        )
    divisor = _divisor("cross_entropy", reduction, target.shape.numel())
    ours = broadcast_dims(target.shape, target.shape)

    def summed(logits: Tensor, labels: Tensor) -> Tensor:
        options: dict[str, Any] = {"ignore_index": NO_LABEL, "label_smoothing": label_smoothing}
        return functional.cross_entropy(logits, labels, reduction="sum", **options) / divisor

    expression = Expression(((ours[0], None, *ours[1:]), ours), (), sizes_of(ours, target.shape))
    return record("cross_entropy", [logits, target], expression, logits.meta.new_empty(()), everywhere(summed))


def _divisor(kind: str, reduction: str, count: int) -> int:
    if reduction not in {"mean", "sum"}:
        refuse(f"{kind} with reduction={reduction!r} is not supported", hint="use 'mean' or 'sum'")
    return count if reduction == "mean" else 1


def max_pool2d(
    record: Recorder,
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Value:
    if return_indices:
        refuse("max_pool2d with return_indices is not supported")
    options = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    return _pooled(record, "max_pool2d", x, partial(functional.max_pool2d, kernel_size=kernel_size, **options))


def avg_pool2d(
    record: Recorder,
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    numbers = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _pooled(record, "avg_pool2d", x, lambda x: functional.avg_pool2d(x, *numbers))


def adaptive_avg_pool2d(record: Recorder, x: Value, output_size: int | Sequence[int | None]) -> Value:
    """Record an average pooling to a fixed output size, and return its output."""
    sizes = (output_size, output_size) if isinstance(output_size, int) else output_size
    height, width = (whole if size is None else size for size, whole in zip(sizes, x.shape[2:], strict=True))
    # Not computed on the meta device: torch would import its compiler, which takes a second.
    output = x.meta.new_empty(*x.shape[:2], height, width)
    return _pooled(
        record, "adaptive_avg_pool2d", x, lambda x: functional.adaptive_avg_pool2d(x, (height, width)), output
    )


def _pooled(record: Recorder, kind: str, x: Value, pool: Callable[..., Tensor], output: Tensor | None = None) -> Value:
    if x.meta.dim() != 4:
        refuse(
            f"{kind} of an input with {x.meta.dim()} dims is not supported",
            hint="pass images with 4 dims: batch, channels, height, width",
        )
    dims = ("n", "c", None, None)
    expression = Expression((dims,), dims, {"n": x.shape[0], "c": x.shape[1]})
    return record(kind, [x], expression, pool(x.meta) if output is None else output, everywhere(pool))
