"""`tlaunch why`."""

import json
import os
import re
import sys
import time
from dataclasses import replace

import pytest

from launcher.checkpoint.index import INDEX, name_of
from launcher.core.events import AgentEnded, AgentStarted, Cause, NotBegun, Stopping
from launcher.core.verdict import Confidence, Verdict
from tests import checkpoints
from tests.programs import acted_run

from .failed_run import AGENT, failed_once, failed_twice, verdict

FIRST = verdict("ValueError: one", culprit=0)


def test_every_attempt_is_told(launcher, snapshot):
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(FIRST, verdict("KeyError: two")))
    run_dir.train_log(1).write_text("step 1\nlast words\x1b[2J\n")
    assert launcher.scene("why a", code=0) == snapshot


def test_json_has_every_verdict(launcher):
    acted_run.make(launcher.runs / "a", failed_twice(FIRST, verdict("KeyError: two", "Traceback")))
    whole = json.loads(launcher.call("why", "a", "--json").stdout)
    assert [attempt["verdict"]["culprit"] for attempt in whole["attempts"]] == [0, 1]
    assert whole["attempts"][1]["verdict"]["failures"][0]["traceback"] == "Traceback"
    assert (whole["not_restarting"], whole["culprit"]) == ("it failed in the same way", 1)


LOST = Verdict(None, Confidence.CERTAIN, "server h2 was lost", server="h2")
APART = replace(LOST, apart=(("h2", "h1"), ("h2", "h3")))


@pytest.mark.parametrize(("verdicts", "told"), [
    ((LOST, LOST), "h2\n"), ((FIRST, LOST), "h2\n"), ((LOST, FIRST), ""), ((LOST, None), ""), ((LOST, APART), ""),
])  # fmt: skip
def test_a_job_script_learns_which_server_was_lost_at_last(launcher, verdicts, told):
    acted_run.make(launcher.runs / "a", failed_twice(*verdicts))
    assert launcher.call("why", "a", "--lost-server", code=0).stdout == told


def test_a_traceback_is_enough(launcher):
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(FIRST, verdict("KeyError: two", "Traceback: deep")))
    run_dir.train_log(1).write_text("last words\n")
    shown = launcher.call("why", "a").stdout
    assert ("  | Traceback: deep" in shown, "last words" in shown) == (True, False)


def test_a_crash_below_a_library_is_the_program_s(launcher):
    """Its headline names the program's own line, and its log is told without what tlaunch put below the program."""
    launcher.write("train.py", "import ctypes\nctypes.string_at(0)\n")
    done = launcher.run("run", "--", sys.executable, "train.py", code=139)
    for told in (done.stderr, launcher.call("why", code=0).stdout):
        assert "SIGSEGV (signal 11), at train.py:2 in <module>" in told
        assert " in string_at" in told
        assert "preload" not in told


def test_the_log_of_an_attempt_before_is_not_quoted(launcher):
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(FIRST, verdict("KeyError: two"), log_offset=10))
    run_dir.train_log(1).write_text("old words\nnew words\n")
    shown = launcher.call("why", "a").stdout
    assert "  | new words" in shown
    assert "old words" not in shown
    run_dir.train_log(1).write_text("old words\n")
    assert "old words" not in launcher.call("why", "a").stdout


def test_what_is_told_where_nothing_is_claimed(launcher, snapshot):
    came_not, stopping = NotBegun("server h2 did not come", "is it there?"), Stopping(Cause.FAILED, 1)
    ended = AgentEnded(Cause.FAILED, 1)
    acted_run.make(launcher.runs / "no_verdict", failed_twice(FIRST))
    acted_run.make(launcher.runs / "never_began", [AgentStarted(AGENT, None, 2), came_not, stopping, ended])
    acted_run.make(launcher.runs / "in_vain", [*failed_once(FIRST), came_not, stopping, ended])
    assert launcher.scene("why no_verdict", "why never_began", "why in_vain", code=0) == snapshot


def test_a_run_that_goes_on_has_not_failed(launcher):
    with acted_run.playing(launcher.runs / "a"):
        assert "running" in launcher.call("why", "a").stdout.splitlines()[0]
    assert launcher.call("why", "a").stdout.startswith("a: stopped after")


