"""The learning rate of each step.

It grows linearly over W = `warmup_steps` steps to R = `learning_rate`, and then goes on to the last step L by `train.schedule`:

    inverse_sqrt   R sqrt(W / step)                                 as in Vaswani et al. 2017; constant where W is 0
    constant       R
    linear         M + (R - M) (1 - x)                              x = (step - W) / (L - W), from 0 to 1 at the last step
    cosine         M + (R - M) (1 + cos(pi x)) / 2                  Loshchilov and Hutter 2017, arXiv:1608.03983, one period

with M = `minimum_rate`. Those that fall to the last step depend on `train.steps` or `train.epochs`, and no rate on steps before.
"""

from __future__ import annotations

import math

from launcher.recipes.transformer.config import TransformerTrainConfig


def learning_rate_at(step: int, config: TransformerTrainConfig, last_step: int) -> float:
    """Return the learning rate of step number `step`, from 1, of a training that ends after `last_step`."""
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
