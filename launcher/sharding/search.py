"""The search of auto_parallel: find the partitions of a graph's operators with the least cost (see `cost.py`).

A step's cost is a sum over operators (by their partition) and edges (by the partitions of both ends). Therefore
operators can be eliminated one by one, with an exact result (launcher/sharding/elimination.py). For operators with very
many partitions, only some are considered (`cost_tables.MAX_WAYS`). Two costs are not such sums:

    messages    gradients summed by the same ranks share one message and its fixed time. The cheapest choice is found without
                    these times. If a cheaper one is possible, the search branches: once with the message paid for, and once
                    without all partitions that need it, and so on (branch and bound).
    memory      with a limit, memory gets a price, and the search runs at the prices where one choice replaces another. It finds
                    the best of the choices that are cheapest at some price: the corners of the convex hull of time over
                    memory. A choice inside the hull that fits can be cheaper than the best corner that fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen
from launcher.sharding.cost import Cost, Costs
from launcher.sharding.cost_tables import Tables, tables_of
from launcher.sharding.elimination import Factor, cheapest
from launcher.sharding.expression import Partition
from launcher.sharding.graph import Graph
from launcher.sharding.layout import TensorLayout

HIGHEST_PRICE = 1024.0**3  # maximum price of a byte, in steps
MAX_SEARCHES = 200  # for one price of memory; then the best result so far is used
TOLERANCE = 1e-9  # of sums computed in another order


def searched(
    graph: Graph, given: Mapping[str, Partition], ranks: int, costs: Costs, memory_bytes: float | None = None
) -> dict[str, Partition]:
    """Return the cheapest choice of partitions, keyed by operator in the graph's order. `given` ones are kept.

    The result depends only on the arguments: ties are broken by the order of the partitions.

    Raises:
        RefusedLayoutError: every choice needs more than `memory_bytes` on a rank.
    """
    tables = tables_of(graph, given, ranks, costs)
    found = _fastest(tables, 0.0)
    if memory_bytes is not None and found.cost.bytes > memory_bytes:
        found = _fitting(tables, found, memory_bytes)
    return {name: tables.ways[name][way] for name, way in found.ways.items()}


Messages = frozenset[TensorLayout]  # the messages that sum parameter gradients (`ranks_that_sum`)
Sums = Mapping[str, Sequence[Messages]]  # the messages that each partition of an operator needs
NONE: Messages = frozenset()


@frozen
class _Choice:
    ways: Mapping[str, int]
    cost: Cost  # including the messages' fixed times


# --- the cheapest at some price of memory ---


def _fastest(tables: Tables, price: float) -> _Choice:
    """Return the choice with the least seconds + price * bytes, by branch and bound over the gradient messages."""
    factors = _factors(tables, price)
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
    own = [tables.operators[name][way] for name, way in best.items()]
    seconds, size = sum(each.cost.seconds for each in own), sum(each.cost.bytes for each in own)
    for edge in tables.edges:
        place = 0
        for name in edge.names:
            place = place * len(tables.ways[name]) + best[name]
        seconds, size = seconds + edge.seconds[place], size + edge.bytes[place]
    return _Choice(best, Cost(seconds + _fixed_s(tables, NONE.union(*(each.sums for each in own))), size))


def _branches(
    fixed_s: Mapping[TensorLayout, float], room_s: float, used: Messages, *, paid: Messages, without: Messages
) -> Iterator[tuple[Messages, Messages]]:
    """Yield the branches that may contain a cheaper choice: one whose messages cost less than `room_s`.

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
    """Return the least cost of a choice that needs no message in `without`, and the choice; None if there is none."""
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


def _factors(tables: Tables, price: float) -> list[Factor]:
    """Return the costs of operators and edges, each as seconds + price * bytes. Equal costs share a table."""
    made: dict[int, list[float]] = {}
    factors = []
    for name, found in tables.operators.items():
        if id(found) not in made:
            made[id(found)] = [each.cost.seconds + price * each.cost.bytes for each in found]
        factors.append(Factor((name,), (len(found),), made[id(found)]))
    for edge in tables.edges:
        if id(edge.seconds) not in made:
            made[id(edge.seconds)] = [
                seconds + price * size for seconds, size in zip(edge.seconds, edge.bytes, strict=True)
            ]
        sizes = tuple(len(tables.ways[name]) for name in edge.names)
        factors.append(Factor(edge.names, sizes, made[id(edge.seconds)]))
    return factors


def _fixed_s(tables: Tables, messages: Messages) -> float:
    return sum(seconds for message, seconds in tables.fixed_s.items() if message in messages)


# --- with a limit of memory ---


def _fitting(tables: Tables, fast: _Choice, memory_bytes: float) -> _Choice:
    """Return the fastest choice on the convex hull that fits into `memory_bytes`; `fast` does not fit.

    Given a corner that does not fit and one that does, use the price that makes both cost the same. A choice that is
    cheaper than both at that price replaces one of them. If there is none, they are neighbours on the hull.
    """
    price = fast.cost.seconds  # a byte costs a whole step, or more if steps with less memory take much longer
    small = _fastest(tables, price)
    while small.cost.bytes > memory_bytes and price < HIGHEST_PRICE * fast.cost.seconds:
        price *= 1024
        small = _fastest(tables, price)
    if small.cost.bytes > memory_bytes:
        raise RefusedLayoutError(
            f"the network needs at least {small.cost.bytes:.0f} bytes on each rank with any strategy, but the limit is "
            f"{memory_bytes:.0f}",
            hint="use more ranks, a smaller batch, or a higher limit",
        )
    while small.cost.bytes < fast.cost.bytes:
        price = (small.cost.seconds - fast.cost.seconds) / (fast.cost.bytes - small.cost.bytes)
        between = _fastest(tables, price)
        bound = fast.cost.seconds + price * fast.cost.bytes
        if between.cost.seconds + price * between.cost.bytes >= bound * (1 - TOLERANCE):
            break
        if between.cost.bytes <= memory_bytes:
            small = between
        else:
            fast = between
    return small
