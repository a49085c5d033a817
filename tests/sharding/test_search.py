"""The search: as cheap as the cheapest of all assignments, and in time for networks of today's sizes."""

from itertools import product
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from launcher.sharding.cost import CollectiveTime, Costs, step_s
from launcher.sharding.expression import cuttings
from launcher.sharding.graph import Graph, Leaf, Operator
from launcher.sharding.plan import plan_of
from launcher.sharding.propagation import propagated
from launcher.sharding.search import searched
from launcher.sharding.strategy import cutting_of

from .large import attention, resnet50
from .networks import elementwise, matmul, quickstart

SIZE = 4
MAX_ASSIGNMENTS = 1500


@st.composite
def networks(draw):
    """A few operators on square matrices, with branches, parameters that several take, and inputs that are taken twice."""
    leaves = [Leaf("x", (SIZE, SIZE), is_parameter=False)]
    leaves += [Leaf(name, (SIZE, SIZE), is_parameter=True) for name in ("v", "w")]
    tensors, operators = ["x"], []
    for number in range(draw(st.integers(1, 4))):
        name, kind = f"op{number}", draw(st.sampled_from(["matmul", "relu", "add"]))
        newest, other = tensors[-1], draw(st.sampled_from(tensors))
        if kind == "matmul":
            weight = draw(st.sampled_from(["v", "w", other]))
            operators.append(matmul(name, newest, weight, rows=SIZE, inner=SIZE, columns=SIZE))
        else:
            operators.append(elementwise(name, kind, (newest, other) if kind == "add" else (newest,), SIZE, SIZE))
        tensors.append(name)
    taken = {name for operator in operators for name in operator.inputs}
    return Graph(tuple(leaf for leaf in leaves if leaf.name in taken), tuple(operators), tensors[-1])


@st.composite
def machines(draw):
    """Costs in which anything may be what counts."""
    times = st.sampled_from([0.0, 0.1, 1.0, 2.5])
    collectives = tuple(
        CollectiveTime(kind, ranks, draw(times), draw(times) / 64)
        for kind in ("all_reduce", "all_gather", "all_to_all")
        for ranks in (2, 4)
    )
    rate, bandwidth = draw(st.sampled_from([20.0, 100.0, 1000.0])), draw(st.sampled_from([30.0, 100.0, 1e6]))
    return Costs(rate, bandwidth, draw(times), collectives)


TWO_MATMULS = Graph(
    (
        Leaf("x", (SIZE, SIZE), is_parameter=False),
        *(Leaf(name, (SIZE, SIZE), is_parameter=True) for name in ("v", "w")),
    ),
    (
        matmul("first", "x", "v", rows=SIZE, inner=SIZE, columns=SIZE),
        matmul("second", "first", "w", rows=SIZE, inner=SIZE, columns=SIZE),
    ),
    "second",
)


def assignments(graph, ranks):
    ways = [list(cuttings(operator.expression, ranks)) for operator in graph.operators]
    assume(prod(map(len, ways)) <= MAX_ASSIGNMENTS)
    names = [operator.name for operator in graph.operators]
    return [dict(zip(names, chosen, strict=True)) for chosen in product(*ways)]


def assert_cheapest(found, among, graph, ranks, costs):
    least = min(step_s(plan_of(graph, each, ranks), costs) for each in among)
    assert step_s(plan_of(graph, found, ranks), costs) == pytest.approx(least, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(networks(), st.sampled_from([2, 3, 4]), machines())
def test_no_assignment_is_cheaper(graph, ranks, costs):
    assert_cheapest(searched(graph, {}, ranks, costs), assignments(graph, ranks), graph, ranks, costs)


@settings(max_examples=100, deadline=None)
@given(machines())
def test_messages_that_sum_several_gradients_are_paid_for_once(costs):
    """Of two weights on four ranks, whose gradients three sets of ranks can sum: found only if the message is weighed as a whole."""
    assert_cheapest(searched(TWO_MATMULS, {}, 4, costs), assignments(TWO_MATMULS, 4), TWO_MATMULS, 4, costs)


@settings(max_examples=40, deadline=None)
@given(networks(), machines(), st.data())
def test_what_is_given_stays_and_the_rest_is_cheapest(graph, costs, data):
    operator = data.draw(st.sampled_from(graph.operators))
    fixed = {operator.name: data.draw(st.sampled_from(list(cuttings(operator.expression, 2))))}
    among = [each for each in assignments(graph, 2) if each[operator.name] == fixed[operator.name]]
    found = searched(graph, fixed, 2, costs)
    assert found[operator.name] == fixed[operator.name]
    assert_cheapest(found, among, graph, 2, costs)


def test_a_large_weight_is_cut_and_a_large_batch_is_cut():
    """Where the weights have more elements than the activations they are not summed, and the other way round."""
    costs, wide = Costs(), quickstart(rows=8, inner=4096, hidden=4096, columns=4096)
    told = plan_of(wide, searched(wide, {}, 8, costs), 8).collectives()
    assert not any(each.kind == "all_reduce" and "gradient of input 1" in each.what for each in told)
    long = quickstart(rows=65536, inner=64, hidden=64, columns=64)
    assert searched(long, {}, 8, costs) == propagated(long, {}, 8)


def test_one_rank_cuts_nothing():
    assert {each.used for each in searched(quickstart(), {}, 1, Costs()).values()} == {1}


def test_a_given_strategy_that_leaves_ranks_over_stays():
    graph = quickstart()
    matmul2: Operator = graph.by_name["matmul2"]
    fixed = {"matmul2": cutting_of(matmul2.expression, ((2, 1), (1, 2)), 8, "matmul2")}
    assert searched(graph, fixed, 8, Costs())["matmul2"] == fixed["matmul2"]


@pytest.mark.parametrize(("network", "ranks"), [(resnet50, 8), (attention, 8)])
def test_large_networks_are_searched_and_cost_no_more_than_data_parallelism(network, ranks):
    graph, costs = network(), Costs()
    found = searched(graph, {}, ranks, costs)
    least = step_s(plan_of(graph, found, ranks), costs)
    assert least <= step_s(plan_of(graph, propagated(graph, {}, ranks), ranks), costs)
    assert searched(graph, {}, ranks, costs) == found
