"""Sharding propagation: from the strategies of some operators to those of all.

Operators are taken in the order of their distance, in the graph, from those that are known. Of all ways to cut an operator the
one is taken that

    1. redistributes the fewest bytes from and to the neighbours that are known already;
    2. leaves the fewest ranks without work of their own;
    3. leaves the dims that are cut already as they are, and cuts the later ones first.

The first rule is that of MindSpore's sharding propagation; sums within the operator do not count. Worked example, 8 ranks: a
matmul with ((2, 4), (4, 1)) has rows cut by 2 as its output. A relu after it can cut them in any finer way without
communication; (2, 4), (4, 2) and (8, 1) use all ranks, and of these (2, 4) leaves the rows as they are. The next matmul gets
((2, 4), (4, 1)) then: with any other it would have to gather.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from launcher.sharding.expression import Cutting, cuttings
from launcher.sharding.graph import Graph, Operator
from launcher.sharding.layout import TensorLayout
from launcher.sharding.plan import Collective, step_collectives
from launcher.sharding.redistribution import steps_between


def propagated(graph: Graph, given: Mapping[str, Cutting], ranks: int) -> dict[str, Cutting]:
    """Return how every operator is cut, those of `given` as given there, in the graph's order.

    Where none is given, the first operator is cut along the first dim of its first input, as data parallelism does.
    """
    known = dict(given)
    if not known:
        first = graph.operators[0]
        known[first.name] = _data_parallel(first, ranks)
    waiting = deque(operator for operator in graph.operators if operator.name in known)
    seen = set(known)
    while waiting:
        operator = waiting.popleft()
        if operator.name not in known:
            known[operator.name] = _chosen(graph, operator, known, ranks)
        for neighbour in _neighbours(graph, operator):
            if neighbour.name not in seen:
                seen.add(neighbour.name)
                waiting.append(neighbour)
        if not waiting:  # what is connected to nothing so far
            rest = [each for each in graph.operators if each.name not in seen]
            waiting.extend(rest[:1])
            seen.update(each.name for each in rest[:1])
    return {operator.name: known[operator.name] for operator in graph.operators}


def _data_parallel(operator: Operator, ranks: int) -> Cutting:
    """Return the cutting of an operator that cuts nothing but the first dim of its first input, into as many parts as can be."""
    batch = operator.expression.inputs[0][0] if operator.expression.inputs[0] else None
    ways = cuttings(operator.expression, ranks)
    return next(each for each in ways if all(parts == 1 or index == batch for index, parts in each.cuts))


def _neighbours(graph: Graph, operator: Operator) -> list[Operator]:
    """Return the operators that take what this one computes, then those that compute what it takes, then those that share a leaf."""
    found = [consumer for consumer, _ in graph.consumers[operator.name]]
    for name in operator.inputs:
        producer = graph.by_name[name]
        if isinstance(producer, Operator):
            found.append(producer)
        else:
            found += [consumer for consumer, _ in graph.consumers[name]]
    return found


def _chosen(graph: Graph, operator: Operator, known: Mapping[str, Cutting], ranks: int) -> Cutting:
    def preference(way: Cutting) -> tuple[int, int, int, tuple[int, ...]]:
        parts = tuple(count for _, count in way.cuts)
        return redistributed_bytes(graph, operator, way, known), -way.used, _changed(graph, operator, way, known), parts

    return min(cuttings(operator.expression, ranks), key=preference)


def redistributed_bytes(graph: Graph, operator: Operator, way: Cutting, known: Mapping[str, Cutting]) -> int:
    """Return the bytes on a rank that an operator cut that way has communicated to come from and to known operators."""
    moved: list[Collective] = []
    for number, name in enumerate(operator.inputs):
        source = known[name].output if name in known else _held(graph, operator, name, known)
        if source is not None:
            moved.extend(step_collectives(graph, operator, number, steps_between(source, way.inputs[number])))
    for consumer, number in graph.consumers[operator.name]:
        if consumer.name in known:
            steps = steps_between(way.output, known[consumer.name].inputs[number])
            moved.extend(step_collectives(graph, consumer, number, steps))
    return sum(each.bytes for each in moved if each.kind != "slice" and each.phase == "forward")


def _held(graph: Graph, operator: Operator, name: str, known: Mapping[str, Cutting]) -> TensorLayout | None:
    """Return the layout in which a leaf is held because of a known operator; None where only this one takes it."""
    for consumer, number in graph.consumers[name]:
        if consumer.name in known and consumer.name != operator.name:
            return known[consumer.name].inputs[number]
    return None


def _changed(graph: Graph, operator: Operator, way: Cutting, known: Mapping[str, Cutting]) -> int:
    """Return how many dims that a known neighbour cuts the operator cuts into another number of parts."""
    pairs = [
        (known[name].output.cuts, way.inputs[number].cuts)
        for number, name in enumerate(operator.inputs)
        if name in known
    ]
    pairs += [
        (known[consumer.name].inputs[number].cuts, way.output.cuts)
        for consumer, number in graph.consumers[operator.name]
        if consumer.name in known
    ]
    return sum(their > 1 and their != ours for theirs, own in pairs for their, ours in zip(theirs, own, strict=True))
