"""The batches of a training of one's own network: the same global batch on every rank, and this rank's rows of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.trainer.data.order import permutation
from launcher.trainer.own.divide import Rows

DIGESTED = 64  # samples by which a data set is known again


class Samples(Protocol):
    """A data set as torch has it: samples by their numbers, each a tuple of tensors, arrays or numbers, and the same whenever it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@frozen
class SampleBatch:
    """The samples that all ranks train on in a step. All numbers count from 1, but those of `samples`."""

    samples: Sequence[int]
    epoch: int
    step_of_epoch: int
    step: int
    last_step: int

    @property
    def is_last(self) -> bool:
        return self.step == self.last_step


class SampleOrder:
    """Decides which samples are in which batch. What is left of an epoch that fills no batch is not used in it."""

    def __init__(self, count: int, batch_size: int, *, seed: int, shuffle: bool) -> None:
        """Raises a UsageError where the samples do not fill a batch."""
        self._count, self._batch_size, self._seed, self._shuffle = count, batch_size, seed, shuffle
        self.steps_per_epoch = count // batch_size
        if not self.steps_per_epoch:
            raise UsageError(f"the data set has {count} samples, and batch_size = {batch_size}", hint="a smaller one")

    def batches(self, first_step: int, last_step: int) -> Iterator[SampleBatch]:
        order: Sequence[int] = range(self._count)
        of_epoch = None
        for step in range(first_step, last_step + 1):
            epoch, index = divmod(step - 1, self.steps_per_epoch)
            if self._shuffle and epoch != of_epoch:
                order, of_epoch = permutation(self._count, self._seed, epoch, "samples").tolist(), epoch
            here = order[index * self._batch_size : (index + 1) * self._batch_size]
            yield SampleBatch(here, epoch + 1, index + 1, step, last_step)


def collated(samples: Samples, numbers: Sequence[int], device: torch.device, dtype: torch.dtype) -> Rows:
    """Return samples as a batch, on a device, numbers that are no integers in the type of the network.

    Every rank makes the whole global batch, from which the masks of all rows are counted: loading costs the same on any dp.

    Raises:
        UsageError: samples are no tuples of what tensors can be made of, or not of one shape.
    """
    found = [samples[number] for number in numbers]
    for number, sample in zip(numbers, found, strict=True):
        _check_sample(number, sample, len(found[0]) if isinstance(found[0], list | tuple) else 0)
    try:
        batch = default_collate([tuple(sample) for sample in found])
    except (TypeError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"the samples make no batch: {first}", hint="items that are of one shape in all samples"
        ) from error
    return tuple(each.to(device, dtype if each.is_floating_point() else each.dtype) for each in batch)


def _check_sample(number: int, sample: Any, items: int) -> None:
    hint = "a tuple of tensors, arrays or numbers"
    if not isinstance(sample, list | tuple):
        raise UsageError(f"sample {number} is a {type(sample).__name__}", hint=hint)
    for place, item in enumerate(sample):
        if not isinstance(item, Tensor | np.ndarray | np.number | int | float | bool):
            raise UsageError(f"item {place} of sample {number} is a {type(item).__name__}", hint=hint)
    if len(sample) != items:
        raise UsageError(f"sample {number} has {len(sample)} items, and others have {items}", hint=hint)


def digest_of(samples: Samples) -> str:
    """Return a digest of the number of samples and of some of them, spread over all.

    Raises:
        UsageError: there are none, or a sample is another one when it is asked for again.
    """
    if not len(samples):
        raise UsageError("there are no samples")
    digest = hashlib.sha256(str(len(samples)).encode())
    for number in np.linspace(0, len(samples) - 1, min(DIGESTED, len(samples)), dtype=int).tolist():
        one, again = (collated(samples, [number], torch.device("cpu"), torch.float32) for _ in range(2))
        if [value.numpy().tobytes() for value in one] != [value.numpy().tobytes() for value in again]:
            raise UsageError(
                f"sample {number} is another one each time that it is asked for, and all ranks need the same",
                hint="draw random numbers in the network, by nn.Dropout",
            )
        for value in one:
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()
