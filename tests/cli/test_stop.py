"""`tlaunch stop`."""

import os
import signal
import subprocess
from dataclasses import replace

from launcher.core.events import AgentStarted, RankStarted
from launcher.core.proc import identify
from tests.programs import acted_run


def start(launcher, *command, grace=30):
    process = launcher.start("run", "--devices", 2, "--grace", grace, "--", *command, stderr=subprocess.PIPE)
    launcher.wait_ready(2)
    return process


def test_a_run_is_ended_from_another_shell(launcher):
    """By its launcher, as SIGTERM would; when the command returns, no rank is left."""
    process = start(launcher, "sh", "-c", "echo ready; exec sleep 1000")
    done = launcher.call("stop")
    assert launcher.processes() == []
    assert (done.returncode, done.stdout) == (0, "")
    assert "stopped after" in done.stderr
    assert "SIGTERM" in done.stderr
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"SIGTERM: " in errors


def test_a_run_without_its_launcher_is_ended_too(launcher, programs):
    """Its agent is asked; the run was ending by then, since its launcher was killed."""
    process = start(launcher, "python", programs / "stubborn.py", "ignore", grace=1000)
    process.kill()
    process.wait()
    done = launcher.call("stop", "--kill")
    assert (done.returncode, launcher.processes()) == (0, []), done.stderr
    assert "2 processes" in done.stderr


def test_patience_can_be_limited(launcher, programs, wait_until):
    """--timeout gives up with 1, and says what may help: --kill lets no grace pass."""
    process = start(launcher, "python", programs / "stubborn.py", "ignore", grace=1000)
    done = launcher.call("stop", "--timeout", "0.5")
    assert done.returncode == 1
    assert "--kill" in done.stderr
    events = launcher.latest / "events.jsonl"  # of two signals that wait, the agent would hear SIGQUIT first
    wait_until(lambda: "Stopping" in events.read_text(), "that it has heard the first")
    killed = launcher.call("stop", "--kill")
    assert (killed.returncode, launcher.processes()) == (0, []), killed.stderr
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_a_run_that_is_over_needs_no_end(launcher):
    launcher.run("run", "--", "true")
    done = launcher.call("stop")
    assert done.returncode == 0
    assert "is not running: finished after" in done.stderr


def test_runs_of_another_machine_or_version_cannot_be_ended(launcher):
    """Whether they run is not known here: that is no success."""
    agent = replace(identify(os.getpid()), host="node-7")
    acted_run.make(launcher.runs / "a", [AgentStarted(agent, None, 2)])
    acted_run.make(launcher.runs / "b").report.write_text('{"schema": 1}')
    for name, why in (("a", "on node-7"), ("b", "another version")):
        done = launcher.call("stop", name)
        assert (done.returncode, done.stderr.startswith("error: "), why in done.stderr) == (1, True, True)


def test_a_paused_run_can_be_ended(launcher, suspend):
    with acted_run.playing(launcher.runs / "a", "stopped") as process:
        suspend(process.pid)
        assert launcher.call("stop", "a").returncode == 0


def test_ranks_that_nobody_watches_any_more_are_ended(launcher):
    rank = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    known = identify(rank.pid)
    gone = replace(known, started=known.started - 1)
    acted_run.make(launcher.runs / "a", [AgentStarted(gone, None, 1), RankStarted(0, known.pid, known.started)])
    assert "`tlaunch stop a` ends them" in launcher.call("why", "a").stdout
    done = launcher.call("stop", "a")
    assert (rank.wait(60), done.returncode) == (-signal.SIGTERM, 0)
    assert "rank 0" in done.stderr


def test_one_of_several_runs_has_to_be_named(launcher):
    """Nothing is ended by chance; once one is left, it is meant, though it is not the latest."""
    launcher.run("run", "--", "true")
    with acted_run.playing(launcher.runs / "a"), acted_run.playing(launcher.runs / "b"):
        done = launcher.call("stop")
        assert (done.returncode, "2 runs are active: b, a" in done.stderr) == (2, True)
        assert launcher.call("stop", "b").returncode == 0
        done = launcher.call("stop")
        assert (done.returncode, done.stderr.startswith("a: stopped")) == (0, True), done.stderr


def test_of_runs_of_one_name_the_one_that_goes_on_is_ended(launcher):
    """Where several do, none is ended by chance; an end without any is as ever."""
    known = identify(os.getpid())
    gone = replace(known, started=known.started - 1)
    acted_run.make(launcher.runs / "20260103-000000-mine", [AgentStarted(gone, None, 1)])
    with (
        acted_run.playing(launcher.runs / "20260101-000000-mine"),
        acted_run.playing(launcher.runs / "20260102-000000-mine"),
    ):
        done = launcher.call("stop", "mine")
        assert (done.returncode, "2 runs are active: 20260102-000000-mine, 2026" in done.stderr) == (2, True)
        assert launcher.call("stop", "20260102").returncode == 0
        done = launcher.call("stop", "mine")
        assert (done.returncode, done.stderr.startswith("20260101-000000-mine: stopped")) == (0, True), done.stderr


def test_ranks_that_outlived_all_others_are_meant(launcher):
    rank = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    known = identify(rank.pid)
    gone = replace(known, started=known.started - 1)
    acted_run.make(launcher.runs / "a", [AgentStarted(gone, None, 1), RankStarted(0, known.pid, known.started)])
    launcher.run("run", "--", "true")
    assert "rank 0" in launcher.call("stop").stderr
    assert rank.wait(60) == -signal.SIGTERM


def test_killing_is_told_as_killing(launcher, programs):
    """Nobody waits for anything, and nobody asked twice."""
    process = start(launcher, "python", programs / "stubborn.py", "ignore", grace=1000)
    assert launcher.call("stop", "--kill").returncode == 0
    _, errors = process.communicate(timeout=60)
    assert errors.count(b"killing all ranks\n") == 1
    assert b"2 by SIGKILL (signal 9) at once; logs" in errors
    assert b"to end" not in errors
