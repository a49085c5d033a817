"""Sharding propagation: derive the strategies of all operators from the strategies given for some operators.

Operators are processed in the order of their distance in the graph from the given ones. Of all partitions of an operator,
the one is chosen that

    1. redistributes the fewest bytes to and from neighbours that are already decided;
    2. leaves the fewest ranks without separate work;
    3. keeps dims that are already cut unchanged, and cuts later dims first.

The first rule is MindSpore's sharding propagation; sums inside the operator are not counted. Worked example, 8 ranks: a
matmul with ((2, 4), (4, 1)) has rows cut by 2 as its output. A relu after it can cut them more finely without
communication; (2, 4), (4, 2) and (8, 1) use all ranks, and (2, 4) keeps the rows unchanged. The next matmul then gets
((2, 4), (4, 1)), because any other strategy needs a gather.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial

from launcher.sharding.expression import Partition, cuttings
from launcher.sharding.graph import Graph, Operator
from launcher.sharding.plan import Collective, step_collectives
from launcher.sharding.redistribution import steps_between


def propagated(graph: Graph, given: Mapping[str, Partition], ranks: int) -> dict[str, Partition]:
    """Return a partition for every operator, in the graph's order. Partitions in `given` are kept.

    Without given ones, the first operator is cut along the first dim of its first input, as in data parallelism.
    """
    known = dict(given)
    if not known:
        first = graph.operators[0]
        batch = first.expression.inputs[0][0] if first.expression.inputs[0] else None
        ways = cuttings(first.expression, ranks)  # those into more parts come first
        only_batch = (each for each in ways if all(parts == 1 or index == batch for index, parts in each.cuts))
        known[first.name] = next(only_batch)
    waiting = deque(operator for operator in graph.operators if operator.name in known)
    seen = set(known)
    while waiting:
        operator = waiting.popleft()
        if operator.name not in known:
            preference = partial(_preference, graph, operator, known)
            known[operator.name] = min(cuttings(operator.expression, ranks), key=preference)
        for neighbour in _neighbours(graph, operator):
            if neighbour.name not in seen:
                seen.add(neighbour.name)
                waiting.append(neighbour)
        if not waiting:  # not connected to any decided operator
            rest = [each for each in graph.operators if each.name not in seen]
            waiting.extend(rest[:1])
            seen.update(each.name for each in rest[:1])
    return {operator.name: known[operator.name] for operator in graph.operators}


def _neighbours(graph: Graph, operator: Operator) -> list[Operator]:
    """Return the operators that use this operator's output, compute its inputs, or share a leaf with it."""
    found = [consumer for consumer, _ in graph.consumers[operator.name]]
    for name in operator.inputs:
        producer = graph.by_name[name]
        if isinstance(producer, Operator):
            found.append(producer)
        else:
            found += [consumer for consumer, _ in graph.consumers[name]]
    return found


def _preference(
    graph: Graph, operator: Operator, known: Mapping[str, Partition], way: Partition
) -> tuple[int, int, int, tuple[int, ...]]:
    parts = tuple(count for _, count in way.cuts)
    return redistributed_bytes(graph, operator, way, known), -way.used, _changed(graph, operator, way, known), parts


def redistributed_bytes(graph: Graph, operator: Operator, way: Partition, known: Mapping[str, Partition]) -> int:
    """Count the bytes that a rank redistributes to or from operators in `known` if `operator` uses partition `way`."""
    moved: list[Collective] = []
    for number, name in enumerate(operator.inputs):
        # A leaf has the layout that another operator has decided.
        others = (
            known[other.name].inputs[its_number]
            for other, its_number in graph.consumers[name]
            if other.name in known and other.name != operator.name
        )
        source = known[name].output if name in known else next(others, None)
        if source is not None:
            moved.extend(step_collectives(graph, operator, number, steps_between(source, way.inputs[number])))
    for consumer, number in graph.consumers[operator.name]:
        if consumer.name in known:
            steps = steps_between(way.output, known[consumer.name].inputs[number])
            moved.extend(step_collectives(graph, consumer, number, steps))
    return sum(each.bytes for each in moved if each.kind != "slice" and each.phase == "forward")


def _changed(graph: Graph, operator: Operator, way: Partition, known: Mapping[str, Partition]) -> int:
    """Count the dims that neighbours in `known` split, but `operator` would split into another number of parts."""
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
