"""The part of a parameter that a rank holds, on which initial weights, optimizer and saved models agree."""

from __future__ import annotations

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box


@frozen
class Placement:
    """The part of a parameter of the single-device model that this rank holds."""

    full_shape: torch.Size
    dim: int | None = None  # the tensor dim that model parallelism splits; None: every rank holds all of it
    start: int = 0
    stop: int = 0  # Invariant: start < stop <= full_shape[dim] where dim is not None

    def part_of(self, full: Tensor) -> Tensor:
        return full if self.dim is None else full.narrow(self.dim, self.start, self.stop - self.start)

    def is_replica(self, model_parallel_index: int) -> bool:
        """Return whether this rank, of that index among the model-parallel ones, holds what the first of them holds, too."""
        return self.dim is None and model_parallel_index > 0

    @property
    def box(self) -> Box:
        """The box of the whole parameter that this rank holds."""
        starts = [0] * len(self.full_shape)
        if self.dim is not None:
            starts[self.dim] = self.start
        return Box(tuple(starts), tuple(self.shape))

    @property
    def shape(self) -> torch.Size:
        """The shape of this rank's part."""
        sizes = list(self.full_shape)
        if self.dim is not None:
            sizes[self.dim] = self.stop - self.start
        return torch.Size(sizes)
