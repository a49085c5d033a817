"""Places the boxes of a graph in rows, each below all that it takes from, and the rows in columns (Sugiyama et al. 1981).

1. rows       a box stands right above the first box that takes from it, one that nobody takes from below its last source
2. trunks     what is taken farther below runs down beside the boxes in between: a place of its own in each of their rows
3. order      within a row, by the mean of the places above and below, a few times
4. places     as near to those means as their widths allow (least squares under least distances, by pooling)
5. columns    rows that would make too long a page stand beside each other; what runs on is drawn to their ends
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from launcher.core.frozen import frozen

SWEEPS = 8
TRUNK_WIDTH = 16.0
BOX_WEIGHT = (
    50.0  # beside a trunk: boxes that follow one another should stand below each other, and trunks go round them
)
ALIKE_WEIGHT = (
    4.0  # of a box for a box, of a trunk for a trunk: chains stay straight where something leaves or joins them
)
MAX_COLUMNS = 8
CUT_SLACK = 0.2  # of a column's rows, by which it may be shorter or longer to end where little runs on


@frozen
class Spot:
    """A box, or a place of its trunk, in one row."""

    name: str  # of the box
    row: int
    is_box: bool


@frozen
class Sizes:
    box_width: float
    gap: float  # between neighbours
    row_height: float
    column_gap: float
    page_ratio: float = 1.0  # of height to width that columns should come to


@frozen
class Column:
    rows: range
    left: float  # of its spots, in the places of all
    width: float


@frozen
class Arrangement:
    """The places of all operators in a drawing: the middle of each spot, and the rows that stand beside others."""

    rows: Sequence[Sequence[Spot]]
    x: Mapping[Spot, float]
    columns: tuple[Column, ...]
    links: Sequence[tuple[Spot, Spot]]  # from one row to the next

    def column_of(self, spot: Spot) -> int:
        return next(index for index, column in enumerate(self.columns) if spot.row in column.rows)


def arrange(sources: Mapping[str, Sequence[str]], sizes: Sizes) -> Arrangement:
    """Arrange boxes; `sources` has all of them, each after those that it takes from, and which these are."""
    row_of = _rows(sources)
    rows, links = _with_trunks(sources, row_of)
    above, below = _neighbours(links)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        _order(rows if downwards else rows[::-1], above if downwards else below)
    x = _places(rows, above, below, sizes)
    return Arrangement(rows, x, _columns(rows, x, links, sizes), links)


def _columns(
    rows: Sequence[Sequence[Spot]], x: Mapping[Spot, float], links: Sequence[tuple[Spot, Spot]], sizes: Sizes
) -> tuple[Column, ...]:
    """Return the columns by which the page comes nearest to the ratio wanted, cut where little runs on."""
    running_on = [len({upper for upper, _ in links if upper.row == row}) for row in range(len(rows))]

    def cut_into(count: int) -> list[Column]:
        evenly = len(rows) / count
        slack = int(evenly * CUT_SLACK)
        cuts = [0]
        for number in range(1, count):
            even = round(number * evenly)
            near = range(max(cuts[-1] + 1, even - slack), min(len(rows) - 1, even + slack) + 1)
            cuts.append(min(near, key=lambda row: (running_on[row - 1], abs(row - even)), default=even))
        return [_column(rows[start:stop], start, x, sizes) for start, stop in pairwise([*cuts, len(rows)])]

    def misses(columns: Sequence[Column]) -> float:
        height = max(len(column.rows) for column in columns) * sizes.row_height
        width = sum(column.width for column in columns) + (len(columns) - 1) * sizes.column_gap
        return abs(math.log(height / width / sizes.page_ratio))

    ways: list[list[Column]] = [cut_into(count) for count in range(1, min(MAX_COLUMNS, len(rows)) + 1)]
    best = min(ways, key=misses, default=list[Column]())
    return tuple(best)


def _column(rows: Sequence[Sequence[Spot]], first: int, x: Mapping[Spot, float], sizes: Sizes) -> Column:
    left = min(x[spot] - _width(spot, sizes) / 2 for row in rows for spot in row)
    right = max(x[spot] + _width(spot, sizes) / 2 for row in rows for spot in row)
    return Column(range(first, first + len(rows)), left, right - left)


def _rows(sources: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the row of each box."""
    row_of: dict[str, int] = {}
    for name, taken in sources.items():
        row_of[name] = max((row_of[one] + 1 for one in taken), default=0)
    takers: dict[str, list[str]] = {name: [] for name in sources}
    for name, taken in sources.items():
        for one in taken:
            takers[one].append(name)
    for name in reversed(list(sources)):
        if takers[name]:
            row_of[name] = min(row_of[one] for one in takers[name]) - 1
    return row_of


