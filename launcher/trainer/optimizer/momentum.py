"""One step of gradient descent with momentum on lists of tensors, by torch's fused kernel if the device supports it.

    g = g + decay w
    v = momentum v + g
    w = w - rate v

as in torch.optim.SGD and MindSpore's nn.Momentum, without dampening or Nesterov's look ahead (Sutskever et al. 2013,
"On the importance of initialization and momentum in deep learning", in the form that torch documents). v is zero before
the first step. `adamw.py` explains why the kernel is called directly.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import torch

from launcher.core.frozen import frozen
from launcher.trainer.optimizer.update_rules import Step, Tensors


@frozen
class Momentum:
    """The update rule of gradient descent with momentum, used by the image classifiers."""

    momentum: float
    weight_decay: float = 0.0  # of matrices and kernels; norms and biases are never decayed

    state: ClassVar[tuple[str, ...]] = ("first_moment",)

    def update(self, tensors: Tensors, step: Step, *, decays: bool) -> None:
        """Take a step in place. Gradients are changed in place, too: by the divisor and the weight decay."""
        weights, gradients, (moments,) = tensors
        if not weights:
            return
        if step.divisor is not None:
            torch._foreach_div_(gradients, step.divisor)
        decay = self.weight_decay if decays else 0.0
        # Without momentum the kernel does not update the moments.
        if self.momentum == 0 or not has_fused_kernel(weights[0].device, weights[0].dtype):
            if decay:
                torch._foreach_add_(gradients, weights, alpha=decay)
            torch._foreach_mul_(moments, self.momentum)
            torch._foreach_add_(moments, gradients)
            torch._foreach_add_(weights, moments, alpha=-step.learning_rate)
            return
        torch._fused_sgd_(
            weights,
            gradients,
            moments,
            weight_decay=decay,
            momentum=self.momentum,
            lr=step.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=None,
            found_inf=None,
        )


@functools.cache
def has_fused_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if torch's fused SGD works for this device and type. Tries it on one element."""
    weight, gradient, moment = (torch.zeros(1, device=device, dtype=dtype) for _ in range(3))
    try:
        torch._fused_sgd_(
            [weight], [gradient], [moment],
            weight_decay=0.0, momentum=0.5, lr=1.0, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
    except (AttributeError, RuntimeError):  # torch's NotImplementedError is a RuntimeError
        return False
    return True
