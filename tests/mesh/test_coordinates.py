"""Rank <-> coordinate arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.records import Layout
from launcher.mesh.coordinates import AXES, coordinate_of, group_of, groups, rank_at

sizes = st.integers(1, 5)
layouts = st.builds(Layout, dp=sizes, mp=sizes, pp=sizes)


def test_mp_is_fastest_and_pp_slowest():
    """Neighbouring ranks differ in mp first, then in dp, then in pp."""
    layout = Layout(dp=2, mp=2, pp=2)
    places = [(found.pp, found.dp, found.mp) for found in (coordinate_of(rank, layout) for rank in (0, 1, 2, 4, 5))]
    assert places == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1)]


@given(layouts)
def test_rank_and_coordinate_are_inverse(layout):
    ranks = range(layout.world_size)
    assert [rank_at(coordinate_of(rank, layout), layout) for rank in ranks] == list(ranks)


@given(layouts, st.sampled_from(AXES))
def test_groups_partition_the_ranks(layout, axis):
    """Along each axis, every rank is in exactly one group, of the axis's size, in its coordinate's order."""
    found = groups(axis, layout)
    assert sorted(rank for ranks in found for rank in ranks) == list(range(layout.world_size))
    for ranks in found:
        assert [getattr(coordinate_of(rank, layout), axis) for rank in ranks] == list(range(getattr(layout, axis)))
        assert group_of(ranks[-1], axis, layout) == ranks


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_layout_is_refused(rank):
    with pytest.raises(ValueError, match=f"rank {rank} is outside 0 .. 7"):
        coordinate_of(rank, Layout(dp=2, mp=2, pp=2))
