"""What the training measures of itself: metrics.jsonl and TensorBoard."""

import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from launcher.core.env import TLAUNCH_ATTEMPT, TLAUNCH_RUN_DIR
from launcher.core.events import RankStarted
from launcher.core.metrics import Saved
from launcher.core.run_dir import RunDir
from launcher.runs.metrics_reader import MetricsReader, read_metrics
from launcher.runs.status import EventReader
from launcher.runs.timeline import timeline
from launcher.trainer.telemetry import metrics_writer as metrics_module
from launcher.trainer.telemetry.metrics_writer import REST_S, Metrics, peak_flops_per_s
from launcher.trainer.telemetry.step_time import StepTime

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
PATIENCE_S = 120


def under(directory, attempt=0):
    return {TLAUNCH_RUN_DIR: str(directory), TLAUNCH_ATTEMPT: str(attempt)}


def step(metrics, number, *, seconds=0.5, tokens=100, loss=2.0, learning_rate=1e-3, epoch=1, is_last=False, **more):
    measured = {
        "tokens": tokens, "padding_share": 0.25, "model_flops": 1e6, "loss": loss, "gradient_norm": 0.5,
        "is_clipped": False, **more,
    }  # fmt: skip
    spent = StepTime(seconds, communication_s=0.2 * seconds, bubble_s=0.1 * seconds, data_s=0.05 * seconds)
    metrics.stepped(number, spent, epoch=epoch, learning_rate=learning_rate, is_last=is_last, **measured)


@pytest.fixture(name="shown")
def _shown(board):
    """Gives a function: of a run's directory, by tag, step and value of each scalar."""
    return lambda directory: {
        tag: [(step, value) for _, step, value in scalars] for tag, scalars in board(directory / "tensorboard").items()
    }


@pytest.fixture(name="no_rest")
def _no_rest(monkeypatch):
    """As if every step were a long one."""
    monkeypatch.setattr(metrics_module, "REST_S", 0.0)
    monkeypatch.setattr(metrics_module, "REST_SHARE", 0.0)


def test_every_long_step_has_its_line(tmp_path, no_rest):
    before_ns = time.time_ns()
    metrics = Metrics(under(tmp_path, 3), CPU)
    for number in range(1, 4):
        step(metrics, number, loss=4.0 / number, learning_rate=number / 10)
    metrics.validated(3, 2.0)
    metrics.saved(3, "model")
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert [(each.step, each.loss, each.learning_rate) for each in found.steps] == [
        (1, 4.0, 0.1), (2, 2.0, 0.2), (3, 4 / 3, 0.3),
    ]  # fmt: skip
    for each in found.steps:
        assert (each.attempt, each.epoch, each.tokens_per_s, each.step_s) == (3, 1, 200.0, 0.5)
        assert each.peak_memory_bytes >= each.memory_bytes > 10_000_000
        assert before_ns <= each.time_ns <= time.time_ns()
    assert [(each.step, each.validation_loss, each.perplexity) for each in found.validations] == [(3, 2.0, math.exp(2))]
    assert found.saved == (Saved(found.saved[0].time_ns, 3, 3, "model"),)
    assert found.strange == 0


def test_short_steps_cost_few_lines(tmp_path):
    metrics, started_s = Metrics(under(tmp_path), CPU), time.monotonic()
    step(metrics, 1, loss=9.0)
    for number in range(2, 1001):
        step(metrics, number, seconds=0.001, tokens=2, loss=3.0 if number % 2 else 4.0, is_last=number == 1000)
    at_most = 2 + (time.monotonic() - started_s) / REST_S
    steps = read_metrics(tmp_path / "metrics.jsonl").steps
    assert 2 <= len(steps) <= at_most
    assert (steps[0].step, steps[0].loss, steps[-1].step) == (1, 9.0, 1000)
    losses = [later.loss * (later.step - earlier.step) for earlier, later in pairwise(steps)]
    assert sum(losses) / 999 == pytest.approx(3.5, abs=0.001)
    assert steps[-1].tokens_per_s == pytest.approx(2000)
    assert steps[-1].step_s == pytest.approx(0.001)


