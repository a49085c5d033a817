"""Products: matrix products, linear layers, convolutions and embeddings.

A bias is a separate operator, since it must be added only once if the product is summed over ranks. If nothing is
communicated in between, a rank computes both in one call (`TAKES_BIAS`).
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from launcher.sharding.expression import Expression
from launcher.trainer.own.cut.operators.elementwise import bias_add
from launcher.trainer.own.cut.operators.record import (
    BATCHES,
    Local,
    OpContext,
    Recorder,
    Value,
    broadcast_dims,
    everywhere,
    refuse,
    sizes_of,
)

TAKES_BIAS = frozenset({"linear", "conv2d"})  # the local functions of these take a bias as third input


def matmul(record: Recorder, x: Value, w: Value) -> Value:
    if min(x.meta.dim(), w.meta.dim()) < 2:
        hint = "use a matrix with one row or column, for example v.unsqueeze(0) or v.unsqueeze(1)"
        refuse("a product with a vector is not supported", hint=hint)
    output = torch.matmul(x.meta, w.meta)
    batch = output.shape[:-2]
    [ours, theirs, result] = [broadcast_dims(shape[:-2], batch, BATCHES) for shape in (x.shape, w.shape, output.shape)]
    sizes = {**sizes_of(result, batch), "i": x.shape[-2], "k": x.shape[-1], "j": w.shape[-1]}
    expression = Expression(((*ours, "i", "k"), (*theirs, "k", "j")), (*result, "i", "j"), sizes)
    return record("matmul", [x, w], expression, output, everywhere(torch.matmul), flops=_flops(output, x.shape[-1]))


def linear(record: Recorder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """Record a linear layer as a matrix product and the addition of the bias, and return its output."""
    output = functional.linear(x.meta, weight.meta)
    *rest, _ = broadcast_dims(x.shape, x.shape, BATCHES)
    dims = (*rest[:-1], "i") if rest else ()
    sizes = {**sizes_of(dims, x.shape[:-1]), "k": x.shape[-1], "j": weight.shape[0]}
    expression = Expression(((*dims, "k"), ("j", "k")), (*dims, "j"), sizes)
    flops = _flops(output, x.shape[-1])
    suffix = "" if bias is None else "matmul"
    product = record(
        "linear", [x, weight], expression, output, everywhere(functional.linear), flops=flops, suffix=suffix
    )
    return product if bias is None else bias_add(record, product, bias, dim=-1, suffix="bias_add")


def conv2d(
    record: Recorder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    """Record a convolution and return its output. If `groups` is above 1, only the batch can be sharded."""
    if x.meta.dim() != 4:
        refuse(
            f"a convolution of an input with {x.meta.dim()} dims is not supported",
            hint="pass images with 4 dims: batch, channels, height, width",
        )

    def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)

    output = convolve(x.meta, weight.meta)
    if groups == 1:
        inputs, result = (("n", "c", None, None), ("o", "c", None, None)), ("n", "o", None, None)
        sizes = {"n": x.shape[0], "c": x.shape[1], "o": weight.shape[0]}
    else:
        inputs, result = (("n", None, None, None), (None,) * 4), ("n", None, None, None)  # type: ignore[assignment]
        sizes = {"n": x.shape[0]}
    flops = _flops(output, prod(weight.shape[1:]))
    suffix = "" if bias is None else "conv2d"
    expression = Expression(inputs, result, sizes)
    made = record("conv2d", [x, weight], expression, output, everywhere(convolve), flops=flops, suffix=suffix)
    return made if bias is None else bias_add(record, made, bias, dim=1, suffix="bias_add")


def embedding(
    record: Recorder,
    ids: Value,
    weight: Value,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001 - only used with max_norm
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """Record an embedding and return its output. If the table is sharded by rows, each rank computes a partial sum."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        refuse("an embedding with max_norm, scale_grad_by_freq or sparse gradients is not supported")
    dims = broadcast_dims(ids.shape, ids.shape, BATCHES)
    sizes = {**sizes_of(dims, ids.shape), "v": weight.shape[0], "k": weight.shape[1]}
    expression = Expression((dims, ("v", "k")), (*dims, "k"), sizes)

    def local(site: OpContext) -> Local:
        box = site.input_box(1)
        first, rows = box.start[0], box.size[0]
        padding = padding_idx
        if padding is not None:
            padding = padding % weight.shape[0] - first
            padding = padding if 0 <= padding < rows else None

        def look_up(ids: Tensor, table: Tensor) -> Tensor:
            whole = site.input_shapes[1][0]
            if rows == whole:
                return functional.embedding(ids, table, padding)
            if ids.device.type == "cpu" and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < whole:
                raise IndexError(f"an id is outside the {whole} rows of the table")  # like torch for a full table
            ours = ids - first
            is_here = (ours >= 0) & (ours < rows)
            found = functional.embedding(ours.where(is_here, torch.zeros_like(ours)), table, padding)
            return found * is_here[..., None]

        return look_up

    output = functional.embedding(ids.meta, weight.meta)
    return record("embedding", [ids, weight], expression, output, local)


def _flops(output: Tensor, inner: int) -> int:
    return 2 * output.numel() * inner
