"""Which run a command is about: alike for all that take RUN."""

import os
import shlex
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, RankEnded, RankStarted, Stopping
from launcher.core.proc import identify

SPEC = spec_from_file_location("acted_run", Path(__file__).parents[1] / "programs" / "acted_run.py")
acted_run = module_from_spec(SPEC)
SPEC.loader.exec_module(acted_run)

EVERY_COMMAND = pytest.mark.parametrize(
    "command", [["status"], ["why"], ["logs"], ["report"], ["top"], ["stacks"], ["stop"]], ids=lambda words: words[0]
)
NO_RANK_LIVES = 1  # what stacks ends with


def make_failed(directory):
    """A run of two ranks that is over."""
    me = identify(os.getpid())
    events = [AgentStarted(replace(me, started=me.started - 1), None, 2), AttemptStarted(0, 1), RankStarted(0, 9, 9)]
    events += [RankEnded(0, 9, 3), Stopping(Cause.FAILED, 1), AgentEnded(Cause.FAILED, 3)]
    run_dir = acted_run.make(directory, events)
    run_dir.train_log(0).write_text(f"{directory.name} says something\n")
    run_dir.train_log(1).touch()
    return run_dir


@pytest.fixture
def three(launcher):
    """Two runs of one name, and another one, which is the latest."""
    for number, name in enumerate(("20260101-000000-mine", "20260102-000000-mine", "20260103-000000-other")):
        run_dir = make_failed(launcher.runs / name)
        os.utime(run_dir.run_json, (number, number))
    (launcher.runs / "latest").symlink_to("20260103-000000-other")
    return launcher


@EVERY_COMMAND
@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("mine", "20260102-000000-mine"),
        ("oth", "20260103-000000-other"),
        ("20260101", "20260101-000000-mine"),
        ("latest", "20260103-000000-other"),
        ("latest~2", "20260101-000000-mine"),
        ("runs/20260101-000000-mine/", "20260101-000000-mine"),
    ],
)
def test_a_run_has_many_names(three, command, reference, name):
    """A word on stderr tells where several have one."""
    done = three.run(*command, reference)
    assert done.returncode == (NO_RANK_LIVES if command == ["stacks"] else 0), done.stderr
    assert name in done.stdout + done.stderr.replace("other is 20260101-000000-mine", "")
    assert ("2 runs are named mine: this is the newest, the other is " in done.stderr) == (reference == "mine")


@EVERY_COMMAND
def test_what_several_are_called_is_wrong_usage(three, command):
    """The candidates are told."""
    done = three.run(*command, "2026")
    assert (done.returncode, done.stdout) == (2, "")
    assert "20260103-000000-other, 20260102-000000-mine, 20260101-000000-mine" in done.stderr


@EVERY_COMMAND
def test_a_directory_that_is_no_run_takes_no_command_away(three, command):
    """Though latest leads there; it is said, and the newest run is shown."""
    (three.runs / "stray" / "device0").mkdir(parents=True)
    (three.runs / "latest").unlink()
    (three.runs / "latest").symlink_to("stray")
    done = three.run(*command)
    assert done.returncode == (NO_RANK_LIVES if command == ["stacks"] else 0), done.stderr
    assert "this is 20260103-000000-other, the newest run" in done.stderr
    named = three.run(*command, "stray")
    assert named.returncode == 2
    assert "runs/stray has no run.json" in named.stderr


@pytest.mark.parametrize("runs_dir", ["runs", "of others"])
def test_what_is_to_be_typed_can_be_pasted(launcher, runs_dir):
    """Whatever a run is called, and wherever it is."""
    make_failed(launcher.directory / runs_dir / "it's a $run")
    line = launcher.run("status", "--runs-dir", runs_dir, "it's").stdout.partition("more: tlaunch ")[2].splitlines()[0]
    done = launcher.run(*shlex.split(line))
    assert (done.returncode, done.stdout.splitlines()[0].startswith("it's a $run: failed")) == (0, True), done.stderr
