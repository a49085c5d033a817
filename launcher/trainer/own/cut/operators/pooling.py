"""Pooling of images: batch and channels may be cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from launcher.sharding.expression import Expression
from launcher.trainer.own.cut.operators.record import Recorder, Value, everywhere, refuse


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
