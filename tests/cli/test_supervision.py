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
    NotRestarting,
    Paused,
    Preloaded,
    Preloading,
    RankStarted,
    Trouble,
    from_line,
)
from launcher.core.proc import stat

UNTIL_GO = "while not os.path.exists('go'): time.sleep(0.01)"


def started_ranks(launcher, count):
    """The pids of so many ranks, in the order of their starts; nothing before the last of them."""
    pids = [event.pid for event in launcher.events(RankStarted)]
    return pids if len(pids) == count else []


def python(*statements):
    return [sys.executable, "-c", "\n".join(["import os, sys, time, signal", *statements])]


def test_a_failed_attempt_is_tried_again_afresh(launcher):
    """A new port, the attempt's number under both names, one log with a line between its parts, a verdict each."""
    program = python(
        "attempt = os.environ['TLAUNCH_ATTEMPT']",
        "assert attempt == os.environ['TORCHELASTIC_RESTART_COUNT']",
        "print(os.environ['MASTER_PORT'], attempt, flush=True)",
        "open(f'said.{attempt}.{os.environ[\"RANK\"]}', 'w').close()",
        "while not all(os.path.exists(f'said.{attempt}.{rank}') for rank in range(3)): time.sleep(0.01)",
        "if os.environ['RANK'] == '1' and int(attempt) < 2: sys.exit(40 + int(attempt))",
    )
    done = launcher.run("run", "--devices", 3, "--max-restarts", 5, "--", *program)
    assert done.returncode == 0, done.stderr
    report = launcher.report
    assert [attempt.cause for attempt in report.attempts] == [Cause.FAILED, Cause.FAILED, Cause.FINISHED]
    assert [attempt.verdict.culprit for attempt in report.attempts[:2]] == [1, 1]
    ports = [attempt.master_port for attempt in report.attempts]
    log = (launcher.latest / "device2" / "train.log").read_text()
    assert log == f"{ports[0]} 0\n--- attempt 1 ---\n{ports[1]} 1\n--- attempt 2 ---\n{ports[2]} 2\n"
    offsets = [event.log_offset for event in launcher.events(RankStarted) if event.global_rank == 2]
    assert [log[offset:].split("\n")[0] for offset in offsets] == [f"{port} {n}" for n, port in enumerate(ports)]
    assert len(set(ports)) == 3


def test_a_run_of_which_no_process_is_left_does_not_wait_for_its_grace(launcher):
    """The grace is longer than this test may take."""
    done = launcher.run("run", "--grace", 3000, "--", "sh", "-c", "exit 7")

    assert done.returncode == 7
    assert launcher.events(Killing) == []


def test_a_port_that_the_user_chose_is_kept(launcher):
    program = python("print(os.environ['MASTER_PORT']); sys.exit(int(os.environ['TLAUNCH_ATTEMPT']) == 0)")
    done = launcher.run("run", "--master-port", 29871, "--max-restarts", 1, "--", *program)
    assert (done.returncode, [event.master_port for event in launcher.events(AttemptStarted)]) == (0, [29871] * 2)


def test_a_rank_that_makes_no_progress_hangs(launcher):
    """Exit code 124; the living rank that kept the others waiting is named with its line."""
    program = python("print('at work', flush=True)", "time.sleep(1000)")
    done = launcher.run("run", "--devices", 2, "--hang-timeout", 1, "--grace", 1, "--", *program)
    assert done.returncode == 124
    assert launcher.report.cause is Cause.HUNG
    assert "no progress" in done.stderr


def test_forwarded_signals_reach_every_rank(launcher, wait_until):
    """SIGUSR1 to the launcher is SIGUSR1 to each rank's process; the run goes on."""
    program = python(
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('heard', flush=True)))",
        "print('ready', flush=True)",
        "time.sleep(1000)",
    )
    process = launcher.start("run", "--devices", 2, "--", *program)
    launcher.wait_ready(2)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 0
    assert [(launcher.latest / f"device{rank}" / "train.log").read_text() for rank in (0, 1)] == ["ready\nheard\n"] * 2
    assert launcher.events(Forwarded) == [Forwarded(signal.SIGUSR1)]


def test_a_suspended_run_stops_its_ranks(launcher, wait_until):
    """Ctrl-Z stops launcher and ranks; `fg` continues them, and time in between is no hang."""
    program = python("print('ready', flush=True)", UNTIL_GO)
    process = launcher.start("run", "--devices", 2, "--hang-timeout", 30, "--", *program)
    launcher.wait_ready(2)
    started = wait_until(lambda: started_ranks(launcher, 2), "both ranks")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: all(stat(pid).stopped for pid in [process.pid, *started]), "everything stopped")
    process.send_signal(signal.SIGCONT)
    (launcher.directory / "go").touch()
    assert process.wait(60) == 0