def test_last_nights_failure_is_named_while_another_run_is_active(launcher):
    """The newest one, in a second line; not if a run is named, or if this one has failed."""
    events = [*failed_once(verdict("KeyError: two")), AgentEnded(Cause.FAILED, 1)]
    for number, name in enumerate(("older", "night")):
        os.utime(acted_run.make(launcher.runs / name, events).run_json, (number, number))
    with acted_run.playing(launcher.runs / "a"):
        (launcher.runs / "latest").symlink_to("a")
        first, *more = launcher.call("why", code=0).stdout.splitlines()
        assert len(launcher.call("why", "a", code=0).stdout.splitlines()) == 1
    assert first.endswith("; nothing failed")
    assert more[0].startswith("the earlier run night failed ")
    assert more[0].endswith("KeyError: two, at a.py:3 in f")
    assert more[1:] == ["details: `tlaunch why night`"]
    assert "night" not in launcher.call("why", code=0).stdout


def test_of_a_lost_run_the_last_that_is_known_is_told(launcher, snapshot):
    with acted_run.playing(launcher.runs / "a", "vanish") as process:
        process.wait(60)
        acted_run.RunDir(launcher.runs / "a").agent_log.write_text("Traceback\nOops\n")
        lost, last, *log = launcher.call("why", "a").stdout.splitlines()
    assert (last.endswith("2 of 2 ranks were running then"), [lost, *log]) == (True, snapshot)


LEAK = "postgres://me:PLAIN1@db refused; password=PLAIN2; Authorization: Basic dXNlcjpQTEFJTjM="


@pytest.mark.parametrize("command", [
    ["python", "train.py"], ["python", "exit.py"], ["sh", "-c", "python train.py"], ["sh", "-c", "cat text; exit 3"],
], ids=["exception", "exit", "exception of a child", "last lines"])  # fmt: skip
def test_no_secret_of_a_failure_is_told(launcher, command):
    launcher.write("text", LEAK)
    launcher.write("train.py", "raise RuntimeError(open('text').read())\n")
    launcher.write("exit.py", "import sys\nsys.exit(open('text').read())\n")
    told = launcher.run("run", "--", *(sys.executable if word == "python" else word for word in command)).stderr
    assert "refused; password=" in told
    for words in (["why"], ["why", "--json"], ["status", "--json"], ["report"]):
        told += launcher.call(*words, code=0).stdout
    launcher.run("report", "--html", "page.html", code=0)
    told += (launcher.directory / "page.html").read_text()
    run_dir = launcher.runs / "latest"
    files = [run_dir / name for name in ("run.json", "report.json", "events.jsonl", "device0/failure.json")]
    told += "".join(path.read_text() for path in files if path.exists())
    assert "PLAIN" not in told


def test_how_to_resume_is_told(launcher):
    run_dir = acted_run.make(launcher.runs / "a", [*failed_once(verdict("KeyError: two")), AgentEnded(Cause.FAILED, 1)])
    line = r"newest checkpoint: step 1,200, 2 min \d+ s before the end to resume from it: `tlaunch rerun a --resume a`"
    for command in ("why", "status", "report"):
        assert "newest checkpoint" not in launcher.call(command, "a", code=0).stdout
    for step in (5, 1200, 1205):
        path = run_dir.checkpoints / name_of(step)
        checkpoints.write(path, {"weight": (2,)}, checkpoints.numbered({"weight": (2,)}), step=step)
        os.utime(path / INDEX, (time.time() - 150,) * 2)
    (path / INDEX).write_text("{}")
    for command in ("why", "status", "report"):
        told = launcher.call(command, "a", code=0)
        assert re.search(line, " ".join((told.stdout + told.stderr).split())), command


def test_no_command_to_copy_is_broken(launcher):
    name = "20260101-000000-a-run-with-a-name"
    run_dir = acted_run.make(
        launcher.runs / name, [*failed_once(verdict("KeyError: two")), AgentEnded(Cause.FAILED, 1)]
    )
    path = run_dir.checkpoints / name_of(5)
    checkpoints.write(path, {"weight": (2,)}, checkpoints.numbered({"weight": (2,)}), step=5)
    for command in ("why", "status", "report"):
        shown = launcher.seen(command, COLUMNS="60")
        assert f"`tlaunch rerun {name} --resume {name}`" in shown, command
