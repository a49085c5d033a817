"""What plans cost: numbers worked out by hand, and sums over what is communicated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.sharding.cost import CollectiveTime, Costs, step_s
from launcher.sharding.expression import cuttings
from launcher.sharding.layout import groups_along
from launcher.sharding.plan import plan_of
from launcher.sharding.strategy import cutting_of

from .networks import quickstart

GRAPH = quickstart()
KINDS = ("all_reduce", "all_gather", "all_to_all")


def only_messages(fixed_s, s_per_byte):
    """Costs in which compute takes no time."""
    times = tuple(
        CollectiveTime(kind, ranks, fixed_s * ranks * (place + 1), s_per_byte * ranks * (place + 1))
        for place, kind in enumerate(KINDS)
        for ranks in (2, 4, 8)
    )
    return Costs(float("inf"), float("inf"), 0.0, times)


@given(st.data())
def test_time_is_that_of_all_that_is_communicated_and_messages_of_the_same_ranks_are_one(data):
    """Fixed times: gradients of parameters that the same groups sum share one; all else pays its own."""
    chosen = {
        operator.name: data.draw(st.sampled_from(list(cuttings(operator.expression, 8))))
        for operator in GRAPH.operators
    }
    plan = plan_of(GRAPH, chosen, 8)
    fixed, sizes, summed = 0, 0, set()
    for each in plan.collectives():
        weight = {kind: place + 1 for place, kind in enumerate(KINDS)}.get(each.kind, 0) * each.group_size
        sizes += weight * each.bytes
        if each.kind == "all_reduce" and each.what == "gradient of input 1" and each.operator.startswith("matmul"):
            summed.add(frozenset(map(frozenset, groups_along(each.devices, each.axes))))
        else:
            fixed += weight
    fixed += sum(len(next(iter(groups))) for groups in summed)
    assert step_s(plan, only_messages(1.0, 0.0)) == pytest.approx(fixed)
    assert step_s(plan, only_messages(0.0, 1.0)) == pytest.approx(sizes)


def test_compute_worked_out_by_hand():
    """Of the tutorial's strategy on eight ranks: the matmul of (16, 32) and (32, 16) with rows cut by 2 and inner by 4."""
    chosen = {operator.name: cutting_of(operator.expression, all_ones(operator), 8, "") for operator in GRAPH.operators}
    whole = step_s(plan_of(GRAPH, chosen, 8), costs())
    chosen["matmul"] = cutting_of(GRAPH.by_name["matmul"].expression, ((2, 4), (4, 1)), 8, "matmul")
    cut = step_s(plan_of(GRAPH, chosen, 8), costs())
    # Forward, and the weight's gradient: x has none. FLOPs take longer than bytes, at 1 a second and 1e9 a second.
    flops = 2 * 16 * 32 * 16
    assert whole - cut == pytest.approx(2 * (flops - flops / 8), rel=1e-4)


def test_what_only_moves_data_takes_its_bytes():
    """A relu of (16, 16), cut by 8, reads and writes so much less, forward and backward; moving its input costs slices."""
    chosen = {operator.name: cutting_of(operator.expression, all_ones(operator), 8, "") for operator in GRAPH.operators}
    slow = Costs(1e12, 1.0, 0.0, tuple(CollectiveTime(kind, 8, 0.0, 0.0) for kind in KINDS))
    whole = step_s(plan_of(GRAPH, chosen, 8), slow)
    chosen["relu"] = cutting_of(GRAPH.by_name["relu"].expression, ((8, 1),), 8, "relu")
    cut = step_s(plan_of(GRAPH, chosen, 8), slow)
    moved = 2 * 16 * 16 * 4
    slices = 2 * (2 * 16 * 16 * 4 // 8)  # of its input forward, and of the gradient of its output backward
    assert whole - cut == pytest.approx(2 * (moved - moved / 8) - slices)


def test_a_size_of_group_that_was_not_measured_takes_the_nearest():
    found = Costs(collectives=(CollectiveTime("all_reduce", 2, 1.0, 0.0), CollectiveTime("all_reduce", 8, 4.0, 0.0)))
    assert [found.fixed_s("all_reduce", ranks) for ranks in (2, 3, 6, 8, 64)] == [1.0, 1.0, 4.0, 4.0, 4.0]


def all_ones(operator):
    return operator.expression.strategy_of({})


def costs():
    return Costs(1.0, 1e9, 0.0, tuple(CollectiveTime(kind, 8, 0.0, 0.0) for kind in KINDS))
