"""The settings of the quickstart network: two matrix products with a ReLU between them. Defaults are the tutorial's."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.settings import setting
from launcher.recipes.strategies import AUTO, PROPAGATION, Strategies, mode_setting, search_setting, strategies
from launcher.recipes.train import GRADIENT_GROUPS, TRANSPORT, CheckpointConfig, TrainConfig


@frozen
class QuickstartModelConfig:
    inputs: int = setting(32, "columns of the input", minimum=1, maximum=65_536)
    hidden: int = setting(16, "columns of the first matrix product", minimum=1, maximum=65_536)
    outputs: int = setting(16, "columns of the second matrix product", minimum=1, maximum=65_536)
    weight_std: float = setting(0.02, "standard deviation of the normally distributed initial weights", minimum=0)


@frozen
class QuickstartDataConfig:
    seed: int = setting(1, "random seed for inputs and labels, uniform in [0, 1)", minimum=0)
    steps_per_epoch: int = setting(4, "steps per epoch, all on the same rows", minimum=1, maximum=1_000_000)


@frozen
class QuickstartTrainConfig(TrainConfig):
    epochs: int = setting(5, "epochs of data.steps_per_epoch steps", minimum=1)
    steps: int = TrainConfig.steps
    batch_size: int = setting(16, "rows per step, over all ranks", minimum=1, maximum=1_000_000)
    micro_batches: int = TrainConfig.micro_batches
    learning_rate: float = setting(0.2, "step size of the Momentum optimizer", minimum=0)
    momentum: float = setting(0.1, "fraction of the previous step that is added to each step", minimum=0, below=1)
    seed: int = setting(1, "random seed for initial weights", minimum=0)
    precision: str = setting("float32", "number format of weights and arithmetic", choices=("float32", "float64"))
    device: str = TrainConfig.device
    validate_every: int = TrainConfig.validate_every
    early_stopping: int = TrainConfig.early_stopping
    profile_steps: int = TrainConfig.profile_steps


@frozen
class QuickstartParallelConfig:
    mode: str = mode_setting(AUTO)
    search_mode: str = search_setting(PROPAGATION)
    gradient_groups: int = GRADIENT_GROUPS
    transport: str = TRANSPORT


@frozen
class QuickstartSettings:
    model: QuickstartModelConfig = field(default_factory=QuickstartModelConfig)
    data: QuickstartDataConfig = field(default_factory=QuickstartDataConfig)
    train: QuickstartTrainConfig = field(default_factory=QuickstartTrainConfig)
    parallel: QuickstartParallelConfig = field(default_factory=QuickstartParallelConfig)
    strategies: Strategies = strategies()
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
