"""Checkpoints of MindSpore are made of the trainer's, and the other way: by files that it wrote, and by MindSpore itself."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from launcher.checkpoint import mindspore_export
from launcher.checkpoint.index import KINDS, read_index
from launcher.checkpoint.mindspore import read_values, value_head
from launcher.checkpoint.mindspore_export import write_mindspore
from launcher.checkpoint.tensors import opened
from launcher.core.errors import RefusedError, UnreadableError, UsageError
from launcher.trainer.checkpoint.foreign.mindspore import read_mindspore

from .conftest import same_state, written

DATA = Path(__file__).parent / "data"
PROGRAM = Path(__file__).parents[1] / "programs" / "mindspore_files.py"
MINDSPORE_PYTHON = os.environ.get("TLAUNCH_TEST_MINDSPORE_PYTHON")
SHAPES = {"encoder.0.weight": (4, 6), "encoder.0.bias": (5,), "head.weight": (3, 2, 2)}
ADAM_SHAPES = {"first.weight": (4, 3), "first.bias": (4,), "second.weight": (2, 4)}  # of mindspore_adam.ckpt


def exported(own, output):
    with opened(own, read_index(own), lambda _: None, print) as stored:
        write_mindspore(stored, output)
    return output


def imported(source, *more, **step):
    return written(read_mindspore(source), *more, **step)


def write_file(path, *values):
    with path.open("wb") as file:
        for name, kind, array in values:
            file.write(value_head(name, kind, array.shape, array.nbytes) + array.tobytes())
    return path


@pytest.mark.parametrize("optimizer", ["adamw", "adam_weight_decay"])
@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_there_and_back(tmp_path, write_own, optimizer, dtype, read_own):
    state = write_own(tmp_path / "own", SHAPES, f"train.optimizer={optimizer}", step=7, dtype=dtype)
    exported(tmp_path / "own", tmp_path / "model.ckpt")
    back = imported(tmp_path / "model.ckpt", tmp_path / "own", tmp_path / "step-7")
    index = read_index(back)
    assert same_state(state, read_own(back))
    assert (index.step, index.text, index.layout.world_size) == (7, "a text", 1)


def test_the_names_are_those_of_mindspores_optimizers(tmp_path, write_own):
    """`mindspore_adam.ckpt` has them all, but the learning rate is that of the schedule."""
    write_own(tmp_path / "own", ADAM_SHAPES, step=7)
    found = read_values(exported(tmp_path / "own", tmp_path / "model.ckpt"))
    theirs = read_values(DATA / "mindspore_adam.ckpt")
    assert found.keys() == theirs.keys() - {"learning_rate", "epoch_num", "note"}
    for name, value in found.items():
        assert (value.type, value.shape) == (theirs[name].type, theirs[name].shape)


def test_a_training_of_mindspore_is_imported(tmp_path, write_own, read_own):
    """`mindspore_adam.ckpt` is of three steps of mindspore.nn.Adam, and of values that have no place here."""
    write_own(tmp_path / "own", ADAM_SHAPES)
    path = imported(DATA / "mindspore_adam.ckpt", tmp_path / "own", tmp_path / "step-3")
    theirs = np.load(DATA / "mindspore_adam.npz")
    names = {"weight": "", "first_moment": "moment1.", "second_moment": "moment2."}
    expected = {kind: {name: theirs[prefix + name] for name in ADAM_SHAPES} for kind, prefix in names.items()}
    assert same_state(expected, read_own(path))
    assert read_index(path).step == 3
    assert read_mindspore(DATA / "mindspore_adam.ckpt").left_out == ("learning_rate", "epoch_num", "note")


def test_types_of_mindspore_are_read():
    state, theirs = read_mindspore(DATA / "mindspore_types.ckpt"), np.load(DATA / "mindspore_types.npz")
    found = {name: tensor.read() for name, tensor in state.tensors[0].items()}
    assert found.keys() == {"a.single", "a.b.half", "brain", "double", "whole", "scalar"}
    assert state.unknown == ["truth of Bool"]
    for name, tensor in found.items():
        expected = theirs[name]
        assert np.array_equal(tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy(), expected)
        assert tensor.shape == expected.shape


def test_narrow_weights_alone_become_a_checkpoint(tmp_path, write_own, read_own):
    """Without moments, which are zero then; the step has to be said."""
    write_own(tmp_path / "own", {"a": (2, 2)})
    half = np.array([[0.5, 1.25], [-3, 4]], np.float16)
    path = write_file(tmp_path / "model.ckpt", ("a", "Float16", half))
    with pytest.raises(UsageError, match="does not contain the training step"):
        read_mindspore(path).step()
    found = read_own(imported(path, tmp_path / "own", tmp_path / "new", step=20))
    assert np.array_equal(found["weight"]["a"], half.astype(np.float32))
    assert not found["first_moment"]["a"].any()
    assert not found["second_moment"]["a"].any()


def test_all_that_does_not_fit_is_told(tmp_path, write_own):
    write_own(tmp_path / "own", {"a": (2,), "b": (2,), "c": (2,), "d": (2,)})
    two, three = np.ones(2, np.float32), np.ones(3, np.float32)
    path = write_file(
        tmp_path / "model.ckpt",
        ("b", "Float32", three),
        ("c", "Float64", two.astype(float)),
        ("d", "Float32", two),
        ("e", "Float32", two),
        ("moment1.d", "Float32", two),
        ("adam_m.d", "Float32", two),
    )
    with pytest.raises(RefusedError) as caught:
        imported(path, tmp_path / "own", tmp_path / "new", step=1)
    for told in (
        "weights: 1 of 4 parameters are missing: a",
        "weights: 1 have unknown names: e",
        "b is 3 instead of 2",
        "c in torch.float64",
        "first moments: 3 of 4",
        "second moments: 4 of 4",
        "adam_m.d",
    ):
        assert told in caught.value.message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("number", "kind"), [(0, "Int32"), (-4, "Int32"), (2.5, "Float32")])
def test_a_step_that_cannot_be_is_refused(tmp_path, number, kind):
    value = np.array([number], {"Int32": np.int32, "Float32": np.float32}[kind])
    state = read_mindspore(write_file(tmp_path / "model.ckpt", ("global_step", kind, value)))
    with pytest.raises(RefusedError, match="steps count from 1"):
        state.step()


def test_a_large_tensor_is_in_pieces(tmp_path, write_own, read_own, monkeypatch):
    monkeypatch.setattr(mindspore_export, "PIECE_BYTES", 40)
    state = write_own(tmp_path / "own", SHAPES)
    values = read_values(exported(tmp_path / "own", tmp_path / "model.ckpt"))
    back = imported(tmp_path / "model.ckpt", tmp_path / "own", tmp_path / "step-3")
    assert max(len(piece) for value in values.values() for piece in value.pieces) <= 40
    assert len(values["encoder.0.weight"].pieces) > 2
    assert same_state(state, read_own(back))


def test_a_damaged_checkpoint_is_not_exported(tmp_path, write_own):
    write_own(tmp_path / "own", SHAPES)
    content = bytearray((tmp_path / "own" / "rank1.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "own" / "rank1.safetensors").write_bytes(content)
    with pytest.raises(UnreadableError, match="rank1"):
        exported(tmp_path / "own", tmp_path / "model.ckpt")
    assert not (tmp_path / "model.ckpt").exists()


def test_the_name_of_another_step_is_refused(tmp_path, write_own):
    """A directory step-8 is of step 8, or `--resume` would take it for damaged."""
    write_own(tmp_path / "own", SHAPES, step=7)
    exported(tmp_path / "own", tmp_path / "model.ckpt")
    with pytest.raises(UsageError, match="step 7"):
        imported(tmp_path / "model.ckpt", tmp_path / "own", tmp_path / "step-8")


needs_mindspore = pytest.mark.skipif(
    not MINDSPORE_PYTHON, reason="TLAUNCH_TEST_MINDSPORE_PYTHON names no Python that has MindSpore"
)


def with_mindspore(*words):
    done = subprocess.run([MINDSPORE_PYTHON, PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


@needs_mindspore
@pytest.mark.slow
def test_mindspore_reads_what_is_exported(tmp_path, write_own):
    state = write_own(tmp_path / "own", SHAPES, step=7)
    exported(tmp_path / "own", tmp_path / "model.ckpt")
    with_mindspore("read", tmp_path / "model.ckpt", tmp_path / "found.npz")
    found = np.load(tmp_path / "found.npz")
    for kind, prefix in zip(KINDS, ("", "moment1.", "moment2."), strict=True):
        for name, expected in state[kind].items():
            assert np.array_equal(found[prefix + name], expected)
    assert (found["global_step"].tolist(), found["beta1_power"]) == ([7], np.float32(0.9**7))


@needs_mindspore
@pytest.mark.slow
def test_mindspore_goes_on_bit_by_bit(tmp_path, write_own):
    """From its own training, which was imported and exported on the way."""
    with_mindspore("write", tmp_path)
    write_own(tmp_path / "own", ADAM_SHAPES)
    imported(tmp_path / "adam.ckpt", tmp_path / "own", tmp_path / "step-3")
    with_mindspore("resume", exported(tmp_path / "step-3", tmp_path / "again.ckpt"))
