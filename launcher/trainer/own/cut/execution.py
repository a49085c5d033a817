"""Builds the functions that run a sharded network on one rank: one per operator, including its communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from launcher.core.frozen import frozen
from launcher.sharding.plan import PlannedOperator, ShardingPlan
from launcher.trainer.own.cut.communication import Function, redistribution, sum_of_gradients, sum_of_outputs
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.operator_graph import Traced
from launcher.trainer.own.cut.operators.products import TAKES_BIAS
from launcher.trainer.own.cut.operators.record import Local, OpContext
from launcher.trainer.parallel.collectives import ALONE


@frozen
class Stage:
    """The computation of one operator on this rank. Its inputs and its output are indices into a list of tensors."""

    compute: Local
    inputs: tuple[int, ...]
    output: int
    last_used: tuple[int, ...]  # values that no later stage needs


class StageMaker:
    """Builds the stages that compute a sharded network on this rank."""

    def __init__(self, traced: Traced, plan: ShardingPlan, groups: Groups, held: Mapping[str, Tensor]) -> None:
        self._traced, self._plan, self._groups, self._held = traced, plan, groups, held
        self.places = {name: place for place, name in enumerate(plan.graph.by_name)}  # of tensors among all values

    def stages(self) -> list[Stage]:
        """Return the stages in the order of computation. All ranks must call it, since it opens process groups."""
        operators = self._plan.operators
        last = {name: place for place, planned in enumerate(operators) for name in planned.operator.inputs}
        stages: list[Stage] = []
        product: list[PlannedOperator] = []  # the operator before, if its bias is added in the same stage
        for number, planned in enumerate(operators):
            if any(self._adds_bias(planned, following) for following in operators[number + 1 : number + 2]):
                product = [planned]
                continue
            parts, product = [*product, planned], []
            names = [name for part in parts for name in part.operator.inputs if name != parts[0].operator.name]
            done = {name for name in names if last[name] <= number and name not in self._held}
            stages.append(
                Stage(
                    self._computed(parts),
                    tuple(self.places[name] for name in names),
                    self.places[planned.operator.name],
                    tuple(self.places[name] for name in done),
                )
            )
        return stages

    def _adds_bias(self, product: PlannedOperator, following: PlannedOperator) -> bool:
        """Return True if `following` adds the bias of `product`, and one stage can compute both."""
        return (
            product.operator.kind in TAKES_BIAS
            and following.operator.kind == "bias_add"
            and following.operator.inputs[0] == product.operator.name
            and len(self._plan.graph.consumers[product.operator.name]) == 1
            and not product.cutting.reduced_axes
            and not following.steps[0]
            and product.operator.name != self._plan.graph.output
        )

    def _computed(self, parts: Sequence[PlannedOperator]) -> Local:
        """Return a function that computes one operator, or a product and its bias, including communication."""
        first, last = parts[0], parts[-1]
        before = self._before(first)
        if first is not last:
            before = [*before, self._before(last)[1]]
        graph, cutting, call = self._plan.graph, first.cutting, self._traced.calls[first.operator.name]
        shapes = tuple(graph.by_name[name].shape for name in first.operator.inputs)
        shared = self._groups.along(cutting.devices, cutting.shared_axes) if cutting.shared_axes else ALONE
        states = tuple(self._held[state.name] for state in call.states)
        local = call.local(OpContext(cutting, self._groups.rank, shapes, first.operator.shape, shared, states))
        after = None
        if last.cutting.reduced_axes:
            after = sum_of_outputs(self._groups.along(last.cutting.devices, last.cutting.reduced_axes))
        if not any(before):
            return local if after is None else lambda *values: after(local(*values))

        def computed(*values: Tensor) -> Tensor:
            arguments = []
            for value, functions in zip(values, before, strict=True):
                argument = value
                for function in functions:
                    argument = function(argument)
                arguments.append(argument)
            return local(*arguments) if after is None else after(local(*arguments))

        return computed

    def _before(self, planned: PlannedOperator) -> list[list[Function]]:
        """Return the communication functions that are applied to each input of an operator, in order."""
        graph, groups = self._plan.graph, self._groups
        found: list[list[Function]] = []
        for number, (name, steps) in enumerate(zip(planned.operator.inputs, planned.steps, strict=True)):
            has_gradient = name in graph.needs_gradient
            found.append([redistribution(step, groups, has_gradient=has_gradient) for step in steps])
            axes = planned.cutting.gradient_axes(number)
            is_later = name in self._traced.parameters and self._plan.is_summed_later(name)
            if axes and has_gradient and not is_later:
                found[-1].append(sum_of_gradients(groups.along(planned.cutting.devices, axes)))
        return found
