"""Which run a command is about: alike for all that take RUN."""

import os
import shlex
from dataclasses import replace

import pytest

from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, RankEnded, RankStarted, Stopping
from launcher.core.machine.proc import identify
from tests.programs import acted_run

COMMANDS = ("status", "why", "logs", "report", "top", "stacks", "stop")
EVERY_COMMAND = pytest.mark.parametrize("command", COMMANDS)
NO_RANK_LIVES = 1  # what stacks ends with


def make_failed(directory):
    me = identify(os.getpid())
    events = [AgentStarted(replace(me, started=me.started - 1), None, 2), AttemptStarted(0, 1), RankStarted(0, 9, 9)]
    events += [RankEnded(0, 9, 3), Stopping(Cause.FAILED, 1), AgentEnded(Cause.FAILED, 3)]
    run_dir = acted_run.make(directory, events)
    run_dir.train_log(0).write_text(f"{directory.name} says something\n")
    run_dir.train_log(1).touch()
    return run_dir


@pytest.fixture
def three(launcher):
    for number, name in enumerate(("20260101-000000-mine", "20260102-000000-mine", "20260103-000000-other")):
        run_dir = make_failed(launcher.runs / name)
        os.utime(run_dir.run_json, (number, number))
    (launcher.runs / "latest").symlink_to("20260103-000000-other")
    return launcher


@pytest.mark.parametrize(("command", "reference", "name"), [
    *((command, "mine", "20260102-000000-mine") for command in COMMANDS),
    ("status", "oth", "20260103-000000-other"), ("status", "20260101", "20260101-000000-mine"),
    ("why", "latest", "20260103-000000-other"), ("logs", "latest~2", "20260101-000000-mine"),
    ("stop", "runs/20260101-000000-mine/", "20260101-000000-mine"),
])  # fmt: skip
def test_a_run_has_many_names(three, command, reference, name):
    done = three.call(command, reference)
    assert done.returncode == (NO_RANK_LIVES if command == "stacks" else 0), done.stderr
    assert name in done.stdout + done.stderr
    note = "note: the newest of 2 runs named mine (tlaunch ps --all lists them)\n"
    assert (note in done.stderr) == (reference == "mine")


def test_what_several_are_called_is_wrong_usage(three, snapshot):
    assert three.refused(2, *(f"{command} 2026" for command in COMMANDS)) == snapshot


@EVERY_COMMAND
def test_a_directory_that_is_no_run_takes_no_command_away(three, command):
    (three.runs / "stray" / "device0").mkdir(parents=True)
    (three.runs / "latest").unlink()
    (three.runs / "latest").symlink_to("stray")
    done = three.call(command)
    assert done.returncode == (NO_RANK_LIVES if command == "stacks" else 0), done.stderr
    assert "20260103-000000-other" in done.stderr
    assert "runs/stray has no run.json" in three.refused(2, f"{command} stray")


@pytest.mark.parametrize("runs_dir", ["runs", "of others"])
def test_what_is_to_be_typed_can_be_pasted(launcher, runs_dir):
    make_failed(launcher.directory / runs_dir / "it's a $run")
    line = (
        launcher.call("status", "--runs-dir", runs_dir, "it's").stdout.partition("more: `tlaunch ")[2].partition("`")[0]
    )
    done = launcher.call(*shlex.split(line))
    assert (done.returncode, done.stdout.splitlines()[0].startswith("it's a $run: failed")) == (0, True), done.stderr
