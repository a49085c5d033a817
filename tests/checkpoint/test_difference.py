"""Find the differences of two checkpoints, bitwise and in numbers."""

import math
from contextlib import ExitStack

import pytest

from launcher.checkpoint.difference import TensorDifference, compare
from launcher.checkpoint.index import NamedBox, read_index
from launcher.checkpoint.tensors import opened
from launcher.core.records import Layout
from launcher.mesh.boxes import Box
from tests.checkpoints import numbered, write

SHAPES = {"head": (2, 3), "norm": (3,)}
ROWS = {
    f"rank{rank}.safetensors": [
        NamedBox("head", Box((rank, 0), (1, 3))),
        *[NamedBox("norm", Box((0,), (3,)))] * (rank == 0),
    ]
    for rank in range(2)
}
SETTINGS = {"model": {"d_model": 3, "dropout": 0.1}, "train": {"seed": 1, "learning_rate": 0.1}}


@pytest.fixture(name="difference")
def _difference(tmp_path):
    """Return a function that compares two checkpoints, after changing the second."""

    def find(change=None, *, shapes=SHAPES, files=None, dtype="F32", first_dtype="F32", **facts):
        first, second = numbered(SHAPES, first_dtype), numbered(shapes, dtype)
        if change is not None:
            change(first, second)
        settings = {"settings": SETTINGS}
        write(tmp_path / "a", SHAPES, first, dtype=first_dtype, **settings)
        write(tmp_path / "b", shapes, second, files, dtype=dtype, **{**settings, **facts})
        with ExitStack() as stack:
            stored = [
                stack.enter_context(opened(path, read_index(path), lambda _: None, lambda _: None))
                for path in (tmp_path / "a", tmp_path / "b")
            ]
            return compare(*stored)

    return find


def test_another_layout_holds_the_same_state(difference):
    found = difference(files=ROWS, layout=Layout(dp=2))
    assert found.is_same_state
    assert [fact.name for fact in found.facts] == ["layout"]
    assert found.compared == 6


@pytest.mark.parametrize(("settings", "is_same"), [
    ({"train": {"seed": 2, "learning_rate": 0.1}}, False),
    ({"train": {"seed": 1, "learning_rate": 0.5}}, True),
    ({"model": {"d_model": 3, "dropout": 0.5}}, True),
    ({"model": {"d_model": 3, "dropout": 0.1, "new": 1}}, True),
], ids=str)  # fmt: skip
def test_settings(difference, settings, is_same):
    """Those that decide which training it is make another state; a setting that a version did not have is the same."""
    found = difference(settings={**SETTINGS, **settings})
    assert (len(found.facts), found.is_same_state) == (1, is_same)


@pytest.mark.parametrize("facts", [{"step": 6}, {"text": "another"}, {"dtype": "F64"}], ids=str)
def test_what_else_is_another_state(difference, facts):
    found = difference(**facts)
    assert [fact.name for fact in found.facts if fact.matters]
    assert not found.is_same_state


def test_parameters_and_shapes(difference):
    found = difference(shapes={"head": (3, 2), "word": (3,)})
    assert (found.only_first, found.only_second) == (("norm",), ("word",))
    assert [(fact.name, fact.first, fact.second) for fact in found.shapes] == [("head", (2, 3), (3, 2))]
    assert (found.compared, found.is_same_state) == (0, False)


def test_the_largest_difference(difference):
    def change(first, second):
        first["head"][1][:] = type(first["head"][1])("f", [100, 2, 0, 1, -1, 5])
        second["head"][1][:] = type(first["head"][1])("f", [104, 3, 0, 1, 1, 5])

    [found] = difference(change).tensors
    assert found == TensorDifference("head", "first_moment", 6, 3, 4.0, 2.0)


@pytest.mark.parametrize(("one", "other", "expected"), [
    (0.0, -0.0, (0, 0.0, 0.0)), (math.nan, -math.nan, (0, 0.0, 0.0)), (1.0, math.nan, (1, math.inf, math.inf)),
    (math.inf, 1.0, (1, math.inf, math.inf)),
    (math.inf, -math.inf, (1, math.inf, math.inf)),
    (0.0, 5e-324, (1, 5e-324, 1.0)),
    (1.7e308, -1.7e308, (1, math.inf, math.inf)),
], ids=str)  # fmt: skip
def test_values_that_are_no_common_numbers(difference, one, other, expected):
    def change(first, second):
        first["norm"][0][0], second["norm"][0][0] = one, other
        first["norm"][0][1] = second["norm"][0][1] = math.nan
        first["norm"][0][2] = second["norm"][0][2] = math.inf

    [found] = difference(change, first_dtype="F64", dtype="F64").tensors
    assert (found.differing, found.largest_absolute, found.largest_relative) == expected
