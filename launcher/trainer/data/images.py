"""CIFAR-10's images as a training takes them: in random order, cropped, flipped, resized and normalised.

Which images a step uses, and how each is cropped and flipped, is a function of seed, epoch and the image's number alone. So all
layouts of ranks train on the same images, and a training that begins at any step, on any number of ranks, goes on as it would have.

Everything is done by numpy, which takes one thread: torch's are left to the model.

Shapes: N images of the set, B of a batch or of a rank's share of it, C channels, H and W pixels.
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

PADDING = 4  # black pixels on each side, before a window of the image's own size is cut out
# Of the training images' red, green and blue, as shares of 255. The tutorial has the same numbers, in the order blue, green, red.
MEAN_C, DEVIATION_C = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
# Up to so many products OpenBLAS, which numpy comes with, computes a matrix by one thread. More would wait for cores that the
# model has, spinning: on two busy cores that took eight times as long.
ONE_THREAD_PRODUCTS = 1 << 18
NO_LABEL = -100  # of a filler; torch's losses leave it out


@frozen
class ImageBatch:
    """A rank's share of the images that all ranks together take in one step."""

    image_BCHW: Tensor
    label_B: Tensor  # int64
    count: int  # of images in the global batch


@frozen
class TrainingBatch(ImageBatch):
    """A rank's share of the images of a step. All numbers count from 1."""

    epoch: int
    step_of_epoch: int  # as the tutorials' log lines count
    step: int
    last_step: int  # of the training

    @property
    def is_last(self) -> bool:
        return self.step == self.last_step


class ImageSet:
    """The records of several files, mapped into memory and numbered through. The files must stay as they are."""

    def __init__(self, files: Sequence[ImageFile]) -> None:
        # By torch, since Python's own maps, and numpy's with them, keep every file open.
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
        """Return pixels (B, C, H, W) and labels (B) of the images of these numbers, which count from 0."""
        record_BR = np.empty((len(number_B), RECORD_BYTES), np.uint8)
        file_B = np.searchsorted(self._ends, number_B, "right")
        for file in np.unique(file_B):
            is_here_B = file_B == file
            first = int(self._ends[file]) - len(self._records[file])
            record_BR[is_here_B] = self._records[file][number_B[is_here_B] - first]
        return record_BR[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), record_BR[:, 0].astype(np.int64)


class ImageOrder:
    """The numbers of the images of each step: all in random order, and what does not fill the last batch of an epoch left out."""

    def __init__(self, image_count: int, batch_size: int, *, seed: int) -> None:
        """`batch_size` is over all ranks, and at most `image_count`."""
        self.steps_per_epoch = image_count // batch_size
        self._batch_size = batch_size
        self._order = lru_cache(maxsize=1)(lambda epoch: permutation(image_count, seed, epoch, "images"))

    def batch(self, epoch: int, index: int) -> Integers:
        """Return the numbers of the images of batch `index` of `epoch`; both count from 0."""
        return self._order(epoch)[index * self._batch_size : (index + 1) * self._batch_size]


@frozen
class Shard:
    """The part of each global batch that one of several data-parallel ranks takes: every `num_shards`-th image."""

    num_shards: int = 1
    shard_id: int = 0

    def of(self, number_B: Integers) -> Integers:
        """Return this rank's numbers. Shares differ by one image at most, and a later rank never has more."""
        return number_B[self.shard_id :: self.num_shards]


@frozen
class ImageShape:
    """The size and type of the images that a model takes."""

    size: int = SIDE  # pixels on each side
    dtype: torch.dtype = torch.float32

    def normalised(self, pixels_BCHW: Pixels) -> Tensor:
        """Return images of this size whose channels have mean 0 and deviation 1 over CIFAR-10."""
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
    """Yield a rank's share of the batches of a training from `first_step` on: the same, whatever came before."""
    for step in range(first_step, last_step + 1):
        epoch, index = divmod(step - 1, order.steps_per_epoch)
        number_B = order.batch(epoch, index)
        own_B = shard.of(number_B)
        pixels_BCHW, label_B = images.take(own_B)
        image_BCHW = shape.normalised(augmented(pixels_BCHW, own_B, seed=seed, epoch=epoch))
        yield TrainingBatch(image_BCHW, torch.from_numpy(label_B), len(number_B), epoch + 1, index + 1, step, last_step)


def validation_batches(images: ImageSet, batch_size: int, *, shard: Shard, shape: ImageShape) -> Iterator[ImageBatch]:
    """Yield a rank's share of all images in order, as they are, in global batches of `batch_size`; the last may be smaller.

    All ranks get shares of the same size: those that have an image less than others get a filler, whose label is NO_LABEL.
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
    """Return each image moved by up to PADDING pixels, black where it leaves, and every other one mirrored.

    That is torchvision's RandomCrop(32, padding=4) and RandomHorizontalFlip(). The draws depend on seed, epoch and the image's
    number alone.
    """
    top_B, left_B, flips_B = draws(number_B, seed=seed, epoch=epoch)
    sides = (PADDING, PADDING)
    padded_BCHW = np.pad(pixels_BCHW, ((0, 0), (0, 0), sides, sides))
    windows = np.lib.stride_tricks.sliding_window_view(padded_BCHW, (SIDE, SIDE), axis=(2, 3))
    cropped_BCHW = windows[np.arange(len(number_B)), :, top_B, left_B]
    cropped_BCHW[flips_B] = cropped_BCHW[flips_B, :, :, ::-1]
    return cropped_BCHW


def draws(number_B: Integers, *, seed: int, epoch: int) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
    """Return for each image the window's first row and column, of 0 to 2 PADDING, and whether it is mirrored.

    All are of one random word for (seed, epoch, number), as dropout's are: 15 bits for each place, which makes none of
    the nine more likely than another by more than 1 in 3,641, and one bit.
    """
    digest = hashlib.sha256(f"{seed}/{epoch}/augmentation".encode()).digest()
    key = int.from_bytes(digest[:4], "little", signed=True)
    word_B = mixed(torch.from_numpy(number_B).to(torch.int32) * GOLDEN + key).numpy()
    top_B, left_B = (((word_B >> bits & 0x7FFF) * (2 * PADDING + 1)) >> 15 for bits in (0, 15))
    return top_B, left_B, (word_B >> 30 & 1).astype(bool)


def resized(value_BCHW: Values, size: int) -> Values:
    """Return images of `size` pixels on each side by bilinear interpolation between the centres of pixels.

    As functional.interpolate(..., mode="bilinear", align_corners=False) does it, where an image gets no smaller. Along each
    side that is a product with one small matrix, which takes less than half of the time.
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
    """Return the matrix (after, before) of interpolation along one side: two weights in a row, whose sum is 1."""
    place = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    lower = np.minimum(place.astype(np.int64), before - 2)
    matrix = np.zeros((after, before), dtype)
    matrix[np.arange(after), lower] = 1 - (place - lower)
    matrix[np.arange(after), lower + 1] = place - lower
    return matrix
