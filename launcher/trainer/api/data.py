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
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate
from launcher.trainer.data.order import permutation

DIGESTED = 64  # samples by which a data set is known again
Rows = tuple[Tensor, ...]  # of a batch: its inputs, each with the rows as its first dim


class Samples(Protocol):
    """A data set as torch has it: samples by their numbers, each a tuple of tensors, arrays or numbers."""

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
    """Which samples are in which batch. What is left of an epoch that fills no batch is not used in it."""

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

    Raises:
        UsageError: samples are no tuples, or not of one shape.
    """
    try:
        batch = default_collate([samples[number] for number in numbers])
    except (TypeError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(f"the samples make no batch: {first}", hint="tuples of tensors, each of one shape") from error
    if not isinstance(batch, list | tuple) or not all(isinstance(each, Tensor) for each in batch):
        raise UsageError(
            f"a sample is a {type(samples[numbers[0]]).__name__}", hint="a tuple of tensors, arrays or numbers"
        )
    return tuple(each.to(device, dtype if each.is_floating_point() else each.dtype) for each in batch)


def micro_batches(rows: int, layout: Layout, coordinate: Coordinate) -> list[slice]:
    """Return the rows of a global batch that are this rank's micro batches: parts of equally many rows, dealt to dp ranks in turn."""
    size = rows // (layout.dp * layout.micro_batches)
    return [
        slice(part * size, (part + 1) * size)
        for part in range(coordinate.dp, layout.dp * layout.micro_batches, layout.dp)
    ]


def digest_of(samples: Samples) -> str:
    """Return a digest of the number of samples and of some of them, spread over all."""
    digest = hashlib.sha256(str(len(samples)).encode())
    for number in np.linspace(0, len(samples) - 1, min(DIGESTED, len(samples)), dtype=int).tolist():
        for value in collated(samples, [number], torch.device("cpu"), torch.float32):
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()
