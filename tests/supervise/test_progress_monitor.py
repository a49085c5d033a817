"""Whether ranks make progress."""

import json
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
from launcher.core.machine.proc import core_wait_s, every_process, stat, usage_of
from launcher.core.records import Layout
from launcher.core.run_dir import RunDir
from launcher.supervise.progress_monitor import LOOKS_PER_HANG_TIMEOUT, Hung, ProgressMonitor
from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "pulse_rank.py"
TIMEOUT_S = 1.2


class Ranks:
    """Starts ranks as an agent would, and looks after them. `deeds`: of each rank; None: it is not started."""

    def __init__(self, root, *deeds, hang_timeout_s=TIMEOUT_S):
        self.run_dir = RunDir(root)
        self.disk_stalls = False
        layout, ranks = Layout(dp=len(deeds)), range(len(deeds))
        self.monitor = ProgressMonitor(self.run_dir, ranks, hang_timeout_s, layout, lambda: self.disk_stalls)
        self.processes = []
        for global_rank, each in enumerate(deeds):
            self.run_dir.device(global_rank).mkdir(exist_ok=True)
            if each is not None:
                self._start(global_rank, each.split())

    def _start(self, global_rank, deeds):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **self._heartbeat_file(global_rank)}
        with self.run_dir.train_log(global_rank).open("ab") as log:
            argv = [sys.executable, PROGRAM, *deeds]
            process = subprocess.Popen(argv, stdout=log, env=environment, start_new_session=True)
        self.processes.append(process)
        self.monitor.started(global_rank, process.pid)

    def _heartbeat_file(self, global_rank):
        return {TLAUNCH_HEARTBEAT_FILE: str(self.run_dir.heartbeat(global_rank))}

    def beat(self, global_rank, **values):
        beat(self._heartbeat_file(global_rank), Beat(**values))

    def first_hang(self):
        told, ends = [], time.monotonic() + PATIENCE_S
        while not told and time.monotonic() < ends:
            time.sleep(self.monitor.timeout_s)
            told += self.monitor.look(time.monotonic())
        return told[0]

    def looks(self, count, before_each=lambda _look: None, every_s=TIMEOUT_S / LOOKS_PER_HANG_TIMEOUT):
        """Look as often as `count` says without waiting in between; return what comes of all looks."""
        told, now = [], time.monotonic()
        for look in range(1, count + 1):
            before_each(look)
            told += self.monitor.look(now + look * every_s)
        return told

    def stop(self):
        for process in self.processes:
            for stray in psutil.Process(process.pid).children(recursive=True):
                stray.kill()
            os.killpg(process.pid, signal.SIGKILL)  # with the orphans
            process.wait()


@pytest.fixture(name="ranks")
def _ranks(tmp_path):
    with ExitStack() as stack:

        def make(*deeds, **options):
            ranks = Ranks(tmp_path, *deeds, **options)
            stack.callback(ranks.stop)
            return ranks

        yield make


# The last two report a step, and are held to their beats: a rank in a collective may spin, and a thread may print.
IDLE = ("", "print", "beat:3", "touch", "beat:1 beat:2", "beat:1 spin", "beat:1 talk")


def test_ranks_that_make_no_progress_hang(ranks, wait_until):
    before, hangs = time.monotonic(), []
    watched = ranks(*IDLE)

    def all_hang():
        hangs.append(watched.first_hang())
        return sum(len(hang.global_ranks) for hang in hangs) >= len(IDLE)

    wait_until(all_hang, "the hang of every rank")
    assert all(isinstance(hang, Hung) and TIMEOUT_S <= hang.seconds <= time.monotonic() - before for hang in hangs)
    assert sorted(rank for hang in hangs for rank in hang.global_ranks) == list(range(len(IDLE)))


