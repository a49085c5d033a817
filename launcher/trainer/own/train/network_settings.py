"""The settings of a training of one's own network, as checkpoints and saved models keep them."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.train import CheckpointConfig, ParallelConfig


@frozen
class NetworkModel:
    """The network and the optimizer of a training; a checkpoint of others is refused."""

    network: str = ""  # its class
    optimizer: str = ""  # likewise


@frozen
class NetworkData:
    """The order of the samples; a checkpoint of another order is refused."""

    shuffle: bool = True


@frozen
class NetworkTrainConfig:
    """The course of a training, in what `programs/loop.py` asks for and the names of `train`'s arguments."""

    epochs: int = 1
    steps: int = 0  # optimizer steps after which to stop; 0: after the epochs
    batch_size: int = 32  # samples per optimizer step, over all ranks
    optimizer: str = ""  # with its numbers
    clip_norm: float = 0.0
    seed: int = 1  # of sample order and dropout
    validate_every: int = 0
    early_stopping: int = 0
    profile_steps: int = 0


@frozen
class NetworkSettings:
    """The settings of a training, in sections as the bundled programs have them."""

    model: NetworkModel = field(default_factory=NetworkModel)
    data: NetworkData = field(default_factory=NetworkData)
    train: NetworkTrainConfig = field(default_factory=NetworkTrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
