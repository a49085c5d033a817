"""The settings of a training of one's own network, as checkpoints and saved models keep them."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.train import CheckpointConfig, ParallelConfig


@frozen
class NetworkTrainConfig:
    epochs: int = 1
    steps: int = 0  # optimizer steps after which to stop; 0: after the epochs
    batch_size: int = 32  # samples per optimizer step, over all ranks
    optimizer: str = ""
    clip_norm: float = 0.0
    shuffle: bool = True
    seed: int = 1  # of sample order and dropout
    validate_every: int = 0
    early_stopping: int = 0
    profile_steps: int = 0


@frozen
class NetworkSettings:
    train: NetworkTrainConfig = field(default_factory=NetworkTrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
