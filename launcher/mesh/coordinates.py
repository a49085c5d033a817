"""Rank <-> (pp, dp, mp), with mp fastest and pp slowest.

    global_rank = (pp * DP + dp) * MP + mp

Worked example, DP=2 MP=2 PP=2: the rank at pp=1 dp=0 mp=1 is (1*2 + 0)*2 + 1 = 5. Its mp group is {4, 5} (they share
a server, since neighbours in rank are neighbours in space), its dp group {5, 7}, its pp group {1, 5}.
"""

from __future__ import annotations

from typing import Literal

from launcher.core.frozen import frozen
from launcher.core.records import Layout

Axis = Literal["dp", "mp", "pp"]
AXES: tuple[Axis, ...] = ("dp", "mp", "pp")


@frozen
class Coordinate:
    pp: int
    dp: int
    mp: int


def coordinate_of(global_rank: int, layout: Layout) -> Coordinate:
    """Return the coordinate of `global_rank`.

    Raises:
        ValueError: the layout has no such rank.
    """
    if not 0 <= global_rank < layout.world_size:
        raise ValueError(f"rank {global_rank} is outside 0 .. {layout.world_size - 1} ({layout})")
    rest, mp = divmod(global_rank, layout.mp)
    pp, dp = divmod(rest, layout.dp)
    return Coordinate(pp=pp, dp=dp, mp=mp)


def rank_at(coordinate: Coordinate, layout: Layout) -> int:
    """Return the global rank at `coordinate`. This is the inverse of `coordinate_of`."""
    return (coordinate.pp * layout.dp + coordinate.dp) * layout.mp + coordinate.mp


def groups(axis: Axis, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return all groups along `axis`. The ranks of a group differ only in that coordinate, and are sorted by it.

    >>> groups("dp", Layout(dp=2, mp=2, pp=2))
    ((0, 2), (1, 3), (4, 6), (5, 7))
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for global_rank in range(layout.world_size):
        coordinate = coordinate_of(global_rank, layout)
        elsewhere = tuple(getattr(coordinate, other) for other in ("pp", "dp", "mp") if other != axis)
        members.setdefault(elsewhere, []).append(global_rank)
    return tuple(tuple(ranks) for ranks in members.values())


def group_of(global_rank: int, axis: Axis, layout: Layout) -> tuple[int, ...]:
    return next(ranks for ranks in groups(axis, layout) if global_rank in ranks)
