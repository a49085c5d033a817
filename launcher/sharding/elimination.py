"""Choose an option ("way") for each variable ("name") to minimise a sum of costs, each of one or a few variables.

Names are eliminated one by one. For every combination of ways of its neighbours (names that share a cost with it), the
cheapest of a name's own ways is found; that minimum becomes a new cost of the neighbours (Bertele and Brioschi 1972,
"Nonserial Dynamic Programming"). The name with the smallest table goes first; in a chain or a tree it is a name with a
single neighbour. The result is exact. The time is proportional to the largest table: with w ways per name, w^2 for a
chain, w^3 if branches join again.

Costs are not negative, so most of a table can be skipped: ways are tried in the order of their cost without the last
factor, until the next one costs at least as much as the best result. Equal parts of the graph, with the same tables,
are eliminated once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from operator import add

from launcher.core.frozen import frozen


@frozen
class Factor:
    """A table of costs, in row-major order, with one dimension for each variable in `names`."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # number of ways of each name
    values: list[float]

    def stride(self, name: str) -> int:
        """Return the distance between consecutive options of `name` in the table, or 0 if `name` is not in `names`."""
        if name not in self.names:
            return 0
        return prod(self.sizes[self.names.index(name) + 1 :])

    def narrowed(self, kept: Mapping[str, Sequence[int]]) -> Factor:
        """Return the factor restricted to the options in `kept`."""
        places = [0]
        for name, size in zip(self.names, self.sizes, strict=True):
            places = [place * size + way for place in places for way in kept[name]]
        return Factor(self.names, tuple(len(kept[name]) for name in self.names), [self.values[at] for at in places])


def cheapest(ways: Mapping[str, int], factors: Sequence[Factor]) -> tuple[float, dict[str, int]]:
    """Return the minimum sum of the factors, and the option chosen for each variable. The first option wins a tie.

    Every variable must have at least one option. The time grows with the graph's treewidth.
    """
    waiting, total = dict(ways), 0.0
    choices: list[tuple[str, Factor, list[int]]] = []  # name, cost of its neighbours, its way for each of their choices
    alike: dict[Hashable, tuple[list[float], list[int]]] = {}
    by_name: dict[str, list[Factor]] = {name: [] for name in ways}
    for factor in factors:
        for name in factor.names:
            by_name[name].append(factor)
    work = {name: _work(name, waiting, by_name) for name in waiting}
    while waiting:
        name = min(waiting, key=work.__getitem__)
        own = by_name.pop(name)
        neighbours = _neighbours(name, own)
        places = {each: place for place, each in enumerate((name, *neighbours))}
        key = tuple((id(factor.values), factor.sizes, *(places[each] for each in factor.names)) for factor in own)
        if key not in alike:
            elimination = _Elimination(name, neighbours, waiting, own)
            alike[key] = elimination.values, elimination.chosen
        values, chosen = alike[key]
        new = Factor(neighbours, tuple(waiting[each] for each in neighbours), values)
        choices.append((name, new, chosen))
        del waiting[name]
        for neighbour in neighbours:
            by_name[neighbour] = [each for each in by_name[neighbour] if name not in each.names] + [new]
        for neighbour in neighbours:
            work[neighbour] = _work(neighbour, waiting, by_name)
        if not neighbours:
            total += new.values[0]
    found: dict[str, int] = {}
    for name, cost, chosen in reversed(choices):
        place = 0
        for neighbour, size in zip(cost.names, cost.sizes, strict=True):
            place = place * size + found[neighbour]
        found[name] = chosen[place]
    return total, {name: found[name] for name in ways}


def _neighbours(name: str, factors: Sequence[Factor]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for factor in factors for each in factor.names if each != name))


def _work(name: str, ways: Mapping[str, int], by_name: Mapping[str, Sequence[Factor]]) -> int:
    return ways[name] * prod(ways[each] for each in _neighbours(name, by_name[name]))


class _Elimination:
    """Eliminates one variable: finds its cheapest option for each combination of its neighbours' options.

    `values` are the minimum costs in row-major order, and `chosen` are the variable's cheapest options.
    """

    def __init__(
        self, name: str, neighbours: Sequence[str], ways: Mapping[str, int], factors: Sequence[Factor]
    ) -> None:
        self._count, self._sizes, self._factors = ways[name], [ways[each] for each in neighbours], factors
        self._strides = [factor.stride(name) for factor in factors]
        self._steps = [[factor.stride(each) for factor in factors] for each in neighbours]
        # A factor is added once the ways of its neighbours are fixed, not again for each way of the others.
        self._due = [
            max((neighbours.index(each) for each in factor.names if each != name), default=-1) for factor in factors
        ]
        self._rows: dict[tuple[int, int], list[float]] = {}
        self.values: list[float] = []
        self.chosen: list[int] = []
        bases = [0] * len(factors)
        self._settle(0, self._added([0.0] * self._count, -1, bases), bases)

    def _added(self, costs: list[float], depth: int, bases: Sequence[int]) -> list[float]:
        """Add to `costs` all factors that depend on neighbour `depth` but on no later neighbour. Return the sums."""
        for number, base in enumerate(bases):
            if self._due[number] == depth:
                costs = list(map(add, costs, self._row(number, base)))
        return costs

    def _settle(self, depth: int, costs: list[float], bases: Sequence[int]) -> None:
        """Find the minimum cost for each combination of options of all neighbours from number `depth` on."""
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
            self._settle(depth + 1, self._added(costs, depth, reached), reached)

    def _scan(self, costs: list[float], number: int, base: int, step: int) -> None:
        """Find the minimum cost for each option of the last neighbour, if only one factor depends on this neighbour."""
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
        """Return a factor's cost for each option of the variable, while the options of its neighbours are fixed."""
        if (number, base) not in self._rows:
            stride = self._strides[number]
            self._rows[number, base] = self._factors[number].values[base : base + self._count * stride : stride]
        return self._rows[number, base]

    def _take(self, value: float, way: int) -> None:
        self.values.append(value)
        self.chosen.append(way)
