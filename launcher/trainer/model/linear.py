"""Linear layers that use oneDNN for float32 matrix products on CPUs, if it is faster than MKL.

torch multiplies such matrices by MKL, which does not use AVX-512 on AMD processors. oneDNN does, and takes half the
time. torch's compiler calls the same oneDNN operation for its models. But oneDNN creates and caches a kernel of half a
megabyte for every shape, and in most trainings the number of tokens differs in nearly every batch.

So a matrix is multiplied in blocks of rows (tokens) of a few sizes, and the remaining rows by torch's product. The
results of the blocks are copied once more, which pays off except for small weights. If all batches have the same shape,
their numbers of rows get dedicated kernels instead. torch's product is used for other types and devices, if torch lacks
the operation, and on processors where oneDNN is not faster (Intel's, and those without AVX-512).

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
SMALLEST_BLOCK = 128  # of a layer: copying the results of smaller blocks takes longer than they save
MIN_WEIGHT_ELEMENTS = 128 * 128

MAX_OWN_ROWS = 8


def _is_faster() -> bool:
    """Return True if oneDNN uses AVX-512 on this processor and MKL does not.

    The CPU's vendor decides instead of a measurement, so that a repeated training uses the same kernels.
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

_own_rows: frozenset[int] = frozenset()  # numbers of rows with dedicated kernels; per process, like the kernels


def set_own_rows(rows: Iterable[int]) -> None:
    """Use dedicated oneDNN kernels for matrices with the given row counts, but only for the MAX_OWN_ROWS largest."""
    global _own_rows  # noqa: PLW0603 - state of the process
    _own_rows = frozenset(sorted(set(rows) - {0})[-MAX_OWN_ROWS:])


class Linear(nn.Linear):
    def forward(self, hidden_BTE: Tensor) -> Tensor:
        return linear(hidden_BTE, self.weight, self.bias)


class TiedLinear(nn.Module):
    """A linear layer without bias that uses an embedding's weight (Press and Wolf 2017, arXiv:1608.05859)."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.out_features = embedding.num_embeddings  # of the full model, as in nn.Linear
        # Not registered as a submodule: the weight appears once among parameters and in the state.
        object.__setattr__(self, "_embedding", embedding)

    @property
    def weight(self) -> Tensor:
        embedding: nn.Embedding = self.__dict__["_embedding"]
        return embedding.weight

    def forward(self, hidden_BTE: Tensor) -> Tensor:
        return linear(hidden_BTE, self.weight)


def linear(hidden_BTE: Tensor, weight_DE: Tensor, bias_D: Tensor | None = None) -> Tensor:
    """Return hidden_BTE times weight_DE transposed, plus the bias, like functional.linear."""
    rows = hidden_BTE.shape[:-1].numel()
    pays = rows in _own_rows or (rows >= SMALLEST_BLOCK and weight_DE.numel() >= MIN_WEIGHT_ELEMENTS)
    if not pays or not is_fast(hidden_BTE) or hidden_BTE.dim() < 2 or weight_DE.dtype != hidden_BTE.dtype:
        return functional.linear(hidden_BTE, weight_DE, bias_D)
    if hidden_BTE.dim() == 2:
        return _Linear.apply(hidden_BTE, weight_DE, bias_D)  # not a view, so that the caller can change it in place
    return _Linear.apply(hidden_BTE.flatten(0, -2), weight_DE, bias_D).view(*hidden_BTE.shape[:-1], -1)


def is_fast(tensor: Tensor) -> bool:
    """Return True if this processor uses oneDNN for tensors with the dtype and device of `tensor`."""
    return _ONEDNN is not None and may_be_fast(tensor)


def may_be_fast(tensor: Tensor) -> bool:
    """Return True if any processor uses oneDNN for tensors with the dtype and device of `tensor`."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def row_blocks(rows: int, *, largest: int | None = None, smallest: int = SMALLEST_BLOCK) -> Iterator[slice]:
    """Split `rows` rows into blocks of a few sizes, or into one block if there is a kernel for exactly `rows` rows.

    First come blocks of the largest size, then at most one of each smaller size, then the remaining rows. No block is
    larger than `largest`, and only the last one may be smaller than `smallest`.

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
    """Return left_IJ times right_KJ transposed, plus the bias, as a tensor (IK) without an autograd graph.

    `rows` is the size of I or J, whichever counts tokens.
    """
    if _has_kernels(rows) and is_fast(left_IJ):
        assert _ONEDNN is not None, "is_fast requires it"
        return _ONEDNN(left_IJ, right_KJ, bias_K, "none", [], "")
    return functional.linear(left_IJ, right_KJ, bias_K)


def add_product(sum_IK: Tensor, left_IJ: Tensor, right_KJ: Tensor, *, rows: int) -> None:
    """Add `product(left_IJ, right_KJ, rows=rows)` to `sum_IK` in place. `sum_IK` may have a wider dtype."""
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
    """Return the gradient of the weight (upstream transposed times hidden) as a sum over blocks of rows."""
    first, *others = row_blocks(len(hidden_NE))
    sum_DE = product(upstream_ND[first].t(), hidden_NE[first].t(), rows=first.stop - first.start)
    for block in others:
        add_product(sum_DE, upstream_ND[block].t(), hidden_NE[block].t(), rows=block.stop - block.start)
    return sum_DE
