"""The cheapest choice of one way for each of many names, where costs depend on the ways of one name or of a few.

Names are eliminated one after another: for all ways of its neighbours, which share a cost with it, the cheapest of its own ways
is found, and what it costs is a new cost of theirs (Bertele and Brioschi 1972, "Nonserial Dynamic Programming"). The name
goes first whose table is smallest, which in a chain or a tree is one with a single neighbour. This is exact, and takes time
by the size of the largest table: with w ways of each name, w^2 for a chain, w^3 where branches meet again.

No cost is below zero, so that most of a table need not be looked at: ways are tried by what they cost before the last factor is
added, until the next one costs as much as the cheapest has been. Parts of the graph that are alike, with the same tables, are
eliminated once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from operator import add

from launcher.core.frozen import frozen


@frozen
class Factor:
    """A cost that depends on the ways of these names: a table in row-major order."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # the number of ways of each
    values: list[float]

    def stride(self, name: str) -> int:
        """Return the distance in the table from one way of a name to the next; 0 if the cost does not depend on it."""
        if name not in self.names:
            return 0
        return prod(self.sizes[self.names.index(name) + 1 :])

    def narrowed(self, kept: Mapping[str, Sequence[int]]) -> Factor:
        """Return the table of these ways alone."""
        places = [0]
        for name, size in zip(self.names, self.sizes, strict=True):
            places = [place * size + way for place in places for way in kept[name]]
        return Factor(self.names, tuple(len(kept[name]) for name in self.names), [self.values[at] for at in places])


@frozen
class _Choice:
    """The result of eliminating a name: its cheapest way for each choice of its neighbours' ways."""

    name: str
    neighbours: tuple[str, ...]
    sizes: tuple[int, ...]
    ways: list[int]


def cheapest(ways: Mapping[str, int], factors: Sequence[Factor]) -> tuple[float, dict[str, int]]:
    """Return the least sum of the factors, and the way of each name. Of ways that cost the same, the first is taken.

    Every name has at least one way. Raises nothing else; the time grows with the graph's treewidth.
    """
    waiting, choices, total = dict(ways), list[_Choice](), 0.0
    alike: dict[Hashable, tuple[Factor, _Choice]] = {}
    by_name: dict[str, list[Factor]] = {name: [] for name in ways}
    for factor in factors:
        for name in factor.names:
            by_name[name].append(factor)
    work = {name: _work(name, waiting, by_name) for name in waiting}
    while waiting:
        name = min(waiting, key=work.__getitem__)
        own = by_name.pop(name)
        new, choice = _eliminated_once(alike, name, waiting, own)
        choices.append(choice)
        del waiting[name]
        for neighbour in choice.neighbours:
            by_name[neighbour] = [each for each in by_name[neighbour] if name not in each.names] + [new]
        for neighbour in choice.neighbours:
            work[neighbour] = _work(neighbour, waiting, by_name)
        if not choice.neighbours:
            total += new.values[0]
    found: dict[str, int] = {}
    for choice in reversed(choices):
        place = 0
        for neighbour, size in zip(choice.neighbours, choice.sizes, strict=True):
            place = place * size + found[neighbour]
        found[choice.name] = choice.ways[place]
    return total, {name: found[name] for name in ways}


def _neighbours(name: str, factors: Sequence[Factor]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for factor in factors for each in factor.names if each != name))


def _work(name: str, ways: Mapping[str, int], by_name: Mapping[str, Sequence[Factor]]) -> int:
    return ways[name] * prod(ways[each] for each in _neighbours(name, by_name[name]))


def _eliminated_once(
    alike: dict[Hashable, tuple[Factor, _Choice]], name: str, ways: Mapping[str, int], factors: Sequence[Factor]
) -> tuple[Factor, _Choice]:
    neighbours = _neighbours(name, factors)
    places = {each: place for place, each in enumerate((name, *neighbours))}
    key = tuple((id(factor.values), factor.sizes, *(places[each] for each in factor.names)) for factor in factors)
    if key not in alike:
        alike[key] = _eliminated(name, ways, factors)
    new, choice = alike[key]
    return Factor(neighbours, new.sizes, new.values), _Choice(name, neighbours, choice.sizes, choice.ways)


def _eliminated(name: str, ways: Mapping[str, int], factors: Sequence[Factor]) -> tuple[Factor, _Choice]:
    """Return the cost of the neighbours that comes in the place of a name's factors, and which of its ways is behind each."""
    neighbours = _neighbours(name, factors)
    sizes = tuple(ways[each] for each in neighbours)
    found = _Elimination(name, ways[name], neighbours, sizes, factors)
    found.settle(0, found.added([0.0] * ways[name], -1, [0] * len(factors)), [0] * len(factors))
    return Factor(neighbours, sizes, found.values), _Choice(name, neighbours, sizes, found.chosen)


class _Elimination:
    """The least of a sum of factors over the ways of one name, for all ways of its neighbours in row-major order."""

    def __init__(
        self, name: str, count: int, neighbours: Sequence[str], sizes: Sequence[int], factors: Sequence[Factor]
    ) -> None:
        self._count, self._sizes, self._factors = count, sizes, factors
        self._strides = [factor.stride(name) for factor in factors]
        self._steps = [[factor.stride(each) for factor in factors] for each in neighbours]
        # A factor is added once the ways of all its neighbours are settled, not again for each way of the others.
        self._due = [
            max((neighbours.index(each) for each in factor.names if each != name), default=-1) for factor in factors
        ]
        self._rows: dict[tuple[int, int], list[float]] = {}
        self.values: list[float] = []
        self.chosen: list[int] = []

    def added(self, costs: list[float], depth: int, bases: Sequence[int]) -> list[float]:
        """Return the costs of the name's ways with the factors that are due once so many neighbours are settled."""
        for number, base in enumerate(bases):
            if self._due[number] == depth:
                costs = list(map(add, costs, self._row(number, base)))
        return costs

    def settle(self, depth: int, costs: list[float], bases: Sequence[int]) -> None:
        """Find the cheapest for all ways of the neighbours that are not settled yet."""
        last = len(self._sizes) - 1
        if depth > last:
            self._take(min(costs), costs.index(min(costs)))
            return
        due = [number for number, its in enumerate(self._due) if its == depth]
        if depth == last and len(due) == 1:
            self._scan(costs, due[0], bases[due[0]], self._steps[depth][due[0]])
            return
        for way in range(self._sizes[depth]):
            reached = [base + way * step for base, step in zip(bases, self._steps[depth], strict=True)]
            self.settle(depth + 1, self.added(costs, depth, reached), reached)

    def _scan(self, costs: list[float], number: int, base: int, step: int) -> None:
        """Find the cheapest for each way of the last neighbour, on which one factor depends."""
        ordered = sorted(zip(costs, range(self._count), strict=True))
        for way in range(self._sizes[-1]):
            row, least, at = self._row(number, base + way * step), float("inf"), 0
            for cost, own in ordered:
                if cost >= least:
                    break
                if cost + row[own] < least:
                    least, at = cost + row[own], own
            self._take(least, at)

    def _row(self, number: int, base: int) -> list[float]:
        """Return a factor's costs by the name's ways, with the ways of its neighbours settled."""
        if (number, base) not in self._rows:
            stride = self._strides[number]
            self._rows[number, base] = self._factors[number].values[base : base + self._count * stride : stride]
        return self._rows[number, base]

    def _take(self, value: float, way: int) -> None:
        self.values.append(value)
        self.chosen.append(way)
