"""Propagation and plans: the tutorial's listing, and what holds for any strategies that are given."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.sharding.expression import cuttings
from launcher.sharding.graph import Graph, Leaf
from launcher.sharding.plan import plan_of
from launcher.sharding.propagation import propagated
from launcher.sharding.strategy import cutting_of

from .networks import matmul, quickstart

GRAPH = quickstart()


def given_to(name, strategy, ranks):
    return {name: cutting_of(GRAPH.by_name[name].expression, strategy, ranks, name)}


def test_the_listing_of_the_tutorial():
    found = propagated(GRAPH, given_to("matmul", ((2, 4), (4, 1)), 8), 8)
    assert {name: found[name].strategy for name in ("matmul", "relu", "matmul2")} == {
        "matmul": ((2, 4), (4, 1)),
        "relu": ((2, 4),),
        "matmul2": ((2, 4), (4, 1)),
    }
    forward = [each for each in plan_of(GRAPH, found, 8).collectives() if each.phase == "forward"]
    assert [(each.operator, each.kind, each.group_of(1), each.group_of(6), each.bytes) for each in forward[:2]] == [
        ("matmul", "all_reduce", (0, 1, 2, 3), (4, 5, 6, 7), 8 * 16 * 4),
        ("relu", "slice", (0, 1, 2, 3), (4, 5, 6, 7), 8 * 4 * 4),
    ]


def test_nothing_given_is_data_parallel():
    found = propagated(GRAPH, {}, 8)
    assert [each.strategy[0] for each in found.values()] == [(8, 1)] * 6
    told = [(each.phase, each.operator, each.what) for each in plan_of(GRAPH, found, 8).collectives()]
    assert told == [
        ("forward", "mean", "output"),
        ("backward", "matmul2", "gradient of input 1"),
        ("backward", "matmul", "gradient of input 1"),
    ]


def test_backward_is_forward_in_reverse_and_sums_of_parameters_are_last():
    """What the tutorial's strategies communicate, in order: the slice of relu is gathered again, and weights are summed after all."""
    plan = plan_of(GRAPH, propagated(GRAPH, given_to("matmul", ((2, 4), (4, 1)), 8), 8), 8)
    told = [(each.kind, each.operator, each.what) for each in plan.collectives()]
    assert told == [
        ("all_reduce", "matmul", "output"),
        ("slice", "relu", "input 0"),
        ("all_reduce", "matmul2", "output"),
        ("slice", "sub", "input 0"),
        ("all_reduce", "mean", "output"),
        ("all_gather", "sub", "gradient of input 0"),
        ("all_gather", "relu", "gradient of input 0"),
        ("all_reduce", "matmul2", "gradient of input 1"),
        ("all_reduce", "matmul", "gradient of input 1"),
    ]
    assert [each.parameters for each in plan.parameter_sums] == [("weight2", "weight")]


def test_a_parameter_that_is_needed_in_two_ways_is_summed_where_it_is_used():
    graph = Graph(
        leaves=(Leaf("x", (16, 16), is_parameter=False), Leaf("w", (16, 16), is_parameter=True)),
        operators=(
            matmul("one", "x", "w", rows=16, inner=16, columns=16),
            matmul("two", "one", "w", rows=16, inner=16, columns=16),
        ),
        output="two",
    )
    for strategies, count in (((((4, 1), (1, 1)), ((4, 1), (1, 1))), 1), ((((4, 1), (1, 1)), ((1, 4), (4, 1))), 0)):
        found = {
            name: cutting_of(graph.by_name[name].expression, strategy, 4, name)
            for name, strategy in zip(("one", "two"), strategies, strict=True)
        }
        plan = plan_of(graph, found, 4)
        assert (len(plan.parameter_sums), plan.is_summed_later("w")) == (count, count == 1)
        summed = [each.operator for each in plan.collectives() if each.gradient_of == 1]
        assert summed == (["two"] if count else ["one"])


def test_one_in_the_middle_reaches_both_sides():
    found = propagated(GRAPH, given_to("relu", ((1, 8),), 8), 8)
    assert (found["matmul"].strategy, found["matmul2"].strategy) == (((1, 1), (1, 8)), ((1, 8), (8, 1)))


@given(st.sampled_from([1, 2, 4, 8]), st.data())
def test_what_is_given_stays_and_every_operator_gets_one(ranks, data):
    names = data.draw(st.sets(st.sampled_from([each.name for each in GRAPH.operators])))
    chosen = {name: data.draw(st.sampled_from(list(cuttings(GRAPH.by_name[name].expression, ranks)))) for name in names}
    found = propagated(GRAPH, chosen, ranks)
    assert list(found) == [each.name for each in GRAPH.operators]
    assert {name: found[name] for name in chosen} == chosen
    plan = plan_of(GRAPH, found, ranks)
    assert all(1 < each.group_size <= ranks for each in plan.collectives())
