"""The costs of a sharding plan: the time of a step, and the memory of a rank. They follow from shapes and a few measured numbers.

    an operator      a fixed time, and the longer of: FLOPs over the rate, bytes read and written over the memory's bandwidth;
                     once forward, and once backward for each input that has a gradient
    a collective     a fixed time by the size of the group, and a time for each byte; both by kind
    a parameter      its gradient, and the optimizer's update of it, by bytes; gradients that the same ranks sum go in one message,
                     whose fixed time is paid once

Ranks that compute the same count in full, as they do in a step: a cut is cheaper only by the work that a rank is spared. The
longer of two times is the roofline model (Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785); a fixed
time and one for each byte is the usual model of messages (Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521).
Nothing is taken to run at the same time as anything else, as it is where collectives block.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import prod
from typing import Literal

from launcher.core.frozen import frozen
from launcher.sharding.expression import Cutting
from launcher.sharding.graph import VIEWS, Graph, Leaf, Operator, bytes_of
from launcher.sharding.layout import TensorLayout, simplified
from launcher.sharding.plan import Collective, ShardingPlan, operator_collectives
from launcher.sharding.redistribution import BACKWARD, steps_between

Sent = Literal["all_reduce", "all_gather", "all_to_all"]


@frozen
class Passed:
    """A step of a redistribution, whatever the tensor's shape: into how many parts the tensor is cut before and after it."""

    kind: Literal["slice", "all_gather", "all_to_all"]
    ranks: int
    before: int
    after: int


Passage = tuple[Passed, ...]


@frozen
class CollectiveTime:
    """The time of a collective in groups of so many ranks: `fixed_s` and, for each byte of `Collective.bytes`, `s_per_byte`."""

    kind: Sent
    ranks: int
    fixed_s: float
    s_per_byte: float


# Measured with two and with four ranks of one thread each on two cores of an AMD EPYC, where collectives went through shared
# memory and exchanges through gloo (launcher/trainer/own/cut/calibrate.py). Other machines differ; these are for a plan that
# is made on none, and rather for what takes longer than for how long.
MEASURED_COLLECTIVES = (
    CollectiveTime("all_reduce", 2, 85e-6, 0.26e-9),
    CollectiveTime("all_reduce", 4, 290e-6, 1.1e-9),
    CollectiveTime("all_gather", 2, 110e-6, 0.11e-9),
    CollectiveTime("all_gather", 4, 310e-6, 0.39e-9),
    CollectiveTime("all_to_all", 2, 135e-6, 2.1e-9),
    CollectiveTime("all_to_all", 4, 440e-6, 4.4e-9),
)


@frozen
class Costs:
    """Measured numbers of the ranks at hand, the slowest one's."""

    flops_per_s: float = 50e9  # of a rank
    bytes_per_s: float = 20e9  # that a rank reads and writes
    operator_s: float = 5e-6  # that each operator takes, and each gradient of an input
    collectives: tuple[CollectiveTime, ...] = MEASURED_COLLECTIVES
    optimizer_states: int = 1  # tensors that the optimizer keeps for each parameter: 1 for momentum, 2 for Adam

    def collective_s(self, kind: Sent | Literal["slice"], ranks: int, size_bytes: float) -> float:
        """Return the time of a collective, or of a slice, that `Collective.bytes` is the size of."""
        if kind == "slice":
            return self.operator_s + 2 * size_bytes / self.bytes_per_s
        return self.fixed_s(kind, ranks) + size_bytes * self._time_of(kind, ranks).s_per_byte

    def fixed_s(self, kind: Sent, ranks: int) -> float:
        """Return what a collective of no bytes takes."""
        return self._time_of(kind, ranks).fixed_s

    def fused_s(self, ranks: int, size_bytes: float) -> float:
        """Return what a gradient adds to the time of the message in which it is summed, copies to it and from it included."""
        return size_bytes * (self._time_of("all_reduce", ranks).s_per_byte + 4 / self.bytes_per_s)

    def updated_s(self, size_bytes: float) -> float:
        """Return the time of the optimizer's update of a parameter: weight and states are read and written, the gradient read."""
        return self.operator_s + size_bytes * (3 + 2 * self.optimizer_states) / self.bytes_per_s

    def _time_of(self, kind: Sent, ranks: int) -> CollectiveTime:
        found = self._times.get((kind, ranks))
        if found is None:  # of the measured sizes the one that is nearest as a ratio
            measured = [each for each in self.collectives if each.kind == kind]
            found = min(measured, key=lambda each: max(each.ranks / ranks, ranks / each.ranks))
            self._times[kind, ranks] = found
        return found

    @cached_property
    def _times(self) -> dict[tuple[Sent, int], CollectiveTime]:
        return {(each.kind, each.ranks): each for each in self.collectives}


@frozen
class Cost:
    """Time of a step, and memory of each rank that lasts from forward to backward."""

    seconds: float
    bytes: float


@frozen
class OperatorCost:
    """The cost of an operator by itself, without the fixed times of the messages in which its parameters' gradients are summed."""

    cost: Cost
    sums: frozenset[TensorLayout]  # which those are (`ranks_that_sum`)


