"""The data sets and batches of a custom network's training. Every rank loads the same global batch."""

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

DIGESTED = 64  # samples that a data set's digest includes


class Samples(Protocol):
    """A map-style data set, as in torch. Each sample is a tuple of tensors, arrays or numbers, and never changes."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@frozen
class SampleBatch:
    """The global batch of one step. `samples` has indices into the data set. Epochs and steps count from 1."""

    samples: Sequence[int]
    epoch: int
    step_of_epoch: int
    step: int
    last_step: int

    @property
    def is_last(self) -> bool:
        return self.step == self.last_step


class SampleOrder:
    """Divides a data set into batches, in order or shuffled per epoch. An incomplete last batch is skipped."""

    def __init__(self, count: int, batch_size: int, *, seed: int, shuffle: bool) -> None:
        """Raise a UsageError if the samples do not fill a batch."""
        self._count, self._batch_size, self._seed, self._shuffle = count, batch_size, seed, shuffle
        self.steps_per_epoch = count // batch_size
        if not self.steps_per_epoch:
            raise UsageError(
                f"the data set has {count} samples, fewer than batch_size = {batch_size}",
                hint=f"reduce batch_size to {count} or less" if count else "add samples to the data set",
            )

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
    """Collate samples into one batch on a device. Floating-point items are converted to `dtype`.

    Every rank loads the full global batch for any dp, since a loss divides by the sum of the full batch's mask.

    Raises:
        UsageError: samples are not tuples of tensors, arrays or numbers, or their shapes differ.
    """
    found = [samples[number] for number in numbers]
    for number, sample in zip(numbers, found, strict=True):
        _check_sample(number, sample, len(found[0]) if isinstance(found[0], list | tuple) else 0)
    try:
        batch = default_collate([tuple(sample) for sample in found])
    except (TypeError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"the samples cannot be collated into a batch: {first}", hint="use the same item shapes in all samples"
        ) from error
    return tuple(each.to(device, dtype if each.is_floating_point() else each.dtype) for each in batch)


def _check_sample(number: int, sample: Any, items: int) -> None:
    hint = "return a tuple of tensors, arrays or numbers"
    if not isinstance(sample, list | tuple):
        raise UsageError(f"sample {number} is a {type(sample).__name__}", hint=hint)
    for place, item in enumerate(sample):
        if not isinstance(item, Tensor | np.ndarray | np.number | int | float | bool):
            raise UsageError(f"item {place} of sample {number} is a {type(item).__name__}", hint=hint)
    if len(sample) != items:
        raise UsageError(f"sample {number} has {len(sample)} items, and other samples have {items}", hint=hint)


def digest_of(samples: Samples) -> str:
    """Return a digest of the number of samples and of up to 64 evenly spaced samples.

    Raises:
        UsageError: there are no samples, or two accesses to a sample give different values.
    """
    if not len(samples):
        raise UsageError("the data set has no samples")
    digest = hashlib.sha256(str(len(samples)).encode())
    for number in np.linspace(0, len(samples) - 1, min(DIGESTED, len(samples)), dtype=int).tolist():
        one, again = (collated(samples, [number], torch.device("cpu"), torch.float32) for _ in range(2))
        if [value.numpy().tobytes() for value in one] != [value.numpy().tobytes() for value in again]:
            raise UsageError(
                f"sample {number} is different each time it is read, but all ranks need the same samples",
                hint="make the data set deterministic; use nn.Dropout in the network for random noise",
            )
        for value in one:
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()