def test_a_record_has_the_means_of_its_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_module, "REST_S", 3600.0)
    monkeypatch.setattr(
        metrics_module, "peak_flops_per_s", lambda _device, dtype, _product: {torch.float64: 5e6}[dtype]
    )
    metrics = Metrics(under(tmp_path), CPU, ranks=2, dtype=torch.float64)
    step(metrics, 1)
    step(metrics, 2, seconds=1.0, padding_share=0.5, model_flops=1e6, gradient_norm=3.0, is_clipped=True)
    step(metrics, 3, seconds=3.0, padding_share=0.1, model_flops=5e6, is_last=True)
    found = read_metrics(tmp_path / "metrics.jsonl").steps[-1]
    assert (found.step_s, found.padding_share, found.model_flops) == (2.0, pytest.approx(0.3), 3e6)
    assert (found.communication_s, found.bubble_s, found.data_s) == pytest.approx((0.4, 0.2, 0.1))
    assert found.compute_s == pytest.approx(1.3)
    assert found.utilisation == pytest.approx(3e6 / 2.0 / (2 * 5e6))
    assert (found.gradient_norm, found.clipped_share) == (1.75, 0.5)


def test_a_gradient_that_is_not_finite_has_its_own_record(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_module, "REST_S", 3600.0)
    metrics = Metrics(under(tmp_path), CPU)
    for number, norm in enumerate((1.0, 2.0, 4.0, math.inf), start=1):
        step(metrics, number, gradient_norm=norm, is_clipped=None)
    found = read_metrics(tmp_path / "metrics.jsonl").steps
    assert [(each.step, each.gradient_norm, each.clipped_share) for each in found] == [
        (1, 1.0, None), (3, 3.0, None), (4, None, None),
    ]  # fmt: skip


def test_what_a_rank_can_do_is_measured_on_cpus_alone():
    matrix = torch.ones(256, 256)
    began_s = time.process_time()
    for _ in range(20):
        matrix @ matrix
    reached = 20 * 2 * 256**3 / (time.process_time() - began_s)
    calls = []

    def product(left, right):
        calls.append(left.shape)
        return left @ right

    assert peak_flops_per_s(CPU, torch.float32, product) > reached / 50  # the machine may be busy
    assert len(calls) > 1
    assert peak_flops_per_s(torch.device("meta"), torch.float32, product) is None


def test_steps_before_a_validation_are_written_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_module, "REST_S", 3600.0)
    metrics = Metrics(under(tmp_path), CPU)
    for number in range(1, 4):
        step(metrics, number, loss=number)
    metrics.validated(3, 1.0)
    records = MetricsReader(tmp_path / "metrics.jsonl").read()
    assert [(type(record).__name__, record.step) for record in records] == [
        ("StepMetrics", 1), ("StepMetrics", 3), ("Validation", 3),
    ]  # fmt: skip
    assert records[1].loss == 2.5


ODD = {10: math.nan, 20: math.inf, 21: -math.inf}


@pytest.mark.parametrize(("losses", "written"), [
    ([1.0, 2.0, 3.0], [(1, 1.0), (3, 2.5)]),
    ([1.0, 2.0, 3.0, math.nan], [(1, 1.0), (3, 2.5), (4, math.nan)]),
    (
        [ODD.get(number, number) for number in range(1, 41)],
        [(1, 1.0), (9, 5.5), (10, math.nan), (19, 15.0), (20, math.nan), (21, math.nan), (40, 31.0)],
    ),
], ids=["finite", "the last", "several"])  # fmt: skip
def test_steps_that_wait_are_written_when_a_training_breaks_off(tmp_path, monkeypatch, losses, written):
    """Once; a loss that is no number spoils no mean and hides no steps: it stands alone, beside others too."""
    monkeypatch.setattr(metrics_module, "REST_S", 3600.0)
    metrics = Metrics(under(tmp_path), CPU)
    for number, loss in enumerate(losses, start=1):
        step(metrics, number, loss=loss)
    metrics.flush()
    metrics.flush()
    found = read_metrics(tmp_path / "metrics.jsonl").steps
    assert [(each.step, str(each.loss)) for each in found] == [(number, str(loss)) for number, loss in written]