def test_ranks_that_start_in_a_suspended_run_are_stopped_too(launcher, tmp_path, wait_until):
    """Ctrl-Z while modules are imported: the ranks that are forked afterwards wait for `fg`."""
    source = "import os, time\nwhile not os.path.exists('import'): time.sleep(0.01)"
    (tmp_path / "slow_module.py").write_text(source)
    process = launcher.start(
        "run", "--devices", 2, "--preload", "slow_module", "--", *python(UNTIL_GO, "print('through')"),
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    wait_until(lambda: launcher.events(Preloading), "the preload process")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: launcher.events(Paused), "the pause")
    (launcher.directory / "import").touch()
    started = wait_until(lambda: started_ranks(launcher, 2), "ranks")
    wait_until(lambda: all(stat(pid).stopped for pid in started), "stopped ranks")
    process.send_signal(signal.SIGCONT)
    (launcher.directory / "go").touch()
    assert process.wait(60) == 0
    assert all("through" in (launcher.latest / f"device{rank}" / "train.log").read_text() for rank in (0, 1))


def test_a_restart_of_a_suspended_run_is_suspended(launcher, wait_until):
    """A rank that is killed meanwhile has all start again, and be stopped."""
    process = launcher.start(
        "run", "--devices", 2, "--max-restarts", 1, "--grace", 5, "--", *python(UNTIL_GO, "print('through')")
    )
    first = wait_until(lambda: started_ranks(launcher, 2), "ranks")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: all(stat(pid).stopped for pid in first), "stopped ranks")
    os.kill(first[1], signal.SIGKILL)
    second = wait_until(lambda: started_ranks(launcher, 4), "again")[2:]
    wait_until(lambda: all(stat(pid).stopped for pid in second), "stopped ranks")
    process.send_signal(signal.SIGCONT)
    (launcher.directory / "go").touch()
    assert process.wait(60) == 0


def test_a_suspended_ending_keeps_its_grace(launcher, wait_until):
    program = python(
        "def save(*_):\n    print('saving', flush=True)\n    time.sleep(1)\n    print('saved', flush=True)\n    sys.exit(0)",
        "signal.signal(signal.SIGTERM, save)", "print('ready', flush=True)", "time.sleep(1000)",
    )  # fmt: skip
    process = launcher.start("run", "--grace", 30, "--", *program)
    launcher.wait_ready(1)
    process.send_signal(signal.SIGTERM)
    log = launcher.latest / "device0" / "train.log"
    wait_until(lambda: "saving" in log.read_text(), "SIGTERM")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: "saved" in log.read_text(), "the end of saving")
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 143
    assert launcher.events(Killing) == []


@pytest.mark.parametrize("attempt", range(4))
def test_ranks_that_are_being_forked_are_ended_with_the_others(launcher, wait_until, attempt):
    """An interrupt in the middle of a start needs no kill, and nobody waits for the grace period."""
    process = launcher.start("run", "--devices", 48, "--grace", 1000, "--", *python("time.sleep(1000)"))
    wait_until(lambda: len(launcher.events(RankStarted)) > attempt * 4, "some ranks")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert launcher.events(Killing) == []
    assert launcher.processes() == []


@pytest.mark.parametrize("phase", ["preloading", "running", "failing", "restarting"])
def test_a_run_can_be_stopped_in_each_phase(launcher, wait_until, tmp_path, phase):
    """SIGTERM: 143, unless a failure came first, whose code then stands; no restart follows; nothing is left."""
    (tmp_path / "slow_module.py").write_text("import time; time.sleep(5)")
    stubborn = [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "os.environ['RANK'] == '0' or open('deaf', 'w').close()",
        "while not os.path.exists('deaf' if os.environ['RANK'] == '0' else 'go'): time.sleep(0.01)",
        "sys.exit(9)",
    ]
    statements = stubborn if phase in {"failing", "restarting"} else ["print('ready', flush=True)", "time.sleep(1000)"]
    options = {"preloading": ["--preload", "slow_module"], "restarting": ["--max-restarts", 5]}.get(phase, [])
    process = launcher.start(
        "run", "--devices", 2, "--grace", 50, *options, "--", *python(*statements), env={"PYTHONPATH": str(tmp_path)}
    )
    awaited = {"preloading": "Preloading", "running": "RankStarted"}.get(phase, "Stopping")
    wait_until(lambda: awaited in text_of(launcher.latest / "events.jsonl"), awaited)
    if phase == "running":
        launcher.wait_ready(2)
    process.send_signal(signal.SIGTERM)
    if phase == "restarting":
        wait_until(lambda: launcher.events(NotRestarting), "that the agent has heard it")
    (launcher.directory / "go").touch()
    assert process.wait(60) == (9 if phase in {"failing", "restarting"} else 143)
    assert len(launcher.report.attempts) == 1
    assert launcher.processes() == []


