"""The layout of a tensor on devices: a device matrix, and for each dim of the tensor the axes that split it.

Ranks fill the device matrix in row-major order. Worked example, 8 ranks as (2, 4): rank 6 is at (1, 2). A tensor of
shape (16, 32) with axes ((0,), (1,)) is cut 2 x 4 times, and rank 6 holds its rows 8 to 15 and its columns 16 to 23.
With axes ((0,), ()) its columns are not cut: ranks 4 to 7, which differ along axis 1 only, hold the same rows.
MindSpore's design of distributed training uses the same device matrix and tensor map, in the same notation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod

from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box


@frozen
class TensorLayout:
    devices: tuple[int, ...]  # the device matrix
    axes: tuple[tuple[int, ...], ...]  # for each dim of the tensor, outermost first; Invariant: no axis occurs twice

    @property
    def cuts(self) -> tuple[int, ...]:
        """The number of parts that each dim is split into.

        >>> TensorLayout((2, 4), ((0,), ())).cuts
        (2, 1)
        """
        return tuple(prod(self.devices[axis] for axis in axes) for axes in self.axes)

    @property
    def free_axes(self) -> tuple[int, ...]:
        """The axes that split no dim. Ranks that differ only along these axes hold the same part."""
        used = {axis for axes in self.axes for axis in axes}
        return tuple(axis for axis, size in enumerate(self.devices) if axis not in used and size > 1)

    @property
    def copies(self) -> int:
        """The number of ranks that hold the same part.

        >>> TensorLayout((2, 4), ((0,), ())).copies
        4
        """
        return prod(self.devices[axis] for axis in self.free_axes)

    def is_first(self, rank: int) -> bool:
        """Return True if no lower rank holds the same part of the tensor as `rank`."""
        place = coordinate_in(self.devices, rank)
        return not any(place[axis] for axis in self.free_axes)

    def box_of(self, rank: int, shape: Sequence[int]) -> Box:
        """Return a rank's part of a tensor of this shape. Each dim must be divisible by its number of parts.

        >>> TensorLayout((2, 4), ((0,), (1,))).box_of(6, (16, 32))
        Box(start=(8, 16), size=(8, 8))
        """
        place = coordinate_in(self.devices, rank)
        starts, sizes = [], []
        for length, axes in zip(shape, self.axes, strict=True):
            index, cut = 0, 1
            for axis in axes:
                index, cut = index * self.devices[axis] + place[axis], cut * self.devices[axis]
            sizes.append(length // cut)
            starts.append(index * sizes[-1])
        return Box(tuple(starts), tuple(sizes))

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(length // cut for length, cut in zip(shape, self.cuts, strict=True))


def replicated(dims: int, ranks: int) -> TensorLayout:
    """Return the layout of a tensor that every rank holds in full."""
    return TensorLayout((ranks,), ((),) * dims)


def coordinate_in(devices: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the coordinate of a rank in a device matrix.

    >>> coordinate_in((2, 4), 6)
    (1, 2)
    """
    place = []
    for size in reversed(devices):
        rank, index = divmod(rank, size)
        place.append(index)
    return tuple(reversed(place))


def groups_along(devices: Sequence[int], axes: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of ranks whose coordinates differ only along `axes`. Each group is sorted by coordinate.

    >>> groups_along((2, 4), [0])
    ((0, 4), (1, 5), (2, 6), (3, 7))
    """
    wanted = tuple(axes)
    members: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
    for rank in range(prod(devices)):
        place = coordinate_in(devices, rank)
        elsewhere = tuple(index for axis, index in enumerate(place) if axis not in wanted)
        members.setdefault(elsewhere, {})[tuple(place[axis] for axis in wanted)] = rank
    return tuple(tuple(group[key] for key in sorted(group)) for group in members.values())


def group_along(devices: Sequence[int], axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return the group from `groups_along` that contains `rank`.

    >>> group_along((2, 4), [1], 6)
    (4, 5, 6, 7)
    """
    return next(group for group in groups_along(devices, axes) if rank in group)


@lru_cache(maxsize=1 << 14)
def simplified(layout: TensorLayout) -> TensorLayout:
    """Return the same layout on the coarsest device matrix, without axes of size 1 and with equivalent axes merged.

    Adjacent axes are equivalent if they split no dim, or split the same dim consecutively. Layouts that give every rank
    the same part of any tensor are equal after simplification.

    >>> simplified(TensorLayout((2, 1, 2, 2, 3), ((0, 2), (), (4,))))
    TensorLayout(devices=(4, 2, 3), axes=((0,), (), (2,)))
    """
    large = [[axis for axis in axes if layout.devices[axis] > 1] for axes in layout.axes]
    homes = {axis: (dim, place) for dim, axes in enumerate(large) for place, axis in enumerate(axes)}
    devices: list[int] = []
    coarse: dict[int, int] = {}  # the new axis for each old one
    last: tuple[int, int] | None = None  # position of the last axis: dim and index; None: it cuts nothing
    for axis, size in enumerate(layout.devices):
        if size == 1:
            continue
        home = homes.get(axis)
        follows = home is None if last is None else home == (last[0], last[1] + 1)
        if devices and follows:
            devices[-1] *= size
        else:
            devices.append(size)
        coarse[axis] = len(devices) - 1
        last = home
    return TensorLayout(tuple(devices), tuple(tuple(dict.fromkeys(coarse[axis] for axis in axes)) for axes in large))


def refined(layout: TensorLayout, devices: Sequence[int]) -> TensorLayout:
    """Return the same layout on a finer device matrix, where each axis becomes one or more consecutive axes.

    >>> refined(TensorLayout((2, 4), ((0,), (1,))), (2, 2, 2))
    TensorLayout(devices=(2, 2, 2), axes=((0,), (1, 2)))
    """
    finer: list[tuple[int, ...]] = []
    at = 0
    for size in layout.devices:
        own: list[int] = []
        while prod(devices[axis] for axis in own) < size:
            own.append(at)
            at += 1
        finer.append(tuple(own))
    axes = tuple(tuple(fine for axis in coarse for fine in finer[axis]) for coarse in layout.axes)
    return TensorLayout(tuple(devices), axes)


def common_refinement(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...] | None:
    """Return the coarsest device matrix that refines both matrices, or None if there is none.

    >>> common_refinement((2, 4), (4, 2))
    (2, 2, 2)
    >>> common_refinement((2, 3), (3, 2))
    """
    strides = sorted(_strides(one) | _strides(other), reverse=True)
    if any(larger % smaller for larger, smaller in pairwise(strides)):
        return None
    return tuple(larger // smaller for larger, smaller in pairwise(strides))


def _strides(devices: Sequence[int]) -> set[int]:
    """Return the stride in ranks along each axis, and the total number of ranks."""
    return {prod(devices[axis:]) for axis in range(len(devices) + 1)}
