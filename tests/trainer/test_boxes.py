"""Parameters that are cut along two dims over the model-parallel ranks, some of which hold the same part."""

import torch

from launcher.mesh.boxes import Box
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.placement import Placement


def test_a_part_is_a_box_of_the_whole():
    """Along any number of dims; one that is not cut is held by all ranks of the group, the first of which keeps it."""
    full = torch.arange(48).view(8, 6)
    part = Placement(full.shape, Box((4, 3), (4, 3)), copies=2)
    assert torch.equal(part.part_of(full), full[4:8, 3:6])
    assert part.shape == (4, 3)
    last = Group(ranks=(0, 1, 2), index=2)
    assert Placement.uncut((), last) == Placement(torch.Size(()), Box((), ()), copies=3, is_first=False)
    assert Placement.uncut((2, 3)) == Placement(torch.Size((2, 3)), Box((0, 0), (2, 3)))
    assert Placement.cut((2, 6), 1, 4, 6).box == Box((0, 4), (2, 2))
    assert torch.equal(Placement.uncut(()).part_of(torch.tensor(7)), torch.tensor(7))
