"""Redistribution: the steps that convert a tensor from one operator's layout to another operator's.

    slice         a rank keeps a part of its data; no communication
    all_to_all    ranks exchange parts, so that another dim is cut instead
    all_gather    ranks get each other's parts of a dim, which is no longer cut

Slices come first, since they reduce the data to communicate; then exchanges, then gathers. Backward reverses the steps:
a slice becomes an all-gather, an all-gather a slice, and an exchange the opposite exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from math import prod
from typing import Literal

from launcher.core.frozen import frozen
from launcher.sharding.layout import TensorLayout, common_refinement, group_along, refined, replicated, simplified

Kind = Literal["slice", "all_gather", "all_to_all"]
# The backward step of each kind.
BACKWARD: Mapping[Kind, Kind] = {"slice": "all_gather", "all_gather": "slice", "all_to_all": "all_to_all"}


@frozen
class Step:
    """A redistribution step in groups of ranks that differ only along `axes` of the device matrix."""

    kind: Kind
    dim: int  # the dim that a slice or exchange cuts, or that a gather gathers
    axes: tuple[int, ...]  # outermost first
    before: TensorLayout
    after: TensorLayout
    from_dim: int | None = None  # the dim that an exchange gathers

    @property
    def parts(self) -> int:
        return prod(self.before.devices[axis] for axis in self.axes)

    def group_of(self, rank: int) -> tuple[int, ...]:
        """Return a rank's group: ranks that communicate with each other or, in a slice, keep the other parts."""
        return group_along(self.before.devices, self.axes, rank)


def steps_between(source: TensorLayout, target: TensorLayout) -> tuple[Step, ...]:
    """Return the steps that convert a tensor from one layout to another on the same number of ranks.

    >>> matmul, relu = TensorLayout((2, 4, 1), ((0,), ())), TensorLayout((2, 4), ((0,), (1,)))
    >>> [(step.kind, step.dim, step.group_of(5)) for step in steps_between(matmul, relu)]
    [('slice', 1, (4, 5, 6, 7))]
    """
    source, target = simplified(source), simplified(target)  # so that the steps depend only on what ranks hold
    devices = common_refinement(source.devices, target.devices)
    if devices is None:  # 2 x 3 and 3 x 2 ranks: one side gathers, the other slices
        whole = replicated(len(source.axes), prod(source.devices))
        return steps_between(source, whole) + steps_between(whole, target)
    current, wanted = refined(source, devices), refined(target, devices)
    steps: list[Step] = []
    while current.axes != wanted.axes:
        step = _slice(current, wanted) or _exchange(current, wanted) or _gather(current, wanted)
        assert step is not None, "a dim whose axes differ can be gathered"
        steps.append(step)
        current = step.after
    return tuple(steps)


def _slice(current: TensorLayout, wanted: TensorLayout) -> Step | None:
    """Return a step that slices a dim along unused axes to get closer to `wanted`, or None if no dim allows this."""
    for dim, (has, wants) in enumerate(zip(current.axes, wanted.axes, strict=True)):
        if wants[: len(has)] != has:
            continue
        if free := tuple(takewhile(current.free_axes.__contains__, wants[len(has) :])):
            return Step("slice", dim, free, current, _with(current, {dim: has + free}))
    return None


def _exchange(current: TensorLayout, wanted: TensorLayout) -> Step | None:
    """Return an all-to-all that moves the innermost axes of one dim to another dim, or None if no dim allows this."""
    for dim, (has, wants) in enumerate(zip(current.axes, wanted.axes, strict=True)):
        if wants[: len(has)] != has:
            continue
        for other, others in enumerate(current.axes):
            rest = wants[len(has) :]
            kept = _common(others, wanted.axes[other])
            count = next((count for count in range(len(others) - kept, 0, -1) if others[-count:] == rest[:count]), 0)
            if other != dim and count:
                moved = others[-count:]
                after = _with(current, {dim: has + moved, other: others[:-count]})
                return Step("all_to_all", dim, moved, current, after, from_dim=other)
    return None


def _gather(current: TensorLayout, wanted: TensorLayout) -> Step | None:
    """Return an all-gather of a dim along axes that do not split it in `wanted`, or None if no dim needs this."""
    for dim, (has, wants) in enumerate(zip(current.axes, wanted.axes, strict=True)):
        kept = _common(has, wants)
        if kept < len(has):
            return Step("all_gather", dim, has[kept:], current, _with(current, {dim: has[:kept]}))
    return None


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the length of the common prefix of two sequences of axes."""
    differing = (place for place, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its)
    return next(differing, min(len(one), len(other)))


def _with(layout: TensorLayout, axes: dict[int, tuple[int, ...]]) -> TensorLayout:
    return TensorLayout(layout.devices, tuple(axes.get(dim, has) for dim, has in enumerate(layout.axes)))
