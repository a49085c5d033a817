"""`tlaunch ps`."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli.commands.ps import HEADER, to_lines
from launcher.cli.text.stdout import as_people_call_it
from launcher.core.events import AgentEnded, AgentStarted, Cause, Judged, RankEnded, RankStarted
from launcher.core.machine.proc import identify
from launcher.core.run_report import Report
from launcher.core.verdict import Confidence, Failure, Role, Verdict
from launcher.runs.status import look
from tests.programs import acted_run

VERDICT = Verdict(1, Confidence.CERTAIN, "first", (Failure(1, Role.CAUSE, "Boom: \x1b[2Jno", "first", status=1),))


def agent_of_another_time(**change):
    me = identify(os.getpid())
    return replace(me, **(change or {"started": me.started - 1}))


def make_finished(runs, name, cause=Cause.FINISHED, exit_code=0, verdict=None):
    events = [AgentStarted(agent_of_another_time(), None, 2), RankStarted(0, 9), RankEnded(0, 9, exit_code)]
    judged = [Judged(verdict)] if verdict else []
    report = Report(name, 0, cause, exit_code, 1, 2, ())
    return acted_run.make(runs / name, [*events, *judged, AgentEnded(cause, exit_code)], report=report)


def test_runs_that_go_on_are_listed(launcher):
    make_finished(launcher.runs, "done")
    with acted_run.playing(launcher.runs / "first"), acted_run.playing(launcher.runs / "second"):
        done = launcher.call("ps")
        everything = launcher.call("ps", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:2] == ["NAME", "STATE"]
    assert [line[:4] for line in lines[1:]] == [["second", "running", "2/2", "0"], ["first", "running", "2/2", "0"]]
    assert sum("done" in line for line in everything.stdout.splitlines()) == 1


def test_what_a_run_continues_is_listed(launcher):
    make_finished(launcher.runs, "a")
    assert "CONTINUES" not in launcher.call("ps", "--all").stdout
    continued = {"checkpoint": "/x/a/checkpoints/step-1500", "step": 1500, "run": "a\x1b[2J"}
    run_dir = acted_run.make(launcher.runs / "b", [AgentStarted(agent_of_another_time(), None, 2)], continues=continued)
    lines = {line.split()[0]: line for line in launcher.call("ps", "--all").stdout.splitlines()}
    assert "CONTINUES" in lines["NAME"]
    assert lines["b"].split()[-4:] == ["a", "from", "step", "1,500"]
    rows = {row["name"]: row["continues"] for row in json.loads(launcher.call("ps", "--all", "--json").stdout)}
    assert rows == {"a": None, "b": continued}
    assert "continues a from step 1,500" in launcher.call("status", run_dir.root).stdout


def test_how_runs_ended_is_listed(launcher):
    make_finished(launcher.runs, "failed", Cause.FAILED, 1, VERDICT)
    make_finished(launcher.runs, "plain", Cause.FAILED, 7)
    acted_run.make(launcher.runs / "lost", [AgentStarted(agent_of_another_time(), None, 2)])
    lines = {line.split()[0]: line for line in launcher.call("ps", "--all").stdout.splitlines()}
    assert lines["failed"].split()[1] == "failed"
    assert lines["failed"].endswith("1  rank 1: Boom: no")
    assert lines["plain"].endswith("7  rank 0: exit code 7")
    assert lines["lost"].split()[1] == "lost"


def test_only_what_may_go_on_is_listed_of_other_machines(launcher):
    acted_run.make(launcher.runs / "there", [AgentStarted(agent_of_another_time(host="another"), None, 2)])
    acted_run.make(launcher.runs / "before", [AgentStarted(agent_of_another_time(boot="another"), None, 2)])
    shown = launcher.call("ps").stdout
    assert "there" in shown
    assert "before" not in shown


def test_no_run_is_no_error(launcher):
    done, empty = launcher.call("ps"), launcher.call("ps", "--json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert (empty.returncode, json.loads(empty.stdout)) == (0, [])


def test_names_of_odd_bytes_survive(launcher):
    make_finished(launcher.runs, "a\udce9\x1b[2Jb", Cause.FAILED, 1, VERDICT)
    done = launcher.call("ps", "--all")
    assert (done.returncode, "a\\xe9b" in done.stdout) == (0, True), done.stderr
    (run,) = json.loads(launcher.call("ps", "--all", "--json").stdout)
    assert (run["name"], run["state"], run["exit_code"], run["culprit"]) == ("a\udce9\x1b[2Jb", "failed", 1, 1)
    assert run["ended_ns"] > 0


def test_colours_of_a_failure_take_no_column(launcher):
    loud = replace(VERDICT.failures[0], what="\x1b[31mBoom\x1b[0m: no such word in all of it")
    make_finished(launcher.runs, "a", Cause.FAILED, 1, replace(VERDICT, failures=(loud,)))
    states = [look(acted_run.RunDir(launcher.runs / "a"))]
    line = to_lines(states, 999)[1]
    assert line.endswith("1  rank 1: Boom: no such word in all of it")
    assert to_lines(states, len(line))[1] == line
    assert to_lines(states, len(line) - 1)[1] == line[:-2] + "…"


def test_a_directory_is_shown_from_where_one_stands(monkeypatch):
    whole = "/var/lib/runs"
    for here, shown in (("/", whole), ("/var", "lib/runs"), ("/var/lib", "runs"), ("/dev", whole)):
        monkeypatch.chdir(here)
        assert as_people_call_it(Path(whole)) == Path(shown)


@pytest.mark.parametrize("width", [200, 100, 80, 70, 60, 50, 40, 30, 24])
def test_a_narrow_terminal_loses_what_matters_least(launcher, width):
    make_finished(launcher.runs, "20261121-053712-transformer", Cause.FAILED, 124, VERDICT)
    header, line = to_lines([look(acted_run.RunDir(launcher.runs / "20261121-053712-transformer"))], width)
    assert max(map(len, (header, line))) <= width
    left = header.replace("FIRST FAILURE", "FAILURE").split()
    assert [name for name in " ".join(HEADER).replace("FIRST ", "").split() if name in left] == left
    assert {"NAME", "STATE", "EXIT"} <= set(left)
    name, state, *_ = line.split()
    assert "20261121-053712-transformer".startswith(name.removesuffix("…"))
    assert (state, "124" in line.split()) == ("failed", True)
    assert ("FAILURE" in left) == (width >= 60)
    assert "AGE" in left or width < 80
