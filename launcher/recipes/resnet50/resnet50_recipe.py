"""The settings of ResNet-50, and checks of its layout and data. Error messages suggest valid values.

Defaults are the tutorial's, except for a smaller image size that suits a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.corpus.images import find_images
from launcher.recipes.settings import setting
from launcher.recipes.strategies import (
    DATA_PARALLEL,
    DYNAMIC_PROGRAMMING,
    STAND_ALONE,
    Strategies,
    check_mode,
    mode_setting,
    operators_layout,
    search_setting,
    strategies,
)
from launcher.recipes.train import TRANSPORT, CheckpointConfig, TrainConfig, check_divisible, check_early_stopping


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


# --- checks ---


REPLICATED = (STAND_ALONE, DATA_PARALLEL)  # modes in which every rank holds the full model
STRIDE = 32  # input pixels per side for each pixel of the last layers


def own_layout(settings: Resnet50Settings, layout: Layout) -> Layout:
    """If the mode replicates the model, return `layout` unchanged. Otherwise return the result of `operators_layout`.

    Raises RefusedLayoutError as `operators_layout` does, or if the mode does not support model parallelism.
    """
    mode = settings.parallel.mode
    if mode not in REPLICATED:
        return operators_layout(mode, layout)
    if layout.mp > 1:
        raise RefusedLayoutError(
            f"mp = {layout.mp}, but parallel.mode = {mode} keeps the full model on every rank", hint="use `--mp 1`"
        )
    return layout


def check_layout(settings: Resnet50Settings, layout: Layout) -> None:
    """Raise RefusedLayoutError if the mode does not support the layout, or if batch norm would get too few images.

    The message names the nearest values that fit. Raises UsageError as `check_early_stopping` does.
    """
    mode = settings.parallel.mode
    check_mode(mode, settings.strategies, layout, micro_batches=mode in REPLICATED)
    check_early_stopping(settings.train)
    is_synchronised = settings.model.batch_norm == "synchronised"
    if mode not in REPLICATED:
        check_divisible(settings.train.batch_size, layout.dp, f"dp = {layout.dp}")  # copies get equal batches
        if is_synchronised and layout.dp > 1:
            raise RefusedLayoutError(
                f"model.batch_norm = synchronised supports only one copy of the model, but dp = {layout.dp}",
                hint="use `--dp 1`, or `--set model.batch_norm=local`",
            )
    if is_synchronised and layout.micro_batches > 1:
        raise RefusedLayoutError(
            "model.batch_norm = synchronised needs all images of a step at once, "
            f"but micro_batches = {layout.micro_batches}",
            hint="use `--micro-batches 1`, or `--set model.batch_norm=local`",
        )
    _check_batch(settings, layout)


def check_data(settings: Resnet50Settings, data: Sequence[Path]) -> None:
    """Raise UsageError unless one directory is given, and its CIFAR-10 files contain enough images for a batch.

    Raises UnreadableError as `find_images` does.
    """
    if len(data) != 1:
        hint = "use `--data DIR`; `tlaunch data sample --recipe resnet50 --output DIR` creates a small data set"
        found = "two text files are" if data else "none is"
        raise UsageError(f"ResNet-50 needs a directory of CIFAR-10 images, but {found} given", hint=hint)
    count = sum(file.count for file in find_images(data[0]).train)
    batch_size = settings.train.batch_size
    if count < batch_size:
        raise UsageError(
            f"{data[0]}: {count} training images do not fill one batch of {batch_size}",
            hint=f"use `--set train.batch_size={count}`, or more images",
        )


def _check_batch(settings: Resnet50Settings, layout: Layout) -> None:
    """Raise RefusedLayoutError if a micro batch has no image, or if batch norm would get only a single pixel."""
    batch_size, parts = settings.train.batch_size, layout.dp * layout.micro_batches
    told = f"train.batch_size = {batch_size} and dp * micro_batches = {layout.dp} * {layout.micro_batches} = {parts}"
    if batch_size < parts:
        raise RefusedLayoutError(f"{told}: some micro batches are empty", hint=f"use `--set train.batch_size={parts}`")
    pixels = (-(-settings.data.image_size // STRIDE)) ** 2
    is_alone = settings.model.batch_norm == "local" or layout.dp == 1
    images = batch_size // parts if is_alone else batch_size
    if images * pixels < 2:
        raise RefusedLayoutError(
            f"{told}: with data.image_size = {settings.data.image_size}, some batch norms in the last layers get one "
            "pixel of one image, but batch norm needs at least two values to compute a variance",
            hint=f"use `--set train.batch_size={2 * parts}`"
            + (", or `--set model.batch_norm=synchronised`" if is_alone and layout.dp > 1 else ""),
        )
