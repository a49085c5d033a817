"""The sharding plan of a graph: the partition of each operator, the layout of each tensor, and the communication.

An operator takes its inputs in the layouts of its strategy. A tensor in another layout is redistributed first. Partial
sums of an output are added at once, so tensors between operators are replicated or split, never partial sums. Gradients
follow the same rules: the gradient of an input that lacks a cut index is summed, and a redistribution is undone by its
steps in reverse. Gradients of parameters are summed after backward, together for the same ranks. Exception: if
operators need a parameter in different layouts, its gradients are summed where each is computed.

Backward is the exact reverse of forward, so a plan lists its collectives in the order of execution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Literal

from launcher.core.frozen import frozen
from launcher.sharding.expression import Partition
from launcher.sharding.graph import Graph, Leaf, Operator
from launcher.sharding.layout import TensorLayout, group_along, groups_along
from launcher.sharding.redistribution import BACKWARD, Step, steps_between
from launcher.sharding.strategy_report import ReportCollective, ReportEdge, ReportOperator, ReportTensor, StrategyReport

Phase = Literal["forward", "backward"]


@frozen
class Collective:
    """A collective operation that each rank runs with its group, or a slice, which needs no communication."""

    kind: Literal["all_reduce", "all_gather", "all_to_all", "slice"]
    phase: Phase
    operator: str
    what: str  # the tensor summed or redistributed: "output", "gradient of input 1", "input 0"
    devices: tuple[int, ...]  # the device matrix
    axes: tuple[int, ...]  # along which the ranks of a group differ
    bytes: int  # of the tensor on one rank: summed, gathered (after), exchanged, or left by a slice
    count: int = 1
    gradient_of: int | None = None  # the input whose gradient is summed, if any

    @property
    def group_size(self) -> int:
        return prod(self.devices[axis] for axis in self.axes)

    def group_of(self, rank: int) -> tuple[int, ...]:
        return group_along(self.devices, self.axes, rank)


@frozen
class PlannedOperator:
    operator: Operator
    cutting: Partition
    steps: tuple[tuple[Step, ...], ...]  # the steps that bring each input into the required layout


@frozen
class ParameterSum:
    """Parameters whose gradients are summed over the same groups of ranks, in one message after backward."""

    devices: tuple[int, ...]
    axes: tuple[int, ...]
    parameters: tuple[str, ...]


@frozen
class ShardingPlan:
    graph: Graph
    ranks: int
    operators: tuple[PlannedOperator, ...]  # in the graph's order
    leaves: Mapping[str, TensorLayout]  # the layouts of parameters and of the network's inputs

    def collectives(self) -> Iterator[Collective]:
        """Yield all collectives of a step in execution order: forward, backward, then gradient sums of parameters.

        A message of `parameter_sums` carries several gradients, but each gradient is listed separately.
        """
        told = {planned.operator.name: list(self._collectives_of(planned)) for planned in self.operators}
        for planned in self.operators:
            yield from (each for each in told[planned.operator.name] if each.phase == "forward")
        summed_later = {name for each in self.parameter_sums for name in each.parameters}
        later: dict[str, Collective] = {}
        for planned in self.operators[::-1]:
            for each in reversed(told[planned.operator.name]):
                if each.phase == "backward":
                    number = each.gradient_of
                    name = None if number is None else planned.operator.inputs[number]
                    if name in summed_later:
                        later.setdefault(name, each)
                    else:
                        yield each
        for sums in self.parameter_sums:
            yield from (later[name] for name in sums.parameters)

    def _collectives_of(self, planned: PlannedOperator) -> Iterator[Collective]:
        """Yield the collectives of an operator in forward order, including redistributions of its inputs.

        The sum of an input's gradient is listed after the redistribution of that input in forward.
        """
        own = list(operator_collectives(self.graph, planned.operator, planned.cutting))
        for number, steps in enumerate(planned.steps):
            yield from step_collectives(self.graph, planned.operator, number, steps)
            yield from (each for each in own if each.gradient_of == number)
        yield from (each for each in own if each.gradient_of is None)

    @cached_property
    def parameter_sums(self) -> tuple[ParameterSum, ...]:
        """The messages that sum parameter gradients after backward, in the order they are sent."""
        found: dict[tuple[tuple[int, ...], ...], ParameterSum] = {}
        for planned in self.operators[::-1]:
            for number, name in reversed(list(enumerate(planned.operator.inputs))):
                uses = self._parameter_uses.get(name)
                if uses is None or planned.operator.name != uses[-1][0] or number != uses[-1][1]:
                    continue
                cutting = planned.cutting
                axes = cutting.gradient_axes(number)
                groups = groups_along(cutting.devices, axes)
                if axes and self.is_summed_later(name):
                    before = found.get(groups, ParameterSum(cutting.devices, axes, ()))
                    found[groups] = ParameterSum(before.devices, before.axes, (*before.parameters, name))
        return tuple(found.values())

    def is_summed_later(self, parameter: str) -> bool:
        """Return True if all operators use a parameter as it is stored and sum its gradient over the same ranks."""
        uses = self._parameter_uses[parameter]
        return len({groups for _, _, groups in uses}) == 1 and all(
            not planned.steps[number]
            for planned in self.operators
            for number, name in enumerate(planned.operator.inputs)
            if name == parameter
        )

    @cached_property
    def _parameter_uses(self) -> Mapping[str, tuple[tuple[str, int, tuple[tuple[int, ...], ...]], ...]]:
        """Map each parameter to its uses: the operator, its input index, and the groups that sum the gradient."""
        found: dict[str, list[tuple[str, int, tuple[tuple[int, ...], ...]]]] = {
            leaf.name: [] for leaf in self.graph.leaves if leaf.is_parameter
        }
        for planned in self.operators:
            for number, name in enumerate(planned.operator.inputs):
                if name in found:
                    groups = groups_along(planned.cutting.devices, planned.cutting.gradient_axes(number))
                    found[name].append((planned.operator.name, number, groups))
        return {name: tuple(uses) for name, uses in found.items()}


def plan_of(graph: Graph, cuttings: Mapping[str, Partition], ranks: int) -> ShardingPlan:
    """Return the sharding plan for the given partitions. `cuttings` must contain a partition for every operator."""
    leaves = {name: first_layout(graph, name, cuttings) for name in (leaf.name for leaf in graph.leaves)}
    held = {**leaves, **{each.name: cuttings[each.name].output for each in graph.operators}}
    planned = tuple(
        PlannedOperator(
            operator,
            cuttings[operator.name],
            tuple(
                steps_between(held[name], layout)
                for name, layout in zip(operator.inputs, cuttings[operator.name].inputs, strict=True)
            ),
        )
        for operator in graph.operators
    )
    return ShardingPlan(graph, ranks, planned, leaves)


def first_layout(graph: Graph, leaf: str, cuttings: Mapping[str, Partition]) -> TensorLayout:
    """Return the stored layout of a leaf tensor. It is the layout that the first operator using the leaf needs."""
    operator, number = graph.consumers[leaf][0]
    return cuttings[operator.name].inputs[number]


def operator_collectives(graph: Graph, operator: Operator, cutting: Partition) -> Iterator[Collective]:
    """Yield an operator's own collectives: for its statistics, its output, and the gradients of its inputs."""
    devices, item_bytes = cutting.devices, operator.item_bytes
    is_trained = operator.name in graph.needs_gradient
    if cutting.shared_axes:
        # Statistics have the dims that are not shared: those of the last input, batch norm's bias. Forward gathers
        # mean, variance and element count; backward sums the two sums that the input's gradient needs.
        size = 2 * prod(cutting.inputs[-1].local_shape(graph.by_name[operator.inputs[-1]].shape)) * item_bytes
        axes, what = cutting.shared_axes, "statistics"
        of_all = (size + item_bytes) * prod(devices[axis] for axis in axes)
        yield Collective("all_gather", "forward", operator.name, what, devices, axes, of_all)
        if is_trained:
            yield Collective("all_reduce", "backward", operator.name, what, devices, axes, size)
    if cutting.reduced_axes:
        size = prod(cutting.output.local_shape(operator.shape)) * item_bytes
        yield Collective("all_reduce", "forward", operator.name, "output", devices, cutting.reduced_axes, size)
    for number, name in enumerate(operator.inputs):
        axes = cutting.gradient_axes(number)
        if axes and name in graph.needs_gradient:
            tensor = graph.by_name[name]
            size = prod(cutting.inputs[number].local_shape(tensor.shape)) * tensor.item_bytes
            what = f"gradient of input {number}"
            yield Collective("all_reduce", "backward", operator.name, what, devices, axes, size, gradient_of=number)


