"""The learning rate of each step."""

from __future__ import annotations

from launcher.recipes.transformer.config import TransformerTrainConfig


def learning_rate_at(step: int, config: TransformerTrainConfig) -> float:
    """Return the learning rate of step number `step` (from 1): linear warm-up over W steps, then falling as sqrt(W / step).

    As in Vaswani et al. 2017, scaled to reach `learning_rate` at step W. Without warm-up it is constant.
    """
    warmup = config.warmup_steps
    if warmup == 0:
        return config.learning_rate
    return config.learning_rate * min(step / warmup, (warmup / step) ** 0.5)
