"""strategy.json: how parameters are cut, and where their boxes are."""

import json

import pytest

from launcher.checkpoint.index import Index, NamedBox, PartFile
from launcher.checkpoint.strategy_file import strategy_text
from launcher.core.records import Layout
from launcher.mesh.boxes import Box

MODEL = Layout(dp=2, mp=2)


def index_of(boxes, layout=MODEL):
    """Of one parameter of 4 x 6."""
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
