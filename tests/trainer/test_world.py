"""A rank's place, as its environment says."""

import pytest

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate
from launcher.trainer.world import place_from_environment


def test_one_process_alone_needs_no_environment():
    """`python -m launcher.trainer` is a run of one rank."""
    place = place_from_environment({}, micro_batches=4)

    assert (place.global_rank, place.world_size, place.layout) == (0, 1, Layout(micro_batches=4))


def test_under_torchrun_every_rank_is_a_copy():
    """Without tlaunch's variables the layout is data parallel."""
    place = place_from_environment({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, micro_batches=1)

    assert place.layout == Layout(dp=4)
    assert place.coordinate == Coordinate(pp=0, dp=3, mp=0)


def test_a_layout_that_is_not_the_world_is_refused():
    """A rank never guesses."""
    with pytest.raises(RefusedLayoutError, match="needs 4 ranks, but WORLD_SIZE is 8"):
        place_from_environment({"WORLD_SIZE": "8", "TLAUNCH_DP": "2", "TLAUNCH_MP": "2"}, micro_batches=1)


def test_a_variable_that_is_no_number_is_named():
    """The variable and its value stand in the message."""
    with pytest.raises(UsageError, match="RANK is 'first'"):
        place_from_environment({"RANK": "first"}, micro_batches=1)
