"""The learning rate of each step.

It grows linearly over W = `warmup_steps` steps to R = `learning_rate`, then follows `train.schedule` to the last step
L:

    inverse_sqrt   R sqrt(W / step)                                 as in Vaswani et al. 2017; constant if W is 0
    constant       R
    linear         M + (R - M) (1 - x)                              x = (step - W) / (L - W), 1 at the last step
    cosine         M + (R - M) (1 + cos(pi x)) / 2                  one period of Loshchilov and Hutter 2017,
                                                                    arXiv:1608.03983

with M = `minimum_rate`. Linear and cosine depend on the last step, that is on `train.steps` or `train.epochs`. A rate
depends only on the step number, never on earlier steps.
"""

from __future__ import annotations

import math

from launcher.recipes.transformer.config import TransformerTrainConfig


def learning_rate_at(step: int, config: TransformerTrainConfig, last_step: int) -> float:
    """Return the learning rate of `step`, counted from 1, in a training of `last_step` steps."""
    warmup, highest, lowest = config.warmup_steps, config.learning_rate, config.minimum_rate
    if step <= warmup:
        return highest * (step / warmup)
    if config.schedule == "constant" or (config.schedule == "inverse_sqrt" and warmup == 0):
        return highest
    if config.schedule == "inverse_sqrt":
        return highest * (warmup / step) ** 0.5
    done = (step - warmup) / (last_step - warmup)
    share = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return lowest + (highest - lowest) * share
