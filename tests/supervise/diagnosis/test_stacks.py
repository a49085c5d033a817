"""Asking real processes what they do, without ending or delaying any."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.core.machine.proc import catches, every_process, stat
from launcher.core.verdict import StackGroup
from launcher.supervise.diagnosis.py_spy import PY_SPIES_AT_ONCE
from launcher.supervise.diagnosis.rank_stacks import Gathering, gather, group, sentence
from launcher.supervise.diagnosis.stack_parser import RankStack
from tests.conftest import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
LONG_S = 60.0
SHORT_S = 0.3  # a limit that is meant to pass


def in_state(process, letters):
    wait_until(lambda: stat(process.pid).state in letters, f"state {letters}")


# --- what ranks answer ---

# Asleep, in a lock, computing, or in a call into C that lets no other Python code run.
PLACES = {
    "sleep": "sleep: time.sleep(1000)",
    "lock": "lock: held.acquire()",
    "wait-for-queue": "wait_for_queue: queue.Queue().get()",
    "busy": 'busy: hashlib.sha256(b"x").digest()',
    "hold-interpreter-lock": 'hold_interpreter_lock: re.match("(a*)*b", "a" * 60)',
}


def test_python_ranks_say_where_they_are(ranks):
    for what in PLACES:
        ranks.start(what)

    def there():
        stacks = gather(ranks.targets, LONG_S).values()
        pairs = zip(stacks, PLACES.values(), strict=True)
        return stacks if all(stack.doing.endswith(f" in {place}") for stack, place in pairs) else None

    for stack in wait_until(there, "all in their places"):
        assert (stack.state, stack.in_collective, len(stack.others)) == ("running", False, 0)
        assert stack.place.startswith("stacks_rank.py:")
        assert stack.frames[-1].startswith("programs/stacks_rank.py:")


def test_no_rank_is_disturbed(ranks):
    process = ranks.start("count")
    for _ in range(20):
        assert gather(ranks.targets, LONG_S)[0].state == "running"
    assert process.stdout.readline() == b"tick\n"
    assert process.poll() is None


# --- what others are found doing ---


def test_a_program_without_the_handler_never_gets_the_signal(ranks):
    """It would be ended by it; instead is told what it waits for. A shell is seen through."""
    process = ranks.add(["sleep", "1000"], 0)
    shell = ranks.add(["sh", "-c", "sh -c 'sleep 1000; exit 1'; exit 1"], 1, start_new_session=True)
    try:
        in_state(process, "S")
        seen = "no Python stack, waiting in wait4 for sleep, which is waiting in "
        wait_until(lambda: gather(ranks.targets, SHORT_S)[1].doing.startswith(seen), seen)
        stack = gather(ranks.targets, LONG_S)[0]
        assert (stack.state, stack.doing.split(", ")[0]) == ("silent", "no Python stack")
        assert "nanosleep" in stack.doing
        assert process.poll() is None
    finally:
        os.killpg(shell.pid, signal.SIGKILL)


def test_a_rank_whose_log_is_another_file_is_not_asked(ranks):
    """A dump would be written to whatever has the descriptor now; or, where the log is gone, to where nobody reads."""
    reused, gone = ranks.start("close-descriptors"), ranks.start("sleep")
    precious = Path(f"{ranks.targets[0].stacks_log}.precious")
    wait_until(precious.exists, "the other file")
    ranks.targets[1].stacks_log.unlink()
    assert all(catches(process.pid, signal.SIGRTMAX - 3) for process in (reused, gone))
    assert all(stack.doing.startswith("no Python stack, ") for stack in gather(ranks.targets, LONG_S).values())
    assert precious.read_bytes() == b""


def test_a_stopped_rank_is_said_to_be_stopped(ranks, suspend):
    process = ranks.start("sleep")
    suspend(process.pid)
    assert gather(ranks.targets, LONG_S) == {0: RankStack("stopped", "stopped (SIGSTOP)")}
    process.send_signal(signal.SIGCONT)
    assert gather(ranks.targets, LONG_S)[0].state == "running"
    assert ranks.targets[0].stacks_log.read_bytes().count(b"Current thread") == 1


def test_a_rank_stuck_in_the_kernel_is_told_when_the_time_is_over(ranks):
    process = ranks.start("wait-in-kernel")
    try:
        wait_until(lambda: any(each.parent == process.pid for each in every_process()), "what it starts")
        in_state(process, "D")
        stack = gather(ranks.targets, SHORT_S)[0]
        assert stack.state == "uninterruptible"
        assert stack.doing.startswith("stuck inside the kernel")
    finally:
        os.close(os.open(f"{ranks.targets[0].stacks_log}.fifo", os.O_WRONLY))
    wait_until(lambda: gather(ranks.targets, LONG_S)[0].state == "running", "an answer again")


def test_a_rank_that_has_ended_has_no_stack(ranks, suspend):
    _, zombie, reaped, dying = (ranks.start("sleep") for _ in range(4))
    zombie.kill()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    reaped.kill()
    reaped.wait()
    suspend(dying.pid)
    gathering = Gathering(ranks.targets, LONG_S)
    dying.kill()
    os.waitid(os.P_PID, dying.pid, os.WEXITED | os.WNOWAIT)
    wait_until(lambda: (gathering.step(), gathering.done)[-1], "the end")
    assert set(gathering.stacks()) == {0}


# --- how they are asked ---


def test_a_gathering_never_waits_and_may_be_closed_at_any_time(ranks):
    in_state(ranks.start("block-signal"), "S")
    ranks.start("sleep")
    gathering = Gathering(ranks.targets, LONG_S)
    assert gathering.timeout_s == 0
    gathering.step()
    assert (gathering.done, 0 <= gathering.timeout_s <= 0.01) == (False, True)
    wait_until(lambda: (gathering.step(), 1 in gathering.stacks())[-1], "the other's answer")
    gathering.close()
    gathering.close()
    assert (gathering.done, gathering.timeout_s) == (True, 0)
    stacks = gathering.stacks()
    assert stacks[0] == RankStack("silent", "silent: it blocks the signal for stacks")
    assert stacks[1].state == "running"
    with ranks.targets[0].stacks_log.open() as log:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert gather(ranks.targets, SHORT_S)[0] == stacks[0]
    assert gather({}, LONG_S) == {}


@pytest.mark.parametrize("looks_before", [0, 1])
def test_who_was_held_up_takes_nobody_for_silent(ranks, monkeypatch, looks_before):
    away_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + away_s, sleep=time.sleep)
    monkeypatch.setattr("launcher.supervise.diagnosis.rank_stacks.time", clock)
    ranks.start("sleep")
    in_state(ranks.start("block-signal"), "S")
    gathering = Gathering(ranks.targets, LONG_S)
    for _ in range(looks_before):
        gathering.step()
    away_s += 2 * LONG_S
    gathering.step()
    wait_until(lambda: (gathering.step(), 0 in gathering.stacks())[-1], "an answer")
    assert (gathering.stacks()[0].state, gathering.done) == ("running", False)
    for _ in range(9):
        away_s += 2 * LONG_S
        gathering.step()
    assert gathering.done


def test_a_dump_that_makes_pauses_is_waited_for(ranks):
    """The rank has little of its processor, and writes for some tenths of a second on its 1,000 frames."""
    process, one = ranks.start("deep-threads"), {min(os.sched_getaffinity(0))}

    def last_words():
        return [thread[0].split()[-1] for thread in gather(ranks.targets, LONG_S)[0].others]

    wait_until(lambda: last_words() == ["sleep"] * 10, "all threads")
    ranks.processes["hog"] = hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    for pid in (process.pid, hog.pid):
        os.sched_setaffinity(pid, one)
    os.setpriority(os.PRIO_PROCESS, process.pid, 19)
    log = ranks.targets[0].stacks_log
    size = log.stat().st_size
    first, second = (Gathering(ranks.targets, LONG_S) for _ in range(2))
    first.step()
    wait_until(lambda: log.stat().st_size > size, "the beginning of an answer")
    wait_until(lambda: (first.step(), second.step(), first.done and second.done)[-1], "both answers")
    for gathering in (first, second):
        stack = gathering.stacks()[0]
        assert stack.frames[-1].endswith(" in <module>")
        assert [len(thread) for thread in stack.others] == [100] * 10


def test_an_asker_that_never_lets_go_does_not_keep_others_from_asking(ranks, monkeypatch):
    monkeypatch.setattr("launcher.supervise.diagnosis.rank_stacks.LOCK_SHARE", 0.2 / LONG_S)
    in_state(ranks.start("sleep"), "S")
    with ranks.targets[0].stacks_log.open() as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert gather(ranks.targets, LONG_S)[0].state == "running"


def test_no_file_of_a_rank_is_touched_but_its_log(ranks, monkeypatch):
    """Another one may be on a file system that does not answer: whoever touches it waits as the rank does."""
    asked, real = [], os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: asked.append(str(path)) or real(path, **options))
    process = ranks.start("sleep")
    assert gather(ranks.targets, LONG_S)[0].state == "running"
    touched = [path for path in asked if path.startswith(f"/proc/{process.pid}/fd/")]
    assert [str(Path(path).readlink()) for path in touched] == [str(ranks.targets[0].stacks_log.resolve())]


# --- py-spy ---


def test_py_spy_is_used_for_python_without_the_handler(ranks, install, tmp_path):
    answer = json.dumps([{"os_thread_id": 1, "frames": [{"name": "load", "filename": "/home/me/data.py", "line": 88}]}])
    install("py-spy", f"echo \"$@\" >> {tmp_path}/asked; /bin/sleep 0.02; printf '%s' '{answer}'")
    for _ in range(PY_SPIES_AT_ONCE + 1):
        ranks.start("without-handler")
    assert {stack.doing for stack in gather(ranks.targets, LONG_S).values()} == {"at data.py:88 in load"}
    asked = {f"dump --json --nonblocking --pid {process.pid}" for process in ranks.processes.values()}
    assert set((tmp_path / "asked").read_text().splitlines()) == asked


@pytest.mark.parametrize("script", ["exit 1", "echo no json", "exec /bin/sleep 1000"])
def test_a_py_spy_that_fails_or_hangs_leaves_what_the_kernel_tells(ranks, install, script):
    install("py-spy", script)
    ranks.start("without-handler")
    assert gather(ranks.targets, SHORT_S)[0].doing.startswith("no Python stack, ")


# --- groups ---

WAITING = RankStack("running", "in all_reduce, called at train.py:40 in step", "train.py:40 in step", True, ("a", "b"))
LOADING = RankStack("running", "at data.py:88 in load: time.sleep(30)", "data.py:88 in load", False, ("c",))


def test_the_outlier_stands_first_and_the_sentence_says_it_last():
    groups = group({rank: LOADING if rank == 3 else WAITING for rank in range(8)}, dict.fromkeys(range(8), 12))
    assert groups == (
        StackGroup((3,), "at data.py:88 in load: time.sleep(30)", ("c",)),
        StackGroup((0, 1, 2, 4, 5, 6, 7), "in all_reduce at step 12, called at train.py:40 in step", ("a", "b")),
    )
    assert sentence(groups) == "7 ranks wait in all_reduce at step 12; rank 3 is at data.py:88 in load: time.sleep(30)"
    assert [each.global_ranks for each in group({0: WAITING, 1: LOADING}, {})] == [(1,), (0,)]


SILENT = RankStack("silent", "no Python stack, waiting in futex")
AT_SEVEN_PLACES = [RankStack("running", f"at train.py:{min(rank, 6)} in f") for rank in range(9)]


@pytest.mark.parametrize(("stacks", "steps", "words"), [
    ([], (), ""),
    ([WAITING] * 4, (), "all 4 ranks wait in all_reduce"),
    ([WAITING] * 3, (12, 11, 12), "2 ranks wait in all_reduce at step 12; rank 1 waits in all_reduce at step 11"),
    ([LOADING] * 3, (12, 11, 12), "all 3 ranks are at data.py:88 in load: time.sleep(30)"),
    ([RankStack("stopped", "stopped (SIGSTOP)"), SILENT, SILENT], (),
     "2 ranks have no Python stack, waiting in futex; rank 0 is stopped (SIGSTOP)"),
    (AT_SEVEN_PLACES, (), ("3 ranks are at train.py:6 in f; rank 0 is at train.py:0 in f; "
     "rank 1 is at train.py:1 in f; rank 2 is at train.py:2 in f; 3 elsewhere")),
])  # fmt: skip
def test_the_sentence_of_groups(stacks, steps, words):
    assert sentence(group(dict(enumerate(stacks)), dict(enumerate(steps)))) == words
