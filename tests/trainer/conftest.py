"""What TensorBoard makes of the trainer's event files, and torch on a busy machine."""

import subprocess
import sys
from pathlib import Path

import pytest


def run_program(name, *arguments):
    """Run `tests/programs/NAME`, which has to succeed; return what it prints."""
    argv = [sys.executable, Path(__file__).parents[1] / "programs" / name, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def board():
    """Gives a function: of the event files in a directory, by tag, the time in seconds, step and value of each scalar."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(directory):
        found = EventAccumulator(str(directory))
        found.Reload()
        return {
            tag: [(each.wall_time, each.step, each.value) for each in found.Scalars(tag)]
            for tag in found.Tags()["scalars"]
        }

    return read


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Has torch compute by one thread, here and in what tests start: several, where tests share few cores, wait for each other busily."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def write_own():
    """Gives a function that writes a checkpoint of two ranks, and returns what it holds by kind and parameter."""
    from dataclasses import asdict

    import numpy as np

    from launcher.checkpoint.index import INDEX, KINDS, TOKENIZER, Index, NamedBox, index_text
    from launcher.checkpoint.tensors import write_digested
    from launcher.core.records import Layout
    from launcher.mesh.boxes import boxes_of_run, full_box
    from launcher.recipes.load import load_settings
    from launcher.recipes.transformer.transformer_settings import TransformerSettings
    from launcher.trainer.checkpoint.checkpoint_files import NUMPY_DTYPES, write_tensors

    def write(directory, shapes, *settings, step=3, dtype="F32"):
        directory.mkdir(parents=True)
        numbers = np.random.default_rng(step)
        state = {
            kind: {name: numbers.random(shape).astype(NUMPY_DTYPES[dtype]) for name, shape in shapes.items()}
            for kind in KINDS
        }
        files = {TOKENIZER: write_digested(directory / TOKENIZER, [b"a tokenizer"], synced=False)}
        for rank in range(2):
            boxes = []
            for name, shape in shapes.items():
                count = int(np.prod(shape))
                first, last = (0, count // 3) if rank == 0 else (count // 3, count)
                boxes += [NamedBox(name, box) for box in boxes_of_run(first, last, shape)]
            values = [
                state[kind][each.name][each.box.within(full_box(shapes[each.name]))] for kind in KINDS for each in boxes
            ]
            files[f"rank{rank}.safetensors"] = write_tensors(
                directory / f"rank{rank}.safetensors", boxes, dtype, values
            )
        facts = asdict(load_settings(TransformerSettings, None, list(settings)))
        index = Index(step, "transformer", facts, Layout(dp=2), "a text", "", dtype, shapes, files)
        (directory / INDEX).write_text(index_text(index))
        return state

    return write


@pytest.fixture(scope="session")
def read_own():
    """Gives a function that returns what a checkpoint holds in one file, by kind and parameter, once it is whole."""
    from launcher.checkpoint.index import KINDS, damage_of, read_index
    from launcher.mesh.boxes import full_box
    from launcher.trainer.checkpoint.checkpoint_files import StoredTensors

    def read(path):
        index = read_index(path)
        assert not any(damage_of(path, name, file) for name, file in index.files.items())
        stored = StoredTensors(path, index.files, index.dtype)
        tensors = {}
        for name, shape in index.shapes.items():
            [(_, tensors[name])] = stored.pieces(name, full_box(shape))
        return {kind: {name: found[number] for name, found in tensors.items()} for number, kind in enumerate(KINDS)}

    return read


def written(state, like, output, step=None):
    """Write a state that was read from files of another tool as a checkpoint; return its path."""
    from launcher.checkpoint.index import read_index
    from launcher.trainer.checkpoint.foreign.progress import Progress
    from launcher.trainer.checkpoint.foreign.state import check_fits, write_checkpoint

    index = read_index(like)
    check_fits(state, index, like)
    write_checkpoint(output, state, index, like, step or state.step(), Progress())
    return output


def same_state(one, other):
    return all((one[kind][name] == other[kind][name]).all() for kind in one for name in one[kind])
