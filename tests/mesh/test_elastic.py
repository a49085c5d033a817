"""The layouts that an elastic run takes for fewer devices."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.core.records import Layout
from launcher.mesh.elastic import elastic_layouts

AXES = st.integers(1, 4)


@given(AXES, AXES, AXES, st.integers(1, 4), st.integers(0, 8))
def test_dp_shrinks_first_and_no_fewer_micro_batches_are_computed(dp, mp, pp, micro_batches, spare):
    """Every number of devices from one on has a layout that fits it; whole copies are never given up for another mp or pp."""
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
    """The next smaller layout that fits is taken; none where none does."""
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
    """What its ranks train on together is the same all the same."""
    found = elastic_layouts(Layout(4, 2, 1), 8, lambda layout: layout.micro_batches == 1 and layout.dp != 3)
    assert found[2:] == (*(Layout(1, 2, 1),) * 2, *(Layout(2, 2, 1),) * 4, Layout(4, 2, 1))
