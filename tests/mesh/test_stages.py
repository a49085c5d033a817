"""Layers to pipeline stages."""

from itertools import combinations, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.mesh.stages import busy_shares, cut_by_cost, stages_of


@st.composite
def stacks(draw):
    """How many layers each stage holds, and how many layers of the encoder there are among them."""
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    return counts, draw(st.integers(0, sum(counts)))


@given(stacks())
def test_every_layer_is_on_exactly_one_stage_in_order(stack):
    counts, encoder_layers = stack
    stages = stages_of(counts, encoder_layers)
    assert [len(stage.encoder_layers) + len(stage.decoder_layers) for stage in stages] == counts
    assert [layer for stage in stages for layer in stage.encoder_layers] == list(range(encoder_layers))
    assert [layer for stage in stages for layer in stage.decoder_layers] == list(range(sum(counts) - encoder_layers))


@given(stacks())
def test_one_stage_closes_the_encoder_before_any_decoder_layer(stack):
    stages = stages_of(*stack)
    [closing] = [stage.index for stage in stages if stage.closes_encoder]
    assert all(not stage.encoder_layers for stage in stages[closing + 1 :])
    assert all(not stage.decoder_layers for stage in stages[:closing])


@st.composite
def cuts(draw):
    """The costs of up to 13 parts, and a number of stages."""
    costs = draw(st.lists(st.integers(1, 20), min_size=1, max_size=13))
    return costs, draw(st.integers(1, min(4, len(costs))))


@given(cuts())
@example(([1, 5, 2, 3], 3))  # its most even cut is 6 2 3, its least busy one 1 5 5
def test_the_cut_is_the_best_of_all(cut):
    costs, count = cut
    tried = []
    for inner in combinations(range(1, len(costs)), count - 1):
        bounds = list(pairwise((0, *inner, len(costs))))
        sums = [sum(costs[first:last]) for first, last in bounds]
        tried.append((max(sums), sum(one**2 for one in sums), [first - last for first, last in bounds]))
    assert cut_by_cost(costs, count) == tuple(-size for size in min(tried)[2])


def test_stages_that_are_alike_are_idle_for_the_bubble_alone():
    """(P - 1) / (M + P - 1) of a step; of others, the busiest works all the time but that of filling and draining."""
    assert busy_shares([3, 3, 3, 3], 5) == (5 / 8,) * 4
    assert busy_shares([1, 3], 4) == pytest.approx((4 / 13, 12 / 13))
