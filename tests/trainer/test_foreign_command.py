"""`tlaunch ckpt export` and `import`: the process that converts is started, and what it says and ends with is kept."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from launcher.checkpoint.index import STRATEGY, read_index
from launcher.cli.commands.ckpt.conversion import CONVERTER
from launcher.core.records import Layout
from launcher.trainer.checkpoint.restore import candidates_at, restore
from launcher.trainer.checkpoint.state import Training
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END
from launcher.trainer.session import Session, meta_model

from .transformers import alone, transformer_settings

SETTINGS = ["model.vocabulary_size=67", "model.d_model=16", "model.feed_forward_dim=32", "train.precision=float64"]


def ckpt(directory, *words):
    argv = [sys.executable, "-m", "launcher", "ckpt", *map(str, words)]
    return subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=False)


def trained_from(checkpoint):
    settings = transformer_settings(*SETTINGS)
    session = Session(settings, alone())
    shapes = read_index(checkpoint).shapes
    training = Training("transformer", asdict(settings), Layout(), "a text", "", shapes, b"a tokenizer")
    assert restore(lambda: candidates_at(checkpoint), training, session.optimizer, session.world) == (checkpoint, 7)
    pairs = [Example([5, 6, END], [7, END]), Example([8, END], [9, 10, END])]
    return [session.train_step(pairs, 5e-3, step=step).loss for step in (8, 9)]


@pytest.fixture(name="own")
def _own(tmp_path, write_own):
    model = meta_model(transformer_settings(*SETTINGS))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    write_own(tmp_path / "own", shapes, *SETTINGS, step=7, dtype="F64")
    return tmp_path / "own"


def test_there_and_back(tmp_path, own):
    """The path of each result is all of stdout."""
    exported = ckpt(tmp_path, "export", own, "--format", "dcp", "--output", "out/dcp")
    assert (exported.returncode, exported.stdout, exported.stderr) == (0, "out/dcp\n", "")
    imported = ckpt(tmp_path, "import", "out/dcp", "--format", "dcp", "--like", own, "--output", "in/step-7")
    assert (imported.returncode, imported.stdout, imported.stderr) == (0, "in/step-7\n", "")
    assert read_index(tmp_path / "in" / "step-7").shapes == read_index(own).shapes
    assert (tmp_path / "in" / "step-7" / STRATEGY).is_file()
    assert trained_from(tmp_path / "in" / "step-7") == trained_from(own)


def test_lines_of_others_are_passed_on(tmp_path, own, monkeypatch):
    """On the stdout of the process that converts, packages may write what they like."""
    lines = ["a word", "-5", "", "9" * 5000]
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nprint(*{lines}, sep='\\n', file=sys.__stdout__)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = ckpt(tmp_path, "export", "--format", "dcp", own, "--output", "out")
    assert (done.returncode, done.stderr.splitlines()) == (0, lines)


def test_ctrl_c_ends_both_processes_silently(tmp_path, own, monkeypatch, wait_until):
    """Also where the one that imports torch has not come to its own handlers yet."""
    site = tmp_path / "site"
    site.mkdir()
    wait = f"print(os.getpid(), file=open({str(tmp_path / 'pid')!r}, 'w')); time.sleep(600)"
    (site / "sitecustomize.py").write_text(f"import os, sys, time\nif {CONVERTER!r} in sys.orig_argv: {wait}")
    monkeypatch.setenv("PYTHONPATH", str(site))
    argv = [sys.executable, "-m", "launcher", "ckpt", "export", "--format", "dcp", own, "--output", "out"]
    process = subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        pid = wait_until(
            lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the other one"
        )
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, *said) == (130, "", "\n")
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "pid", "site"]


def test_what_is_refused_has_its_code(tmp_path, own):
    torch.save({}, tmp_path / "model.ckpt")
    done = ckpt(tmp_path, "import", "model.ckpt", "--format", "mindspore", "--like", own, "--output", "new")
    assert (done.returncode, done.stdout) == (2, "")
    assert "model.ckpt is not a MindSpore checkpoint" in done.stderr
    for output, told in ((own, "already exists"), ("model.bin", "ends with .ckpt")):
        done = ckpt(tmp_path, "export", own, "--format", "mindspore", "--output", output)
        assert (done.returncode, told in done.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.ckpt", "own"]
