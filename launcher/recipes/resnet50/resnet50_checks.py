"""Do a layout and the data fit ResNet-50? Refused before any process starts, with the values that would fit."""

from __future__ import annotations

from pathlib import Path

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.corpus.images import find_images
from launcher.recipes.resnet50.resnet50_settings import Resnet50Settings
from launcher.recipes.strategies import DATA_PARALLEL, STAND_ALONE, check_mode, operators_layout
from launcher.recipes.train import check_early_stopping

REPLICATED = (STAND_ALONE, DATA_PARALLEL)  # the modes in which every rank has the whole model
STRIDE = 32  # pixels of an image, along a side, for each pixel of the last layers


def own_layout(settings: Resnet50Settings, layout: Layout) -> Layout:
    """Return the layout that the program trains in: data parallelism over all ranks, or as `operators_layout`.

    Raises:
        RefusedLayoutError: as `operators_layout`, or model parallelism in a mode that has none.
    """
    mode = settings.parallel.mode
    if mode not in REPLICATED:
        return operators_layout(mode, layout)
    if layout.mp > 1:
        raise RefusedLayoutError(
            f"mp = {layout.mp}, but parallel.mode = {mode} has every rank hold the whole model", hint="--mp 1"
        )
    return layout


def check_layout(settings: Resnet50Settings, layout: Layout) -> None:
    """Refuse a layout that the mode has no use for, and one that leaves a rank without enough images for its batch norm.

    Raises:
        RefusedLayoutError: with the numbers put in and the nearest values that fit.
        UsageError: as `check_early_stopping`.
    """
    mode = settings.parallel.mode
    check_mode(mode, settings.strategies, layout, micro_batches=mode in REPLICATED)
    check_early_stopping(settings.train)
    if mode not in REPLICATED:
        _check_shares(settings, layout)
    if settings.model.batch_norm == "synchronised" and layout.micro_batches > 1:
        raise RefusedLayoutError(
            f"model.batch_norm = synchronised needs all images of a step at once, and micro_batches = {layout.micro_batches}",
            hint="use --micro-batches 1, or --set model.batch_norm=local",
        )
    _check_batch(settings, layout)


def check_data(settings: Resnet50Settings, data: Path | None) -> None:
    """Refuse no directory, and one where there are no images in CIFAR-10's binary format, or fewer than a batch takes.

    Raises:
        UnreadableError: as `find_images`.
        UsageError: no directory is given, or it has not enough images.
    """
    if data is None:
        hint = "--data DIR; `tlaunch data sample --recipe resnet50 --output DIR` makes a small set to try"
        raise UsageError("ResNet-50 is trained on CIFAR-10's images, and no directory of them is given", hint=hint)
    count = sum(file.count for file in find_images(data).train)
    batch_size = settings.train.batch_size
    if count < batch_size:
        raise UsageError(
            f"{data}: {count} training images do not fill one batch of {batch_size}",
            hint=f"--set train.batch_size={count}, or more images",
        )


def _check_shares(settings: Resnet50Settings, layout: Layout) -> None:
    """Refuse copies of a network cut by strategies that would get different numbers of images, and statistics beyond a copy."""
    batch_size = settings.train.batch_size
    if batch_size % layout.dp:
        raise RefusedLayoutError(
            f"train.batch_size = {batch_size} cannot be divided by dp = {layout.dp}",
            hint=f"--set train.batch_size={batch_size - batch_size % layout.dp or layout.dp}",
        )
    if settings.model.batch_norm == "synchronised" and layout.dp > 1:
        raise RefusedLayoutError(
            f"model.batch_norm = synchronised is over the ranks of one copy, and there are dp = {layout.dp}",
            hint="--dp 1, or --set model.batch_norm=local",
        )


def _check_batch(settings: Resnet50Settings, layout: Layout) -> None:
    """Refuse parts of a batch that have no image, or whose last layers have a single pixel to compute a variance from."""
    batch_size, parts = settings.train.batch_size, layout.dp * layout.micro_batches
    told = f"train.batch_size = {batch_size} over dp * micro_batches = {layout.dp} * {layout.micro_batches} = {parts}"
    if batch_size < parts:
        raise RefusedLayoutError(f"{told} leaves parts without an image", hint=f"--set train.batch_size={parts}")
    pixels = (-(-settings.data.image_size // STRIDE)) ** 2
    is_alone = settings.model.batch_norm == "local" or layout.dp == 1
    images = batch_size // parts if is_alone else batch_size
    if images * pixels < 2:
        raise RefusedLayoutError(
            f"{told} leaves some batch norm with one image, of which a single pixel of data.image_size = "
            f"{settings.data.image_size} is left in the last layers: it has no variance",
            hint=f"--set train.batch_size={2 * parts}"
            + (", or --set model.batch_norm=synchronised" if is_alone and layout.dp > 1 else ""),
        )
