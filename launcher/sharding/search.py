"""The search of auto_parallel: find the partitions of a graph's operators with the least cost (see `cost.py`).

A step's cost is a sum over operators (by their partition) and edges (by the partitions of both ends). Therefore
operators can be eliminated one by one, with an exact result (launcher/sharding/elimination.py). For operators with very
many partitions, only some are considered (`cost_tables.MAX_WAYS`).

One cost is not such a sum: gradients summed by the same ranks share one message and its fixed time. The search first
finds the cheapest choice without these times. If a cheaper choice is possible, the search branches: once with the message
paid for, once without all partitions that need it, and so on (branch and bound).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from launcher.sharding.cost import Costs
from launcher.sharding.cost_tables import Tables, tables_of
from launcher.sharding.elimination import Factor, cheapest
from launcher.sharding.expression import Partition
from launcher.sharding.graph import Graph
from launcher.sharding.layout import TensorLayout

MAX_SEARCHES = 200  # then the best result so far is used


def searched(graph: Graph, given: Mapping[str, Partition], ranks: int, costs: Costs) -> dict[str, Partition]:
    """Return the cheapest combination of partitions, in the graph's order. Partitions in `given` are kept.

    The result depends only on the arguments: ties are broken by the order of the partitions.
    """
    tables = tables_of(graph, given, ranks, costs)
    return {name: tables.ways[name][way] for name, way in fastest(tables).items()}


Messages = frozenset[TensorLayout]  # the messages that sum parameter gradients (`ranks_that_sum`)
Sums = Mapping[str, Sequence[Messages]]  # the messages that each partition of an operator needs
NONE: Messages = frozenset()


def fastest(tables: Tables) -> dict[str, int]:
    """Find the fastest combination of partitions, by branch and bound over the gradient messages.

    The result maps each operator to the index of its partition in `tables.ways`.
    """
    factors = _factors(tables)
    sums = {name: [cost.sums for cost in found] for name, found in tables.operators.items()}
    best, least = None, float("inf")
    waiting = [(NONE, NONE)]  # messages that are paid for, and messages that are excluded
    for _ in range(MAX_SEARCHES):
        if not waiting:
            break
        paid, without = waiting.pop()
        found = _cheapest_without(without, factors, sums)
        if found is None:
            continue
        total, ways = found
        used = NONE.union(*(sums[name][way] for name, way in ways.items()))
        if total + _fixed_s(tables, used) < least:
            best, least = ways, total + _fixed_s(tables, used)
        room_s = least - total
        waiting += reversed(list(_branches(tables.fixed_s, room_s, used, paid=paid, without=without)))
    assert best is not None, "the first branch excludes nothing"
    return best


def _branches(
    fixed_s: Mapping[TensorLayout, float], room_s: float, used: Messages, *, paid: Messages, without: Messages
) -> Iterator[tuple[Messages, Messages]]:
    """Yield the branches that may contain a cheaper choice. In a cheaper choice, messages take less than `room_s`.

    A choice either needs the first message used here or excludes it; then the second, and so on. A choice that needs
    all of them is not cheaper than the one found here.
    """
    undecided = [each for each in fixed_s if each not in paid and each not in without]
    for message in [each for each in undecided if each in used]:
        undecided.remove(message)
        spent_s = sum(fixed_s[each] for each in fixed_s if each in paid)
        if spent_s >= room_s:
            return
        if undecided and spent_s + min(fixed_s[each] for each in undecided) < room_s:
            yield paid, without | {message}
        else:  # no other message makes it cheaper
            yield paid, without | {message, *undecided}
        paid |= {message}


def _cheapest_without(without: Messages, factors: Sequence[Factor], sums: Sums) -> tuple[float, dict[str, int]] | None:
    """Return (cost, choice) for the cheapest choice that needs no message in `without`, or None if there is none."""
    left = {
        name: tuple(way for way, needs in enumerate(found) if without.isdisjoint(needs)) for name, found in sums.items()
    }
    if not all(left.values()):
        return None
    narrowed: dict[Hashable, Factor] = {}  # equal factors share their tables
    costs = []
    for factor in factors:
        key = id(factor.values), *(left[name] for name in factor.names)
        if key not in narrowed:
            narrowed[key] = factor.narrowed(left)
        costs.append(Factor(factor.names, narrowed[key].sizes, narrowed[key].values))
    total, found = cheapest({name: len(own) for name, own in left.items()}, costs)
    return total, {name: left[name][way] for name, way in found.items()}


def _factors(tables: Tables) -> list[Factor]:
    """Return the times of operators and edges as factors. Equal times share a table."""
    made: dict[int, list[float]] = {}
    factors = []
    for name, found in tables.operators.items():
        if id(found) not in made:
            made[id(found)] = [each.seconds for each in found]
        factors.append(Factor((name,), (len(found),), made[id(found)]))
    for edge in tables.edges:
        sizes = tuple(len(tables.ways[name]) for name in edge.names)
        factors.append(Factor(edge.names, sizes, edge.seconds))
    return factors


def _fixed_s(tables: Tables, messages: Messages) -> float:
    return sum(seconds for message, seconds in tables.fixed_s.items() if message in messages)
