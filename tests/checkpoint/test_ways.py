"""Which files a checkpoint has, and whose parts they hold."""

import itertools

import pytest

from launcher.checkpoint.file_layout import (
    INTEGRATED,
    ONE_COPY,
    OWNED,
    SLICES,
    WAYS,
    planned_files,
    rank_of,
)
from launcher.core.records import Layout
from launcher.mesh.coordinates import coordinate_of

LAYOUTS = [Layout(dp=dp, mp=mp, pp=pp) for dp, mp, pp in itertools.product((1, 2, 3), repeat=3)]


@pytest.mark.parametrize("way", WAYS)
def test_every_part_is_in_a_file(way):
    """Once, but for slices, of which every data-parallel rank has a copy. Nobody writes two files, or one without its own part."""
    for layout in LAYOUTS:
        files = planned_files(way, layout)
        held = sorted(itertools.chain.from_iterable(file.sources for file in files))
        copies = layout.dp if way == SLICES else 1
        assert held == sorted([*range(layout.world_size)] * copies)
        assert len({file.writer for file in files}) == len({file.name for file in files}) == len(files)
        assert all(file.writer in file.sources for file in files)


@pytest.mark.parametrize("way", [SLICES, ONE_COPY])
def test_a_slice_is_of_one_place(way):
    """Its parts are those of the ranks that differ in their data-parallel copy alone, of which copy 0 is the one."""
    for layout in LAYOUTS:
        for file in planned_files(way, layout):
            places = [coordinate_of(rank, layout) for rank in file.sources]
            assert len({(place.pp, place.mp) for place in places}) == 1
            assert [place.dp for place in places] == list(range(layout.dp))
            assert way == SLICES or coordinate_of(file.writer, layout).dp == 0


def test_what_needs_no_other_rank():
    assert all(file.is_a_part for file in planned_files(OWNED, Layout(dp=2, mp=2)))
    assert all(file.is_a_part for file in planned_files(SLICES, Layout(mp=2, pp=2)))
    assert [file.is_a_part for file in planned_files(INTEGRATED, Layout())] == [True]
    assert not planned_files(INTEGRATED, Layout(mp=2))[0].is_a_part


def test_whose_file_it_is():
    assert [rank_of(f"rank{rank}.safetensors") for rank in (0, 7, 10)] == [0, 7, 10]
    assert [rank_of(name) for name in ("model.safetensors", "rank01.safetensors", "rank1.part")] == [None] * 3
