"""The strategy report of a sharding plan: what each rank will hold and communicate, computed before a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from launcher.sharding.graph import Graph, Leaf
from launcher.sharding.layout import TensorLayout
from launcher.sharding.plan import PlannedOperator, ShardingPlan
from launcher.sharding.strategy_report import ReportCollective, ReportEdge, ReportOperator, ReportTensor, StrategyReport


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
    """Return one rank's report for a plan; `more`: its other communication, such as the optimizer's sums.

    With several copies of the plan, rank r of copy c is the run's rank c * plan.ranks + r.
    """
    first = copy * plan.ranks
    return StrategyReport(
        recipe,
        layout,
        plan.ranks * copies,
        first + rank,
        tuple(_operator(plan.graph, planned, rank) for planned in plan.operators),
        tuple(_edges(plan)),
        (*_collectives(plan, rank, first), *more),
        attempt=attempt,
    )


def _operator(graph: Graph, planned: PlannedOperator, rank: int) -> ReportOperator:
    operator, cutting = planned.operator, planned.cutting
    inputs = tuple(
        _tensor(graph, name, layout, dims, rank)
        for name, layout, dims in zip(operator.inputs, cutting.inputs, cutting.expression.inputs, strict=True)
    )
    output = _tensor(graph, operator.name, cutting.output, cutting.expression.output, rank)
    return ReportOperator(operator.name, operator.kind, inputs, output)


def _tensor(graph: Graph, name: str, layout: TensorLayout, indices: Sequence[str | None], rank: int) -> ReportTensor:
    tensor = graph.by_name[name]
    box = layout.box_of(rank, tensor.shape)
    by = tuple(index if index is not None and cut > 1 else "" for index, cut in zip(indices, layout.cuts, strict=True))
    is_parameter = isinstance(tensor, Leaf) and tensor.is_parameter
    return ReportTensor(name, tensor.shape, layout.cuts, by, box.size, box.start, is_parameter)


def _edges(plan: ShardingPlan) -> Iterator[ReportEdge]:
    for planned in plan.operators:
        for number, (name, steps) in enumerate(zip(planned.operator.inputs, planned.steps, strict=True)):
            source = plan.graph.by_name[name]
            if isinstance(source, Leaf) and source.is_parameter:
                continue
            yield ReportEdge(name, planned.operator.name, number, tuple(step.kind for step in steps))


def _collectives(plan: ShardingPlan, rank: int, first: int) -> Iterator[ReportCollective]:
    counts: Counter[ReportCollective] = Counter()
    for each in plan.collectives():
        group = tuple(first + member for member in each.group_of(rank))
        one = ReportCollective(each.operator, each.phase, each.kind, group, each.bytes, 1, each.what)
        counts[one] += each.count
    for one, count in counts.items():
        yield ReportCollective(one.operator, one.phase, one.kind, one.group, one.bytes, count, one.what)
