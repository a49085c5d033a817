"""The settings of ResNet-50. Defaults are the tutorial's, but for the size of images, which suits a CPU."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.settings import setting
from launcher.recipes.train import CheckpointConfig

MODES = ("stand_alone", "data_parallel", "semi_auto_parallel", "auto_parallel", "hybrid")


@frozen
class ModelConfig:
    classes: int = setting(10, "outputs of the last layer; the images are of ten classes", minimum=10)
    batch_norm: str = setting(
        "local",
        "images that each rank normalises by in training: its own, or those of all ranks",
        choices=("local", "synchronised"),
    )


@frozen
class DataConfig:
    image_size: int = setting(
        32, "pixels on each side that the model gets; images have 32, the tutorial's 224", minimum=32
    )


@frozen
class TrainConfig:
    epochs: int = setting(10, "passes over the training images", minimum=1)
    steps: int = setting(0, "optimizer steps after which to stop; 0 means after the epochs", minimum=0)
    batch_size: int = setting(32, "images per optimizer step, over all ranks", minimum=1)
    micro_batches: int = setting(
        1, "parts of a batch that each data-parallel rank computes one after another", minimum=1
    )
    learning_rate: float = setting(0.01, "the step size of gradient descent", minimum=0)
    momentum: float = setting(0.9, "share of each step's direction that the next one keeps", minimum=0, below=1)
    seed: int = setting(1, "of initial weights, image order, crops and flips", minimum=0)
    precision: str = setting(
        "float32",
        "of weights and arithmetic; with bfloat16 the optimizer keeps the weights in float32",
        choices=("float32", "float64", "bfloat16"),
    )
    device: str = setting("auto", "auto: the accelerator where every local rank gets one", choices=("auto", "cpu"))
    validate_every: int = setting(0, "steps between validations; 0 means only at the end", minimum=0)
    profile_steps: int = setting(
        0, "steps that torch's profiler traces on every rank, after the first three", minimum=0
    )


@frozen
class ParallelConfig:
    mode: str = setting("data_parallel", "how ranks share the work, by the tutorials' names", choices=MODES)
    gradient_groups: int = setting(
        1, "parts in which gradients are summed, each as soon as backward has filled it", minimum=1
    )
    transport: str = setting(
        "auto",
        "auto: shared memory where all ranks are on one host's CPU",
        choices=("auto", "backend", "shared_memory"),
    )


@frozen
class Resnet50Settings:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
