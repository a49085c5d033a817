"""Batches of CIFAR-10 images: shuffled, cropped, flipped, resized and normalised.

The images of a step, and the crop and flip of each, depend only on seed, epoch and image number. So training is the
same on all layouts of ranks, and a training that starts at any step continues identically. All work is done by numpy in
one thread, because torch's threads are for the model.

Shapes: N images of the data set, B of a batch or of a rank's part of it, C channels, H and W pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.corpus.images import CHANNELS, RECORD_BYTES, SIDE, ImageFile
from launcher.trainer.data.order import permutation
from launcher.trainer.data.tokens import Integers
from launcher.trainer.model.dropout import GOLDEN, mixed

Pixels = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]  # of float32 or float64

PADDING = 4  # black pixels added on each side before the random crop
# Mean and deviation of red, green and blue in the training images, divided by 255. The tutorial lists blue, green, red.
MEAN_C, DEVIATION_C = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
# numpy's OpenBLAS multiplies matrices of up to this many products in one thread. More threads would spin while the model
# uses the cores: on two busy cores that took eight times as long.
ONE_THREAD_PRODUCTS = 1 << 18
NO_LABEL = -100  # of filler images; ignored by torch's losses


@frozen
class ImageBatch:
    """The images of one step that this rank processes."""

    image_BCHW: Tensor
    label_B: Tensor  # int64
    count: int  # number of images in the global batch


@frozen
class TrainingBatch(ImageBatch):
    """The images of one training step that this rank processes. Epoch and step numbers start at 1."""

    epoch: int
    step_of_epoch: int  # as in the tutorial's log lines
    step: int
    last_step: int  # of the training

    @property
    def is_last(self) -> bool:
        return self.step == self.last_step


class ImageSet:
    """The images of several memory-mapped files, numbered consecutively. The files must not change."""

    def __init__(self, files: Sequence[ImageFile]) -> None:
        # Mapped by torch, because Python's and numpy's maps keep each file open.
        self._records: list[Pixels] = [
            torch.from_file(str(file.path), shared=False, size=file.count * RECORD_BYTES, dtype=torch.uint8)
            .view(file.count, RECORD_BYTES)
            .numpy()
            for file in files
        ]
        self._ends = np.cumsum([file.count for file in files])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, number_B: Integers) -> tuple[Pixels, Integers]:
        """Return the pixels (B, C, H, W) and labels (B) of the images with the given numbers, which start at 0."""
        record_BR = np.empty((len(number_B), RECORD_BYTES), np.uint8)
        file_B = np.searchsorted(self._ends, number_B, "right")
        for file in np.unique(file_B):
            is_here_B = file_B == file
            first = int(self._ends[file]) - len(self._records[file])
            record_BR[is_here_B] = self._records[file][number_B[is_here_B] - first]
        return record_BR[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), record_BR[:, 0].astype(np.int64)


class ImageOrder:
    """The numbers of the images in each batch, in random order. An incomplete last batch of an epoch is dropped."""

    def __init__(self, image_count: int, batch_size: int, *, seed: int) -> None:
        """Shuffle `image_count` images into global batches. `batch_size` must not exceed `image_count`."""
        self.steps_per_epoch = image_count // batch_size
        self._batch_size = batch_size
        self._order = lru_cache(maxsize=1)(lambda epoch: permutation(image_count, seed, epoch, "images"))

    def batch(self, epoch: int, index: int) -> Integers:
        """Return the image numbers of a batch. `epoch` and `index` start at 0."""
        return self._order(epoch)[index * self._batch_size : (index + 1) * self._batch_size]


@frozen
class Shard:
    """The part of each global batch that one data-parallel rank gets: every `num_shards`-th image."""

    num_shards: int = 1
    shard_id: int = 0

    def of(self, number_B: Integers) -> Integers:
        """Return this rank's share of the numbers. If they do not divide evenly, the first ranks get one more."""
        return number_B[self.shard_id :: self.num_shards]


@frozen
class ImageShape:
    size: int = SIDE  # pixels on each side
    dtype: torch.dtype = torch.float32

    def normalised(self, pixels_BCHW: Pixels) -> Tensor:
        """Normalize images by the mean and deviation of CIFAR-10, and resize them."""
        dtype: type[np.floating[Any]] = np.float64 if self.dtype == torch.float64 else np.float32
        factor_C = (1 / (255 * np.array(DEVIATION_C))).astype(dtype)
        summand_C = (-np.array(MEAN_C) / DEVIATION_C).astype(dtype)
        value_BCHW: Values = np.multiply(pixels_BCHW, factor_C[:, None, None])
        value_BCHW += summand_C[:, None, None]
        return torch.from_numpy(resized(value_BCHW, self.size)).to(self.dtype)


