"""The main job through the real command: rank table in, trained model out."""

import os
import re
import subprocess
import sys

import pytest

from launcher.cli.text import progress_text

from .conftest import ROOT, run_to_end, tlaunch

STEPS = 12
STEP_LINE = re.compile(r"^epoch: (\d+) step: (\d+), loss is (\d+\.\d{4}), \d+ tokens/s, gradient norm ", re.MULTILINE)
VALIDATION_LINE = re.compile(
    r"^step \d+: validation loss is (\d+\.\d{6}), perplexity [\d.]+ \(unigram model: [\d.]+\)$", re.MULTILINE
)

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


def settings(*pairs):
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    """The main job, cut short: eight ranks from the sample table at dp=2 mp=2 pp=2."""
    environment = {**os.environ, "TLAUNCH_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}  # none of this machine's
    runs_dir = tmp_path_factory.mktemp("runs")
    done = tlaunch(
        "run", "--rank-table", "rank_tables/rank_table_8pcs.json", "--dp", 2, "--mp", 2, "--pp", 2, "--micro-batches", 2,
        *settings(f"train.steps={STEPS}", f"train.warmup_steps={STEPS // 2}"), "--runs-dir", runs_dir,
        cwd=ROOT, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return runs_dir / "latest", done, environment


def test_the_loss_falls_and_every_rank_tells_it(run):
    """Every rank writes the same losses, one line per step, whatever stage it is in; they fall clearly.

    Of what eight ranks have written collapsed logs show an eighth, and each line says whose it is.
    """
    directory, done, environment = run
    logs = [(directory / f"device{rank}" / "train.log").read_text() for rank in range(8)]
    lines = [STEP_LINE.findall(log) for log in logs]
    recognised = progress_text.STEP_LINE.findall(logs[0].encode())
    losses = [float(loss) for _, _, loss in lines[0]]
    assert [[loss for _, _, loss in found] for found in lines] == [[loss for _, _, loss in lines[0]]] * 8
    assert [int(step) for _, step, _ in lines[0]] == list(range(1, STEPS + 1))
    assert len(recognised) == STEPS  # which a terminal's progress line replaces
    assert sum(losses[-3:]) / 3 < losses[0] - 1
    assert f"loss is {losses[-1]:.4f}" in done.stdout
    collapsed = tlaunch("logs", "--collapse", "--runs-dir", directory.parent, cwd=ROOT, env=environment)
    shown = collapsed.stdout.splitlines()
    assert collapsed.returncode == 0, collapsed.stderr
    steps = [line for line in shown if "epoch: " in line]
    assert len(steps) == STEPS
    assert all(line.startswith("[0-7] epoch: 1 step: ") for line in steps)
    assert len(shown) <= len(logs[0].splitlines()) + 2  # ranks of the two stages hold different numbers of parameters


def test_the_script_of_the_documentation_gives_the_last_validation_loss(run):
    """The weights of dp=2 mp=2 pp=2 are those of one device: a short script finds the same validation loss.

    Rank 0 has told it, and shown sentences of the test split beside their references and what the model makes of them.
    """
    directory, _, environment = run
    found = re.findall(r"```python\n(.+?)```", (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8"), re.DOTALL)
    [script] = [each for each in found if "import torch" in each]
    done = subprocess.run(
        [sys.executable, "-c", script, directory / "model"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    log = (directory / "device0" / "train.log").read_text()
    [expected] = VALIDATION_LINE.findall(log)
    assert len(re.findall(r"^source: .+\nreference: .+\ntranslation: .*$", log, re.MULTILINE)) == 5
    assert done.returncode == 0, done.stderr
    assert len(script.splitlines()) <= 20
    assert float(re.search(r"[\d.]+", done.stdout)[0]) == pytest.approx(float(expected), abs=1e-4)


def test_the_tutorial_starts_at_the_logarithm_of_its_vocabulary(tmp_path, small_text):
    """With the tutorial's sizes, the first loss is ln 20000 = 9.90."""
    done = tlaunch(
        "run", "--devices", 2, "--pp", 2, "--config", "recipes/transformer/tutorial.toml", "--data", small_text,
        *settings("train.steps=1", "train.translations=0"), "--runs-dir", tmp_path, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    [(epoch, step, loss)] = STEP_LINE.findall((tmp_path / "latest" / "device1" / "train.log").read_text())
    assert (epoch, step) == ("1", "1")
    assert float(loss) == pytest.approx(9.90, abs=0.05)


def test_what_only_rank_0_finds_ends_all_ranks_alike(tmp_path, small_text):
    """A vocabulary too small for the text is rank 0's discovery: whichever rank ends first says so, with exit code 2."""
    small = ("--data", small_text, "--set", "model.vocabulary_size=100")
    done = tlaunch("run", "--devices", 4, *small, "--runs-dir", tmp_path, cwd=ROOT)
    assert done.returncode == 2, done.stderr
    assert "model.vocabulary_size = 100" in done.stderr
    assert "gloo" not in done.stderr


def test_the_trainer_runs_under_torchrun(tmp_path, small_text):
    """Without tlaunch's variables every rank is a data-parallel copy, and --output says where the model goes."""
    command = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "launcher.trainer")
    chosen = settings("train.steps=2", "train.translations=0", "data.source_language=en", "model.vocabulary_size=400")
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # where torchrun leaves a directory
    done = run_to_end((*command, "--data", small_text, *chosen, "--output", tmp_path / "model"), cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    assert [step for _, step, _ in STEP_LINE.findall(done.stdout)] == ["1", "2"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.model",
    ]  # fmt: skip
