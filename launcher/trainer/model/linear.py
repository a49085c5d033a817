"""Products of matrices in float32 on a CPU by oneDNN, and linear layers made of them.

torch multiplies such matrices by MKL, which does not use AVX-512 on processors of other makers than Intel. oneDNN does,
and takes half the time there. Compiled models call it by the same operation. But it makes and keeps a kernel of half a
megabyte for every shape that it meets, and in most trainings nearly every batch has another number of tokens.
So rows of tokens are taken in blocks of a few sizes, and what is left by torch's own product. That copies the products once
more, which pays for weights that are not small. Where all batches are of one shape, their numbers of rows get kernels of
their own. Other types and devices, a torch without that operation, and processors on which both take the same time (Intel's,
and those without AVX-512) have torch's own products: there the blocks would only cost.

Shapes: B sentences, T positions, N = B T rows of tokens, E features in, D features out; I, J, K rows, common width and
columns of a product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

BLOCK_ROWS = (1024, 512, 256, 128, 64, 32)
SMALLEST_BLOCK = 128  # of a layer: what smaller ones gain is lost when their products are put together
MIN_WEIGHT_ELEMENTS = 128 * 128

MAX_OWN_ROWS = 8


def _is_faster() -> bool:
    """Return whether oneDNN uses AVX-512 on this processor and MKL does not.

    The processor's maker decides it, and no measurement: a training that is repeated takes the same products again.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    return "GenuineIntel" not in processor


_OPERATION = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_ONEDNN = _OPERATION if _is_faster() else None

_own_rows: frozenset[int] = frozenset()  # numbers of rows with kernels of their own, in this process as the kernels are


def set_own_rows(rows: Iterable[int]) -> None:
    """Have products with these numbers of rows computed by kernels of their own: the MAX_OWN_ROWS largest of them."""
    global _own_rows  # noqa: PLW0603 - what a process keeps
    _own_rows = frozenset(sorted(set(rows) - {0})[-MAX_OWN_ROWS:])


class Linear(nn.Linear):
    """nn.Linear whose product is computed by `linear`."""

    def forward(self, hidden_BTE: Tensor) -> Tensor:
        return linear(hidden_BTE, self.weight, self.bias)


class TiedLinear(nn.Module):
    """A linear layer without bias whose weight is that of an embedding (Press and Wolf 2017, arXiv:1608.05859)."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.out_features = embedding.num_embeddings  # of the whole model, as those of nn.Linear
        # It stays the embedding's alone: parameters and state have it once.
        object.__setattr__(self, "_embedding", embedding)

    @property
    def weight(self) -> Tensor:
        embedding: nn.Embedding = self.__dict__["_embedding"]
        return embedding.weight

    def forward(self, hidden_BTE: Tensor) -> Tensor:
        return linear(hidden_BTE, self.weight)


def linear(hidden_BTE: Tensor, weight_DE: Tensor, bias_D: Tensor | None = None) -> Tensor:
    """Return hidden_BTE times weight_DE transposed, plus the bias: hidden_BTD, as functional.linear does."""
    rows = hidden_BTE.shape[:-1].numel()
    pays = rows in _own_rows or (rows >= SMALLEST_BLOCK and weight_DE.numel() >= MIN_WEIGHT_ELEMENTS)
    if not pays or not is_fast(hidden_BTE) or hidden_BTE.dim() < 2 or weight_DE.dtype != hidden_BTE.dtype:
        return functional.linear(hidden_BTE, weight_DE, bias_D)
    if hidden_BTE.dim() == 2:
        return _Linear.apply(hidden_BTE, weight_DE, bias_D)  # no view, which nothing else could replace in place
    return _Linear.apply(hidden_BTE.flatten(0, -2), weight_DE, bias_D).view(*hidden_BTE.shape[:-1], -1)


def is_fast(tensor: Tensor) -> bool:
    """Return whether oneDNN multiplies tensors of this type, on this device and this processor."""
    return _ONEDNN is not None and may_be_fast(tensor)


def may_be_fast(tensor: Tensor) -> bool:
    """Return whether oneDNN multiplies tensors of this type, on this device, if the processor is one on which it is faster."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def row_blocks(rows: int, *, largest: int | None = None, smallest: int = SMALLEST_BLOCK) -> Iterator[slice]:
    """Yield slices of so many rows: all of them if they have kernels of their own, otherwise blocks of a few sizes.

    These are the greatest blocks, then one at most of each smaller size, then the rows that are left. None is larger than
    `largest`, and none but the last smaller than `smallest`.

    >>> [block.stop - block.start for block in row_blocks(2500)]
    [1024, 1024, 256, 128, 68]
    """
    if rows in _own_rows and (largest is None or rows <= largest):
        yield slice(0, rows)
        return
    start = 0
    sizes = [size for size in BLOCK_ROWS if size >= smallest and (largest is None or size <= largest)]
    for size in sizes or [min(smallest, largest or rows)]:
        while rows - start >= size:
            yield slice(start, start + size)
            start += size
    if start < rows:
        yield slice(start, rows)


def product(left_IJ: Tensor, right_KJ: Tensor, *, rows: int, bias_K: Tensor | None = None) -> Tensor:
    """Return left times right transposed, plus the bias: IK, without a graph for autograd.

    `rows` is the size of I or J that is a number of tokens.
    """
    if _has_kernels(rows) and is_fast(left_IJ):
        assert _ONEDNN is not None, "it is fast here"
        return _ONEDNN(left_IJ, right_KJ, bias_K, "none", [], "")
    return functional.linear(left_IJ, right_KJ, bias_K)


def add_product(sum_IK: Tensor, left_IJ: Tensor, right_KJ: Tensor, *, rows: int) -> None:
    """Add `product` of the same arguments to `sum_IK`, which may be of a wider type."""
    if sum_IK.dtype != left_IJ.dtype or (_has_kernels(rows) and is_fast(left_IJ)):
        sum_IK += product(left_IJ, right_KJ, rows=rows)
    else:
        sum_IK.addmm_(left_IJ, right_KJ.t())


def _has_kernels(rows: int) -> bool:
    return rows in BLOCK_ROWS or rows in _own_rows


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_NE: Tensor, weight_DE: Tensor, bias_D: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden_NE, weight_DE)
        return _by_blocks(hidden_NE, weight_DE, bias_D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden_NE, weight_DE = ctx.saved_tensors
        [upstream_ND] = upstream
        for_hidden, for_weight, for_bias = ctx.needs_input_grad
        return (
            _by_blocks(upstream_ND, weight_DE.t()) if for_hidden else None,
            _sum_of_blocks(upstream_ND, hidden_NE) if for_weight else None,
            upstream_ND.sum(dim=0) if for_bias else None,
        )


def _by_blocks(left_NE: Tensor, right_DE: Tensor, bias_D: Tensor | None = None) -> Tensor:
    blocks = [
        product(left_NE[block], right_DE, rows=block.stop - block.start, bias_K=bias_D)
        for block in row_blocks(len(left_NE))
    ]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _sum_of_blocks(upstream_ND: Tensor, hidden_NE: Tensor) -> Tensor:
    """Return the weight's gradient: upstream transposed times hidden."""
    first, *others = row_blocks(len(hidden_NE))
    sum_DE = product(upstream_ND[first].t(), hidden_NE[first].t(), rows=first.stop - first.start)
    for block in others:
        add_product(sum_DE, upstream_ND[block].t(), hidden_NE[block].t(), rows=block.stop - block.start)
    return sum_DE
