"""The layout of a rank's parameters in flat tensors, and the slices that each data-parallel rank updates.

A flat tensor holds parameters in the order in which backward computes their gradients, the model's last parameter
first. It is divided into groups, whose gradients are summed over the data-parallel ranks one after another. Within a
group, parameters with the same weight decay and replication are adjacent. Every parameter starts at a multiple of 16
elements (64 bytes of float32, for vector units and matrix libraries). The length of every group is a multiple of 16
elements per data-parallel rank. The padding between parameters is always zero.

Each data-parallel rank owns an equal slice of each group, and holds only the optimizer state of its slices (ZeRO stage
1; Rajbhandari et al. 2020, arXiv:1910.02054). Worked example, dp=2 and groups [0, 64) and [64, 160): rank 1 owns
[32, 64) and [112, 160), and their state is [0, 32) and [32, 80) of its state tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor, nn

from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box, boxes_of_run
from launcher.trainer.parallel.placement import Placement

ALIGNMENT = 16  # elements


@frozen
class Region:
    """A contiguous range within a group of flat tensors. Its parameters have the same weight decay and replication."""

    elements: range
    decays: bool  # matrices decay; norms and biases do not
    copies: int  # number of model-parallel ranks that hold the same values; a norm counts them once


@frozen
class OwnPart:
    flat: slice  # in the flat tensors
    state: slice  # in the rank's state
    decays: bool
    copies: int


@frozen
class FlatLayout:
    """The layout of the flat tensors. It is the same on all ranks of a data-parallel group."""

    elements: dict[str, range]  # of each parameter, in the flat tensors
    groups: tuple[range, ...]  # Invariant: adjacent, from 0, and each length is a multiple of dp
    regions: tuple[Region, ...]  # Invariant: adjacent, and they cover all groups
    dp: int

    @property
    def size(self) -> int:
        return self.groups[-1].stop if self.groups else 0  # a stage may have no layers

    @cached_property
    def group_of(self) -> dict[str, int]:
        """The number of each parameter's group, by parameter name."""
        numbered = list(enumerate(self.groups))
        return {name: next(n for n, group in numbered if own.start in group) for name, own in self.elements.items()}

    @property
    def state_size(self) -> int:
        return self.size // self.dp

    def owned(self, group: range, index: int) -> range:
        length = len(group) // self.dp
        return group[index * length : (index + 1) * length]

    def state_of(self, group: range) -> slice:
        """Return the slice of a rank's optimizer state that holds the rank's part of `group`."""
        return slice(group.start // self.dp, group.stop // self.dp)

    def own_parts(self, index: int) -> list[OwnPart]:
        """Return the part of each region that data-parallel rank `index` owns, in the order of the rank's state."""
        parts = []
        for group in self.groups:
            owned = self.owned(group, index)
            to_state = self.state_of(group).start - owned.start
            for region in self.regions:
                start, stop = max(region.elements.start, owned.start), min(region.elements.stop, owned.stop)
                if start < stop:
                    state = slice(start + to_state, stop + to_state)
                    parts.append(OwnPart(slice(start, stop), state, region.decays, region.copies))
        return parts

    def boxes_of(self, part: OwnPart, placed: Mapping[str, Placement]) -> Iterator[tuple[str, Box, slice]]:
        """Yield (parameter name, box, range of its elements in `part`) for each box in `part`, in memory order.

        `placed` are the placements passed to `arrange`.
        """
        for name, elements in self.elements.items():
            start, stop = max(elements.start, part.flat.start), min(elements.stop, part.flat.stop)
            at = start - part.flat.start
            for box in boxes_of_run(start - elements.start, stop - elements.start, placed[name].shape):
                here = slice(at, at + box.count)
                at = here.stop
                yield name, box.moved(placed[name].box.start), here


def arrange(placed: Mapping[str, Placement], *, dp: int, groups: int) -> FlatLayout:
    """Return the flat layout for the parameters in `placed`, which are in the model's order.

    Divides them into `groups` groups of about equal size, or fewer if parameters are large: the middle of a parameter
    decides its group. A rank without parameters gets one group of zeros. An example is a last stage that only holds a
    copy of another stage's weight.
    """

    def treatment_of(name: str) -> tuple[bool, int]:
        """Return a parameter's weight-decay flag and its number of replicas. Vectors have no weight decay."""
        return len(placed[name].full_shape) > 1, placed[name].copies

    def in_order(name: str) -> tuple[bool, int]:
        """Return a sort key: by weight decay (parameters without it first), then by number of replicas (descending)."""
        decays, copies = treatment_of(name)
        return decays, -copies

    backward = list(placed)[::-1]
    total = sum(placed[name].shape.numel() for name in backward)
    grouped: dict[int, list[str]] = {}
    before = 0
    for name in backward:
        count = placed[name].shape.numel()
        grouped.setdefault(int((before + count / 2) * groups / total), []).append(name)
        before += count
    elements: dict[str, range] = {}
    ranges: list[range] = []
    regions: list[Region] = []
    end = 0
    for names in grouped.values():
        start = end
        for treatment, alike in groupby(sorted(names, key=in_order), key=treatment_of):
            first = end
            for name in alike:
                elements[name] = range(end, end + placed[name].shape.numel())
                end = _multiple_from(elements[name].stop, ALIGNMENT)
            regions.append(Region(range(first, end), *treatment))
        end = start + _multiple_from(end - start, dp * ALIGNMENT)
        regions[-1] = dataclasses.replace(regions[-1], elements=range(first, end))  # including the padding of the group
        ranges.append(range(start, end))
    if not placed:
        ranges = [range(dp * ALIGNMENT)]
        regions = [Region(ranges[0], decays=False, copies=1)]
    return FlatLayout(elements, tuple(ranges), tuple(regions), dp)


def move_into_flat(parameters: Mapping[str, nn.Parameter], layout: FlatLayout, flat: Tensor) -> None:
    """Copy `parameters` into `flat`, and make each parameter a view of it."""
    for name, elements in layout.elements.items():
        view = view_of(flat, elements, parameters[name].shape)
        view.copy_(parameters[name].detach())
        parameters[name].data = view


def view_of(flat: Tensor, elements: range, shape: torch.Size) -> Tensor:
    return flat[elements.start : elements.stop].view(shape)


def _multiple_from(value: int, factor: int) -> int:
    """Round `value` up to a multiple of `factor`."""
    return -(-value // factor) * factor
