"""Boxes: rectangular parts of a tensor, given by a start and a size along every dim.

A run of consecutive elements in row-major order, as in a flat buffer, consists of boxes: at most 2n - 1 for a tensor of
n dims. So a checkpoint can store any part of a parameter as boxes, and a rank of another layout can find the boxes that
it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from launcher.core.frozen import frozen


@frozen
class Box:
    start: tuple[int, ...]
    size: tuple[int, ...]  # Invariant: as long as `start`, each at least 1

    @property
    def count(self) -> int:
        return prod(self.size)

    @property
    def stop(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.start, self.size, strict=True))

    def moved(self, by: Sequence[int]) -> Box:
        return Box(tuple(start + offset for start, offset in zip(self.start, by, strict=True)), self.size)

    def common(self, other: Box) -> Box | None:
        """Return the intersection of both boxes, or None if it is empty.

        >>> Box((0, 2), (4, 4)).common(Box((3, 0), (4, 3)))
        Box(start=(3, 2), size=(1, 1))
        """
        starts, sizes = [], []
        for mine, my_size, its, its_size in zip(self.start, self.size, other.start, other.size, strict=True):
            start, stop = max(mine, its), min(mine + my_size, its + its_size)
            if start >= stop:
                return None
            starts.append(start)
            sizes.append(stop - start)
        return Box(tuple(starts), tuple(sizes))

    def within(self, other: Box) -> tuple[slice, ...]:
        """Return the slices that select this box from a tensor that holds the larger box `other`."""
        return tuple(
            slice(start - origin, start - origin + size)
            for start, size, origin in zip(self.start, self.size, other.start, strict=True)
        )

    def rows(self, most: int) -> Iterator[Box]:
        """Split this box into boxes of complete rows with at most `most` elements. A longer row is a box by itself.

        >>> [box.size for box in Box((2, 0), (5, 3)).rows(most=7)]
        [(2, 3), (2, 3), (1, 3)]
        """
        if not self.size:
            yield self
            return
        step = max(1, most // prod(self.size[1:]))
        for first in range(0, self.size[0], step):
            yield Box((self.start[0] + first, *self.start[1:]), (min(step, self.size[0] - first), *self.size[1:]))


def full_box(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


def bounding(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that contains all of `boxes`, which must not be empty."""
    start = tuple(map(min, zip(*(box.start for box in boxes), strict=True)))
    stop = tuple(map(max, zip(*(box.stop for box in boxes), strict=True)))
    return Box(start, tuple(end - begin for begin, end in zip(start, stop, strict=True)))


def shared_runs(one: Box, other: Box, common: Box) -> tuple[int, Iterator[tuple[int, int]]]:
    """Locate the elements of `common`, the intersection of two boxes, in the row-major buffers of both boxes.

    Returns the length of the runs of consecutive elements, and the position of each run in both buffers, counted from
    the first element of each box.

    >>> length, places = shared_runs(Box((0, 0), (2, 4)), Box((0, 2), (3, 3)), Box((0, 2), (2, 2)))
    >>> length, list(places)
    (2, [(2, 0), (6, 3)])
    """
    dims = len(common.size)
    first = next((dim for dim in reversed(range(dims)) if not one.size[dim] == common.size[dim] == other.size[dim]), 0)
    strides = [(prod(one.size[dim + 1 :]), prod(other.size[dim + 1 :])) for dim in range(dims)]
    start = [
        sum((at - origin) * stride[which] for at, origin, stride in zip(common.start, box.start, strides, strict=True))
        for which, box in enumerate((one, other))
    ]

    def places() -> Iterator[tuple[int, int]]:
        for outer in product(*map(range, common.size[: max(0, first - 1)])):
            mine, its = start
            for index, stride in zip(outer, strides, strict=False):
                mine, its = mine + index * stride[0], its + index * stride[1]
            if first == 0:
                yield mine, its
                return
            # The innermost of these dims has the most positions.
            my_stride, its_stride = strides[first - 1]
            count = common.size[first - 1]
            yield from zip(
                range(mine, mine + count * my_stride, my_stride),
                range(its, its + count * its_stride, its_stride),
                strict=True,
            )

    return prod(common.size[first:]), places()


def boxes_of_run(start: int, stop: int, shape: Sequence[int]) -> list[Box]:
    """Return boxes that together contain the elements `start` to `stop` of a tensor, counted in row-major order.

    >>> [(box.start, box.size) for box in boxes_of_run(2, 9, (3, 4))]
    [((0, 2), (1, 2)), ((1, 0), (1, 4)), ((2, 0), (1, 1))]
    """
    if start >= stop:
        return []
    if not shape:
        return [Box((), ())]
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if first > last:
        return _in_row(last, start - last * row, stop - last * row, shape)
    rows = Box((first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:]))
    return [
        *(_in_row(first - 1, start - (first - 1) * row, row, shape) if start < first * row else []),
        *([rows] if first < last else []),
        *_in_row(last, 0, stop - last * row, shape),
    ]


def _in_row(index: int, start: int, stop: int, shape: Sequence[int]) -> list[Box]:
    return [Box((index, *box.start), (1, *box.size)) for box in boxes_of_run(start, stop, shape[1:])]
