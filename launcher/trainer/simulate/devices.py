"""The devices that can be simulated, and how they compute where torch's kernels differ between devices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from launcher.core.frozen import frozen
from launcher.trainer.simulate.torch_internals import internals, make_device

DeviceKind = Literal["npu", "cuda", "cpu"]
KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)
# torch reserves the name "cuda" for devices that it was built for.
_NAMES = {"npu": "npu", "cuda": "gpu"}


@frozen
class SimulatedDevice:
    """A device kind, and the choices that torch makes for it."""

    kind: DeviceKind
    device: torch.device
    scatters: bool  # the backend has a reduce_scatter
    is_attention_fused: bool  # in float32 and narrower types; if not, backward stores the attention weights

    @classmethod
    def of(cls, kind: DeviceKind) -> SimulatedDevice:
        device = torch.device("cpu") if kind == "cpu" else make_device(_NAMES[kind])
        return cls(kind, device, scatters=kind != "cpu", is_attention_fused=kind == "cuda")

    @property
    def assumption(self) -> str:
        """What the simulation assumes about kernels and backends of this device."""
        return {
            "npu": "attention stores its weights for backward; AdamW is fused; the backend has reduce_scatter",
            "cuda": "attention is memory-efficient, except in float64; AdamW is fused; the backend has reduce_scatter",
            "cpu": "ranks exchange tensors by gloo, not by shared memory",
        }[self.kind]

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Choose this device's attention inside the `with` block."""
        if not self.is_attention_fused:
            yield
            return
        original = functional.scaled_dot_product_attention

        def attend(
            query_BHTK: Tensor,
            key_BHSK: Tensor,
            value_BHSK: Tensor,
            attn_mask: Tensor | None = None,
            is_causal: bool = False,
        ) -> Tensor:
            if query_BHTK.dtype == torch.float64:
                return original(query_BHTK, key_BHSK, value_BHSK, attn_mask=attn_mask, is_causal=is_causal)
            return _fused_attention(query_BHTK, key_BHSK, value_BHSK, attn_mask, is_causal)

        functional.scaled_dot_product_attention = attend  # type: ignore[assignment]
        try:
            yield
        finally:
            functional.scaled_dot_product_attention = original


def _fused_attention(
    query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor:
    """Compute attention as torch does on CUDA, with a mask as a tensor of numbers that are added to the scores."""
    bias = None
    if mask is not None:
        shape = (*query_BHTK.shape[:-1], key_BHSK.shape[-2])
        numbers = torch.zeros_like(mask, dtype=query_BHTK.dtype)
        bias = numbers.masked_fill_(mask.logical_not(), -math.inf).expand(shape)
    with_gradients = torch.is_grad_enabled()
    return internals().fused_attention(query_BHTK, key_BHSK, value_BHSK, bias, with_gradients, 0.0, is_causal)[0]
