"""Products of matrices in float32 on a CPU by oneDNN, and linear layers made of them.

torch multiplies such matrices by MKL, which does not use AVX-512 on processors of other makers than its own. oneDNN does,
and takes half the time there, backward included. Compiled models call it by the same operation. Other types and devices,
and a torch without that operation, have torch's own products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


class Linear(nn.Linear):
    """nn.Linear by the faster products."""

    def forward(self, hidden_BTE: Tensor) -> Tensor:
        return linear(hidden_BTE, self.weight, self.bias)


def linear(hidden_BTE: Tensor, weight_DE: Tensor, bias_D: Tensor | None = None) -> Tensor:
    """Return hidden_BTD, as functional.linear does."""
    if _is_fast(hidden_BTE):
        return _Linear.apply(hidden_BTE, weight_DE, bias_D)
    return functional.linear(hidden_BTE, weight_DE, bias_D)


def product(left_IJ: Tensor, right_KJ: Tensor) -> Tensor:
    """Return left times right transposed. Is not differentiated."""
    return _by_onednn(left_IJ, right_KJ) if _is_fast(left_IJ) else left_IJ @ right_KJ.t()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_BTE: Tensor, weight_DE: Tensor, bias_D: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden_BTE, weight_DE)
        ctx.has_bias = bias_D is not None
        return _by_onednn(hidden_BTE, weight_DE, bias_D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        hidden_BTE, weight_DE = ctx.saved_tensors
        upstream_ND, hidden_NE = upstream[0].flatten(0, -2), hidden_BTE.flatten(0, -2)
        return (
            _by_onednn(upstream_ND, weight_DE.t()).view(hidden_BTE.shape),
            _by_onednn(upstream_ND.t(), hidden_NE.t()),
            upstream_ND.sum(dim=0) if ctx.has_bias else None,
        )


def _is_fast(tensor: Tensor) -> bool:
    is_here = tensor.device.type == "cpu" and tensor.dtype == torch.float32
    return _ONEDNN is not None and is_here and tensor.numel() > 0


def _by_onednn(left_IJ: Tensor, right_KJ: Tensor, bias_K: Tensor | None = None) -> Tensor:
    assert _ONEDNN is not None, "it is fast here"
    return _ONEDNN(left_IJ, right_KJ, bias_K, "none", [], "")
