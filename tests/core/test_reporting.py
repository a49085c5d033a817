"""What a training calls to be seen: `from launcher import beat, metric`."""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher import beat, metric
from launcher.core.env import TLAUNCH_ATTEMPT, TLAUNCH_HEARTBEAT_FILE, TLAUNCH_RUN_DIR
from launcher.core.heartbeat import Beat, read_heartbeat
from launcher.runs.metrics_reader import read_metrics

STEPS = 300


class Scalar:
    def __float__(self):
        return 2.5


class Hostile:
    def __float__(self):
        raise RuntimeError

    __index__ = __eq__ = __hash__ = __float__


@pytest.fixture(name="rank")
def _rank(tmp_path, monkeypatch):
    """The environment of rank 0; gives its heartbeat and the run's metrics."""
    monkeypatch.setenv(TLAUNCH_HEARTBEAT_FILE, str(tmp_path / "heartbeat"))
    monkeypatch.setenv(TLAUNCH_RUN_DIR, str(tmp_path))
    monkeypatch.setenv(TLAUNCH_ATTEMPT, "2")
    monkeypatch.setenv("RANK", "0")
    return tmp_path / "heartbeat", tmp_path / "metrics.jsonl"


def test_a_beat_is_what_readers_of_heartbeats_read(rank):
    heartbeat, _ = rank
    beat(3, last_step=9, loss=Scalar(), busy_s=0.5, tokens_per_s=1e3, device_memory_bytes=7)
    assert read_heartbeat(heartbeat).beat == Beat(3, 0.5, 2.5, 1e3, 7, 9)
    size = heartbeat.stat().st_size
    beat(4)
    assert read_heartbeat(heartbeat).beat == Beat(4)
    assert heartbeat.stat().st_size == size  # or threads could cut off what others have written


def test_a_beat_without_figures_leaves_them(rank):
    heartbeat, _ = rank
    beat(3, loss=1.0)
    os.utime(heartbeat, ns=(0, 0))
    beat()
    found = read_heartbeat(heartbeat)
    assert (found.beat, found.time_ns > 0) == (Beat(3, loss=1.0), True)


def test_a_metric_is_what_reports_read(rank):
    heartbeat, metrics = rank
    beat(3, loss=Hostile())
    metric(1, loss=Scalar(), epoch=1.0, grad_norm=0.5, name="no number")
    metric(2, loss=math.nan, tokens_per_s=5)
    metric(2, validation_loss=2.0, schema=7, attempt=0)
    metric(3, loss=Hostile(), tokens_per_s=2)
    metric(Hostile(), loss=1)
    found = read_metrics(metrics)
    assert (found.strange, [step.attempt for step in found.steps]) == (0, [2, 2, 2])
    assert (read_heartbeat(heartbeat).beat, found.steps[2].loss, found.steps[2].tokens_per_s) == (Beat(3), None, 2.0)
    assert [(step.step, step.loss, step.epoch) for step in found.steps[:1]] == [(1, 2.5, 1)]
    assert math.isnan(found.steps[1].loss)
    assert [each.validation_loss for each in found.validations] == [2.0]
    assert json.loads(metrics.read_text().splitlines()[0])["grad_norm"] == 0.5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_whole_is_left_out_where_it_is_not_finite(rank, value):
    metric(1, loss=2.0, epoch=value, memory_bytes=value)
    assert [(step.loss, step.epoch) for step in read_metrics(rank[1]).steps] == [(2.0, None)]


def test_one_rank_records_what_all_measure(rank, monkeypatch):
    _, metrics = rank
    monkeypatch.setenv("RANK", "1")
    metric(1, loss=1.0)
    assert not metrics.exists()


@pytest.mark.parametrize("there", [True, False])
def test_nothing_raises(rank, monkeypatch, there):
    heartbeat, metrics = rank
    for name in (TLAUNCH_HEARTBEAT_FILE, TLAUNCH_RUN_DIR):
        if there:
            monkeypatch.setenv(name, str(heartbeat.parent / "gone" / "x"))
        else:
            monkeypatch.delenv(name)
    for value in (3, None, "three", Hostile(), [1], math.inf, 10**400):
        beat(value, loss=value)
        metric(value, loss=value)
    beat()
    assert not heartbeat.exists()
    assert not metrics.exists()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_threads_and_forks_tear_nothing(rank):
    heartbeat, metrics = rank
    beat(0)

    def work(length):
        for step in range(STEPS):
            beat(10**length + step, loss=1 / 3)
            metric(step, loss=1 / 3)

    pids = []
    for length in (2, 9):
        if (pid := os.fork()) == 0:
            work(length)
            os._exit(0)
        pids.append(pid)
    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(work, length) for length in (1, 12)]
        while not all(each.done() for each in working):
            assert isinstance(json.loads(heartbeat.read_text()), dict)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    assert read_metrics(metrics).strange == 0
    assert len(read_metrics(metrics).steps) == 4 * STEPS


def test_a_loss_of_torch_is_a_number(rank):
    torch = pytest.importorskip("torch")
    loss = torch.tensor([2.0], requires_grad=True).square().mean()
    beat(torch.tensor(3), loss=loss, busy_s=torch.tensor(0.5, dtype=torch.bfloat16))
    assert read_heartbeat(rank[0]).beat == Beat(3, 0.5, 4.0)
    beat(4, loss=torch.ones(2))
    assert read_heartbeat(rank[0]).beat == Beat(4)


def test_the_import_loads_nothing_of_others():
    heavy = "{'click', 'rich', 'pydantic', 'psutil', 'torch', 'numpy', 'jinja2'}"
    program = f"import sys; from launcher import beat, metric; beat(1); metric(1); print({heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
