"""Layouts: against the number of devices, ranks and coordinates in them, and those that an elastic run takes for fewer devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import RefusedLayoutError
from launcher.core.records import Layout
from launcher.mesh.coordinates import AXES, coordinate_of, group_of, groups, rank_at
from launcher.mesh.layouts import elastic_layouts, nearest_layouts, resolve_layout

sizes = st.integers(1, 5)
layouts = st.builds(Layout, dp=sizes, mp=sizes, pp=sizes)


def test_dp_left_out_takes_all_devices():
    assert resolve_layout(8, mp=2, pp=2) == Layout(dp=2, mp=2, pp=2)


def test_more_ranks_than_devices_are_refused_with_layouts_that_fit():
    with pytest.raises(RefusedLayoutError) as refusal:
        resolve_layout(8, dp=3, mp=2, pp=2)
    assert refusal.value.message == "dp * mp * pp = 3 * 2 * 2 = 12 is more than 8 devices"
    assert "--dp 2 --mp 2 --pp 2" in refusal.value.hint
    assert refusal.value.exit_code == 3


def test_a_hint_has_only_layouts_that_the_program_supports():
    for fits, hinted in ((lambda layout: layout.mp < 3, "--dp 3 --mp 1 --pp 1"), (lambda _: False, "--dp 1 --mp 3")):
        with pytest.raises(RefusedLayoutError) as refusal:
            resolve_layout(3, dp=2, mp=2, fits=fits)
        assert f"the nearest that fit 3 devices: {hinted}" in refusal.value.hint


@pytest.mark.parametrize(("degrees", "idle"), [({"dp": 1, "mp": 2, "pp": 2}, 4), ({"mp": 3}, 2)])
def test_idle_devices_must_be_allowed(degrees, idle):
    with pytest.raises(RefusedLayoutError, match=f"leaves {idle} devices of 8 idle"):
        resolve_layout(8, **degrees)
    assert resolve_layout(8, **degrees, allow_idle_devices=True).world_size == 8 - idle


@pytest.mark.parametrize("axis", ["dp", "mp", "pp", "micro_batches"])
def test_axes_below_one_are_refused(axis):
    with pytest.raises(RefusedLayoutError, match="every axis needs at least 1"):
        resolve_layout(8, **{axis: 0})


@given(st.integers(1, 64), st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_every_offered_layout_uses_every_device(device_count, dp, mp, pp):
    for near in nearest_layouts(Layout(dp=dp, mp=mp, pp=pp), device_count):
        assert resolve_layout(device_count, dp=near.dp, mp=near.mp, pp=near.pp) == near


# --- ranks and coordinates ---


def test_mp_is_fastest_and_pp_slowest():
    layout = Layout(dp=2, mp=2, pp=2)
    places = [(found.pp, found.dp, found.mp) for found in (coordinate_of(rank, layout) for rank in (0, 1, 2, 4, 5))]
    assert places == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1)]


@given(layouts)
def test_rank_and_coordinate_are_inverse(layout):
    ranks = range(layout.world_size)
    assert [rank_at(coordinate_of(rank, layout), layout) for rank in ranks] == list(ranks)


@given(layouts, st.sampled_from(AXES))
def test_groups_partition_the_ranks(layout, axis):
    found = groups(axis, layout)
    assert sorted(rank for ranks in found for rank in ranks) == list(range(layout.world_size))
    for ranks in found:
        assert [getattr(coordinate_of(rank, layout), axis) for rank in ranks] == list(range(getattr(layout, axis)))
        assert group_of(ranks[-1], axis, layout) == ranks


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_layout_is_refused(rank):
    with pytest.raises(ValueError, match=f"rank {rank} is outside 0 .. 7"):
        coordinate_of(rank, Layout(dp=2, mp=2, pp=2))


# --- fewer devices ---


@given(*[st.integers(1, 4)] * 4, st.integers(0, 8))
def test_dp_shrinks_first_and_no_fewer_micro_batches_are_computed(dp, mp, pp, micro_batches, spare):
    wanted = Layout(dp, mp, pp, micro_batches)
    count = wanted.world_size + spare
    none, *layouts = elastic_layouts(wanted, count)
    assert none is None
    assert len(layouts) == count
    for devices, layout in enumerate(layouts, 1):
        assert layout.world_size <= devices
        assert layout.dp * layout.micro_batches >= dp * micro_batches > layout.dp * (layout.micro_batches - 1)
        if dp * micro_batches % layout.dp == 0:
            assert layout.dp * layout.micro_batches == dp * micro_batches
        if devices >= mp * pp:
            assert (layout.dp, layout.mp, layout.pp) == (min(dp, devices // (mp * pp)), mp, pp)
        else:
            assert layout.dp <= dp
            assert mp % layout.mp == 0
            assert layout.pp <= pp
    assert layouts[wanted.world_size - 1] == wanted


def test_what_the_program_cannot_do_is_passed_over():
    assert elastic_layouts(Layout(1, 4, 1), 4, lambda layout: layout.mp != 2)[1:] == (
        *(Layout(1, 1, 1),) * 3,
        Layout(1, 4, 1),
    )
    assert elastic_layouts(Layout(4, 2, 1), 8, lambda layout: layout.dp != 3 and layout.mp == 2)[2:] == (
        *(Layout(1, 2, 1, 4),) * 2,
        *(Layout(2, 2, 1, 2),) * 4,
        Layout(4, 2, 1),
    )
    assert elastic_layouts(Layout(2, 1, 1), 2, lambda layout: layout.dp > 1) == (None, None, Layout(2, 1, 1))


def test_a_program_without_micro_batches_keeps_the_number_that_is_wanted():
    found = elastic_layouts(Layout(4, 2, 1), 8, lambda layout: layout.micro_batches == 1 and layout.dp != 3)
    assert found[2:] == (*(Layout(1, 2, 1),) * 2, *(Layout(2, 2, 1),) * 4, Layout(4, 2, 1))