@pytest.mark.parametrize("stdout", ["ascii", "closed", "none"])
def test_a_log_that_takes_no_word_ends_no_training(tmp_path, monkeypatch, stdout):
    """Of one that takes few letters the others are written in these."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    if stdout == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stdout", None if stdout == "none" else stream)
    step(Metrics(under(tmp_path / "läuft"), CPU), 1)
    if stdout == "ascii":
        assert stream.buffer.getvalue().startswith(b"cannot write metrics to ")
        assert b"/l\\xe4uft/metrics.jsonl: " in stream.buffer.getvalue()


def test_on_an_accelerator_its_memory_is_written(tmp_path, monkeypatch):
    """The most that was taken so far; none where it refuses to answer. Where it waits and what it can do is unknown."""
    answers = iter([4096, 8192])  # then StopIteration
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda _: next(answers), raising=False)
    metrics = Metrics(under(tmp_path), torch.device("meta"))  # any but the CPU
    step(metrics, 1)
    step(metrics, 2, is_last=True)
    first, second = read_metrics(tmp_path / "metrics.jsonl").steps
    assert (first.memory_bytes, first.peak_memory_bytes, second.memory_bytes) == (4096, 8192, None)
    assert (first.compute_s, first.communication_s, first.bubble_s, first.utilisation) == (None,) * 4
    assert first.data_s == pytest.approx(0.025)


def test_only_one_rank_of_a_run_writes_of_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone, other = Metrics({}, CPU), Metrics(under(tmp_path), CPU, writes=False)
    for metrics in (alone, other):
        step(metrics, 1)
        metrics.validated(1, 2.0)
    alone.saved(1, "model")
    assert list(tmp_path.iterdir()) == []
    other.saved(1, "model")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_tensorboard_shows_the_same(tmp_path, no_rest, board):
    metrics = Metrics(under(tmp_path), CPU)
    for number in range(1, 4):
        step(metrics, number, loss=4.0 / number, learning_rate=number / 10)
    metrics.validated(3, 800.0, bleu=12.5)
    metrics.validated(3, math.nan)
    metrics.stages_measured(3, [0.75, 0.5], [0.8, 0.6])
    found, shown = read_metrics(tmp_path / "metrics.jsonl"), board(tmp_path / "tensorboard")
    for tag, name in (
        ("loss/train", "loss"), ("step/seconds", "step_s"),
        *((f"step/{name}", name) for name in ("data_s", "compute_s", "communication_s", "bubble_s")),
        *((name, name) for name in ("learning_rate", "tokens_per_s", "memory_bytes", "peak_memory_bytes")),
        *((name, name) for name in ("padding_share", "model_flops", "utilisation", "gradient_norm", "clipped_share")),
    ):  # fmt: skip
        assert shown.pop(tag) == [
            (pytest.approx(each.time_ns / 1e9), each.step, pytest.approx(getattr(each, name), rel=1e-6))
            for each in found.steps
        ]
    assert [value for *_, value in shown.pop("loss/validation")] == [800.0, pytest.approx(math.nan, nan_ok=True)]
    assert shown.pop("perplexity")[0][2] == math.inf  # beyond fp32
    assert [value for *_, value in shown.pop("bleu")] == [12.5]
    assert [[value for *_, value in shown.pop(f"stage_busy/{index}")] for index in range(2)] == [[0.75], [0.5]]
    assert shown == {}
    assert [(each.step, each.stage_busy, each.stage_predicted) for each in found.stages] == [
        (3, (0.75, 0.5), (0.8, 0.6))
    ]
    assert [str(each.validation_loss) for each in found.validations] == ["800.0", "nan"]


def test_after_a_restart_tensorboard_shows_each_step_once(tmp_path, no_rest, shown):
    """What the attempt before wrote of steps that are taken again is replaced; metrics.jsonl keeps both.

    Each attempt has a file of its own, whatever the numbers of their processes are.
    """
    first, second = Metrics(under(tmp_path), CPU), Metrics(under(tmp_path, 1), CPU)
    for number in range(1, 6):
        step(first, number, loss=1.0)
    for number in range(3, 5):
        step(second, number, loss=2.0)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert shown(tmp_path)["loss/train"] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]
    assert [(each.attempt, each.step) for each in read_metrics(tmp_path / "metrics.jsonl").steps] == [
        (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 3), (1, 4),
    ]  # fmt: skip


def test_a_full_disk_costs_one_line_of_the_log(tmp_path, no_rest, shown, capfd):
    """Later failures are silent, and as soon as there is room lines are written again."""
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    metrics = Metrics(under(tmp_path), CPU)
    step(metrics, 1)
    step(metrics, 2)
    (tmp_path / "metrics.jsonl").unlink()
    step(metrics, 3)
    assert capfd.readouterr().out == f"cannot write metrics to {tmp_path}/metrics.jsonl: No space left on device\n"
    assert [each.step for each in read_metrics(tmp_path / "metrics.jsonl").steps] == [3]
    assert [number for number, _ in shown(tmp_path)["loss/train"]] == [1, 2, 3]


@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_removed_run_directory_costs_one_line_of_the_log(tmp_path, no_rest, capfd, steps_before):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    metrics = Metrics(under(run_dir), CPU)
    for number in range(steps_before):
        step(metrics, number)
    shutil.rmtree(run_dir)
    for number in range(5):
        step(metrics, number)
    metrics.validated(5, 1.0)
    metrics.saved(5, "model")
    why = "No such file or directory"
    assert capfd.readouterr().out == f"cannot write metrics to {run_dir}/metrics.jsonl: {why}\n"
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_that_fails_is_left_alone(tmp_path, no_rest, capfd):
    """One line says so; metrics.jsonl goes on, and nothing is tried again."""
    (tmp_path / "tensorboard").touch()
    metrics = Metrics(under(tmp_path), CPU)
    step(metrics, 1)
    (tmp_path / "tensorboard").unlink()
    step(metrics, 2)
    assert capfd.readouterr().out == f"cannot write metrics to {tmp_path}/tensorboard: File exists\n"
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert len(read_metrics(tmp_path / "metrics.jsonl").steps) == 2


def test_without_tensorboard_there_are_lines_all_the_same(tmp_path, no_rest, capfd, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    step(Metrics(under(tmp_path), CPU), 1)
    assert capfd.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


SETTINGS = (
    "model.vocabulary_size=400", "model.d_model=16", "model.heads=2", "model.feed_forward_dim=16",
    "model.encoder_layers=1", "model.decoder_layers=1", "train.batch_size=4", "train.steps=300",
    "train.validate_every=200", "train.translations=0",
)  # fmt: skip


@pytest.fixture(name="train", scope="module")
def _train(tmp_path_factory):
    """Gives a function that starts a small training; all have one cache for the corpus and its tokenizer."""
    cache = tmp_path_factory.mktemp("cache")

    def start(directory, *options, settings=()):
        words = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
        return subprocess.Popen(
            [sys.executable, "-m", "launcher", "run", *options, *words, "--runs-dir", directory / "runs"],
            cwd=ROOT, env={**os.environ, "TLAUNCH_CACHE_DIR": str(cache)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    return start


@pytest.mark.distributed
def test_the_step_whose_gradient_is_no_number_is_recorded(tmp_path, train):
    output, _ = train(tmp_path, settings=["train.learning_rate=1e38"]).communicate(timeout=PATIENCE_S)
    failed = int(re.search(r"step (\d+)(?: \(epoch \d+\))?: the norm of the gradient is", output)[1])
    last = read_metrics(RunDir(tmp_path / "runs" / "latest").metrics).steps[-1]
    assert last.step == failed
    assert math.isnan(last.loss)


def lines_of(run_dir):
    return [each for each in read_metrics(run_dir.metrics).steps if each.attempt == 0]


def bleu_of(model, count):
    """The BLEU of a kept model's greedy translations of validation sentences, all of them by this process."""
    from launcher.corpus.dataset import find_splits, read_pairs
    from launcher.corpus.sample import cached_sample
    from launcher.trainer.decode.beam import Search
    from launcher.trainer.decode.score import bleu
    from launcher.trainer.decode.translator import Translator
    from launcher.trainer.saved import load_model

    network, settings, tokenizer = load_model(model)
    pairs = read_pairs(find_splits([cached_sample()]).valid)[:count]
    found = Translator(network, tokenizer, settings.data).translate([source for source, _ in pairs], Search(beam=1))
    return bleu([each.text for each in found], [target for _, target in pairs]).score


