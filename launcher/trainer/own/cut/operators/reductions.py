"""Sums and means over dims, pooling of images, and losses: where a dim that is summed over is cut, ranks compute parts of the sum.

A mean divides by the number of elements of the whole tensor, so that the parts of ranks add up to it. Pooling may cut batch and
channels.
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

# A label that no class has. torch refuses it, where its own -100 would be left out of a mean over fewer labels.
NO_LABEL = -(1 << 62)


def reduction(kind: str) -> Callable[..., Value]:
    """Return the description of "sum" or "mean" over some dims, or over all."""

    def describe(
        record: Recorder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
    ) -> Value:
        if dtype is not None:
            refuse(f"{kind} in another type than its input's is not known")
        if kind == "mean" and not x.meta.is_floating_point():
            refuse("the mean of whole numbers is not known")
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
    """Describe the mean, or the sum, of squared differences."""
    if (size_average, reduce, weight) != (None, None, None):
        refuse("mse_loss with size_average, reduce or weight is not known", hint="reduction")
    if x.shape != target.shape:
        refuse(f"mse_loss of {tuple(x.shape)} and {tuple(target.shape)} is not known", hint="both of one shape")
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
    """Describe the mean, or the sum, of cross entropies with labels that are numbers of classes; classes are not cut."""
    if (size_average, reduce, weight) != (None, None, None) or ignore_index != -100:
        refuse("cross_entropy with weights of classes, an ignored label, size_average or reduce is not known")
    if target.meta.is_floating_point() or logits.meta.dim() < 2:
        refuse(
            "cross_entropy with probabilities, or without a batch, is not known",
            hint="labels that are numbers of classes",
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
        refuse(f"{kind} with reduction {reduction} is not known", hint="mean or sum")
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
    """Describe the largest element of each window."""
    if return_indices:
        refuse("max_pool2d that returns indices is not known")
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
    """Describe the mean of each window."""
    numbers = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _pooled(record, "avg_pool2d", x, lambda x: functional.avg_pool2d(x, *numbers))


def adaptive_avg_pool2d(record: Recorder, x: Value, output_size: int | Sequence[int | None]) -> Value:
    """Describe the mean over a grid of windows, as (1, 1) the mean of all places."""
    sizes = (output_size, output_size) if isinstance(output_size, int) else output_size
    height, width = (whole if size is None else size for size, whole in zip(sizes, x.shape[2:], strict=True))
    # Not computed on the meta device, for which torch would import its compiler: that takes a second.
    output = x.meta.new_empty(*x.shape[:2], height, width)
    return _pooled(
        record, "adaptive_avg_pool2d", x, lambda x: functional.adaptive_avg_pool2d(x, (height, width)), output
    )


def _pooled(record: Recorder, kind: str, x: Value, pool: Callable[..., Tensor], output: Tensor | None = None) -> Value:
    if x.meta.dim() != 4:
        refuse(f"{kind} of {x.meta.dim()} dims is not known", hint="images of 4 dims: batch, channels, height, width")
    dims = ("n", "c", None, None)
    expression = Expression((dims,), dims, {"n": x.shape[0], "c": x.shape[1]})
    return record(kind, [x], expression, pool(x.meta) if output is None else output, everywhere(pool))
