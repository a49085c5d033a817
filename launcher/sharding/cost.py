"""Estimate a sharding plan's time per step, from shapes and a few measured numbers.

    an operator      a fixed time, and the longer of: FLOPs over the rate, bytes read and written over the memory's bandwidth;
                     once forward, and once backward for each input that has a gradient
    a collective     a fixed time for the group size, and a time per byte; both depend on the kind
    a parameter      its gradient and the optimizer's update, per byte; gradients summed by the same ranks share one message
                     and its fixed time

Repeated work counts on every rank: a partition is only cheaper if each rank computes less. The longer of
two times is the roofline model (Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785); a fixed time and
one for each byte is the usual model of messages (Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521).
The model assumes no overlap of communication and computation, as with blocking collectives.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Literal

from launcher.core.frozen import frozen
from launcher.sharding.expression import Partition
from launcher.sharding.graph import VIEWS, Graph, Leaf, Operator, bytes_of
from launcher.sharding.layout import TensorLayout, simplified
from launcher.sharding.plan import Collective, ShardingPlan, operator_collectives
from launcher.sharding.redistribution import BACKWARD, steps_between

Sent = Literal["all_reduce", "all_gather", "all_to_all"]


@frozen
class Passed:
    """The kind of a redistribution step, its group size, and the number of parts before and after it."""

    kind: Literal["slice", "all_gather", "all_to_all"]
    ranks: int
    before: int
    after: int


Passage = tuple[Passed, ...]


@frozen
class CollectiveTime:
    """The time of a collective in groups of `ranks` ranks: `fixed_s`, plus `s_per_byte` for each byte."""

    kind: Sent
    ranks: int
    fixed_s: float
    s_per_byte: float


# Measured with two and with four single-threaded ranks on two cores of an AMD EPYC. Collectives used shared memory,
# exchanges gloo (launcher/trainer/own/cut/calibrate.py). Other machines differ. These defaults are for plans made without
# ranks; use them to compare rather than to predict times.
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
    """Measured speeds of the slowest rank, used to estimate the time of a step."""

    flops_per_s: float = 50e9  # per rank
    bytes_per_s: float = 20e9  # read and written by one rank
    operator_s: float = 5e-6  # per operator, and per gradient of an input
    collectives: tuple[CollectiveTime, ...] = MEASURED_COLLECTIVES
    optimizer_states: int = 1  # optimizer tensors per parameter: 1 for momentum, 2 for Adam

    def collective_s(self, kind: Sent | Literal["slice"], ranks: int, size_bytes: float) -> float:
        """Return the time of a collective or a slice. `size_bytes` is counted as in `Collective.bytes`."""
        if kind == "slice":
            return self.operator_s + 2 * size_bytes / self.bytes_per_s
        return self.fixed_s(kind, ranks) + size_bytes * self._time_of(kind, ranks).s_per_byte

    def fixed_s(self, kind: Sent, ranks: int) -> float:
        """Return the part of a collective's time that does not depend on its size."""
        return self._time_of(kind, ranks).fixed_s

    def fused_s(self, ranks: int, size_bytes: float) -> float:
        """Return the time that one gradient adds to a fused message, including the copies into and out of it."""
        return size_bytes * (self._time_of("all_reduce", ranks).s_per_byte + 4 / self.bytes_per_s)

    def updated_s(self, size_bytes: float) -> float:
        """Return the time of an optimizer update: reading the gradient, reading and writing the weight and states."""
        return self.operator_s + size_bytes * (3 + 2 * self.optimizer_states) / self.bytes_per_s

    def _time_of(self, kind: Sent, ranks: int) -> CollectiveTime:
        found = self._times.get((kind, ranks))
        if found is None:  # the measured size with the nearest ratio
            measured = [each for each in self.collectives if each.kind == kind]
            found = min(measured, key=lambda each: max(each.ranks / ranks, ranks / each.ranks))
            self._times[kind, ranks] = found
        return found

    @cached_property
    def _times(self) -> dict[tuple[Sent, int], CollectiveTime]:
        return {(each.kind, each.ranks): each for each in self.collectives}