def text_of(path):
    return path.read_text() if path.is_file() else ""


def test_ranks_are_forked_from_a_process_that_has_imported_everything(launcher, tmp_path):
    """The module is imported once; every rank finds it there, and is a process like any other."""
    (tmp_path / "heavy.py").write_text("import os; PID = os.getpid(); open('imports', 'a').write('x')")
    program = python(
        "import heavy", "assert heavy.PID != os.getpid()", "print(os.getppid(), os.getsid(0) == os.getpid())"
    )
    done = launcher.run("run", "--devices", 4, "--preload", "heavy", "--", *program, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert (launcher.directory / "imports").read_text() == "x"
    assert [event.modules for event in launcher.events(Preloading)] == [("heavy",)]
    assert len(launcher.events(Preloaded)) == 1
    logs = {(launcher.latest / f"device{rank}" / "train.log").read_text() for rank in range(4)}
    assert len(logs) == 1
    assert logs.pop().split()[1] == "True"


def test_a_module_that_starts_threads_is_not_preloaded(launcher, tmp_path):
    """Forking would lose its threads: one line says so, and every rank starts by itself."""
    (tmp_path / "threads.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    program = python("import threads, threading", "print(threading.active_count())")
    done = launcher.run(
        "run", "--devices", 2, "--preload", "threads", "--", *program, env={"PYTHONPATH": str(tmp_path)}
    )
    assert (done.returncode, done.stdout) == (0, "2\n")
    (trouble,) = launcher.events(Trouble)
    assert "threads" in trouble.message
    assert trouble.message in done.stderr


def test_a_preload_process_that_is_killed_is_done_without(launcher, tmp_path, wait_until):
    """Ranks that wait for it start one by one instead."""
    source = f"import time; open({str(tmp_path / 'importing')!r}, 'w').close(); time.sleep(1000)"
    (tmp_path / "slow_module.py").write_text(source)
    process = launcher.start(
        "run", "--devices", 2, "--preload", "slow_module", "--", *python("print('ready')"),
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    (preloading,) = wait_until(lambda: launcher.events(Preloading), "the preload process")
    wait_until((tmp_path / "importing").exists, "its import")
    os.kill(preloading.pid, signal.SIGKILL)
    assert process.wait(60) == 0
    assert len(launcher.events(RankStarted)) == 2
    assert len(launcher.events(Trouble)) == 1


def test_imports_that_hang_are_done_without(launcher, tmp_path):
    """After the hang timeout: each rank may hang by itself then, and is seen to."""
    (tmp_path / "hanging_module.py").write_text("import time; time.sleep(1000)")
    done = launcher.run(
        "run", "--devices", 2, "--hang-timeout", 3, "--preload", "hanging_module", "--", *python("print('ready')"),
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (trouble,) = launcher.events(Trouble)
    assert trouble.message in done.stderr


def test_imports_that_take_long_are_waited_for(launcher, tmp_path):
    """Longer than the hang timeout, as long as they do something."""
    (tmp_path / "busy_module.py").write_text(
        "import time\nend = time.monotonic() + 4.5\nwhile time.monotonic() < end: pass"
    )
    done = launcher.run(
        "run", "--devices", 2, "--hang-timeout", 3, "--preload", "busy_module", "--", *python("print('ready')"),
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert launcher.events(Trouble) == []


def test_twenty_runs_at_once_get_ports_of_their_own(launcher, wait_until):
    """Started in the same second on one machine, no two runs meet on a port."""
    waits = ["sh", "-c", "until [ -e go ]; do sleep 0.05; done"]
    processes = [launcher.start("run", "--name", f"n{number}", "--", *waits) for number in range(20)]

    def ports():
        texts = [path.read_text() for path in launcher.runs.glob("*-n*/events.jsonl")]
        lines = [line for text in texts for line in text.split("\n")[:-1] if "AttemptStarted" in line]
        return [from_line(line).event.master_port for line in lines]

    wait_until(lambda: len(ports()) == 20, "twenty runs")
    (launcher.directory / "go").touch()
    assert [process.wait(60) for process in processes] == [0] * 20
    assert len(set(ports())) == 20
