"""Plan the files of a checkpoint: their names, the ranks' parts in them, and strategy.json."""

import itertools
import json

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
from launcher.checkpoint.finish import strategy_text
from launcher.checkpoint.index import Index, NamedBox, PartFile
from launcher.core.records import Layout
from launcher.mesh.boxes import Box
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


MODEL = Layout(dp=2, mp=2)


def index_of(boxes, layout=MODEL):
    files = {
        f"{name}.safetensors": PartFile(0, "", 0, tuple(NamedBox("head", Box(*box)) for box in each))
        for name, each in boxes.items()
    }
    return Index(3, "transformer", {}, layout, "", "", "F32", {"head": (4, 6)}, files)


def cut_of(boxes, layout=MODEL):
    found = json.loads(strategy_text(index_of(boxes, layout)))["parameters"]["head"]
    return found["stage"], [(each["axis"], each["dim"], each["parts"]) for each in found["cut"]]


LEFT, RIGHT, ALL = ((0, 0), (4, 3)), ((0, 3), (4, 3)), ((0, 0), (4, 6))
# The left half as data-parallel ranks own it: 7 and 5 elements of it, in row-major order.
FIRST, SECOND = [((0, 0), (2, 3)), ((2, 0), (1, 1))], [((2, 1), (1, 2)), ((3, 0), (1, 3))]


@pytest.mark.parametrize(("boxes", "layout", "expected"), [
    ({"rank0": [LEFT], "rank1": [RIGHT]}, Layout(mp=2), (0, [("mp", 1, 2)])),
    ({"rank0": [LEFT], "rank1": [RIGHT], "rank2": [LEFT], "rank3": [RIGHT]}, MODEL, (0, [("mp", 1, 2)])),
    ({"rank0": FIRST, "rank1": [RIGHT], "rank2": SECOND}, MODEL, (0, [("mp", 1, 2), ("dp", None, 2)])),
    ({"rank0": [ALL], "rank1": [ALL]}, Layout(mp=2), (0, [])),
    ({"rank1": [ALL]}, Layout(pp=2), (1, [])), ({"model": [ALL]}, MODEL, (None, [])),
], ids=["model parallel", "copies", "owned", "held by all", "a stage", "integrated"])  # fmt: skip
def test_how_it_is_cut(boxes, layout, expected):
    assert cut_of(boxes, layout) == expected


def test_each_box_has_a_line():
    text = strategy_text(index_of({"rank0": FIRST, "rank1": [RIGHT], "rank2": SECOND}))
    boxes = [json.loads(line.rstrip(",")) for line in text.splitlines() if "safetensors" in line]
    assert boxes == json.loads(text)["parameters"]["head"]["boxes"]
    assert len(boxes) == 5


@pytest.mark.parametrize("layout", [Layout(), Layout(dp=3)])
def test_an_index_of_another_layout_than_its_files(layout):
    """It may have been edited: what it says is shown, and nothing breaks."""
    index = index_of({"rank0": FIRST, "rank1": [RIGHT], "rank7": SECOND}, layout)
    assert len(json.loads(strategy_text(index))["parameters"]["head"]["boxes"]) == 5
