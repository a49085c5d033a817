"""Restarts, hangs, pauses, forwarded signals and preloading, through the real command."""

import os
import signal
import sys

import pytest

from launcher.core.events import (
    AttemptStarted,
    Cause,
    Forwarded,
    Killing,
    NotExiting,
    NotRestarting,
    Paused,
    Preloaded,
    Preloading,
    RankStarted,
    Stopping,
    Trouble,
    from_line,
)
from launcher.core.machine.proc import stat
from tests.conftest import executable

UNTIL_GO = "while not os.path.exists('go'): time.sleep(0.01)"
WAITS = ["print('ready', flush=True)", "time.sleep(1000)"]


def started_ranks(launcher, count):
    pids = [event.pid for event in launcher.events(RankStarted)]
    return pids if len(pids) == count else []


def all_stopped(pids):
    return all(stat(pid).stopped for pid in pids)


def python(*statements):
    return [sys.executable, "-c", "\n".join(["import os, sys, time, signal", *statements])]


def train_log(launcher, rank):
    return (launcher.latest / f"device{rank}" / "train.log").read_text()


def test_a_run_ends_at_its_time_limit(launcher):
    """As at Ctrl-C: ranks get SIGTERM and a grace period. A restart does not start the time again."""
    waits = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.1; done"
    program = ("sh", "-c", f"test $TLAUNCH_ATTEMPT = 1 || exit 3; {waits}")
    done = launcher.run("run", "--devices", 2, "--max-restarts", 5, "--timeout", "6s", "--", *program, code=124)
    assert "time limit of 6 s reached: stopping all ranks within 15 s\n" in done.stderr
    assert "\ntime limit of 6 s reached; stopped after " in done.stderr
    assert all(train_log(launcher, rank).endswith("\nsaved\n") for rank in range(2))
    first, last = launcher.report.attempts
    assert (first.cause, last.cause, launcher.report.cause) == (Cause.FAILED, Cause.TIMED_OUT, Cause.TIMED_OUT)
    assert (last.ended_ns - first.started_ns) / 1e9 > 5.9
    assert "stopped after " in (told := launcher.call("status", code=0).stdout)
    assert " by its time limit" in told


def test_a_failed_attempt_is_tried_again_afresh(launcher):
    program = python(
        "attempt = os.environ['TLAUNCH_ATTEMPT']",
        "assert attempt == os.environ['TORCHELASTIC_RESTART_COUNT']",
        "print(os.environ['MASTER_PORT'], attempt, flush=True)",
        "open(f'said.{attempt}.{os.environ[\"RANK\"]}', 'w').close()",
        "while not all(os.path.exists(f'said.{attempt}.{rank}') for rank in range(3)): time.sleep(0.01)",
        "if os.environ['RANK'] == '1' and int(attempt) < 2: sys.exit(40 + int(attempt))",
    )
    launcher.run("run", "--devices", 3, "--max-restarts", 5, "--", *program, code=0)
    report = launcher.report
    assert [attempt.cause for attempt in report.attempts] == [Cause.FAILED, Cause.FAILED, Cause.FINISHED]
    assert [attempt.verdict.culprit for attempt in report.attempts[:2]] == [1, 1]
    ports = [attempt.master_port for attempt in report.attempts]
    log = train_log(launcher, 2)
    assert log == f"{ports[0]} 0\n--- attempt 1 ---\n{ports[1]} 1\n--- attempt 2 ---\n{ports[2]} 2\n"
    offsets = [event.log_offset for event in launcher.events(RankStarted) if event.global_rank == 2]
    assert [log[offset:].split("\n")[0] for offset in offsets] == [f"{port} {n}" for n, port in enumerate(ports)]
    assert len(set(ports)) == 3


def test_a_port_that_the_user_chose_is_kept(launcher):
    program = python("print(os.environ['MASTER_PORT']); sys.exit(int(os.environ['TLAUNCH_ATTEMPT']) == 0)")
    done = launcher.run("run", "--master-port", 29871, "--max-restarts", 1, "--", *program)
    assert (done.returncode, [event.master_port for event in launcher.events(AttemptStarted)]) == (0, [29871] * 2)


