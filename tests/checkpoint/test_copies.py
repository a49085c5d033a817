"""Replace damaged checkpoint files by replicas of their boxes, and report this."""

import hashlib
import os

import pytest

from launcher.checkpoint.index import (
    INDEX,
    SCHEMA_OF_COPIES,
    TOKENIZER,
    DamagedError,
    Index,
    NamedBox,
    PartFile,
    index_text,
    is_checkpoint,
    read_index,
    with_schema,
)
from launcher.checkpoint.tensors import files_to_read, findings
from launcher.core.records import Layout
from launcher.mesh.boxes import Box

UPPER, LOWER, NORM = (NamedBox("head", Box((0, 0), (2, 3))), NamedBox("head", Box((2, 0), (1, 3))), NamedBox("norm", Box((0,), (3,))))  # fmt: skip
# Two data-parallel copies of two model-parallel slices; the norm is in all of them.
BOXES = {"rank0": (UPPER, NORM), "rank1": (LOWER, NORM), "rank2": (UPPER, NORM), "rank3": (LOWER, NORM)}


@pytest.fixture(name="checkpoint")
def _checkpoint(tmp_path):
    def write(boxes=BOXES, **other):
        path = tmp_path / "step-40"
        path.mkdir()
        files = {}
        contents = {
            f"{name}.safetensors": (3 * 4 * sum(box.box.count for box in each), each) for name, each in boxes.items()
        }
        for name, (size, each) in {**contents, TOKENIZER: (1, ())}.items():
            (path / name).write_bytes(content := os.urandom(size))
            files[name] = PartFile(size, hashlib.sha256(content).hexdigest(), 0, each)
        shapes = {"head": (3, 3), "norm": (3,)}
        facts = {"schema": SCHEMA_OF_COPIES, **other}
        index = Index(40, "transformer", {}, Layout(dp=2, mp=2), "text", "", "F32", shapes, files, **facts)
        (path / INDEX).write_text(index_text(index))
        return path

    return write


def damaged(checkpoint, *ranks):
    problems = {f"rank{rank}.safetensors": f"rank{rank} is damaged" for rank in ranks}
    return files_to_read(read_index(checkpoint), problems)


def test_the_file_of_the_same_slice_serves(checkpoint):
    files, lines = damaged(checkpoint(), 1)
    assert lines == ["rank1 is damaged; its slice is read from rank3.safetensors"]
    assert list(files) == ["rank3.safetensors", "rank0.safetensors", "rank2.safetensors", TOKENIZER]


def test_several_may_be_lost(checkpoint):
    path = checkpoint()
    assert damaged(path, 0, 3)[1] == [
        "rank0 is damaged; its slice is read from rank2.safetensors",
        "rank3 is damaged; its slice is read from rank1.safetensors",
    ]
    for both in ((0, 2), (1, 3), (0, 1, 2, 3)):
        with pytest.raises(DamagedError, match=f"rank{both[0]} is damaged"):
            damaged(path, *both)


def test_some_of_a_slice_is_not_enough(checkpoint):
    with pytest.raises(DamagedError, match="no intact replica"):
        damaged(checkpoint({name: BOXES[name] for name in ("rank0", "rank1")}), 1)


def test_where_nothing_is_read_from_nothing_is_lost(checkpoint):
    files, lines = files_to_read(read_index(checkpoint()), {TOKENIZER: "it is gone"})
    assert lines == ["it is gone; it contains no slice"]
    assert len(files) == 4


def test_findings_name_every_file(checkpoint):
    path = checkpoint()
    assert findings(path) == []
    (path / "rank1.safetensors").write_bytes(b"")
    (path / TOKENIZER).unlink()
    *lines, last = findings(path)
    assert [str(path / name) in line for name, line in zip(("rank1.safetensors", TOKENIZER), lines, strict=True)] == [
        True
    ] * 2
    assert "can still resume" in last
    (path / "rank3.safetensors").unlink()
    *lines, last = findings(path)
    assert (len(lines), "no intact replica of rank1.safetensors, rank3.safetensors" in last) == (3, True)
    (path / INDEX).unlink()
    assert "training cannot resume" in findings(path)[-1]


def test_without_its_index_it_is_still_a_checkpoint(checkpoint, tmp_path):
    path = checkpoint()
    (path / INDEX).unlink()
    assert [is_checkpoint(each) for each in (path, tmp_path, tmp_path / "step-41")] == [True, False, False]


def test_an_older_index_is_read(checkpoint):
    boxes = {"rank0": (UPPER, NORM), "rank1": (LOWER,)}
    index = read_index(checkpoint(boxes, schema=1))
    assert (index.schema, with_schema(index).schema) == (1, 1)


@pytest.mark.parametrize("other", [
    NamedBox("head", Box((0, 0), (1, 3))), NamedBox("head", Box((0, 0), (3, 2))), NamedBox("head", Box((0, 1), (2, 2))),
], ids=["fewer rows", "fewer columns", "overlapping"])  # fmt: skip
def test_a_copy_is_of_the_same_box(checkpoint, other):
    path = checkpoint({**BOXES, "rank2": (other, NORM)})
    with pytest.raises(DamagedError):
        read_index(path)