@pytest.mark.distributed
def test_a_run_with_a_restart_from_its_start_to_its_end(tmp_path, train, shown, wait_until):
    """Rank 0 is killed after a few steps: both attempts have their lines, their spans and the steps that count."""
    settings = ("train.bleu_sentences=9", "train.learning_rate=0.01")
    process = train(tmp_path, "--devices", "2", "--pp", "2", "--max-restarts", "1", settings=settings)
    run_dir = RunDir(tmp_path / "runs" / "latest")
    wait_until(lambda: lines_of(run_dir), "a step", PATIENCE_S)

    def pid():
        events = [stamped.event for stamped in EventReader(run_dir.events).read()]
        return [event.pid for event in events if isinstance(event, RankStarted) and event.global_rank == 0]

    os.kill(wait_until(pid, "the start of rank 0")[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    metrics, scalars = read_metrics(run_dir.metrics), shown(run_dir.root)
    told = timeline(run_dir, (*metrics.steps, *metrics.validations, *metrics.saved))
    steps = [each for each in metrics.steps if each.attempt == 1]
    assert (steps[0].step, steps[-1].step, metrics.strange) == (1, 300, 0)
    assert [each.step for each in metrics.validations if each.attempt == 1] == [200, 300]
    saved = [(each.attempt, each.step, each.saved) for each in metrics.saved]
    assert saved == [(1, 300, "checkpoint"), (1, 300, "model")]
    for tag, name in (("loss/train", "loss"), ("memory_bytes",) * 2, ("learning_rate",) * 2):
        assert scalars[tag] == [(each.step, pytest.approx(getattr(each, name), rel=1e-6)) for each in steps]
    assert [value for *_, value in scalars["bleu"]] == [pytest.approx(each.bleu) for each in metrics.validations]
    assert metrics.validations[-1].bleu > 0
    assert metrics.validations[-1].bleu == pytest.approx(bleu_of(run_dir.model, 9), rel=1e-6)
    first, second = told.attempts
    assert [rank.role for rank in second.ranks] == ["well", "well"]
    assert first.ranks[0].role == "culprit"
    assert [attempt.ranks[1].first_step_ns for attempt in told.attempts] == [
        lines_of(run_dir)[0].time_ns, steps[0].time_ns,
    ]  # fmt: skip
    assert first.started_ns < first.imports_ended_ns < first.ranks[0].first_step_ns < first.ended_ns
    assert first.ended_ns <= second.started_ns < second.ranks[0].first_step_ns < second.ended_ns <= told.ended_ns
    kinds = [mark.kind for mark in told.marks]
    busy = ("validation", "slow")  # of these there are several, or some where a rank gets little of the CPU
    assert [kind for kind in kinds if kind not in busy] == ["failure", "stopping", "restart", "saved", "saved"]
