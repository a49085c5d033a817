"""The part of a parameter that a rank holds, on which initial weights, optimizer and saved models agree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box, full_box
from launcher.trainer.parallel.collectives import Group


@frozen
class Placement:
    """The part of a parameter of the single-device model that this rank holds: a box, cut along any number of dims.

    Worked example: a matrix of 8 x 4 whose rows are cut in two over four model-parallel ranks, two of which hold the same
    half. Ranks 0 and 1 hold the box of 4 x 4 at (0, 0), each with `copies` = 2, and rank 0 is the first of them.
    """

    full_shape: torch.Size
    box: Box  # Invariant: within `full_shape`, and of as many dims
    copies: int = 1  # the model-parallel ranks that hold this box, this one included
    is_first: bool = True  # of these: whatever is to be kept once, such as a box in a checkpoint, is this one's

    @classmethod
    def uncut(cls, full_shape: Sequence[int], model_parallel: Group | None = None) -> Placement:
        """Return the placement of a parameter that all ranks of `model_parallel` hold whole; without it, one rank alone."""
        full = torch.Size(full_shape)
        if model_parallel is None:
            return cls(full, full_box(full))
        return cls(full, full_box(full), copies=model_parallel.size, is_first=model_parallel.index == 0)

    @classmethod
    def cut(cls, full_shape: Sequence[int], dim: int, start: int, stop: int) -> Placement:
        """Return the placement of the slice `start` to `stop` along `dim`, which no other model-parallel rank holds."""
        full = torch.Size(full_shape)
        starts, sizes = [0] * len(full), list(full)
        starts[dim], sizes[dim] = start, stop - start
        return cls(full, Box(tuple(starts), tuple(sizes)))

    @property
    def shape(self) -> torch.Size:
        """The shape of this rank's part."""
        return torch.Size(self.box.size)

    def part_of(self, full: Tensor) -> Tensor:
        """Return this rank's part of the whole parameter, a view."""
        for dim, (start, size) in enumerate(zip(self.box.start, self.box.size, strict=True)):
            full = full.narrow(dim, start, size)
        return full
