"""`tlaunch ckpt` on the checkpoint of a program with Momentum's one moment, with buffers and without a tokenizer."""

import json

import pytest

from launcher.checkpoint.index import BUFFERS, TOKENIZER, DamagedError, NamedBox, read_index
from launcher.mesh.boxes import Box
from tests.checkpoints import flip, numbered, tensors_in, write

SHAPES, MEANS = {"kernel": (4, 3)}, {"norm.running_mean": (3,)}
KINDS = ("weight", "first_moment")
VALUES = numbered({**SHAPES, **MEANS})
ROWS = {f"rank{rank}.safetensors": [NamedBox("kernel", Box((2 * rank, 0), (2, 3)))] for rank in range(2)}


@pytest.fixture(name="other")
def _other(launcher):
    """Gives a function that writes such a checkpoint."""

    def make(name="step-5", files=ROWS, values=VALUES, **facts):
        path = launcher.directory / name
        known = {"kinds": KINDS, "buffers": MEANS, "tokens": None, "program": "images"}
        return write(path, SHAPES, values, files, **{**known, **facts})

    return make


def test_it_is_listed_shown_and_verified(launcher, other):
    path = other()
    assert json.loads(launcher.call("ckpt", "ls", launcher.directory, "--json", code=0).stdout)[0]["damage"] is None
    shown = launcher.call("ckpt", "show", path, code=0).stdout
    assert all(name in shown for name in (*SHAPES, *MEANS))
    found = json.loads(launcher.call("ckpt", "show", path, "--json", code=0).stdout)
    assert (found["schema"], found["kinds"], found["buffers"]) == (3, [*KINDS], {"norm.running_mean": [3]})
    assert set(json.loads(launcher.call("ckpt", "show", path, "--strategy", code=0).stdout)["parameters"]) == {*SHAPES}
    launcher.call("ckpt", "verify", path, code=0)
    flip(path / BUFFERS)
    assert BUFFERS in launcher.call("ckpt", "verify", path, code=1).stdout
    launcher.call("ckpt", "merge", path, "--output", "model", code=2)


def test_it_is_merged(launcher, other):
    path = other()
    launcher.call("ckpt", "merge", path, "--output", "model", "--optimizer", code=0)
    model = launcher.directory / "model"
    assert {each.name for each in model.iterdir()} == {"model.safetensors", "config.json", "optimizer.safetensors"}
    assert tensors_in(model / "model.safetensors") == {
        "kernel": (SHAPES["kernel"], VALUES["kernel"][0]),
        "norm.running_mean": (MEANS["norm.running_mean"], VALUES["norm.running_mean"][0]),
    }
    assert tensors_in(model / "optimizer.safetensors") == {
        "first_moment/kernel": (SHAPES["kernel"], VALUES["kernel"][1])
    }


def test_two_are_compared(launcher, other):
    path = other()
    whole = other("whole", files=None)
    found = json.loads(launcher.call("ckpt", "diff", path, whole, "--json", code=0).stdout)
    assert (found["same_state"], found["compared"]) == (True, 3)
    changed = other("changed", values={**VALUES, "norm.running_mean": [VALUES["kernel"][0][:3]]})
    found = json.loads(launcher.call("ckpt", "diff", path, changed, "--json", code=1).stdout)
    assert [(each["parameter"], each["kind"]) for each in found["tensors"]] == [("norm.running_mean", "buffer")]
    adam = other("adam", kinds=(*KINDS, "second_moment"))
    found = json.loads(launcher.call("ckpt", "diff", path, adam, "--json", code=1).stdout)
    assert [each["name"] for each in found["facts"] if each["matters"]] == ["kinds"]
    assert found["tensors"] == []


def test_what_other_tools_have_no_names_for_is_refused(launcher, other):
    path = other()
    for form, output in (("dcp", "dcp"), ("mindspore", "model.ckpt")):
        done = launcher.call("ckpt", "export", path, "--format", form, "--output", output, code=2)
        assert "first_moment, buffer" in done.stderr
    launcher.write("model.ckpt")
    words = ("--format", "mindspore", "--like", path, "--output", "imported")
    launcher.call("ckpt", "import", "model.ckpt", *words, code=2)


@pytest.mark.parametrize("facts", [
    {"kinds": ("first_moment", "weight")}, {"kinds": ("weight", "weight")}, {"buffers": {"kernel": (4, 3)}},
    {
        "files": {
            "rank0.safetensors": [
                NamedBox("kernel", Box((0, 0), (4, 3))),
                NamedBox("norm.running_mean", Box((0,), (3,))),
            ]
        }
    },
], ids=["no weights first", "a kind twice", "a buffer that is a parameter", "a buffer in another file"])  # fmt: skip
def test_an_index_that_cannot_be_is_damage(other, facts):
    with pytest.raises(DamagedError):
        read_index(other(**facts))


def test_an_index_of_the_older_schemas_has_a_tokenizer(other):
    path = other(kinds=("weight", "first_moment", "second_moment"), buffers={}, tokens=b"tokens")
    assert read_index(path).schema == 1
    index = path / "index.json"
    assert "kinds" not in index.read_text()
    assert "buffers" not in index.read_text()
    assert TOKENIZER in index.read_text()
    assert read_index(other("without", kinds=("weight", "first_moment", "second_moment"), buffers={})).schema == 3