def test_ranks_that_make_progress_do_not_hang(ranks, wait_until):
    """The next look waits until each of the five has done something: on a busy machine that may take long."""
    watched = ranks("spin", "talk", "keep-beating", "tree", "strays", "")
    beat_file, log = watched.run_dir.heartbeat(2), watched.run_dir.train_log(1)

    def signs():
        usages = usage_of([watched.processes[rank].pid for rank in (0, 3, 4)]).values()
        beaten = beat_file.exists() and beat_file.stat().st_mtime_ns
        return (*(usage.ticks for usage in usages), log.stat().st_size, beaten)

    def all_changed(before):
        return all(now != then for now, then in zip(signs(), before, strict=True))

    wait_until(lambda: all(signs()), "all five at work")
    told, now, looks_after = [], time.monotonic(), 0
    while looks_after < LOOKS_PER_HANG_TIMEOUT:
        before = signs()
        wait_until(lambda before=before: all_changed(before), "that all five make progress")
        now += TIMEOUT_S / LOOKS_PER_HANG_TIMEOUT
        told += watched.monitor.look(now)
        looks_after += bool(told)
    assert [hang.global_ranks for hang in told] == [(5,)]


def test_ranks_that_hang_together_are_told_together(ranks):
    """One stops, the others wait for it a moment later: it is not reported before their time is up too."""
    watched = ranks("", "", "")

    def beat_twice(look):
        for global_rank in {1: (0, 1, 2), 2: (1, 2)}.get(look, ()):
            watched.beat(global_rank, step=look)

    assert [hang.global_ranks for hang in watched.looks(20, beat_twice, TIMEOUT_S / 12)] == [(0, 1, 2)]


def test_a_hang_is_reported_once_until_the_rank_makes_progress(ranks, wait_until):
    watched = ranks("beat:1")
    wait_until(lambda: watched.monitor.steps() == {0: 1}, "its only beat")
    told = watched.looks(60, lambda look: watched.beat(0, step=2) if look == 30 else None)
    assert [hang.global_ranks for hang in told] == [(0,), (0,)]


def test_a_rank_that_has_ended_cannot_hang(ranks):
    watched = ranks("", None)
    assert watched.looks(5) == []
    watched.monitor.ended(0)
    watched.monitor.ended(1)
    assert (watched.monitor.timeout_s, watched.monitor.look(time.monotonic() + 100 * TIMEOUT_S)) == (None, [])


def test_time_in_which_ranks_make_no_progress_for_our_sake_does_not_count(ranks):
    watched = ranks("")
    assert watched.looks(1, every_s=100 * TIMEOUT_S) == []
    watched.monitor.pause()
    assert (watched.monitor.timeout_s, watched.looks(50)) == (None, [])
    time.sleep(TIMEOUT_S / 2)
    before = time.monotonic()
    watched.monitor.resume()
    assert watched.monitor.timeout_s + (time.monotonic() - before) > TIMEOUT_S / LOOKS_PER_HANG_TIMEOUT / 2
    assert watched.first_hang().global_ranks == (0,)


def test_time_in_which_a_disk_does_not_answer_does_not_count(ranks):
    watched = ranks("beat:1", "")

    def stall(look):
        watched.disk_stalls = LOOKS_PER_HANG_TIMEOUT / 2 <= look < 10 * LOOKS_PER_HANG_TIMEOUT

    assert watched.looks(10 * LOOKS_PER_HANG_TIMEOUT, stall) == []
    watched.disk_stalls = False
    later, every_s = time.monotonic() + 1000, TIMEOUT_S / LOOKS_PER_HANG_TIMEOUT
    looks = [watched.monitor.look(later + look * every_s) for look in range(2 * LOOKS_PER_HANG_TIMEOUT)]
    assert [hung.global_ranks for told in looks for hung in told] == [(0, 1)]


def test_what_an_earlier_attempt_left_is_no_sign_of_life(ranks):
    ranks(None).beat(0, step=41)
    watched = ranks("")
    time.sleep(watched.monitor.timeout_s)
    assert (watched.monitor.look(time.monotonic()), watched.monitor.steps()) == ([], {0: None})
    watched.run_dir.heartbeat(0).unlink()
    assert watched.first_hang().seconds < 2 * TIMEOUT_S
    assert watched.monitor.steps() == {0: None}


