"""Read tensors of a checkpoint as bytes: joined from any boxes, without losing an element."""

import tempfile
from array import array
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.checkpoint import tensors
from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.index import KINDS, DamagedError, NamedBox, read_index
from launcher.checkpoint.model_merge import CONFIG, OPTIMIZER, merge
from launcher.checkpoint.tensors import opened, pieces
from launcher.core.records import Layout
from launcher.mesh.boxes import Box, full_box, shared_runs
from launcher.sharding.layout import TensorLayout
from tests import checkpoints
from tests.checkpoints import TOKENS, elements, flip, numbered, tensors_in, write

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
MODELS = st.dictionaries(st.sampled_from(["head", "norm", "word"]), SHAPES, min_size=1)


@st.composite
def cuts(draw, box):
    found = [box] if all(box.size) else []
    for _ in range(draw(st.integers(0, 4))):
        splittable = [(each, dim) for each in found for dim, size in enumerate(each.size) if size > 1]
        if not splittable:
            break
        each, dim = draw(st.sampled_from(splittable))
        first = draw(st.integers(1, each.size[dim] - 1))
        sizes = (first, each.size[dim] - first)
        starts = (each.start[dim], each.start[dim] + first)
        found.remove(each)
        for start, size in zip(starts, sizes, strict=True):
            found.append(Box(replaced(each.start, dim, start), replaced(each.size, dim, size)))
    return found


def replaced(values, place, value):
    return (*values[:place], value, *values[place + 1 :])


@st.composite
def divided(draw, shapes):
    boxes = [NamedBox(name, box) for name, shape in shapes.items() for box in draw(cuts(full_box(shape)))]
    files = {f"rank{number}.safetensors": [] for number in range(draw(st.integers(1, 3)))}
    for each in draw(st.permutations(boxes)):
        files[draw(st.sampled_from(sorted(files)))].append(each)
    return files


@contextmanager
def opening(path):
    with opened(path, read_index(path), lambda _: None, lambda _: None) as stored:
        yield stored


@given(st.data())
def test_any_cut_is_joined(data):
    shapes, dtype = data.draw(MODELS), data.draw(st.sampled_from(["F32", "F64"]))
    cut, values = data.draw(divided(shapes)), numbered(shapes, dtype)
    block = patch.object(tensors, "BLOCK_BYTES", data.draw(st.integers(8, 100)))
    with tempfile.TemporaryDirectory() as directory, block:
        root = Path(directory)
        write(root / "step-5", shapes, values, cut, dtype=dtype)
        with opening(root / "step-5") as stored:
            merge(stored, root / "model", moments=True)
        found = {f"weight/{name}": each for name, each in tensors_in(root / "model" / MODEL).items()}
        found |= tensors_in(root / "model" / OPTIMIZER)
        assert found == {
            f"{kind}/{name}": (shapes[name], values[name][number])
            for name in shapes
            for number, kind in enumerate(KINDS)
        }


@given(st.data())
def test_runs_that_two_boxes_share(data):
    """They are copied as the elements would be, one by one."""
    shape = data.draw(st.lists(st.integers(1, 5), max_size=3).map(tuple))
    one, other = (data.draw(st.sampled_from(data.draw(cuts(full_box(shape))))) for _ in range(2))
    if (common := one.common(other)) is None:
        return
    [values, *_] = numbered({"x": shape})["x"]
    source, target = elements(values, shape, one), elements(values, shape, other)
    length, places = shared_runs(one, other, common)
    found = {}
    for there, here in places:
        found.update((here + offset, source[there + offset]) for offset in range(length))
    assert sorted(found.values()) == sorted(elements(values, shape, common))
    assert all(target[here] == value for here, value in found.items())


@given(st.lists(st.integers(1, 5), max_size=3), st.integers(1, 30))
def test_pieces_of_a_box(shape, most):
    """They follow each other, none is larger than it may be, and a long row is no exception."""
    [values, *_] = numbered({"x": tuple(shape)})["x"]
    found = list(pieces(full_box(shape), most))
    assert all(piece.count <= most for piece in found)
    assert [each for piece in found for each in elements(values, shape, piece)] == list(values)


SHAPE = {"head": (4, 6)}
HALVES = {
    "rank0.safetensors": [NamedBox("head", Box((0, 0), (4, 3)))],
    "rank1.safetensors": [NamedBox("head", Box((0, 3), (4, 3)))],
}


def test_what_a_model_has(tmp_path):
    write(tmp_path / "step-5", SHAPE, numbered(SHAPE), HALVES, settings={"model": {"d_model": 6}})
    with opening(tmp_path / "step-5") as stored:
        merge(stored, tmp_path / "model", moments=False)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [CONFIG, MODEL, "tokenizer.model"]
    assert (tmp_path / "model" / "tokenizer.model").read_bytes() == TOKENS
    assert '"d_model": 6' in (tmp_path / "model" / CONFIG).read_text()


@pytest.mark.parametrize("name", ["rank0.safetensors", "tokenizer.model"])
def test_a_damaged_file_is_found_before_anything_is_written(tmp_path, name):
    flip(write(tmp_path / "step-5", SHAPE, numbered(SHAPE), HALVES) / name)
    with pytest.raises(DamagedError, match=name), opening(tmp_path / "step-5"):
        pass