def step_collectives(graph: Graph, operator: Operator, number: int, steps: Sequence[Step]) -> Iterator[Collective]:
    """Yield the collectives that redistribute an input in forward and the input's gradient, if any, in backward."""
    tensor = graph.by_name[operator.inputs[number]]
    is_trained = tensor.name in graph.needs_gradient
    for step in steps:
        before = prod(step.before.local_shape(tensor.shape)) * tensor.item_bytes
        after = prod(step.after.local_shape(tensor.shape)) * tensor.item_bytes
        devices, what = step.before.devices, f"input {number}"
        yield Collective(step.kind, "forward", operator.name, what, devices, step.axes, after)
        if is_trained:
            what = f"gradient of {what}"
            yield Collective(BACKWARD[step.kind], "backward", operator.name, what, devices, step.axes, before)


def parameters_of(plan: ShardingPlan) -> Iterator[tuple[Leaf, TensorLayout]]:
    for leaf in plan.graph.leaves:
        if leaf.is_parameter:
            yield leaf, plan.leaves[leaf.name]


def plan_report(
    plan: ShardingPlan,
    rank: int,
    *,
    recipe: str,
    layout: str,
    more: Iterable[ReportCollective] = (),
    attempt: int = 0,
    copy: int = 0,
    copies: int = 1,
) -> StrategyReport:
    """Return the strategy report of one rank. `more` are additional collectives, such as the optimizer's.

    With several copies of the plan, rank r of copy c is the run's rank c * plan.ranks + r.
    """
    first = copy * plan.ranks
    return StrategyReport(
        recipe,
        layout,
        plan.ranks * copies,
        first + rank,
        tuple(_reported(plan.graph, planned, rank) for planned in plan.operators),
        tuple(
            ReportEdge(name, planned.operator.name, number, tuple(step.kind for step in steps))
            for planned in plan.operators
            for number, (name, steps) in enumerate(zip(planned.operator.inputs, planned.steps, strict=True))
            if not plan.graph.by_name[name].is_parameter
        ),
        (*_reported_collectives(plan, rank, first), *more),
        attempt=attempt,
    )


