"""Files of tensors: whatever boxes they were written by, any box can be read, and one file made of several."""

import hashlib
import random
import tracemalloc
from math import prod

import numpy as np
import pytest
from safetensors.numpy import load_file

from launcher.checkpoint.index import KINDS, NamedBox
from launcher.mesh.boxes import Box, boxes_of_run, full_box
from launcher.trainer.checkpoint import checkpoint_files as files
from launcher.trainer.checkpoint.checkpoint_files import NUMPY_DTYPES, StoredTensors, assemble, write_tensors

SHAPES = {"head": (7, 5), "norm": (6,), "conv": (3, 4, 5), "scale": ()}


def tensors_of(shapes, dtype="F32"):
    """Of each of KINDS a tensor of each parameter, in which every element differs from all others."""
    numbers = iter(range(10**9))
    return [
        {name: np.array([next(numbers) for _ in range(prod(shape))], NUMPY_DTYPES[dtype]).reshape(shape) for name, shape in shapes.items()}
        for _ in KINDS
    ]  # fmt: skip


def written(directory, tensors, boxes, dtype="F32"):
    """Write a file of those boxes under each name; return what an index says of them."""
    return {
        name: write_tensors(
            directory / name,
            each,
            dtype,
            [kind[box.name][box.box.within(full_box(kind[box.name].shape))] for kind in tensors for box in each],
        )
        for name, each in boxes.items()
    }


def some_parts(numbers, shapes, ranks):
    """Boxes of runs of elements, as data-parallel ranks own them."""
    parts = {f"rank{rank}.part": [] for rank in range(ranks)}
    for name, shape in shapes.items():
        cuts = [0, *sorted(numbers.choices(range(prod(shape) + 1), k=ranks - 1)), prod(shape)]
        for part, start, stop in zip(parts.values(), cuts, cuts[1:], strict=False):
            part += [NamedBox(name, box) for box in boxes_of_run(start, stop, shape)]
    return parts


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("seed", range(5))
def test_one_file_of_several(tmp_path, monkeypatch, seed, dtype):
    monkeypatch.setattr(files, "BLOCK_BYTES", 40)  # a few elements at a time
    tensors = tensors_of(SHAPES, dtype)
    parts = written(tmp_path, tensors, some_parts(random.Random(seed), SHAPES, ranks=3), dtype)
    file = assemble(tmp_path / "model.safetensors", parts, dtype, reversed(SHAPES))
    content = (tmp_path / "model.safetensors").read_bytes()
    assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert [box.name for box in file.boxes] == list(reversed(SHAPES))
    found = load_file(tmp_path / "model.safetensors")
    assert set(found) == {f"{kind}/{name}" for kind in KINDS for name in SHAPES}
    for kind, expected in zip(KINDS, tensors, strict=True):
        assert all(np.array_equal(found[f"{kind}/{name}"], expected[name]) for name in SHAPES)


@pytest.mark.parametrize("seed", range(5))
def test_any_box_is_read(tmp_path, seed):
    numbers = random.Random(seed)
    tensors = tensors_of(SHAPES)
    boxes = some_parts(numbers, SHAPES, ranks=3)
    stored = StoredTensors(tmp_path, written(tmp_path, tensors, {**boxes, "copy": boxes["rank1.part"]}), "F32")
    for name, shape in SHAPES.items():
        start = tuple(numbers.randrange(size) for size in shape)
        wanted = Box(start, tuple(numbers.randint(1, size - at) for size, at in zip(shape, start, strict=True)))
        for kind, expected in enumerate(tensors):
            found, times = np.zeros(wanted.size, np.float32), np.zeros(wanted.size, int)
            for here, values in stored.pieces(name, wanted):
                found[here] = values[kind]
                times[here] += 1
            assert np.array_equal(found, expected[name][wanted.within(full_box(shape))])
            assert (times == 1).all()


def test_the_first_copy_is_read(tmp_path):
    boxes = {"one": [NamedBox("norm", Box((0,), (6,)))]}
    one = written(tmp_path, tensors_of(SHAPES), boxes)
    other = written(tmp_path, [{"norm": np.full(6, 9, np.float32)}] * 3, {"other": boxes["one"]})
    for names in (("one", "other"), ("other", "one")):
        stored = StoredTensors(tmp_path, {name: {**one, **other}[name] for name in names}, "F32")
        [(_, values)] = stored.pieces("norm", Box((0,), (6,)))
        assert (values[0] == 9).all() == (names[0] == "other")


def test_names_tell_boxes_apart_where_there_are_several(tmp_path):
    boxes = [NamedBox("head", box) for box in boxes_of_run(0, 8, (7, 5))] + [NamedBox("norm", Box((0,), (6,)))]
    written(tmp_path, tensors_of(SHAPES), {"rank0.safetensors": boxes})
    assert {name for name in load_file(tmp_path / "rank0.safetensors") if name.startswith("weight")} == {
        "weight/head/0", "weight/head/1", "weight/norm",
    }  # fmt: skip


def test_a_file_is_made_in_little_memory(tmp_path):
    shapes = {"head": (3000, 1000)}
    tensors = [{"head": np.zeros(shapes["head"], np.float32)} for _ in KINDS]
    halves = {f"rank{part}.part": [NamedBox("head", Box((part * 1500, 0), (1500, 1000)))] for part in range(2)}
    parts = written(tmp_path, tensors, halves)
    tracemalloc.start()
    try:
        assemble(tmp_path / "model.safetensors", parts, "F32", shapes)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * files.BLOCK_BYTES < (tmp_path / "model.safetensors").stat().st_size
