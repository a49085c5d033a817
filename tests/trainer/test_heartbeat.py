"""Signs of life of the bundled trainer."""

import json
import os
import threading
import time
from itertools import pairwise

import pytest
import torch

from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.heartbeat import Beat, read_heartbeat
from launcher.trainer.telemetry import heartbeat as heart_module
from launcher.trainer.telemetry.heartbeat import REST_S, HeartbeatWriter, getting_on, wait_for_long

from .conftest import run_program

CPU = torch.device("cpu")


@pytest.fixture(name="file")
def _file(tmp_path, monkeypatch):
    monkeypatch.setenv(TLAUNCH_HEARTBEAT_FILE, str(tmp_path / "heartbeat"))
    monkeypatch.setattr(heart_module, "_next_touch_s", 0.0)
    return tmp_path / "heartbeat"


def step(heart, number, *, last_step=1000, seconds=0.5, busy_s=0.25, tokens=100, loss=None):
    heart.stepped(number, last_step, seconds, busy_s, tokens=tokens, loss=loss)


def test_a_step_is_told(file):
    step(HeartbeatWriter(CPU), 1, loss=2.5)
    assert read_heartbeat(file).beat == Beat(step=1, busy_s=0.25, loss=2.5, tokens_per_s=200.0, last_step=1000)


def test_short_steps_cost_few_writes(file, monkeypatch):
    """A thousand steps in no time are two beats, of the first step and of the last; means are of all between.

    Where they take longer there are some between, each of the steps since the one before.
    """
    written = []
    monkeypatch.setattr(heart_module, "beat", lambda _, values: written.append(values))
    heart, started_s = HeartbeatWriter(CPU), time.monotonic()
    for number in range(1, 1001):
        step(heart, number, seconds=0.001, busy_s=0.0005 if number % 2 else 0.0007, tokens=2)
    at_most = 2 + (time.monotonic() - started_s) / REST_S
    assert 2 <= len(written) <= at_most
    assert [written[0].step, written[-1].step] == [1, 1000]
    assert written[-1].tokens_per_s == pytest.approx(2000)
    busy_s = [later.busy_s * (later.step - earlier.step) for earlier, later in pairwise(written)]
    assert written[0].busy_s + sum(busy_s) == pytest.approx(0.6)


def test_on_an_accelerator_busy_time_is_not_told(file, monkeypatch):
    """Its collectives run in the background, so that the time in them is not known; its memory is."""
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda _: 4096, raising=False)
    step(HeartbeatWriter(torch.device("meta")), 1)  # any but the CPU
    assert read_heartbeat(file).beat == Beat(step=1, tokens_per_s=200.0, device_memory_bytes=4096, last_step=1000)


def test_work_between_steps_touches_the_file_now_and_then(file, monkeypatch):
    monkeypatch.setattr(heart_module, "REST_S", 3600.0)
    step(HeartbeatWriter(CPU), 3)
    os.utime(file, ns=(0, 0))
    heart_module.getting_on()
    first_ns = read_heartbeat(file).time_ns
    heart_module.getting_on()
    assert first_ns > 0
    assert read_heartbeat(file).time_ns == first_ns
    assert read_heartbeat(file).beat.step == 3


def test_a_rank_that_waits_for_long_gets_on(file, wait_until):
    over = threading.Event()

    class Work:
        """As torch.distributed gives it for an operation that has not finished."""

        waited = False

        def is_completed(self):
            return over.is_set()

        def wait(self):
            self.waited = True

    work = Work()
    waiter = threading.Thread(target=wait_for_long, args=(work,))
    waiter.start()
    wait_until(file.exists, "a sign of life")
    assert waiter.is_alive()
    over.set()
    waiter.join()
    assert file.exists()
    assert work.waited


def test_nothing_is_written_where_nobody_watches(tmp_path, monkeypatch):
    monkeypatch.delenv(TLAUNCH_HEARTBEAT_FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    step(HeartbeatWriter(CPU), 1)
    getting_on()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.distributed
def test_busy_time_is_that_of_the_slow_rank_only(tmp_path):
    """Along every axis the rank that is made slow by half a second is busy, the one that waits for it is not.

    It waits in collectives, or for its neighbour in the pipeline.
    """
    run_program("pulse_training.py", tmp_path)
    for axis in ("dp", "mp", "pp"):
        (busy_s, seconds, communication_s, bubble_s), (slow_busy_s, slow_seconds, *_) = (
            json.loads((tmp_path / f"{axis}{global_rank}.json").read_text()) for global_rank in range(2)
        )
        assert slow_seconds >= slow_busy_s >= 0.5, axis
        assert seconds - busy_s > 0.4, axis
        waited_s, other_s = (bubble_s, communication_s) if axis == "pp" else (communication_s, bubble_s)
        assert waited_s > 0.4, axis
        assert waited_s > other_s, axis  # which a busy machine may make longer than 0.4 s