def operator_cost(graph: Graph, operator: Operator, cutting: Cutting, costs: Costs) -> OperatorCost:
    """Return what an operator costs that is cut that way: compute, its own collectives, and the leaves that it takes first."""
    inputs = [
        (graph.by_name[name], prod(layout.cuts)) for name, layout in zip(operator.inputs, cutting.inputs, strict=True)
    ]
    output = bytes_of(operator) / prod(cutting.output.cuts)
    moved = sum(bytes_of(tensor) / cut for tensor, cut in inputs) + output
    worked_s = max(operator.flops / cutting.used / costs.flops_per_s, moved / costs.bytes_per_s)
    once_s = costs.operator_s + (0 if operator.kind in VIEWS else worked_s)
    gradients = sum(name in graph.needs_gradient for name in operator.inputs)
    seconds, sums = once_s * (1 + gradients), set()
    for each in operator_collectives(graph, operator, cutting):
        if may_be_summed_later(graph, operator, each):
            seconds += costs.fused_s(each.group_size, each.bytes)
            sums.add(ranks_that_sum(each))
        else:
            seconds += costs.collective_s(each.kind, each.group_size, each.bytes)
    kept = output if gradients and operator.kind not in VIEWS else 0.0
    for number, (tensor, cut) in enumerate(inputs):
        if isinstance(tensor, Leaf) and takes_first(graph, operator, number):
            held = bytes_of(tensor) / cut
            kept += held * (2 + costs.optimizer_states if tensor.is_parameter else 1)
            seconds += costs.updated_s(held) if tensor.is_parameter else 0.0
    return OperatorCost(Cost(seconds, kept), frozenset(sums))


def redistribution_cost(
    tensor: Leaf | Operator, source: TensorLayout, target: TensorLayout, costs: Costs, *, has_gradient: bool
) -> Cost:
    """Return what it costs that an operator needs a tensor in another layout than it has: forward, backward, and a copy."""
    return passage_cost(
        passage(simplified(source), simplified(target)), bytes_of(tensor), costs, has_gradient=has_gradient
    )


def passage_cost(passage: Passage, size: int, costs: Costs, *, has_gradient: bool) -> Cost:
    """Return what the steps of a redistribution cost for a tensor of so many bytes as a whole."""
    seconds = 0.0
    for each in passage:
        seconds += costs.collective_s(each.kind, each.ranks, size / each.after)
        if has_gradient:
            seconds += costs.collective_s(BACKWARD[each.kind], each.ranks, size / each.before)
    return Cost(seconds, size / passage[-1].after if passage else 0.0)


def cost_of(plan: ShardingPlan, costs: Costs) -> Cost:
    """Return what a whole plan costs, by all that it communicates and all that its operators do."""
    graph, seconds, kept = plan.graph, 0.0, 0.0
    sums: set[TensorLayout] = set()
    for planned in plan.operators:
        own = operator_cost(graph, planned.operator, planned.cutting, costs)
        seconds, kept, sums = seconds + own.cost.seconds, kept + own.cost.bytes, sums | own.sums
        for number, (name, steps) in enumerate(zip(planned.operator.inputs, planned.steps, strict=True)):
            if steps:
                tensor, has_gradient = graph.by_name[name], name in graph.needs_gradient
                source, target = steps[0].before, planned.cutting.inputs[number]
                moved = redistribution_cost(tensor, source, target, costs, has_gradient=has_gradient)
                seconds, kept = seconds + moved.seconds, kept + moved.bytes
    return Cost(seconds + sums_fixed_s(sums, costs), kept)


def sums_fixed_s(sums: Iterable[TensorLayout], costs: Costs) -> float:
    """Return the fixed times of the messages in which gradients of parameters are summed, one for each set of ranks."""
    return sum(sorted(costs.fixed_s("all_reduce", prod(each.cuts)) for each in sums))


def may_be_summed_later(graph: Graph, operator: Operator, collective: Collective) -> bool:
    """Return whether a collective sums the gradient of a parameter after backward, with those of others.

    A parameter that several operators take is counted as if each of them summed its own gradient, which is the most that they do.
    """
    number = collective.gradient_of
    if number is None:
        return False
    tensor = graph.by_name[operator.inputs[number]]
    return isinstance(tensor, Leaf) and tensor.is_parameter and len(graph.consumers[tensor.name]) == 1


def ranks_that_sum(collective: Collective) -> TensorLayout:
    """Return which groups a collective has, as the layout of a dim that is cut over each: equal where the groups are."""
    return simplified(TensorLayout(collective.devices, (tuple(sorted(collective.axes)),)))


def takes_first(graph: Graph, operator: Operator, number: int) -> bool:
    """Return whether an operator is the first that takes a leaf, which is held in the layout that it needs (`plan.first_layout`)."""
    first, its_number = graph.consumers[operator.inputs[number]][0]
    return (first.name, its_number) == (operator.name, number)


def passage(source: TensorLayout, target: TensorLayout) -> Passage:
    """Return the steps from one layout to another, whatever the tensor's shape."""
    return tuple(
        Passed(step.kind, step.parts, prod(step.before.cuts), prod(step.after.cuts))
        for step in steps_between(source, target)
    )
