"""Activation recompute: backward computes a module's activations again instead of storing them in forward.

Forward discards the tensors saved for backward and only counts them. It keeps the module's inputs. When backward needs
the first of these tensors, the module runs again up to the last of them. The autograd graph is still the one from
forward, so gradients are bitwise the same as without recompute. (Chen et al. 2016, arXiv:1604.06174. torch's own
`checkpoint` imports its compiler, which takes each rank a second.)

The module must compute the same values again. Its only random numbers come from a hash. Its collectives run again in
the same order on all ranks of a group, because these run backward in the same order.
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
    """Make `module` recompute its activations in backward, so that forward stores only its positional inputs."""
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
    """Raised to end a recomputation early, when all tensors that backward needs have been computed."""


class _Activations:
    """The tensors that one call of `compute` saves for backward, in the order in which they are saved."""

    def __init__(self, compute: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self._compute = compute
        # Detached, because stored inputs must not keep the preceding graph alive.
        self._inputs = tuple(
            one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one for one in inputs
        )
        self._count = 0
        self._computed: list[Tensor] = []

    def count(self, _activation: Tensor) -> int:
        """Return an index for a tensor. Autograd saves this index for backward instead of the tensor."""
        self._count += 1
        return self._count - 1

    def take(self, place: int) -> Tensor:
        """Return the saved tensor with the index `place`. The first call recomputes all saved tensors."""
        if not self._computed:
            with suppress(_AllThereError), torch.enable_grad(), saved_tensors_hooks(self._keep, self.take):
                self._compute(*self._inputs)
            assert len(self._computed) == self._count, "recompute saves the same number of tensors"
        return self._computed[place]

    def _keep(self, activation: Tensor) -> None:
        # Detached, because otherwise the graph of this second run would reference itself and never be freed.
        self._computed.append(activation.detach())
        if len(self._computed) == self._count:
            raise _AllThereError
