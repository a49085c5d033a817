"""Trainings that go on from checkpoints, through the real command."""

import json
import os
import re
import signal
import subprocess

import pytest

from launcher.checkpoint.index import checkpoints_in

from .conftest import TLAUNCH, tlaunch

STEPS = 16
SIZES = [
    "model.d_model=32", "model.feed_forward_dim=64", "model.dropout=0.1", "model.vocabulary_size=400",
    "train.precision=float64", "train.translations=0", "train.batch_size=4", f"train.steps={STEPS}",
    "checkpoint.every_steps=2",
]  # fmt: skip
LOSSES = re.compile(r"^epoch: (\d+) step: (\d+), loss is (\d+\.\d{4})", re.MULTILINE)

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def train(runs_dir, text, *more, code=0):
    """Losses by step as rank 0 tells them, a step of two attempts as the last one does; and its log."""
    settings = [word for setting in SIZES for word in ("--set", setting)]
    done = tlaunch("run", "--data", text, *settings, *more, "--runs-dir", runs_dir)
    assert done.returncode == code, done.stderr[-4000:]
    log = (runs_dir / "latest" / "device0" / "train.log").read_text()
    return losses_in(log), log


def losses_in(log):
    """By epoch and step."""
    return {(int(epoch), int(step)): loss for epoch, step, loss in LOSSES.findall(log)}


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory, small_text):
    runs_dir = tmp_path_factory.mktemp("runs")
    return train(runs_dir, small_text, "--devices", 2, "--mp", 2)[0], runs_dir


def test_another_layout_goes_on(whole, small_text, tmp_path):
    """By the path of a checkpoint, by a run's name, and by itself."""
    losses, runs_dir = whole
    run = (runs_dir / "latest").resolve()
    newest, *_, oldest = checkpoints_in(run / "checkpoints")
    assert (newest.name, len(checkpoints_in(run / "checkpoints"))) == (f"step-{STEPS}", 4)
    ours, log = train(tmp_path, small_text, "--devices", 4, "--pp", 2, "--micro-batches", 2, "--resume", oldest)
    assert ours == {step: loss for step, loss in losses.items() if step > (1, STEPS - 6)}
    assert f"resumed: {oldest}, after step {STEPS - 6}" in log

    more = ("--devices", 2, "--set", f"train.steps={STEPS + 2}")
    by_name, _ = train(runs_dir, small_text, "--resume", run.name, *more)
    by_itself, log = train(runs_dir, small_text, "--resume", "auto", *more, "--set", f"train.steps={STEPS + 4}")
    assert list(by_name) == [(1, STEPS + 1), (1, STEPS + 2)]
    assert list(by_itself) == [(1, STEPS + 3), (1, STEPS + 4)]
    assert json.loads((runs_dir / "latest" / "report.json").read_text())["exit_code"] == 0


def test_what_is_no_checkpoint_of_this_training_is_refused(whole, small_text, tmp_path):
    """Before a rank starts where the launcher can see it, else by all ranks alike; auto begins anew."""
    _, runs_dir = whole
    run = (runs_dir / "latest").resolve()
    train(tmp_path, small_text, "--devices", 2, "--set", "train.seed=2", "--resume", run, code=2)
    assert "train.seed" in (tmp_path / "latest" / "device0" / "train.log").read_text()
    done = tlaunch("run", "--devices", 1, "--resume", "no-such-run", "--runs-dir", tmp_path)
    assert done.returncode == 2
    other = ("--set", "train.seed=2", "--set", "train.steps=1")
    done = tlaunch("run", "--devices", 1, *other, "--resume", "auto", "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "note: --resume auto" in done.stderr


def test_a_restart_goes_on(whole, small_text, tmp_path, wait_until):
    """A rank is killed after the first checkpoint: the losses are those of the run that was not disturbed."""
    losses, _ = whole
    settings = [word for setting in [*SIZES, "train.steps=200"] for word in ("--set", setting)]
    argv = ["run", "--devices", "2", "--mp", "2", "--max-restarts", "1", "--data", small_text, *settings]
    process = subprocess.Popen(
        [*TLAUNCH, *argv, "--runs-dir", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        run = tmp_path / "latest"
        wait_until(lambda: checkpoints_in(run / "checkpoints"), "a checkpoint")
        state = json.loads(tlaunch("status", "--json", "--runs-dir", tmp_path).stdout)
        os.kill(next(rank["pid"] for rank in state["each"] if rank["global_rank"] == 1), signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    log = (run / "device0" / "train.log").read_text()
    found = losses_in(log)

    assert process.returncode == 0, said
    assert re.search(r"^resumed: .*/checkpoints/step-\d+, after step \d+$", log, re.MULTILINE)
    assert {step: found[step] for step in losses} == losses
    assert len(found) == 200
