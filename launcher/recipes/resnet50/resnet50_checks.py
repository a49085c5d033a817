"""Check that the layout and the data fit ResNet-50. Messages name values that fit."""

from __future__ import annotations

from pathlib import Path

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.corpus.images import find_images
from launcher.recipes.resnet50.resnet50_settings import Resnet50Settings
from launcher.recipes.strategies import DATA_PARALLEL, STAND_ALONE, check_mode, operators_layout
from launcher.recipes.train import check_early_stopping

REPLICATED = (STAND_ALONE, DATA_PARALLEL)  # modes in which every rank holds the full model
STRIDE = 32  # input pixels per side for each pixel of the last layers


def own_layout(settings: Resnet50Settings, layout: Layout) -> Layout:
    """Return the layout that the program trains in: data parallelism over all ranks, or that of `operators_layout`.

    Raises:
        RefusedLayoutError: as in `operators_layout`, or the mode does not support model parallelism.
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
    """Raise if the mode does not support the layout, or a rank has too few images for batch norm.

    Raises:
        RefusedLayoutError: the layout does not fit; the message names the nearest values that fit.
        UsageError: as in `check_early_stopping`.
    """
    mode = settings.parallel.mode
    check_mode(mode, settings.strategies, layout, micro_batches=mode in REPLICATED)
    check_early_stopping(settings.train)
    if mode not in REPLICATED:
        _check_shares(settings, layout)
    if settings.model.batch_norm == "synchronised" and layout.micro_batches > 1:
        raise RefusedLayoutError(
            "model.batch_norm = synchronised needs all images of a step at once, "
            f"but micro_batches = {layout.micro_batches}",
            hint="use `--micro-batches 1`, or `--set model.batch_norm=local`",
        )
    _check_batch(settings, layout)


def check_data(settings: Resnet50Settings, data: Path | None) -> None:
    """Raise if the directory is missing or does not contain a batch of images in CIFAR-10's binary format.

    Raises:
        UnreadableError: as in `find_images`.
        UsageError: no directory is given, or it has too few images.
    """
    if data is None:
        hint = "use `--data DIR`; `tlaunch data sample --recipe resnet50 --output DIR` creates a small data set"
        raise UsageError("ResNet-50 needs a directory of CIFAR-10 images, but none is given", hint=hint)
    count = sum(file.count for file in find_images(data).train)
    batch_size = settings.train.batch_size
    if count < batch_size:
        raise UsageError(
            f"{data}: {count} training images do not fill one batch of {batch_size}",
            hint=f"use `--set train.batch_size={count}`, or more images",
        )


def _check_shares(settings: Resnet50Settings, layout: Layout) -> None:
    """Raise if copies of a partitioned network would get unequal batches, or batch norm would span copies."""
    batch_size = settings.train.batch_size
    if batch_size % layout.dp:
        raise RefusedLayoutError(
            f"train.batch_size = {batch_size} is not divisible by dp = {layout.dp}",
            hint=f"use `--set train.batch_size={batch_size - batch_size % layout.dp or layout.dp}`",
        )
    if settings.model.batch_norm == "synchronised" and layout.dp > 1:
        raise RefusedLayoutError(
            f"model.batch_norm = synchronised covers the ranks of one copy, but dp = {layout.dp}",
            hint="use `--dp 1`, or `--set model.batch_norm=local`",
        )


def _check_batch(settings: Resnet50Settings, layout: Layout) -> None:
    """Raise if a part of a batch has no image, or a single pixel in the last layers, which has no variance."""
    batch_size, parts = settings.train.batch_size, layout.dp * layout.micro_batches
    told = f"train.batch_size = {batch_size} over dp * micro_batches = {layout.dp} * {layout.micro_batches} = {parts}"
    if batch_size < parts:
        raise RefusedLayoutError(f"{told} leaves parts without an image", hint=f"use `--set train.batch_size={parts}`")
    pixels = (-(-settings.data.image_size // STRIDE)) ** 2
    is_alone = settings.model.batch_norm == "local" or layout.dp == 1
    images = batch_size // parts if is_alone else batch_size
    if images * pixels < 2:
        raise RefusedLayoutError(
            f"{told} leaves one image for some batch norms; with data.image_size = {settings.data.image_size} "
            "it has one pixel in the last layers, and no variance",
            hint=f"use `--set train.batch_size={2 * parts}`"
            + (", or `--set model.batch_norm=synchronised`" if is_alone and layout.dp > 1 else ""),
        )
