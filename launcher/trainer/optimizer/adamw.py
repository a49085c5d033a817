"""One step of AdamW on lists of tensors, by torch's fused kernel if the device supports it.

The kernel is called directly because torch.optim imports torch's compiler, which takes each rank a second. The kernel
reads and writes every tensor once, including clipping. Separate operations would take six times the time.

    m = beta1 m + (1 - beta1) g
    v = beta2 v + (1 - beta2) g^2
    w = w - rate decay w - rate m' / (sqrt(v') + epsilon)        m' = m / (1 - beta1^t)    v' = v / (1 - beta2^t)

(Loshchilov and Hutter 2019, arXiv:1711.05101). AdamWeightDecay, as defined in MindSpore's documentation of
mindspore.nn.AdamWeightDecay, is the same without bias correction: m' = m and v' = v. It is computed as AdamW at a step
t so large that beta^t is 0.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import torch

from launcher.core.frozen import frozen
from launcher.trainer.optimizer.update_rules import Step, Tensors

# A step number for which beta^t is 0 for every float beta below 1, and which fits into 64 bits.
ENDLESS = 1e18


@frozen
class AdamWStep:
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    number: float  # t above, from 1; ENDLESS: without bias correction
    divisor: float | None = None  # gradients are first divided by it, in place


@frozen
class AdamW:
    """The update rule of AdamW, or of AdamWeightDecay without `corrects_bias`."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float  # of matrices; norms and biases are never decayed
    corrects_bias: bool = True

    state: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    def update(self, tensors: Tensors, step: Step, *, decays: bool) -> None:
        """Update the tensors in place by `adamw_`."""
        numbers = AdamWStep(
            step.learning_rate,
            self.beta1,
            self.beta2,
            self.epsilon,
            number=step.number if self.corrects_bias else ENDLESS,
            divisor=step.divisor,
        )
        adamw_(tensors, numbers, weight_decay=self.weight_decay if decays else 0.0)


def adamw_(tensors: Tensors, step: AdamWStep, *, weight_decay: float) -> None:
    """Update weights, first and second moments in place. All tensors have the same type and device."""
    weights, gradients, (first_moments, second_moments) = tensors
    if not weights:
        return
    device, dtype = weights[0].device, weights[0].dtype
    if not has_fused_kernel(device, dtype):
        _plain_adamw_(tensors, step, weight_decay=weight_decay)
        return
    divisor = None
    if step.divisor is not None and dtype == torch.float64:
        torch._foreach_div_(gradients, step.divisor)  # the kernel takes a float32 only
    elif step.divisor is not None:
        divisor = torch.full((), step.divisor, device=device)
    number = torch.full((), step.number, device=device)
    torch._fused_adamw_(
        weights,
        gradients,
        first_moments,
        second_moments,
        [],
        [number] * len(weights),
        lr=step.learning_rate,
        beta1=step.beta1,
        beta2=step.beta2,
        weight_decay=weight_decay,
        eps=step.epsilon,
        amsgrad=False,
        maximize=False,
        grad_scale=divisor,
        found_inf=None,
    )


def _plain_adamw_(tensors: Tensors, step: AdamWStep, *, weight_decay: float) -> None:
    """Compute `adamw_` by operations that every device supports."""
    rate = step.learning_rate / (1 - step.beta1**step.number)
    for weight, gradient, first, second in zip(tensors.weights, tensors.gradients, *tensors.state, strict=True):
        if step.divisor is not None:
            gradient.div_(step.divisor)
        weight.mul_(1 - step.learning_rate * weight_decay)
        first.mul_(step.beta1).add_(gradient, alpha=1 - step.beta1)
        second.mul_(step.beta2).addcmul_(gradient, gradient, value=1 - step.beta2)
        deviation = (second / (1 - step.beta2**step.number)).sqrt_().add_(step.epsilon)
        weight.addcdiv_(first, deviation, value=-rate)


@functools.cache
def has_fused_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if torch's fused AdamW works for this device and type. Tries it on one element."""
    weight, gradient, first, second = (torch.zeros(1, device=device, dtype=dtype) for _ in range(4))
    number = torch.ones((), device=device)
    try:
        torch._fused_adamw_(
            [weight], [gradient], [first], [second], [], [number],
            lr=1.0, beta1=0.0, beta2=0.0, weight_decay=0.0, eps=1.0, amsgrad=False, maximize=False,
        )  # fmt: skip
    except (AttributeError, RuntimeError):  # torch's NotImplementedError is a RuntimeError
        return False
    return True