def test_a_rank_that_makes_no_progress_hangs(launcher):
    done = launcher.run("run", "--devices", 2, "--hang-timeout", 1, "--grace", 1, "--", *python(*WAITS), code=124)
    assert launcher.report.cause is Cause.HUNG
    assert "no progress" in done.stderr


KEEPS_ALIVE = {
    "a thread": "import threading; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "an exit handler": "import atexit; atexit.register(time.sleep, 1000)",
    "a destructor": "class Odd:\n    def __del__(self): time.sleep(1000)\nkept = Odd()",
}


@pytest.mark.parametrize("keeps", KEEPS_ALIVE.values(), ids=KEEPS_ALIVE)
@pytest.mark.parametrize(("fails", "code"), [("raise ValueError('bad batch 17')", 1), ("sys.exit(3)", 3)])
def test_a_rank_that_has_failed_and_does_not_exit_counts_as_failed(launcher, keeps, fails, code):
    program = python("if os.environ['RANK'] == '0': time.sleep(1000)", keeps, fails)
    launcher.run("run", "--devices", 2, "--grace", 0.5, "--", *program, code=code)
    (event,) = launcher.events(NotExiting)
    assert (event.global_rank, event.grace_s) == (1, 0.5)
    assert (launcher.report.cause, launcher.report.verdict.culprit) == (Cause.FAILED, 1)


def test_a_rank_that_does_not_exit_is_shown_after_a_while_and_may_take_its_time(launcher, wait_until):
    waits = "import atexit\ndef save():\n    while not os.path.exists('go'): time.sleep(0.01)\natexit.register(save)"
    lasts = "if os.environ['RANK'] == '0': time.sleep(1000)"
    program = python("print('ready', flush=True)", lasts, waits, "raise ValueError('b')")
    process = launcher.running("--grace", 1000, "--", *program)
    wait_until(lambda: launcher.events(NotExiting), "the failure")
    for command in ("status", "why", "ps"):
        assert "ValueError: b" in launcher.call(command, code=0).stdout
    assert launcher.events(Stopping) == []
    launcher.write("go")
    assert process.wait(60) == 1
    assert launcher.report.verdict.failures[0].status == 1
    assert "had not ended" not in launcher.report.verdict.reason


def test_a_rank_that_does_not_exit_is_started_again(launcher):
    daemon = "daemon=os.environ['TLAUNCH_ATTEMPT'] != '0'"
    lasts = f"import threading; threading.Thread(target=time.sleep, args=(1000,), {daemon}).start()"
    program = python(lasts, "if os.environ['TLAUNCH_ATTEMPT'] == '0' and os.environ['RANK'] == '1': sys.exit(3)")
    launcher.run("run", "--devices", 2, "--grace", 0.5, "--max-restarts", 1, "--", *program, code=0)
    assert [attempt.cause for attempt in launcher.report.attempts] == [Cause.FAILED, Cause.FINISHED]


@pytest.mark.parametrize("command", ["{} | tee copy", "{} || true", "({}); exit 0"])
def test_a_good_end_after_a_traceback_is_a_warning(launcher, command):
    program = python("raise RuntimeError('device-side assert') if os.environ['RANK'] == '1' else SystemExit")
    script = command.format('"$@" 2>&1')
    done = launcher.run("run", "--devices", 2, "--", "sh", "-c", script, "sh", *program, code=0)
    (trouble,) = launcher.events(Trouble)
    assert trouble.message in done.stderr
    assert "rank 1 " in trouble.message
    assert "RuntimeError: device-side assert" in trouble.message


def test_a_handled_exception_of_a_good_run_is_no_warning(launcher):
    handled = "import traceback\ntry:\n    1 / 0\nexcept ArithmeticError:\n    traceback.print_exc()\nprint('step 2', flush=True)"
    launcher.run("run", "--devices", 2, "--", *python(handled), code=0)
    assert launcher.events(Trouble) == []


def test_a_signal_that_was_forwarded_is_named_as_the_cause(launcher):
    process = launcher.running("--", "sh", "-c", "echo ready; exec sleep 1000")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 128 + signal.SIGUSR2
    verdict = launcher.report.verdict
    assert (verdict.culprit, {failure.status for failure in verdict.failures}) == (None, {-signal.SIGUSR2})
    assert launcher.call("why", code=0).stdout.count("forwarded") >= 1


