"""The update rules of optimizers, which update lists of tensors element by element, by torch's fused kernels if possible.

A rule is independent of ranks and of the memory layout. `state` names the tensors that it keeps for a weight, which have
the weight's shape; checkpoints use these names. All tensors of an update have the same type and device.

The kernels are called directly because torch.optim imports torch's compiler, which takes each rank a second. A kernel
reads and writes every tensor once, including clipping. Separate operations would take six times the time.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from launcher.core.frozen import frozen

# A step number for which beta^t is 0 for every float beta below 1, and which fits into 64 bits.
ENDLESS = 1e18
# Options of the fused kernels
_ADAMW: dict[str, Any] = {"amsgrad": False, "maximize": False}
_SGD: dict[str, Any] = {"dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}


@frozen
class Step:
    """The arguments of one optimizer step that are the same for all elements."""

    number: int  # of the step in the training, from 1
    learning_rate: float
    divisor: float | None = None  # gradients are first divided by it, in place


class Tensors(NamedTuple):
    """The weights, gradients and states that a step reads and updates, as lists of equal length."""

    weights: list[Tensor]
    gradients: list[Tensor]
    state: tuple[list[Tensor], ...]  # in the order of the rule's `state`, zero before the first step


@frozen
class AdamW:
    """The AdamW update rule. Without `corrects_bias`, it is MindSpore's AdamWeightDecay.

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        w = w - rate decay w - rate m' / (sqrt(v') + epsilon)        m' = m / (1 - beta1^t)    v' = v / (1 - beta2^t)

    (Loshchilov and Hutter 2019, arXiv:1711.05101). AdamWeightDecay, as defined in MindSpore's documentation of
    mindspore.nn.AdamWeightDecay, is the same without bias correction: m' = m and v' = v. It is computed as AdamW at a
    step t so large that beta^t is 0.
    """

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float  # of matrices; norms and biases are never decayed
    corrects_bias: bool = True

    state: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    def update(self, tensors: Tensors, step: Step, *, decays: bool) -> None:
        """Update weights and state in place, with weight decay if `decays` is True. Gradients may be overwritten."""
        weights, gradients, (first_moments, second_moments) = tensors
        if not weights:
            return
        device, dtype = weights[0].device, weights[0].dtype
        number = step.number if self.corrects_bias else ENDLESS
        weight_decay = self.weight_decay if decays else 0.0
        if not has_fused_kernel("adamw", device, dtype):
            self._update_by_operations(tensors, step, number, weight_decay)
            return
        divisor = None
        if step.divisor is not None and dtype == torch.float64:
            torch._foreach_div_(gradients, step.divisor)  # the kernel takes a float32 only
        elif step.divisor is not None:
            divisor = torch.full((), step.divisor, device=device)
        torch._fused_adamw_(
            weights,
            gradients,
            first_moments,
            second_moments,
            [],
            [torch.full((), number, device=device)] * len(weights),
            lr=step.learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=weight_decay,
            eps=self.epsilon,
            grad_scale=divisor,
            **_ADAMW,
        )

    def _update_by_operations(self, tensors: Tensors, step: Step, number: float, weight_decay: float) -> None:
        """Compute the update with operations that every device supports."""
        rate = step.learning_rate / (1 - self.beta1**number)
        for weight, gradient, first, second in zip(tensors.weights, tensors.gradients, *tensors.state, strict=True):
            if step.divisor is not None:
                gradient.div_(step.divisor)
            weight.mul_(1 - step.learning_rate * weight_decay)
            first.mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
            second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
            deviation = (second / (1 - self.beta2**number)).sqrt_().add_(self.epsilon)
            weight.addcdiv_(first, deviation, value=-rate)


@frozen
class Momentum:
    """Gradient descent with momentum, used by the image classifiers.

        g = g + decay w
        v = momentum v + g
        w = w - rate v

    as in torch.optim.SGD and MindSpore's nn.Momentum, without dampening or Nesterov's look ahead (Sutskever et al.
    2013, "On the importance of initialization and momentum in deep learning", in the form that torch documents). v is
    zero before the first step.
    """

    momentum: float
    weight_decay: float = 0.0  # of matrices and kernels; norms and biases are never decayed

    state: ClassVar[tuple[str, ...]] = ("first_moment",)

    def update(self, tensors: Tensors, step: Step, *, decays: bool) -> None:
        """Update weights and state in place, with weight decay if `decays` is True. Gradients may be overwritten."""
        weights, gradients, (moments,) = tensors
        if not weights:
            return
        if step.divisor is not None:
            torch._foreach_div_(gradients, step.divisor)
        decay = self.weight_decay if decays else 0.0
        # Without momentum the kernel does not update the moments.
        if self.momentum == 0 or not has_fused_kernel("sgd", weights[0].device, weights[0].dtype):
            if decay:
                torch._foreach_add_(gradients, weights, alpha=decay)
            torch._foreach_mul_(moments, self.momentum)
            torch._foreach_add_(moments, gradients)
            torch._foreach_add_(weights, moments, alpha=-step.learning_rate)
            return
        torch._fused_sgd_(
            weights, gradients, moments, weight_decay=decay, momentum=self.momentum, lr=step.learning_rate, **_SGD
        )


Rule = AdamW | Momentum


@functools.cache
def has_fused_kernel(kind: Literal["adamw", "sgd"], device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if torch's fused kernel works for this device and dtype. This is tested on a single element."""
    weight, gradient, first, second = ([torch.zeros(1, device=device, dtype=dtype)] for _ in range(4))
    numbers: dict[str, Any] = {"lr": 1.0, "weight_decay": 0.0}
    try:
        if kind == "adamw":
            numbers |= {"beta1": 0.0, "beta2": 0.0, "eps": 1.0, **_ADAMW}
            torch._fused_adamw_(weight, gradient, first, second, [], [torch.ones((), device=device)], **numbers)
        else:
            torch._fused_sgd_(weight, gradient, first, momentum=0.5, **numbers, **_SGD)
    except (AttributeError, RuntimeError):  # torch's NotImplementedError is a RuntimeError
        return False
    return True
