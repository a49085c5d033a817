"""Do a layout and the data fit ResNet-50? Refused before any process starts, with the values that would fit."""

from __future__ import annotations

from pathlib import Path

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.corpus.images import find_images
from launcher.recipes.resnet50.config import Resnet50Settings

STRIDE = 32  # pixels of an image, along a side, for each pixel of the last layers


def check_layout(settings: Resnet50Settings, layout: Layout) -> None:
    """Refuse a layout that the mode has no use for, and one that leaves a rank without enough images for its batch norm.

    Raises:
        RefusedLayoutError: with the numbers put in and the nearest values that fit.
    """
    mode = settings.parallel.mode
    if layout.pp > 1:
        raise RefusedLayoutError(f"pp = {layout.pp}, but ResNet-50 is not cut into pipeline stages", hint="--pp 1")
    if mode == "stand_alone" and layout.world_size > 1:
        raise RefusedLayoutError(
            f"parallel.mode = stand_alone is of one rank, but dp * mp = {layout.dp} * {layout.mp} = {layout.world_size}",
            hint="--dp 1 --mp 1, or --set parallel.mode=data_parallel",
        )
    if mode == "data_parallel" and layout.mp > 1:
        raise RefusedLayoutError(
            f"mp = {layout.mp}, but parallel.mode = data_parallel has every rank hold the whole model", hint="--mp 1"
        )
    _check_batch(settings, layout)


def check_data(settings: Resnet50Settings, data: Path) -> None:
    """Refuse a directory where there are no images in CIFAR-10's binary format, or fewer than a batch takes.

    Raises:
        UnreadableError: as `find_images`.
        UsageError: there are not enough images.
    """
    count = sum(file.count for file in find_images(data).train)
    batch_size = settings.train.batch_size
    if count < batch_size:
        raise UsageError(
            f"{data}: {count} training images do not fill one batch of {batch_size}",
            hint=f"--set train.batch_size={count}, or more images",
        )


def _check_batch(settings: Resnet50Settings, layout: Layout) -> None:
    """Refuse parts of a batch that have no image, or whose last layers have a single pixel to compute a variance from."""
    batch_size, parts = settings.train.batch_size, layout.dp * layout.micro_batches
    told = f"train.batch_size = {batch_size} over dp * micro_batches = {layout.dp} * {layout.micro_batches} = {parts}"
    if batch_size < parts:
        raise RefusedLayoutError(f"{told} leaves parts without an image", hint=f"--set train.batch_size={parts}")
    pixels = (-(-settings.data.image_size // STRIDE)) ** 2
    is_alone = settings.model.batch_norm == "local" or layout.dp == 1
    images = batch_size // parts if is_alone else batch_size // layout.micro_batches
    if images * pixels < 2:
        raise RefusedLayoutError(
            f"{told} leaves some batch norm with one image, of which a single pixel of data.image_size = "
            f"{settings.data.image_size} is left in the last layers: it has no variance",
            hint=f"--set train.batch_size={2 * parts}"
            + (", or --set model.batch_norm=synchronised" if is_alone and layout.dp > 1 else ""),
        )
