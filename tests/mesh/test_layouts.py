"""dp·mp·pp against the number of devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import RefusedLayoutError
from launcher.core.records import Layout
from launcher.mesh.layouts import nearest_layouts, resolve_layout


def test_dp_left_out_takes_all_devices():
    assert resolve_layout(8, mp=2, pp=2) == Layout(dp=2, mp=2, pp=2)


def test_more_ranks_than_devices_are_refused_with_layouts_that_fit():
    """The error has the numbers put in, and every layout it offers fits."""
    with pytest.raises(RefusedLayoutError) as refusal:
        resolve_layout(8, dp=3, mp=2, pp=2)
    assert refusal.value.message == "dp * mp * pp = 3 * 2 * 2 = 12 is more than 8 devices"
    assert "--dp 2 --mp 2 --pp 2" in refusal.value.hint
    assert refusal.value.exit_code == 3


def test_idle_devices_must_be_allowed():
    with pytest.raises(RefusedLayoutError, match="leaves 4 devices of 8 idle"):
        resolve_layout(8, dp=1, mp=2, pp=2)
    assert resolve_layout(8, dp=1, mp=2, pp=2, allow_idle_devices=True).world_size == 4


def test_dp_left_out_never_hides_idle_devices():
    """Eight devices cannot be divided by three, and the remainder is not dropped silently."""
    with pytest.raises(RefusedLayoutError, match="leaves 2 devices of 8 idle"):
        resolve_layout(8, mp=3)


@pytest.mark.parametrize("axis", ["dp", "mp", "pp", "micro_batches"])
def test_axes_below_one_are_refused(axis):
    with pytest.raises(RefusedLayoutError, match="every axis needs at least 1"):
        resolve_layout(8, **{axis: 0})


@given(st.integers(1, 64), st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_every_offered_layout_uses_every_device(device_count, dp, mp, pp):
    for near in nearest_layouts(Layout(dp=dp, mp=mp, pp=pp), device_count):
        assert resolve_layout(device_count, dp=near.dp, mp=near.mp, pp=near.pp) == near