def _reported(graph: Graph, planned: PlannedOperator, rank: int) -> ReportOperator:
    operator, cutting = planned.operator, planned.cutting
    inputs = tuple(
        _reported_tensor(graph, name, layout, dims, rank)
        for name, layout, dims in zip(operator.inputs, cutting.inputs, cutting.expression.inputs, strict=True)
    )
    output = _reported_tensor(graph, operator.name, cutting.output, cutting.expression.output, rank)
    return ReportOperator(operator.name, operator.kind, inputs, output)


def _reported_tensor(
    graph: Graph, name: str, layout: TensorLayout, indices: Sequence[str | None], rank: int
) -> ReportTensor:
    tensor = graph.by_name[name]
    box = layout.box_of(rank, tensor.shape)
    by = tuple(index if index is not None and cut > 1 else "" for index, cut in zip(indices, layout.cuts, strict=True))
    return ReportTensor(name, tensor.shape, layout.cuts, by, box.size, box.start, tensor.is_parameter)


def _reported_collectives(plan: ShardingPlan, rank: int, first: int) -> Iterator[ReportCollective]:
    counts: Counter[ReportCollective] = Counter()
    for each in plan.collectives():
        group = tuple(first + member for member in each.group_of(rank))
        one = ReportCollective(each.operator, each.phase, each.kind, group, each.bytes, 1, each.what)
        counts[one] += each.count
    for one, count in counts.items():
        yield ReportCollective(one.operator, one.phase, one.kind, one.group, one.bytes, count, one.what)
