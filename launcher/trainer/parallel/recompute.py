"""Recompute: backward computes the activations of a part of the model again, instead of keeping them since forward.

What forward would keep for backward is thrown away and only counted; what the part was called with is kept. The first
time that backward asks for one of these tensors, the part is run again up to the last of them. The graph is the one
that forward has built, so gradients are bit by bit those without recompute. (Chen et al. 2016, arXiv:1604.06174. torch's
own `checkpoint` imports its compiler, which takes each rank a second.)

The part must compute the same again: it draws no random numbers but by a hash, and its collectives run again in the
same order on all ranks of a group, as these run backward in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def recompute_in_backward(module: nn.Module) -> None:
    """Have `module` keep nothing for backward but what it is called with, by position. Validation is as before."""
    compute = module.forward

    @wraps(compute)
    def forward(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return compute(*inputs)
        activations = _Activations(compute, inputs)
        with saved_tensors_hooks(activations.count, activations.take):
            return compute(*inputs)

    module.forward = forward


class _AllThereError(Exception):
    """Everything that backward needs has been computed again."""


class _Activations:
    """The tensors that one run of `compute` would have kept for backward, in the order of their use."""

    def __init__(self, compute: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self._compute = compute
        # Detached: what waits for backward must not hold the graph before it.
        self._inputs = tuple(_detached(one) for one in inputs)
        self._count = 0
        self._computed: list[Tensor] = []

    def count(self, _activation: Tensor) -> int:
        """Throw a tensor away, and return its place."""
        self._count += 1
        return self._count - 1

    def take(self, place: int) -> Tensor:
        """Return the tensor of that place, computed again."""
        if not self._computed:
            with suppress(_AllThereError), torch.enable_grad(), saved_tensors_hooks(self._keep, self.take):
                self._compute(*self._inputs)
            assert len(self._computed) == self._count, "it computes the same again"
        return self._computed[place]

    def _keep(self, activation: Tensor) -> None:
        # Detached: else the graph of this second run would hold itself for ever.
        self._computed.append(activation.detach())
        if len(self._computed) == self._count:
            raise _AllThereError


def _detached(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
