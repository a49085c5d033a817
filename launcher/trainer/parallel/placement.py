"""Describes which part of a parameter a rank holds, for initial weights, the optimizer and saved models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box, full_box
from launcher.trainer.parallel.collectives import Group


@frozen
class Placement:
    """A rank's shard of a parameter: a box (a range in each dim) of the parameter in the single-device model.

    Worked example: the rows of an 8 x 4 matrix are cut in two halves over four model-parallel ranks, so two ranks hold
    each half. Ranks 0 and 1 hold the 4 x 4 box at (0, 0) with `copies` = 2, and rank 0 has `is_first`.
    """

    full_shape: torch.Size
    box: Box  # Invariant: within `full_shape`, with the same number of dims
    copies: int = 1  # number of model-parallel ranks that hold this box, including this one
    is_first: bool = True  # the first of these ranks saves the box

    @classmethod
    def uncut(cls, full_shape: Sequence[int], model_parallel: Group | None = None) -> Placement:
        """Return the placement of a full parameter, with a replica on each rank of `model_parallel` (if given)."""
        full = torch.Size(full_shape)
        if model_parallel is None:
            return cls(full, full_box(full))
        return cls(full, full_box(full), copies=model_parallel.size, is_first=model_parallel.index == 0)

    @classmethod
    def cut(cls, full_shape: Sequence[int], dim: int, start: int, stop: int) -> Placement:
        """Return the placement of the slice `start` to `stop` along `dim`, which only one model-parallel rank holds."""
        full = torch.Size(full_shape)
        starts, sizes = [0] * len(full), list(full)
        starts[dim], sizes[dim] = start, stop - start
        return cls(full, Box(tuple(starts), tuple(sizes)))

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.box.size)

    def part_of(self, full: Tensor) -> Tensor:
        """Return this rank's shard of the tensor `full` as a view."""
        for dim, (start, size) in enumerate(zip(self.box.start, self.box.size, strict=True)):
            full = full.narrow(dim, start, size)
        return full
