"""Whether ranks make progress."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.events import Slow
from launcher.core.heartbeat import Beat, beat
from launcher.core.proc import usage_of
from launcher.core.records import Layout
from launcher.core.run_dir import RunDir
from launcher.supervise.progress_monitor import LOOKS_PER_HANG_TIMEOUT, Hung, ProgressMonitor

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "pulse_rank.py"
TIMEOUT_S = 1.2
PATIENCE_S = 60


class Ranks:
    """Starts ranks as an agent would, and looks after them."""

    def __init__(self, root, count, *, hang_timeout_s=TIMEOUT_S):
        self.run_dir = RunDir(root)
        for global_rank in range(count):
            self.run_dir.device(global_rank).mkdir(exist_ok=True)
        self.progress_monitor = ProgressMonitor(self.run_dir, range(count), hang_timeout_s, Layout(dp=count))
        self.processes = {}

    def start(self, global_rank, *deeds):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            TLAUNCH_HEARTBEAT_FILE: str(self.run_dir.heartbeat(global_rank)),
        }
        with self.run_dir.train_log(global_rank).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, PROGRAM, *deeds], stdout=log, env=environment, start_new_session=True
            )
        self.processes[global_rank] = process
        self.progress_monitor.started(global_rank, process.pid)
        return process

    def beat(self, global_rank, **values):
        beat({TLAUNCH_HEARTBEAT_FILE: str(self.run_dir.heartbeat(global_rank))}, Beat(**values))

    def first_hang(self):
        """Look whenever a look is due; return the first hang."""
        told, ends = [], time.monotonic() + PATIENCE_S
        while not told and time.monotonic() < ends:
            time.sleep(self.progress_monitor.timeout_s)
            told += self.progress_monitor.look(time.monotonic())
        return told[0]

    def looks(self, count, before_each=lambda _look: None, every_s=TIMEOUT_S / LOOKS_PER_HANG_TIMEOUT):
        """Look as often as `count` says without waiting in between; return what comes of all looks."""
        told, now = [], time.monotonic()
        for look in range(1, count + 1):
            before_each(look)
            told += self.progress_monitor.look(now + look * every_s)
        return told

    def stop(self):
        for process in self.processes.values():
            for stray in psutil.Process(process.pid).children(recursive=True):
                stray.kill()
            os.killpg(process.pid, signal.SIGKILL)  # with the orphans
            process.wait()


@pytest.fixture(name="ranks")
def _ranks(tmp_path):
    with ExitStack() as stack:

        def make(count, **options):
            ranks = Ranks(tmp_path, count, **options)
            stack.callback(ranks.stop)
            return ranks

        yield make


# The last two report a step, and are held to their beats: a rank in a collective may spin, and a thread may print.
DEEDS = [(), ("print",), ("beat:3",), ("touch",), ("beat:1", "beat:2"), ("beat:1", "spin"), ("beat:1", "talk")]


def test_ranks_that_make_no_progress_hang(ranks, wait_until):
    """Whatever they did before: after the timeout that is reported, and not earlier."""
    watched = ranks(len(DEEDS))
    before = time.monotonic()
    for global_rank, deeds in enumerate(DEEDS):
        watched.start(global_rank, *deeds)
    hangs = []

    def all_hang():
        hangs.append(watched.first_hang())
        return sum(len(hang.global_ranks) for hang in hangs) >= len(DEEDS)

    wait_until(all_hang, "the hang of every rank")
    assert all(isinstance(hang, Hung) and TIMEOUT_S <= hang.seconds <= time.monotonic() - before for hang in hangs)
    assert sorted(rank for hang in hangs for rank in hang.global_ranks) == list(range(len(DEEDS)))


def test_ranks_that_make_progress_do_not_hang(ranks, wait_until):
    """They compute, print, beat, or processes that they have started do: only the last one, which sleeps, hangs.

    The next look waits until each of the five has done something: on a busy machine that may take long.
    """
    deeds = [("spin",), ("talk",), ("keep-beating",), ("tree",), ("strays",), ()]
    watched = ranks(len(deeds))
    pids = [watched.start(global_rank, *deed).pid for global_rank, deed in enumerate(deeds)]

    def signs():
        usages = usage_of([pids[rank] for rank in (0, 3, 4)]).values()
        beat_file, log = watched.run_dir.heartbeat(2), watched.run_dir.train_log(1)
        return (
            *(usage.ticks for usage in usages),
            log.stat().st_size,
            beat_file.exists() and beat_file.stat().st_mtime_ns,
        )

    def all_changed(before):
        return all(now != then for now, then in zip(signs(), before, strict=True))

    wait_until(lambda: all(signs()), "all five at work")
    told, now, looks_after = [], time.monotonic(), 0
    while looks_after < 2 * LOOKS_PER_HANG_TIMEOUT:
        before = signs()
        wait_until(lambda before=before: all_changed(before), "that all five make progress")
        now += TIMEOUT_S / LOOKS_PER_HANG_TIMEOUT
        told += watched.progress_monitor.look(now)
        looks_after += bool(told)

    assert [hang.global_ranks for hang in told] == [(5,)]


def test_ranks_that_hang_together_are_told_together(ranks):
    """One stops, the others wait for it a moment later: it is not reported before their time is up too."""
    watched = ranks(3)
    for global_rank in range(3):
        watched.start(global_rank)
        watched.beat(global_rank, step=1)

    def beat_twice(look):
        if look == 2:
            watched.beat(1, step=2)
            watched.beat(2, step=2)

    told = watched.looks(20, beat_twice, TIMEOUT_S / 12)
    assert [hang.global_ranks for hang in told] == [(0, 1, 2)]


def test_a_hang_is_reported_once_until_the_rank_makes_progress(ranks, wait_until):
    watched = ranks(1)
    watched.start(0, "beat:1")
    wait_until(lambda: watched.progress_monitor.steps() == {0: 1}, "its only beat")
    told = watched.looks(60, lambda look: watched.beat(0, step=2) if look == 30 else None)

    assert [hang.global_ranks for hang in told] == [(0,), (0,)]


def test_a_rank_that_has_ended_cannot_hang(ranks):
    """Nor can one that has not started; then there is nothing to look at."""
    watched = ranks(2)
    watched.start(0)
    assert watched.looks(5) == []
    watched.progress_monitor.ended(0)
    watched.progress_monitor.ended(1)

    assert watched.progress_monitor.timeout_s is None
    assert watched.progress_monitor.look(time.monotonic() + 100 * TIMEOUT_S) == []


def test_time_in_which_ranks_are_paused_does_not_count(ranks):
    """They cannot make progress then, however often the agent looks."""
    watched = ranks(1)
    watched.start(0)
    watched.progress_monitor.pause()

    assert watched.progress_monitor.timeout_s is None
    assert watched.looks(50) == []

    time.sleep(TIMEOUT_S / 2)
    before = time.monotonic()
    watched.progress_monitor.resume()
    assert watched.progress_monitor.timeout_s + (time.monotonic() - before) > TIMEOUT_S / LOOKS_PER_HANG_TIMEOUT / 2
    assert watched.first_hang().global_ranks == (0,)


def test_a_look_that_comes_late_makes_no_rank_hang(ranks):
    """The agent or the whole machine stood still, and the ranks had no time either."""
    watched = ranks(1)
    watched.start(0)

    assert watched.looks(1, every_s=100 * TIMEOUT_S) == []


def test_what_an_earlier_attempt_left_is_no_sign_of_life(ranks):
    """Nor is taking it away, and its step is none of this attempt."""
    ranks(1).beat(0, step=41)
    watched = ranks(1)
    watched.start(0)
    time.sleep(watched.progress_monitor.timeout_s)
    assert watched.progress_monitor.look(time.monotonic()) == []
    assert watched.progress_monitor.steps() == {0: None}
    watched.run_dir.heartbeat(0).unlink()

    assert watched.first_hang().seconds < 2 * TIMEOUT_S
    assert watched.progress_monitor.steps() == {0: None}


def test_steps_are_known_without_a_look_and_after_the_end(ranks):
    """When a rank has failed, the next look is not waited for. The highest may be of any rank, and not its last.

    A pipe in the place of a heartbeat does not keep the agent, and with it every rank, from ending.
    """
    watched = ranks(3)
    watched.start(0)
    os.mkfifo(watched.run_dir.heartbeat(2))
    monitor = watched.progress_monitor
    for global_rank, values, steps, highest in (
        (0, {"loss": 1.0}, {0: None, 1: None, 2: None}, None),
        (0, {"step": 7}, {0: 7, 1: None, 2: None}, 7),
        (1, {"step": 3}, {0: 7, 1: 3, 2: None}, 7),
        (0, {"step": 5}, {0: 5, 1: 3, 2: None}, 7),
    ):
        watched.beat(global_rank, **values)
        assert (monitor.steps(), monitor.highest_step()) == (steps, highest)
    monitor.ended(0)
    assert (monitor.steps(), monitor.highest_step()) == ({0: 5, 1: 3, 2: None}, 7)


def test_reading_steps_hides_no_sign_of_life_from_the_next_look(ranks):
    watched = ranks(1)
    watched.start(0)

    def beat(look):
        watched.beat(0, step=look)
        watched.progress_monitor.steps()

    assert watched.looks(20, beat) == []


def test_a_slow_rank_is_named(ranks):
    watched = ranks(4, hang_timeout_s=None)
    for global_rank in range(4):
        watched.start(global_rank)

    def beat(look):
        for global_rank in range(4):
            watched.beat(global_rank, step=look, busy_s=0.3 if global_rank == 2 else 0.1)

    assert watched.looks(7, beat) == [Slow(2, busy_s=0.3, median_s=0.1, steps=5)]


def test_without_a_hang_timeout_looks_become_rare_until_someone_beats(ranks, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("launcher.supervise.progress_monitor.time", SimpleNamespace(monotonic=lambda: now))
    watched = ranks(1, hang_timeout_s=None)
    watched.start(0)
    often = watched.progress_monitor.timeout_s
    for _ in range(5):
        assert watched.progress_monitor.look(now) == []
    rarely = watched.progress_monitor.timeout_s
    watched.beat(0, step=1)
    watched.progress_monitor.look(now)

    assert rarely > 4 * often > 0
    assert watched.progress_monitor.timeout_s == often
