"""Sums and means over dims, and losses: where a dim that is summed over is cut, ranks compute parts of the sum.

A mean divides by the number of elements of the whole tensor, so that the parts of ranks add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
