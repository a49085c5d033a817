"""Ranks and cpus are listed as ranges."""

from launcher.core.ranges import ranges


def test_neighbours_are_joined():
    """In ascending order, whatever they came in."""
    assert ranges([4, 0, 2, 1, 6, 7, 5]) == "0-2,4-7"
    assert ranges([]) == ""