def training_batches(
    images: ImageSet,
    order: ImageOrder,
    *,
    last_step: int,
    seed: int,
    shard: Shard,
    shape: ImageShape,
    first_step: int = 1,
) -> Iterator[TrainingBatch]:
    """Yield this rank's part of each training batch from step `first_step` on, without reading earlier batches."""
    for step in range(first_step, last_step + 1):
        epoch, index = divmod(step - 1, order.steps_per_epoch)
        number_B = order.batch(epoch, index)
        own_B = shard.of(number_B)
        pixels_BCHW, label_B = images.take(own_B)
        image_BCHW = shape.normalised(augmented(pixels_BCHW, own_B, seed=seed, epoch=epoch))
        yield TrainingBatch(image_BCHW, torch.from_numpy(label_B), len(number_B), epoch + 1, index + 1, step, last_step)


def validation_batches(images: ImageSet, batch_size: int, *, shard: Shard, shape: ImageShape) -> Iterator[ImageBatch]:
    """Yield this rank's part of each validation batch. A batch has at most `batch_size` images on all ranks together.

    All ranks get the same number of images: a filler with label NO_LABEL is added if a rank has one less.
    """
    for start in range(0, len(images), batch_size):
        number_B = np.arange(start, min(start + batch_size, len(images)))
        own_B = shard.of(number_B)
        pixels_BCHW, label_B = images.take(own_B)
        if missing := -(-len(number_B) // shard.num_shards) - len(own_B):
            pixels_BCHW = np.concatenate([pixels_BCHW, np.zeros((missing, CHANNELS, SIDE, SIDE), np.uint8)])
            label_B = np.concatenate([label_B, np.full(missing, NO_LABEL)])
        yield ImageBatch(shape.normalised(pixels_BCHW), torch.from_numpy(label_B), len(number_B))


def augmented(pixels_BCHW: Pixels, number_B: Integers, *, seed: int, epoch: int) -> Pixels:
    """Shift each image randomly by up to PADDING pixels with a black border, and mirror about half of the images.

    Equivalent to torchvision's RandomCrop(32, padding=4) and RandomHorizontalFlip(). Random bits depend only on seed,
    epoch and image number.
    """
    top_B, left_B, flips_B = draws(number_B, seed=seed, epoch=epoch)
    sides = (PADDING, PADDING)
    padded_BCHW = np.pad(pixels_BCHW, ((0, 0), (0, 0), sides, sides))
    windows = np.lib.stride_tricks.sliding_window_view(padded_BCHW, (SIDE, SIDE), axis=(2, 3))
    cropped_BCHW = windows[np.arange(len(number_B)), :, top_B, left_B]
    cropped_BCHW[flips_B] = cropped_BCHW[flips_B, :, :, ::-1]
    return cropped_BCHW


def draws(number_B: Integers, *, seed: int, epoch: int) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
    """Return a random crop row, a random crop column and a random mirror flag for each image, as three arrays.

    All come from one random word for (seed, epoch, number), as in dropout: one bit to mirror, and 15 bits per position.
    The probabilities of the nine positions differ by at most 1 in 3,641.
    """
    digest = hashlib.sha256(f"{seed}/{epoch}/augmentation".encode()).digest()
    key = int.from_bytes(digest[:4], "little", signed=True)
    word_B = mixed(torch.from_numpy(number_B).to(torch.int32) * GOLDEN + key).numpy()
    top_B, left_B = (((word_B >> bits & 0x7FFF) * (2 * PADDING + 1)) >> 15 for bits in (0, 15))
    return top_B, left_B, (word_B >> 30 & 1).astype(bool)


def resized(value_BCHW: Values, size: int) -> Values:
    """Resize images to `size` pixels per side by bilinear interpolation between pixel centres.

    Equal to functional.interpolate(..., mode="bilinear", align_corners=False) for enlargement. It is a matrix product
    per side, which takes less than half the time.
    """
    before = value_BCHW.shape[-1]
    if before == size:
        return value_BCHW
    interpolation = _interpolation(before, size, value_BCHW.dtype)
    wide_BCHW = value_BCHW @ interpolation.T
    result_BCHW = np.empty((*value_BCHW.shape[:2], size, size), value_BCHW.dtype)
    rows = max(1, ONE_THREAD_PRODUCTS // (before * size))
    for start in range(0, size, rows):
        np.matmul(interpolation[start : start + rows], wide_BCHW, out=result_BCHW[:, :, start : start + rows])
    return result_BCHW


@lru_cache(maxsize=4)
def _interpolation(before: int, after: int, dtype: np.dtype[Any]) -> Values:
    """Return a matrix that resizes one side of an image from `before` to `after` pixels by linear interpolation."""
    place = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    lower = np.minimum(place.astype(np.int64), before - 2)
    matrix = np.zeros((after, before), dtype)
    matrix[np.arange(after), lower] = 1 - (place - lower)
    matrix[np.arange(after), lower + 1] = place - lower
    return matrix