def test_forwarded_signals_reach_every_rank(launcher):
    handler = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('heard', flush=True)))"
    process = launcher.running("--", *python(handler, *WAITS))
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 0
    assert [train_log(launcher, rank) for rank in (0, 1)] == ["ready\nheard\n"] * 2
    assert launcher.events(Forwarded) == [Forwarded(signal.SIGUSR1)]


def test_a_suspended_run_stops_its_ranks(launcher, wait_until):
    """Ctrl-Z stops launcher and ranks, also those that a failure starts anew; `fg` continues them; none hangs meanwhile."""
    options = ["--hang-timeout", 30, "--max-restarts", 1, "--grace", 5]
    process = launcher.running(*options, "--", *python("print('ready', flush=True)", UNTIL_GO))
    first = wait_until(lambda: started_ranks(launcher, 2), "both ranks")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: all_stopped([process.pid, *first]), "everything stopped")
    os.kill(first[1], signal.SIGKILL)
    second = wait_until(lambda: started_ranks(launcher, 4), "again")[2:]
    wait_until(lambda: all_stopped(second), "stopped ranks")
    process.send_signal(signal.SIGCONT)
    launcher.write("go")
    assert process.wait(60) == 0


def test_ranks_that_start_in_a_suspended_run_are_stopped_too(launcher, preloading, wait_until):
    """Ctrl-Z while modules are imported: the ranks that are forked afterwards wait for `fg`."""
    source = "import os, time\nwhile not os.path.exists('import'): time.sleep(0.01)"
    process = preloading(launcher.start, source, UNTIL_GO, "print('through')")
    wait_until(lambda: launcher.events(Preloading), "the fork server")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: launcher.events(Paused), "the pause")
    launcher.write("import")
    started = wait_until(lambda: started_ranks(launcher, 2), "ranks")
    wait_until(lambda: all_stopped(started), "stopped ranks")
    process.send_signal(signal.SIGCONT)
    launcher.write("go")
    assert process.wait(60) == 0
    assert all("through" in train_log(launcher, rank) for rank in (0, 1))


def test_a_suspended_ending_keeps_its_grace(launcher, wait_until):
    save = "def save(*_):\n    for text in ('saving', 'saved'): print(text, flush=True); time.sleep(1)\n    sys.exit(0)"
    program = python(save, "signal.signal(signal.SIGTERM, save)", *WAITS)
    process = launcher.running("--grace", 30, "--", *program, ranks=1)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "saving" in train_log(launcher, 0), "SIGTERM")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: "saved" in train_log(launcher, 0), "the end of saving")
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 143
    assert launcher.events(Killing) == []


def test_ranks_that_are_being_forked_are_ended_with_the_others(launcher, wait_until):
    """A signal in the middle of a start needs no kill, no wait for the grace period, and starts no more ranks."""
    process = launcher.start("run", "--devices", 48, "--grace", 1000, "--", *python(*WAITS))
    wait_until(lambda: launcher.events(RankStarted), "some ranks")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    ended = [each for each in launcher.report.attempts[-1].exits if each.pid]
    assert len(ended) == len(launcher.events(RankStarted))
    assert (launcher.events(Killing), launcher.processes()) == ([], [])


def test_a_run_whose_ranks_are_to_start_again_can_be_stopped(launcher, wait_until):
    program = python(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "os.environ['RANK'] == '0' or open('deaf', 'w').close()",
        "while not os.path.exists('deaf' if os.environ['RANK'] == '0' else 'go'): time.sleep(0.01)",
        "sys.exit(9)",
    )
    process = launcher.start("run", "--devices", 2, "--grace", 50, "--max-restarts", 5, "--", *program)
    wait_until(lambda: launcher.events(Stopping), "the failure")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: launcher.events(NotRestarting), "that the agent has heard it")
    launcher.write("go")
    assert process.wait(60) == 9
    assert len(launcher.report.attempts) == 1
    assert launcher.processes() == []


# --- modules that are imported once for all ranks ---


@pytest.fixture
def preloading(launcher):
    def begin(how, source, *statements, options=()):
        launcher.write("one_module.py", source)
        words = ["run", "--devices", 2, *options, "--preload", "one_module", "--", *python(*statements)]
        return how(*words, env={"PYTHONPATH": str(launcher.directory)})

    return begin


