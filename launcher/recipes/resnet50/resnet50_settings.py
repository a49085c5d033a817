"""The settings of ResNet-50. Defaults are the tutorial's, except for a smaller image size that suits a CPU."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.settings import setting
from launcher.recipes.strategies import (
    DATA_PARALLEL,
    DYNAMIC_PROGRAMMING,
    Strategies,
    mode_setting,
    search_setting,
    strategies,
)
from launcher.recipes.train import TRANSPORT, CheckpointConfig, TrainConfig


@frozen
class Resnet50ModelConfig:
    classes: int = setting(10, "outputs of the last layer; the data set has ten classes", minimum=10, maximum=1_000_000)
    batch_norm: str = setting(
        "local",
        "local: each data-parallel copy normalises with its own images; synchronised: with the images of all copies",
        choices=("local", "synchronised"),
    )


@frozen
class Resnet50DataConfig:
    image_size: int = setting(
        32,
        "side length of the model's input in pixels; the images have 32, the tutorial uses 224",
        minimum=32,
        maximum=4096,
    )


@frozen
class Resnet50TrainConfig(TrainConfig):
    epochs: int = setting(10, "passes over the training images", minimum=1)
    steps: int = TrainConfig.steps
    batch_size: int = setting(32, "images per optimizer step, over all ranks", minimum=1, maximum=1_000_000_000)
    micro_batches: int = TrainConfig.micro_batches
    learning_rate: float = setting(0.01, "step size of the Momentum optimizer", minimum=0)
    momentum: float = setting(0.9, "fraction of the previous step that is added to each step", minimum=0, below=1)
    seed: int = setting(1, "random seed for initial weights, image order, crops and flips", minimum=0)
    precision: str = setting("float32", "number format of weights and arithmetic", choices=("float32", "float64"))
    device: str = TrainConfig.device
    validate_every: int = TrainConfig.validate_every
    early_stopping: int = TrainConfig.early_stopping
    profile_steps: int = TrainConfig.profile_steps


@frozen
class Resnet50ParallelConfig:
    mode: str = mode_setting(DATA_PARALLEL)
    search_mode: str = search_setting(DYNAMIC_PROGRAMMING)
    gradient_groups: int = setting(
        8,
        "groups of gradients, each summed over ranks as soon as backward has computed it",
        minimum=1,
        maximum=1_000_000,
        alias="gradient_aggregation_group",
    )
    transport: str = TRANSPORT


@frozen
class Resnet50Settings:
    model: Resnet50ModelConfig = field(default_factory=Resnet50ModelConfig)
    data: Resnet50DataConfig = field(default_factory=Resnet50DataConfig)
    train: Resnet50TrainConfig = field(default_factory=Resnet50TrainConfig)
    parallel: Resnet50ParallelConfig = field(default_factory=Resnet50ParallelConfig)
    strategies: Strategies = strategies()
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
