"""`tlaunch stop`."""

import os
import signal
import subprocess
from dataclasses import replace

import pytest

from launcher.checkpoint.index import INDEX, name_of
from launcher.core.events import AgentEnded, AgentStarted, Cause, RankStarted
from launcher.core.machine.proc import identify
from launcher.core.run_dir import RunDir
from tests import checkpoints
from tests.programs import acted_run

from .transcript import normalised

OVER = [AgentEnded(Cause.FINISHED, 0)]


def test_a_run_is_ended_from_another_shell(launcher):
    process = launcher.running("--", "sh", "-c", "echo ready; exec sleep 1000", stderr=subprocess.PIPE)
    done = launcher.call("stop")
    assert launcher.processes() == []
    assert (done.returncode, done.stdout) == (0, "")
    assert ("stopped after" in done.stderr, "SIGTERM" in done.stderr) == (True, True)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"SIGTERM: " in errors


def test_how_to_go_on_is_told_where_checkpoints_are(launcher, snapshot):
    process = launcher.running("--", "sh", "-c", "echo ready; exec sleep 1000", stderr=subprocess.PIPE)
    saved = RunDir(launcher.latest).checkpoints
    for step in (5, 1200, 1205):
        path = saved / name_of(step)
        checkpoints.write(path, {"weight": (2,)}, checkpoints.numbered({"weight": (2,)}), step=step)
    (path / INDEX).write_text("{}")
    told = launcher.transcript(launcher.call("stop", code=0))
    _, errors = process.communicate(timeout=60)
    last_lines = errors.decode().splitlines()[-3:]
    assert (told, normalised("\n".join(last_lines), launcher.directory)) == snapshot


def test_a_run_without_its_launcher_is_ended_too(launcher):
    process = launcher.stubborn("ignore", grace=1000, stderr=subprocess.PIPE)
    process.kill()
    process.wait()
    done = launcher.call("stop", "--kill")
    assert (done.returncode, launcher.processes()) == (0, []), done.stderr
    assert "2 processes" in done.stderr


def test_patience_can_be_limited(launcher, wait_until):
    process = launcher.stubborn("ignore", grace=1000, stderr=subprocess.PIPE)
    assert "--kill" in launcher.call("stop", "--timeout", "0.5", code=1).stderr
    events = launcher.latest / "events.jsonl"  # of two signals that wait, the agent would hear SIGQUIT first
    wait_until(lambda: "Stopping" in events.read_text(), "that it has heard the first")
    killed = launcher.call("stop", "--kill")
    assert (killed.returncode, launcher.processes()) == (0, []), killed.stderr
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_runs_that_are_over_or_of_another_machine_or_version_are_not_ended(launcher):
    acted_run.make(launcher.runs / "a", [AgentStarted(replace(acted_run.me(), host="node-7"), None, 2)])
    acted_run.make(launcher.runs / "b").report.write_text('{"schema": 1}')
    acted_run.make(launcher.runs / "c", OVER)
    for name, code, why in (("a", 1, "on node-7"), ("b", 1, "another version"), ("c", 0, "is not running: finished")):
        told = launcher.call("stop", name, code=code).stderr
        assert (told.startswith("error: "), why in told) == (code == 1, True)


def test_a_paused_run_can_be_ended(launcher, suspend):
    with acted_run.playing(launcher.runs / "a", "stopped") as process:
        suspend(process.pid)
        assert launcher.call("stop", "a").returncode == 0


@pytest.fixture
def orphan(launcher):
    rank = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    started = RankStarted(0, rank.pid, identify(rank.pid).started)
    acted_run.make(launcher.runs / "a", [AgentStarted(acted_run.someone_gone(), None, 1), started])
    return rank


@pytest.mark.parametrize("words", [("stop", "a"), ("stop",)], ids=" ".join)
def test_ranks_that_outlived_all_others_are_ended(launcher, orphan, words):
    assert "`tlaunch stop a` ends them" in launcher.call("why", "a").stdout
    acted_run.make(launcher.runs / "b", OVER)
    launcher.latest.symlink_to("b")
    done = launcher.call(*words)
    assert (orphan.wait(60), done.returncode, "rank 0" in done.stderr) == (-signal.SIGTERM, 0, True)


@pytest.mark.parametrize("words", [("stop",), ("stop", "mine")], ids=" ".join)
def test_one_of_several_runs_has_to_be_named(launcher, words):
    """Also of those of one name; nothing is ended by chance; once one is left, it is meant, though not the latest."""
    first, second, lost = (f"2026010{number}-000000-mine" for number in (1, 2, 3))
    acted_run.make(launcher.runs / lost, [AgentStarted(acted_run.someone_gone(), None, 1)])
    acted_run.make(launcher.runs / "over", OVER)
    launcher.latest.symlink_to("over")
    with acted_run.playing(launcher.runs / first), acted_run.playing(launcher.runs / second):
        done = launcher.call(*words)
        assert (done.returncode, f"2 runs are active: {second}, {first}" in done.stderr) == (2, True)
        assert launcher.call("stop", "20260102").returncode == 0
        done = launcher.call(*words)
        assert (done.returncode, done.stderr.startswith(f"{first}: stopped")) == (0, True), done.stderr


def test_kill_while_the_launcher_ends_the_ranks_of_a_dead_agent(launcher):
    process = launcher.stubborn("ignore", grace=1000)
    os.kill(launcher.first(AgentStarted).agent.pid, signal.SIGKILL)
    launcher.call("stop", "--kill", code=0)
    assert process.wait(60) != 0
    assert launcher.processes() == []


def test_killing_is_told_as_killing(launcher):
    process = launcher.stubborn("ignore", grace=1000, stderr=subprocess.PIPE)
    assert launcher.call("stop", "--kill").returncode == 0
    _, errors = process.communicate(timeout=60)
    assert errors.count(b"killing all ranks\n") == 1
    assert b"2 ranks ended by SIGKILL (signal 9) immediately; logs" in errors
    assert b" ending, " not in errors
