"""The settings of a custom network's training, in the form that checkpoints and saved models store."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.train import CheckpointConfig, ParallelConfig


@frozen
class NetworkModel:
    """The classes of network and optimizer. Checkpoints with other classes are refused."""

    network: str = ""  # class name
    optimizer: str = ""  # class name


@frozen
class NetworkData:
    """The order of the samples. Checkpoints with another order are refused."""

    shuffle: bool = True


@frozen
class NetworkTrainConfig:
    """The schedule of a training, with the names of `train`'s arguments, as `programs/loop.py` needs it."""

    epochs: int = 1
    steps: int = 0  # optimizer steps after which to stop; 0: after the epochs
    batch_size: int = 32  # samples per optimizer step, over all ranks
    optimizer: str = ""  # class and arguments
    clip_norm: float = 0.0
    seed: int = 1  # for sample order and dropout
    validate_every: int = 0
    early_stopping: int = 0
    profile_steps: int = 0


@frozen
class NetworkSettings:
    """The settings of a custom network's training, in the same sections as the bundled programs."""

    model: NetworkModel = field(default_factory=NetworkModel)
    data: NetworkData = field(default_factory=NetworkData)
    train: NetworkTrainConfig = field(default_factory=NetworkTrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
