"""Trainings that go on from checkpoints, through the real command."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest

from launcher.checkpoint.index import checkpoints_in, read_index
from launcher.core.events import RankStarted, from_line

from .conftest import TLAUNCH, tlaunch, wait_until

STEPS = 16
SIZES = [
    "model.d_model=32", "model.feed_forward_dim=64", "model.dropout=0.1", "model.vocabulary_size=400",
    "train.precision=float64", "train.translations=0", "train.batch_size=4", f"train.steps={STEPS}",
    "checkpoint.every_steps=2",
]  # fmt: skip
LOSSES = re.compile(r"^epoch: (\d+) step: (\d+).*, loss is (\d+\.\d{4})", re.MULTILINE)

VALIDATION = re.compile(r"^step \d+: validation loss is (\d+\.\d+)", re.MULTILINE)

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def train(runs_dir, text, *more, code=0):
    """Losses by step as rank 0 tells them, a step of two attempts as the last one does; and its log."""
    settings = [word for setting in SIZES for word in ("--set", setting)]
    done = tlaunch("run", "--data", text, *settings, *more, "--runs-dir", runs_dir)
    assert done.returncode == code, done.stderr[-4000:]
    log = (runs_dir / "latest" / "device0" / "train.log").read_text()
    return losses_in(log), log


def losses_in(log):
    return {(int(epoch), int(step)): loss for epoch, step, loss in LOSSES.findall(log)}


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory, small_text):
    runs_dir = tmp_path_factory.mktemp("runs")
    return train(runs_dir, small_text, "--devices", 2, "--mp", 2)[0], runs_dir


def test_another_layout_goes_on(whole, small_text, tmp_path):
    losses, runs_dir = whole
    run = (runs_dir / "latest").resolve()
    newest, *_, oldest = checkpoints_in(run / "checkpoints")
    assert (newest.name, len(checkpoints_in(run / "checkpoints"))) == (f"step-{STEPS}", 4)
    ours, log = train(tmp_path, small_text, "--devices", 4, "--pp", 2, "--micro-batches", 2, "--resume", oldest)
    assert ours == {step: loss for step, loss in losses.items() if step > (1, STEPS - 6)}
    assert f"resumed: {oldest}, after step {STEPS - 6}" in log
    more = ("--devices", 1, "--set", f"train.steps={STEPS + 2}")
    by_name, _ = train(runs_dir, small_text, "--resume", run.name, *more)
    by_itself, log = train(runs_dir, small_text, "--resume", "auto", *more, "--set", f"train.steps={STEPS + 4}")
    assert list(by_name) == [(1, STEPS + 1), (1, STEPS + 2)]
    assert list(by_itself) == [(1, STEPS + 3), (1, STEPS + 4)]
    assert json.loads((runs_dir / "latest" / "report.json").read_text())["exit_code"] == 0


def test_what_is_no_checkpoint_of_this_training_is_refused(whole, small_text, tmp_path):
    """Before a rank starts where the launcher can see it, else by all ranks alike; auto begins anew."""
    _, runs_dir = whole
    run = (runs_dir / "latest").resolve()
    done = tlaunch("run", "--devices", 2, "--set", "train.seed=2", "--resume", run, "--runs-dir", tmp_path / "none")
    assert done.returncode == 2
    assert not (tmp_path / "none").exists()
    other_text = tmp_path / "text"
    other_text.mkdir()
    for path in small_text.glob("*.txt"):
        (other_text / path.name).write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    same = [word for setting in SIZES for word in ("--set", setting)]
    done = tlaunch("run", "--devices", 2, "--data", other_text, *same, "--resume", run, "--runs-dir", tmp_path / "none")
    assert (done.returncode, "--init-from" in done.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
    done = tlaunch("run", "--devices", 1, "--resume", "no-such-run", "--runs-dir", tmp_path)
    assert done.returncode == 2
    other = [*same, "--set", "train.seed=2", "--set", "train.steps=1"]
    done = tlaunch("run", "--devices", 1, "--data", small_text, *other, "--resume", "auto", "--runs-dir", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "note: --resume auto" in done.stderr


def test_where_nothing_is_left_to_train_that_is_said_and_the_model_validated(whole, small_text, tmp_path):
    _, runs_dir = whole
    first = min(path for path in runs_dir.iterdir() if path.name != "latest")
    losses, log = train(tmp_path, small_text, "--devices", 1, "--resume", first)
    before = (first / "device0" / "train.log").read_text()
    assert losses == {}
    assert f"nothing is left to train after step {STEPS}:" in log
    assert VALIDATION.findall(log) == VALIDATION.findall(before)[-1:]


def test_a_restart_goes_on(whole, small_text, tmp_path, wait_until):
    """A rank is killed after the first checkpoint: the losses are those of the run that was not disturbed."""
    losses, _ = whole
    settings = [
        word for setting in [*SIZES, "train.steps=100", "checkpoint.every_steps=4"] for word in ("--set", setting)
    ]
    argv = ["run", "--devices", "2", "--mp", "2", "--max-restarts", "1", "--data", small_text, *settings]
    process = subprocess.Popen(
        [*TLAUNCH, *argv, "--runs-dir", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        run = tmp_path / "latest"
        wait_until(lambda: checkpoints_in(run / "checkpoints"), "a checkpoint")
        os.kill(pid_of(run, 1), signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    log = (run / "device0" / "train.log").read_text()
    found = losses_in(log)
    assert process.returncode == 0, said
    assert re.search(r"^resumed: .*/checkpoints/step-\d+, after step \d+$", log, re.MULTILINE)
    assert {step: found[step] for step in losses} == losses
    assert len(found) == 100


def test_a_run_starts_from_the_model_of_another(whole, small_text, tmp_path, wait_until):
    """In any layout. Killed and restarted, or resumed when the model is gone, it equals the run that was not disturbed."""
    _, runs_dir = whole
    first = min(path for path in runs_dir.iterdir() if path.name != "latest")
    source = tmp_path / "source"
    shutil.copytree(first / "model", source / "model")
    newest = shutil.copytree(checkpoints_in(first / "checkpoints")[0], source / f"step-{STEPS}")
    text = tmp_path / "text"
    text.mkdir()
    for path in small_text.glob("*.txt"):
        (text / path.name).write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    steps = ("--set", "train.steps=60", "--set", "checkpoint.every_steps=4", "--set", "train.warmup_steps=10")
    losses, log = train(tmp_path / "one", text, "--init-from", source / "model", "--devices", 1, *steps)
    assert f"initial weights: {source / 'model'}" in log
    assert f"tokenizer {source / 'model' / 'tokenizer.model'}" in log
    other, _ = train(
        tmp_path / "two", text, "--init-from", newest, "--devices", 2, "--pp", 2, *steps, "--set", "train.steps=3"
    )
    assert other.items() <= losses.items()
    settings = [word for setting in SIZES for word in ("--set", setting)]
    words = ["--data", text, *settings, *steps, "--init-from", source / "model", "--runs-dir", tmp_path / "runs"]
    process = subprocess.Popen(
        [*TLAUNCH, "run", "--devices", "1", "--max-restarts", "1", *map(str, words)], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    run = tmp_path / "runs" / "latest"
    try:
        wait_until(lambda: checkpoints_in(run / "checkpoints"), "a checkpoint")
        os.kill(pid_of(run, 0), signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, said
    killed = (run / "device0" / "train.log").read_text()
    assert len(re.findall(r"^resumed: ", killed, re.MULTILINE)) == 1
    assert losses_in(killed) == losses
    assert same_model(run / "model", tmp_path / "one" / "latest" / "model")
    shutil.rmtree(source)
    oldest = checkpoints_in(run / "checkpoints")[-1].resolve()
    again = tlaunch("rerun", run.resolve(), "--resume", oldest)
    assert again.returncode == 0, again.stderr
    assert same_model(run / "model", tmp_path / "one" / "latest" / "model")
    assert f"resumed: {oldest}" in log_of(run)


def same_model(one, other):
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def begin(runs_dir, text, *more):
    """A run with the default checkpoint settings, on two model-parallel ranks."""
    settings = [word for setting in [*SIZES, "checkpoint.every_steps=0"] for word in ("--set", setting)]
    argv = [*TLAUNCH, "run", "--devices", "2", "--mp", "2", "--data", text, *settings, *more, "--runs-dir", runs_dir]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def log_of(run, rank=0):
    path = run / f"device{rank}" / "train.log"
    return path.read_text() if path.exists() else ""


def step_reached(run):
    return max((step for _, step in losses_in(log_of(run))), default=0)


def pid_of(run, rank):
    """Of its last start; asked of no command, which may begin when the training has ended."""

    def known():
        events = [from_line(line).event for line in (run / "events.jsonl").read_text().split("\n")[:-1]]
        return [event.pid for event in events if isinstance(event, RankStarted) and event.global_rank == rank]

    return wait_until(known, f"the start of rank {rank}")[-1]


def digests(checkpoint):
    files = read_index(checkpoint).files
    return {name: file.sha256 for name, file in files.items() if file.boxes}


def test_signals_save_and_nothing_is_lost(small_text, tmp_path, wait_until):
    """SIGUSR1, to the launcher or to one rank, saves, and the run goes on; SIGTERM saves the last step, from which a run continues.

    What it comes to is equal to the last bit to a training that was never disturbed.
    """
    endless = ("--set", "train.steps=100000", "--set", "train.epochs=100000", "--set", "checkpoint.keep=100")
    process = begin(tmp_path, small_text, *endless)
    run = tmp_path / "latest"
    saved = run / "checkpoints"
    try:
        wait_until(lambda: step_reached(run) > 2, "some steps")
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: checkpoints_in(saved), "the checkpoint that was asked for")
        first = read_index(checkpoints_in(saved)[0]).step
        wait_until(lambda: step_reached(run) > first + 2, "steps after it")
        before = checkpoints_in(saved)
        os.kill(pid_of(run, 1), signal.SIGUSR1)
        wait_until(lambda: len(checkpoints_in(saved)) > len(before), "the one that a single rank was asked for")
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 143, said
    report = json.loads((run / "report.json").read_text())
    assert (report["cause"], report["exit_code"], report["attempts"][-1]["killed"]) == ("stopped", 143, 0)
    assert [rank["status"] for rank in report["attempts"][-1]["exits"]] == [-signal.SIGTERM] * 2
    last = step_reached(run)
    assert checkpoints_in(saved)[0].name == f"step-{last}"
    assert all(log_of(run, rank).endswith(f"ended by SIGTERM after step {last}\n") for rank in range(2))
    steps = ("--set", f"train.steps={last + 3}", "--set", "train.epochs=100000")
    interrupted = run.resolve()
    ours, log = train(tmp_path, small_text, "--devices", 2, "--mp", 2, "--resume", "auto", *steps)
    assert f"resumed: {interrupted}/checkpoints/step-{last}, after step {last}" in log
    assert len(ours) == 3
    resumed = (tmp_path / "latest").resolve()
    assert f"continues {interrupted.name} from step {last:,}" in tlaunch("status", "--runs-dir", tmp_path).stdout
    told = json.loads(tlaunch("report", "--json", "--runs-dir", tmp_path).stdout)["runs"][0]
    assert (told["steps"], told["continues"]["run"]) == (last + 3, interrupted.name)
    train(tmp_path / "undisturbed", small_text, "--devices", 2, "--mp", 2, *steps)
    whole = tmp_path / "undisturbed" / "latest" / "checkpoints" / f"step-{last + 3}"
    assert digests(resumed / "checkpoints" / whole.name) == digests(whole)


def test_a_checkpoint_that_cannot_be_written_is_told_as_it_is(small_text, tmp_path, wait_until):
    process = begin(tmp_path, small_text, "--set", "train.steps=100000", "--set", "train.epochs=100000")
    run = tmp_path / "latest"
    try:
        wait_until(lambda: step_reached(run) > 2, "some steps")
        (run / "checkpoints").rmdir()
        (run / "checkpoints").write_text("no directory")
        process.send_signal(signal.SIGUSR1)
        # The next one waits for the end of the one before.
        wait_until(lambda: process.send_signal(signal.SIGUSR1) or "; the training continues" in log_of(run), "that")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    finally:
        process.kill()
    *_, told, last = log_of(run).splitlines()
    assert last == f"ended by SIGTERM after step {step_reached(run)}"
    assert told.startswith(f"the checkpoint of step {step_reached(run)} could not be written: ")
    assert "goes on" not in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_where_the_step_does_not_end_nothing_is_saved(small_text, tmp_path, wait_until, number):
    """It is long, and ranks are killed at once (--grace 0); or one of them is lost, and the other does not wait for its grace."""
    slow = ["model.d_model=256", "model.feed_forward_dim=1024", "train.batch_size=32", "train.epochs=100"]
    grace, code, cause, killed, more = {
        signal.SIGTERM: ("0", 143, "stopped", 2, slow),
        signal.SIGKILL: ("1000", 137, "failed", 0, ["train.steps=100000", "train.epochs=100000"]),
    }[number]
    process = begin(tmp_path, small_text, "--grace", grace, *(word for each in more for word in ("--set", each)))
    run = tmp_path / "latest"
    try:
        wait_until(lambda: step_reached(run), "a step")
        os.kill(pid_of(run, 1) if number == signal.SIGKILL else process.pid, number)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    report = json.loads((run / "report.json").read_text())
    assert (process.returncode, report["cause"]) == (code, cause), said
    assert report["attempts"][-1]["killed"] == killed
    assert checkpoints_in(run / "checkpoints") == []


def test_minutes_pass_on_one_clock(small_text, tmp_path):
    """A checkpoint after every step where they are short enough, of four ranks; the best and the last are kept."""
    more = ("--set", "checkpoint.every_steps=0", "--set", "checkpoint.every_minutes=0.00000001")
    best = ("--set", "checkpoint.keep_best=true", "--set", "checkpoint.keep=1", "--set", "train.validate_every=1")
    train(tmp_path, small_text, "--devices", 4, "--mp", 2, "--pp", 2, *more, *best, "--set", "train.learning_rate=0.5")
    found = [read_index(path) for path in checkpoints_in(tmp_path / "latest" / "checkpoints")]
    log = (tmp_path / "latest" / "device0" / "train.log").read_text()
    losses = [float(loss) for loss in re.findall(r"^step \d+: validation loss is (\S+),", log, re.MULTILINE)]
    assert log.count("saved the checkpoint of step") == len(losses) == STEPS
    assert found[0].step == STEPS
    assert {f"{index.validation_loss:.6f}" for index in found} == {f"{losses[-1]:.6f}", f"{min(losses):.6f}"}