def _with_trunks(
    sources: Mapping[str, Sequence[str]], row_of: Mapping[str, int]
) -> tuple[list[list[Spot]], list[tuple[Spot, Spot]]]:
    """Return the spots of each row, and the links between those of neighbouring rows."""
    count = max(row_of.values(), default=-1) + 1
    rows: list[list[Spot]] = [[] for _ in range(count)]
    for name, row in row_of.items():
        rows[row].append(Spot(name, row, is_box=True))
    last_taken = dict(row_of)
    for name, taken in sources.items():
        for one in taken:
            last_taken[one] = max(last_taken[one], row_of[name])
    links: list[tuple[Spot, Spot]] = []

    def spot_at(name: str, row: int) -> Spot:
        return Spot(name, row, is_box=row == row_of[name])

    for name, last in last_taken.items():
        for row in range(row_of[name] + 1, last):
            rows[row].append(spot_at(name, row))
            links.append((spot_at(name, row - 1), spot_at(name, row)))
    for name, taken in sources.items():
        links += [(spot_at(one, row_of[name] - 1), spot_at(name, row_of[name])) for one in dict.fromkeys(taken)]
    return rows, links


Neighbours = Mapping[Spot, Sequence[Spot]]


def _neighbours(links: Sequence[tuple[Spot, Spot]]) -> tuple[Neighbours, Neighbours]:
    above: dict[Spot, list[Spot]] = {}
    below: dict[Spot, list[Spot]] = {}
    for upper, lower in links:
        above.setdefault(lower, []).append(upper)
        below.setdefault(upper, []).append(lower)
    return above, below


def _order(rows: Sequence[list[Spot]], neighbours: Neighbours) -> None:
    """Order each row but the first by the mean place of what its spots have as neighbours in the row before."""
    place: dict[Spot, float] = {}
    for row in rows:
        wanted: dict[Spot, float] = {}
        for index, spot in enumerate(row):
            found = [place[one] for one in neighbours.get(spot, ()) if one in place]
            wanted[spot] = sum(found) / len(found) if found else (index + 0.5) / len(row)
        row.sort(key=wanted.__getitem__)
        place = {spot: (index + 0.5) / len(row) for index, spot in enumerate(row)}


def _width(spot: Spot, sizes: Sizes) -> float:
    return sizes.box_width if spot.is_box else TRUNK_WIDTH


def _places(rows: Sequence[Sequence[Spot]], above: Neighbours, below: Neighbours, sizes: Sizes) -> dict[Spot, float]:
    x: dict[Spot, float] = {}
    for row in rows:
        at = 0.0
        for spot in row:
            x[spot] = at + _width(spot, sizes) / 2
            at += _width(spot, sizes) + sizes.gap
    for sweep in range(SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            wanted = []
            for spot in row:
                weights = {one: ALIKE_WEIGHT if one.is_box == spot.is_box else 1.0 for one in neighbours.get(spot, ())}
                total = sum(x[one] * weight for one, weight in weights.items())
                wanted.append(total / sum(weights.values()) if weights else x[spot])
            x.update(zip(row, _apart(row, wanted, sizes), strict=True))
    return x


def _apart(row: Sequence[Spot], wanted: Sequence[float], sizes: Sizes) -> Iterator[float]:
    """Yield places in their order, each as near to the one wanted as the least distances between neighbours allow.

    Without the distances that are summed up before each spot, places must not decrease: neighbours whose places do are
    pooled at their mean until none do.
    """
    offsets, at = [], 0.0
    for before, spot in zip([None, *row], row, strict=False):
        if before is not None:
            at += (_width(before, sizes) + _width(spot, sizes)) / 2 + sizes.gap
        offsets.append(at)
    pools: list[list[float]] = []  # mean, weight, number of spots
    for spot, want, offset in zip(row, wanted, offsets, strict=True):
        pools.append([want - offset, BOX_WEIGHT if spot.is_box else 1.0, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, weight, count = pools.pop()
            before_mean, before_weight, before_count = pools[-1]
            total = before_weight + weight
            pools[-1] = [(before_mean * before_weight + mean * weight) / total, total, before_count + count]
    means = [mean for mean, _, count in pools for _ in range(int(count))]
    return (mean + offset for mean, offset in zip(means, offsets, strict=True))