def test_a_copy_serves(tmp_path):
    copied = dict.fromkeys(("rank0.safetensors", "rank2.safetensors"), HALVES["rank0.safetensors"])
    values = numbered(SHAPE)
    path = write(tmp_path / "step-5", SHAPE, values, {**HALVES, **copied})
    flip(path / "rank0.safetensors")
    told = []
    with opened(path, read_index(path), lambda _: None, told.append) as stored:
        merge(stored, tmp_path / "model", moments=False)
    assert tensors_in(tmp_path / "model" / MODEL)["head"] == (SHAPE["head"], values["head"][0])
    [line] = told
    assert "rank2.safetensors" in line


def test_a_failure_leaves_nothing(tmp_path):
    """An index whose boxes overlap as much as they leave out is not noticed before."""
    boxes = {"rank0.safetensors": [NamedBox("head", Box((0, 0), (4, 3))), NamedBox("head", Box((0, 2), (4, 3)))]}
    write(tmp_path / "step-5", SHAPE, numbered(SHAPE), boxes)
    block = patch.object(tensors, "BLOCK_BYTES", 4)
    with opening(tmp_path / "step-5") as stored, block, pytest.raises(DamagedError, match="head"):
        merge(stored, tmp_path / "model", moments=False)
    assert [path.name for path in tmp_path.iterdir()] == ["step-5"]


def test_few_files_are_open_at_a_time(tmp_path):
    shapes = {"head": (8, 2)}
    rows = {f"rank{row}.safetensors": [NamedBox("head", Box((row, 0), (1, 2)))] for row in range(8)}
    values = numbered(shapes)
    write(tmp_path / "step-5", shapes, values, rows)
    with patch.object(tensors, "MAX_MAPPED", 2), opening(tmp_path / "step-5") as stored:
        merge(stored, tmp_path / "model", moments=True)
    assert tensors_in(tmp_path / "model" / MODEL)["head"] == (shapes["head"], values["head"][0])


def test_all_that_is_read_is_counted(tmp_path):
    path = write(tmp_path / "step-5", SHAPE, numbered(SHAPE), HALVES)
    index, counts = read_index(path), []
    with opened(path, index, counts.append, lambda _: None) as stored:
        merge(stored, tmp_path / "model", moments=True)
    assert sum(counts) == tensors.all_bytes(index) + tensors.state_bytes(index)


# MindSpore 2.x, mindspore.merge_sliced_parameter: its documentation has four slices of "network.embedding_table" of three
# values each. Without a strategy they are joined along dim 0, to 12 values; with one, they are the parts that its device
# matrix and tensor map say.
NAME = "network.embedding_table"
SLICES = (
    (0.00023915, 0.00013939, -0.00098059),
    (0.00015815, 0.00015458, -0.00012125),
    (0.00042165, 0.00029692, -0.00007941),
    (0.00084451, 0.00089960, -0.00010431),
)
S0, S1, S2, S3 = SLICES
# Of each case: the whole shape, the layout of the ranks' slices, and the values in row-major order.
CASES = {
    "without a strategy": ((12,), TensorLayout((4,), ((0,),)), (*S0, *S1, *S2, *S3)),
    "((4, 1),)": ((4, 3), TensorLayout((4,), ((0,), ())), (*S0, *S1, *S2, *S3)),
    "((2, 2),)": ((2, 6), TensorLayout((2, 2), ((0,), (1,))), (*S0, *S1, *S2, *S3)),
    "((2, 2),), the other axis of the devices first": (
        (2, 6),
        TensorLayout((2, 2), ((1,), (0,))),
        (*S0, *S2, *S1, *S3),
    ),
    "((1, 4),)": ((1, 12), TensorLayout((4,), ((), (0,))), (*S0, *S1, *S2, *S3)),
}


@pytest.mark.parametrize("case", CASES)
def test_slices_of_four_ranks_are_merged(tmp_path, case):
    """Each rank's slice is a file, with the box that its layout says; the merged model has the values of the whole."""
    shape, layout, expected = CASES[case]
    boxes = [layout.box_of(rank, shape) for rank in range(4)]
    path = tmp_path / "step-5"
    files = {f"rank{rank}.safetensors": [NamedBox(NAME, box)] for rank, box in enumerate(boxes)}
    whole = array("d", expected)
    checkpoints.write(path, {NAME: shape}, {NAME: [whole]}, files, dtype="F64", layout=Layout(mp=4), kinds=("weight",))
    # What the ranks have written is MindSpore's slices, whatever `write` was told to be the whole.
    for rank, values in enumerate(SLICES):
        assert (path / f"rank{rank}.safetensors").read_bytes() == array("d", values).tobytes()
    with opened(path, read_index(path), lambda _: None, lambda _: None) as stored:
        merge(stored, tmp_path / "model", moments=False)
    assert checkpoints.tensors_in(tmp_path / "model" / MODEL) == {NAME: (shape, whole)}
