"""Strategies as people write them: what they mean, and which are refused with the number that does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import UsageError
from launcher.sharding.expression import Expression, cuttings
from launcher.sharding.strategy import cutting_of, strategy_from

from .networks import matmul, quickstart

MATMUL = matmul("matmul", "x", "w", rows=16, inner=32, columns=16).expression
MANY_DIMS = Expression((tuple("abcdefghijklmn"),), tuple("abcdefghijklmn"), dict.fromkeys("abcdefghijklmn", 8))


def test_the_tutorials_strategy():
    found = cutting_of(MATMUL, ((2, 4), (4, 1)), 8, "matmul")
    assert (found.devices, found.strategy, found.reduced_axes) == ((2, 4, 1), ((2, 4), (4, 1)), (1,))
    assert (found.gradient_axes(0), found.gradient_axes(1)) == ((), (0,))
    assert [layout.cuts for layout in (*found.inputs, found.output)] == [(2, 4), (4, 1), (2, 1)]


def test_ranks_that_are_left_over_stand_in_a_last_axis():
    found = cutting_of(MATMUL, ((2, 1), (1, 2)), 8, "matmul")
    assert (found.devices, found.output.cuts, found.output.free_axes) == ((2, 1, 2, 2), (2, 2), (3,))


@pytest.mark.parametrize(("strategy", "ranks"), {
    "more parts than devices": (((4, 4), (4, 1)), 8),
    "a dim that cannot be divided": (((3, 1), (1, 1)), 6),
    "one index in two ways": (((2, 4), (2, 1)), 8),
    "too few inputs": (((2, 4),), 8), "too few dims": (((2,), (4, 1)), 8), "no parts": (((0, 1), (1, 1)), 8),
    "devices that cannot be divided": (((4, 1), (1, 1)), 6),
}.values())  # fmt: skip
def test_one_that_does_not_fit_is_refused_with_its_numbers(strategy, ranks, snapshot):
    with pytest.raises(UsageError) as caught:
        cutting_of(MATMUL, strategy, ranks, "matmul")
    assert str(caught.value) == snapshot


@given(st.integers(1, 8), st.sampled_from([MANY_DIMS, *(each.expression for each in quickstart().operators)]))
def test_every_way_to_cut_is_one_that_can_be_written(ranks, expression):
    found = list(cuttings(expression, ranks))
    assert len({each.strategy for each in found}) == len(found) > 0
    assert [cutting_of(expression, each.strategy, ranks, "it") for each in found] == found


@pytest.mark.parametrize("value", [[[2, 4], [4, 1]], ((2, 4), (4, 1)), "((2, 4), (4, 1))", "[[2,4],[4,1]]"])
def test_what_is_read_as_one(value):
    assert strategy_from(value) == ((2, 4), (4, 1))


@pytest.mark.parametrize("value", [3, "x", "", [2, 4], [[2.0]], [[True]], "((2, 4), (4, 1)", "[" * 10_000, {"a": 1}])
def test_what_is_none(value):
    with pytest.raises(ValueError, match=r"parts of each dim"):
        strategy_from(value)