def test_steps_are_known_without_a_look_and_after_the_end(ranks):
    """A pipe in the place of a heartbeat does not keep the agent, and with it every rank, from ending."""
    watched = ranks("", None, None)
    os.mkfifo(watched.run_dir.heartbeat(2))
    for global_rank, values, steps, highest in (
        (0, {"loss": 1.0}, {0: None, 1: None, 2: None}, None),
        (0, {"step": 7}, {0: 7, 1: None, 2: None}, 7),
        (1, {"step": 3}, {0: 7, 1: 3, 2: None}, 7),
        (0, {"step": 5}, {0: 5, 1: 3, 2: None}, 7),
    ):
        watched.beat(global_rank, **values)
        assert (watched.monitor.steps(), watched.monitor.highest_step()) == (steps, highest)
    watched.monitor.ended(0)
    assert (watched.monitor.steps(), watched.monitor.highest_step()) == ({0: 5, 1: 3, 2: None}, 7)


def test_a_slow_rank_is_named(ranks):
    for hang_timeout_s in (None, TIMEOUT_S):
        watched = ranks("", "", "", "", hang_timeout_s=hang_timeout_s)

        def beat(look, watched=watched):
            for global_rank in range(4):
                watched.beat(global_rank, step=look, busy_s=0.3 if global_rank == 2 else 0.1)
            watched.monitor.steps()

        assert watched.looks(20, beat) == [Slow(2, busy_s=0.3, median_s=0.1, steps=5)]


def worker_of(leader, wait_until):
    def busy():
        return [one.pid for one in every_process() if one.session == leader and stat(one.pid).ticks > 20]

    wait_until(lambda: set(busy()) - {leader} or stat(leader).ticks > 60, "a process that computes")
    return max(busy())


@pytest.fixture(name="slow_ranks")
def _slow_ranks(ranks, wait_until):
    """Return a function that starts four ranks, lets the first share a core, and returns those that are called slow."""
    hogs = []

    def slow_ranks(deed, step_of=lambda look: look, busy_s=0.14, pid=None):
        watched = ranks(deed, "", "", "")
        worker = worker_of(watched.processes[0].pid, wait_until)
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(worker, {core})
        for _ in range(2):
            hogs.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            os.sched_setaffinity(hogs[-1].pid, {core})

        def beat(look):
            waited_s = core_wait_s(worker)
            wait_until(lambda: core_wait_s(worker) > waited_s + 0.05, "a core that others have")
            said = {"step": step_of(look), "busy_s": busy_s, "pid": pid or worker, "nth": look}
            watched.run_dir.heartbeat(0).write_text(json.dumps(said))
            for global_rank in range(1, 4):
                watched.beat(global_rank, step=look, busy_s=0.1)

        return [slow.global_rank for slow in watched.looks(8, beat)]

    yield slow_ranks
    for hog in hogs:
        hog.kill()
        hog.wait()


@pytest.mark.parametrize(("deed", "pid"), [
    ("spin", None), ("tree", None), ("spin", "none"), ("spin", os.getpid()), ("spin", 2**31),
], ids=["named", "in a shell", "not named", "of another session", "of a container"])  # fmt: skip
def test_a_rank_that_waits_for_a_core_is_not_slow(slow_ranks, deed, pid):
    """The rank's own process counts where no other of its session is named: a container has other numbers."""
    assert slow_ranks(deed, pid=pid) == []


@pytest.mark.parametrize(("step_of", "busy_s", "slow"), [
    (lambda look: look * 10**6, 0.14, [0]),  # it has waited for almost nothing in each of these steps
    (lambda look: 100 - look, 0.125, []),  # its count begins anew: nothing is known of the wait
    (lambda _look: 7, 0.14, []),  # the same step, told again
], ids=["many", "backwards", "same"])  # fmt: skip
def test_what_a_rank_waits_is_that_of_each_of_its_steps(slow_ranks, step_of, busy_s, slow):
    assert slow_ranks("spin", step_of, busy_s) == slow


def test_without_a_hang_timeout_looks_become_rare_until_someone_beats(ranks, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("launcher.supervise.progress_monitor.time", SimpleNamespace(monotonic=lambda: now))
    watched = ranks("", hang_timeout_s=None)
    often = watched.monitor.timeout_s
    for _ in range(5):
        assert watched.monitor.look(now) == []
    rarely = watched.monitor.timeout_s
    watched.beat(0, step=1)
    watched.monitor.look(now)
    assert (rarely > 4 * often > 0, watched.monitor.timeout_s) == (True, often)