def test_a_run_can_be_stopped_while_it_imports(launcher, preloading, wait_until):
    process = preloading(launcher.start, "import time; time.sleep(1000)", *WAITS)
    wait_until(lambda: launcher.events(Preloading), "the fork server")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert len(launcher.report.attempts) == 1
    assert launcher.processes() == []


def test_ranks_are_forked_from_a_process_that_has_imported_everything(launcher, preloading):
    done = preloading(
        launcher.run,
        "import os; PID = os.getpid(); open('imports', 'a').write('x')",
        *("import one_module", "assert one_module.PID != os.getpid()"),
        "print(os.getppid(), os.getsid(0) == os.getpid())",
    )
    assert done.returncode == 0, done.stderr
    assert (launcher.directory / "imports").read_text() == "x"
    assert [event.modules for event in launcher.events(Preloading)] == [("one_module",)]
    assert len(launcher.events(Preloaded)) == 1
    first, second = (train_log(launcher, rank) for rank in range(2))
    assert (first, first.split()[1]) == (second, "True")


def test_a_module_that_starts_threads_is_not_preloaded(launcher, preloading):
    source = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    done = preloading(launcher.run, source, "import one_module, threading", "print(threading.active_count())")
    assert (done.returncode, done.stdout) == (0, "2\n")
    (trouble,) = launcher.events(Trouble)
    assert "1 thread" in trouble.message
    assert trouble.message in done.stderr


def test_a_preload_process_that_is_killed_is_done_without(launcher, preloading, wait_until):
    source = "import time; open('importing', 'w').close(); time.sleep(1000)"
    process = preloading(launcher.start, source, "print('ready')")
    (event,) = wait_until(lambda: launcher.events(Preloading), "the fork server")
    wait_until((launcher.directory / "importing").exists, "its import")
    os.kill(event.pid, signal.SIGKILL)
    assert process.wait(60) == 0
    assert len(launcher.events(RankStarted)) == 2
    assert len(launcher.events(Trouble)) == 1


@pytest.mark.parametrize(("code", "troubles"), [(127, 0), (3, 1)], ids=["not there", "fails"])
def test_a_python_that_is_not_there_is_told_by_the_ranks(launcher, code, troubles):
    """As a wrapper's exit code says it (pyenv's, for one); that preloading failed for it, too, says no more."""
    python = executable(launcher.directory / "bin" / "python3", f"#!/bin/sh\nexit {code}\n")
    launcher.write("train.py", "print()")
    launcher.run("run", "--devices", 2, "--", python, "train.py", code=code)
    assert launcher.events(Preloading)
    assert len(launcher.events(Trouble)) == troubles


@pytest.mark.parametrize(
    ("source", "troubles"),
    [("time.sleep(1000)", 1), ("end = time.monotonic() + 2.7\nwhile time.monotonic() < end: pass", 0)],
    ids=["hang", "take long"],
)
def test_imports_that_hang_are_done_without(launcher, preloading, source, troubles):
    """After the hang timeout: each rank may hang by itself then, and is seen to; imports that do something may go on."""
    done = preloading(launcher.run, f"import time\n{source}", "print('ready')", options=["--hang-timeout", 2])
    assert done.returncode == 0, done.stderr
    assert len(launcher.events(Trouble)) == troubles
    assert all(trouble.message in done.stderr for trouble in launcher.events(Trouble))


def test_runs_that_start_at_once_get_ports_of_their_own(launcher, wait_until):
    waits = ["sh", "-c", "until [ -e go ]; do sleep 0.05; done"]
    processes = [launcher.start("run", "--name", f"n{number}", "--", *waits) for number in range(3)]

    def ports():
        texts = [path.read_text() for path in launcher.runs.glob("*-n*/events.jsonl")]
        lines = [line for text in texts for line in text.split("\n")[:-1] if "AttemptStarted" in line]
        return [from_line(line).event.master_port for line in lines]

    wait_until(lambda: len(ports()) == 3, "all runs")
    launcher.write("go")
    assert [process.wait(60) for process in processes] == [0] * 3
    assert len(set(ports())) == 3