@frozen
class OperatorCost:
    """The time of one operator, without the fixed times of the messages that sum parameter gradients."""

    seconds: float
    sums: frozenset[TensorLayout]  # the ranks that share these messages (`ranks_that_sum`)


def operator_cost(graph: Graph, operator: Operator, cutting: Partition, costs: Costs) -> OperatorCost:
    """Return an operator's time with this partition, including updates of parameters that the operator uses first."""
    inputs = [
        (graph.by_name[name], prod(layout.cuts)) for name, layout in zip(operator.inputs, cutting.inputs, strict=True)
    ]
    moved = sum(bytes_of(tensor) / cut for tensor, cut in inputs) + bytes_of(operator) / prod(cutting.output.cuts)
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
    for number, (tensor, cut) in enumerate(inputs):
        if isinstance(tensor, Leaf) and tensor.is_parameter and takes_first(graph, operator, number):
            seconds += costs.updated_s(bytes_of(tensor) / cut)
    return OperatorCost(seconds, frozenset(sums))


def passage_s(passage: Passage, size: int, costs: Costs, *, has_gradient: bool) -> float:
    """Return the time to redistribute a tensor in the forward pass and, if it has a gradient, in the backward pass."""
    seconds = 0.0
    for each in passage:
        seconds += costs.collective_s(each.kind, each.ranks, size / each.after)
        if has_gradient:
            seconds += costs.collective_s(BACKWARD[each.kind], each.ranks, size / each.before)
    return seconds


def step_s(plan: ShardingPlan, costs: Costs) -> float:
    """Return the estimated time of a training step with this plan: all operators and all communication."""
    graph, seconds = plan.graph, 0.0
    sums: set[TensorLayout] = set()
    for planned in plan.operators:
        own = operator_cost(graph, planned.operator, planned.cutting, costs)
        seconds, sums = seconds + own.seconds, sums | own.sums
        for number, (name, steps) in enumerate(zip(planned.operator.inputs, planned.steps, strict=True)):
            if steps:
                size, has_gradient = bytes_of(graph.by_name[name]), name in graph.needs_gradient
                route = passage(simplified(steps[0].before), simplified(planned.cutting.inputs[number]))
                seconds += passage_s(route, size, costs, has_gradient=has_gradient)
    # The messages that sum parameter gradients, one per set of ranks
    fixed_s = sum(sorted(costs.fixed_s("all_reduce", prod(each.cuts)) for each in sums))
    return seconds + fixed_s


def may_be_summed_later(graph: Graph, operator: Operator, collective: Collective) -> bool:
    """Return True if a collective sums the gradient of a parameter that only one operator uses.

    Such sums share messages after backward. Otherwise every operator is assumed to sum its own gradient (worst case).
    """
    number = collective.gradient_of
    if number is None:
        return False
    tensor = graph.by_name[operator.inputs[number]]
    return tensor.is_parameter and len(graph.consumers[tensor.name]) == 1


def ranks_that_sum(collective: Collective) -> TensorLayout:
    """Return a layout that serves as a key for a collective's groups of ranks. Equal groups give equal layouts."""
    return simplified(TensorLayout(collective.devices, (tuple(sorted(collective.axes)),)))


def takes_first(graph: Graph, operator: Operator, number: int) -> bool:
    """Return True if this input is the first use of a leaf tensor. The first use determines how the leaf is stored."""
    first, its_number = graph.consumers[operator.inputs[number]][0]
    return (first.name, its_number) == (operator.name, number)


def passage(source: TensorLayout, target: TensorLayout) -> Passage:
    """Return the redistribution steps between two layouts, in a form that does not depend on the tensor's shape."""
    return tuple(
        Passed(step.kind, step.parts, prod(step.before.cuts), prod(step.after.cuts))
        for step in steps_between(source, target)
    )
