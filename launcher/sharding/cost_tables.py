"""All costs of a graph as tables, indexed by the operators' partitions. Equal parts of a graph share their tables."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from launcher.core.frozen import frozen
from launcher.sharding.cost import Costs, OperatorCost, Passage, operator_cost, passage, passage_s, takes_first
from launcher.sharding.expression import Partition, cuttings
from launcher.sharding.graph import Graph, Leaf, Operator, bytes_of
from launcher.sharding.layout import TensorLayout, simplified

MAX_WAYS = 100  # above this number, partitions that do not use all ranks are skipped if others do


@frozen
class Edge:
    """The times to redistribute a tensor between two operators, for each pair of their partitions."""

    names: tuple[str, ...]  # of the operators; only one name if an operator uses a leaf twice
    seconds: list[float]


@frozen
class Tables:
    ways: Mapping[str, Sequence[Partition]]
    operators: Mapping[str, Sequence[OperatorCost]]
    edges: Sequence[Edge]
    fixed_s: Mapping[TensorLayout, float]  # the messages that sum parameter gradients, in a fixed order


def tables_of(graph: Graph, given: Mapping[str, Partition], ranks: int, costs: Costs) -> Tables:
    """Return the cost tables of a graph on `ranks` ranks. Operators in `given` have only the given partition."""
    alike: dict[Hashable, tuple[Sequence[Partition], Sequence[OperatorCost]]] = {}
    ways, operators = {}, {}
    for operator in graph.operators:
        fixed = given.get(operator.name)
        kind = (_kind_of(graph, operator), fixed.cuts if fixed else None)
        if kind not in alike:
            own = (fixed,) if fixed else tuple(cuttings(operator.expression, ranks))
            using_all = tuple(each for each in own if each.used == ranks)
            own = using_all if len(own) > MAX_WAYS and using_all else own
            alike[kind] = own, [operator_cost(graph, operator, way, costs) for way in own]
        ways[operator.name], operators[operator.name] = alike[kind]
    sums = {each for _, found in alike.values() for cost in found for each in cost.sums}
    order = sorted(sums, key=lambda each: (each.devices, each.axes))
    fixed_s = {each: costs.fixed_s("all_reduce", each.cuts[0]) for each in order}
    return Tables(ways, operators, list(_edges(graph, ways, costs)), fixed_s)


def _kind_of(graph: Graph, operator: Operator) -> Hashable:
    """Return a key with all properties of an operator that affect its cost, except its partition."""
    expression = operator.expression
    inputs = tuple(
        (
            tensor.shape,
            tensor.item_bytes,
            name in graph.needs_gradient,
            isinstance(tensor, Leaf)
            and (tensor.is_parameter, len(graph.consumers[name]), takes_first(graph, operator, number)),
        )
        for number, name in enumerate(operator.inputs)
        for tensor in (graph.by_name[name],)
    )
    indices = (expression.inputs, expression.output, tuple(expression.sizes.items()), expression.shared)
    return operator.kind, operator.shape, operator.flops, operator.item_bytes, inputs, indices


_Side = tuple[str, int | None]  # one end of a tensor: an operator, and the number of its input, or None for its output


def _links(graph: Graph) -> Iterator[tuple[Leaf | Operator, _Side, _Side]]:
    """Yield (tensor, source, target) for each tensor that may be redistributed between two operators.

    The source of a leaf is its first use, which determines its stored layout (`plan.first_layout`).
    """
    for producer, operator, number in graph.edges():
        yield producer, (producer.name, None), (operator.name, number)
    for leaf in graph.leaves:
        (first, its_number), *others = graph.consumers[leaf.name]
        for operator, number in others:
            yield leaf, (first.name, its_number), (operator.name, number)


def _edges(graph: Graph, ways: Mapping[str, Sequence[Partition]], costs: Costs) -> Iterator[Edge]:
    layouts = _Layouts(ways)
    passages, tables = _Passages(costs), dict[Hashable, list[float]]()
    for tensor, one, other in _links(graph):
        sides = layouts.of(one), layouts.of(other)
        size, has_gradient = bytes_of(tensor), tensor.name in graph.needs_gradient
        names = tuple(dict.fromkeys((one[0], other[0])))
        key = (id(sides[0]), id(sides[1]), size, has_gradient, len(names))
        if key not in tables:
            found = passages.seconds(*sides, size, has_gradient=has_gradient)
            # The diagonal if both ends belong to the same operator.
            tables[key] = found[:: len(sides[0]) + 1] if len(names) == 1 else found
        yield Edge(names, tables[key])


class _Layouts:
    """A cache of the simplified layouts that partitions give to inputs and outputs. Equal layouts share one object."""

    def __init__(self, ways: Mapping[str, Sequence[Partition]]) -> None:
        self._ways = ways
        self._same: dict[TensorLayout, TensorLayout] = {}
        self._of: dict[Hashable, list[TensorLayout]] = {}

    def of(self, side: _Side) -> list[TensorLayout]:
        name, number = side
        key = id(self._ways[name]), number
        if key not in self._of:
            found = (simplified(way.output if number is None else way.inputs[number]) for way in self._ways[name])
            self._of[key] = [self._same.setdefault(each, each) for each in found]
        return self._of[key]


class _Passages:
    """A cache of the redistributions between layouts. Each is computed once and used for tensors of all shapes."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._between: dict[tuple[int, int], Passage] = {}
        self._same: dict[Passage, Passage] = {}

    def seconds(
        self, sources: Sequence[TensorLayout], targets: Sequence[TensorLayout], size: int, *, has_gradient: bool
    ) -> list[float]:
        """Return the time to redistribute a tensor of `size` bytes, for each (source, target) in row-major order."""
        known: dict[int, float] = {}  # few redistributions differ
        rows: dict[int, list[float]] = {}  # and partitions often give a tensor the same layout
        for source in sources:
            if id(source) in rows:
                continue
            row = rows[id(source)] = []
            for target in targets:
                pair = id(source), id(target)
                if pair not in self._between:
                    found = passage(source, target)
                    self._between[pair] = self._same.setdefault(found, found)
                steps = self._between[pair]
                if id(steps) not in known:
                    known[id(steps)] = passage_s(steps, size, self._costs, has_gradient=has_gradient)
                row.append(known[id(steps)])
        return [each for source in sources for each in rows[id(source)]]
