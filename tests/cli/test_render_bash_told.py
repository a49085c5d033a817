"""How ranks of a run.sh end, and what other commands tell of its runs."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from launcher.core.events import AgentEnded, Cause
from launcher.core.run_dir import RunDir
from launcher.runs.progress import State
from launcher.runs.status import look, runs_going_on
from tests.programs import acted_run

from .conftest import PROGRAMS

WAITS = 'echo ready; trap "" HUP; while :; do sleep 0.1; done'


def state_of(launcher):
    return look(RunDir(launcher.latest.resolve()))


def end(process, number):
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


# --- ends ---


@pytest.mark.parametrize(
    ("deed", "code", "environment"),
    [("kill -TERM $$", 143, {}), ("exec /nowhere", 127, {}), ("exit 7", 7, {"SHELLOPTS": "errexit"})],
)
def test_the_first_that_fails_ends_the_others(launcher, script, deed, code, environment):
    program = f"echo here is $RANK; if [ $RANK = 2 ]; then {deed}; fi; sleep 1000; exit 9"
    script.render("--devices", 4, "--", "sh", "-c", program)
    done = script.run(env=environment)
    assert done.returncode == code
    assert re.search(rf"rank 2 .*\b{code}\b", done.stderr)
    assert ("here is 2" in done.stderr, "here is 1" in done.stderr, launcher.processes()) == (True, False, [])
    state = state_of(launcher)
    assert (state.state, state.exit_code) == (State.FAILED, code)
    status = 128 - code if "kill" in deed else code
    assert [rank.status for rank in state.ranks] == [-signal.SIGTERM] * 2 + [status, -signal.SIGTERM]
    why = launcher.call("why").stdout
    assert ("device2/train.log" in why, "| here is 2" in why) == (True, True)
    report = json.loads(launcher.call("report", "--json").stdout)["runs"][0]
    assert (report["state"], report["exit_code"], report["ranks"]) == ("failed", code, 4)


def test_a_good_end_is_told(launcher, script):
    script.render("--devices", 2, "--", "sh", "-c", "echo words of $RANK")
    assert script.run().returncode == 0
    state = state_of(launcher)
    assert (state.state, state.exit_code, [rank.status for rank in state.ranks]) == (State.FINISHED, 0, [0, 0])
    why = launcher.call("why")
    assert (why.returncode, "words of" in why.stdout) == (0, False)
    report = json.loads(launcher.call("report", "--json").stdout)["runs"][0]
    assert (report["state"], report["exit_code"], report["ranks"]) == ("finished", 0, 2)
    assert launcher.call("status").stdout.count("ended") >= 2


@pytest.mark.parametrize(("number", "program"), [(signal.SIGINT, "env"), (signal.SIGTERM, "mkdir")])
def test_a_signal_before_ranks_start(launcher, script, number, program):
    """It reaches all of the terminal's foreground; neither is a program blamed nor a run left that goes on."""
    acted_run.make(launcher.runs / "before", [AgentEnded(Cause.FINISHED, 0)])
    script.render("--devices", 2, "--", "sleep", 1000)
    stub = launcher.write(f"stubs/{program}", f"#!/bin/sh\nkill -s {number.name[3:]} 0; exec sleep 1000\n")
    stub.chmod(0o755)
    done = script.run(env={"PATH": f"{stub.parent}{os.pathsep}{launcher.environment({})['PATH']}"})
    assert (done.returncode, "error" in done.stderr) == (128 + number, False)
    assert not list(launcher.runs.glob("*/*/train.log"))
    assert runs_going_on(launcher.runs) == ()
    assert "before" in launcher.call("status").stdout.splitlines()[0]


@pytest.mark.parametrize(("number", "known", "whom"), [(signal.SIGINT, 0, 0), (signal.SIGTERM, 2, "$$")])
def test_a_signal_between_the_start_of_a_rank_and_its_entry(launcher, script, number, known, whom):
    """The moment is one of bash's own debugger: before a command that notes the rank. Ctrl-C goes to all in the foreground."""
    script.render("--devices", 4, "--", "sleep", 1000)
    signalled = (
        f'[[ $BASH_COMMAND == _groups+=* && ${{#_groups[@]}} == {known} ]] && kill -s {number.name[3:]} "{whom}"'
    )
    done = script.run(env=debugged(launcher, signalled))
    assert done.returncode == 128 + number
    assert f"ending {known + 1} ranks" in done.stderr
    assert launcher.processes() == []


def test_a_rank_that_has_only_just_been_forked_is_ended_as_the_others(launcher, script):
    """A signal before it has begun is lost, or ends what would have told how it ended: the script waits until it has begun."""
    script.render("--devices", 3, "--", "sh", "-c", "[ $RANK != 1 ] || exit 7; sleep 1000")
    delayed = '[[ $BASH_COMMAND == "trap : INT TERM" && $1 == 2 ]] && sleep 1'
    assert script.run(env=debugged(launcher, delayed)).returncode == 7
    assert [rank.status for rank in state_of(launcher).ranks] == [-signal.SIGTERM, 7, -signal.SIGTERM]


def debugged(launcher, command):
    """An environment in which the script's shell runs a command before each of its own."""
    return {"BASH_ENV": str(launcher.write("hook.sh", f"set -T\ntrap '{command}' DEBUG\n"))}


def test_a_signal_ends_all(launcher, script):
    process = script.running("--", "sh", "-c", "sleep 1000 & echo ready; sleep 1000", ranks=3)
    assert end(process, signal.SIGHUP) == 129
    assert launcher.processes() == []


@pytest.mark.parametrize(("grace", "is_twice"), [(1, False), (3600, True)], ids=["after the grace", "at once"])
def test_who_does_not_go_is_killed(launcher, script, wait_until, grace, is_twice):
    process = script.running("--grace", grace, "--", sys.executable, PROGRAMS / "stubborn.py", "ignore")
    if is_twice:
        process.send_signal(signal.SIGINT)
        assert "ending 2 ranks" in process.stderr.readline()
    assert end(process, signal.SIGINT) == 130
    wait_until(lambda: is_twice or not launcher.processes(), "the end of who was killed")
    assert launcher.processes() == []
    assert [rank.status for rank in state_of(launcher).ranks] == [-signal.SIGKILL] * 2


def test_a_rank_whose_whole_group_is_killed(launcher, script, wait_until):
    process = script.running("--", "sh", "-c", 'echo "$RANK $$"; echo ready; sleep 1000')
    pid = int((launcher.latest / "device1" / "train.log").read_text().split()[1])
    os.killpg(os.getpgid(pid), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert launcher.processes() == []


def test_ranks_go_on_when_nobody_reads_what_the_script_says(launcher, script):
    script.render("--devices", 2, "--", "sh", "-c", "sleep 0.5; echo done")
    process = script.start()
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert (launcher.latest / "device1" / "train.log").read_text() == "done\n"
    # A disk that takes nothing of the script stops no rank.
    moved = debugged(launcher, "[[ $BASH_COMMAND == _identify* ]] && _events=/nowhere/events")
    assert script.run(env=moved).returncode == 0
    assert (launcher.latest / "device1" / "train.log").read_text() == "done\n"


# --- other commands ---


def test_a_run_that_goes_on_is_one_of_tlaunch(launcher, script):
    script.running("--name", "mine", "--", "sh", "-c", 'echo "pid $$"; ' + WAITS)
    assert re.search(r"^\d{8}-\d{6}-mine +running +2/2 ", launcher.call("ps").stdout, re.MULTILINE)
    state = state_of(launcher)
    assert (state.state, [rank.state.value for rank in state.ranks]) == (State.RUNNING, ["running"] * 2)
    logs = [(launcher.latest / f"device{rank}" / "train.log").read_text() for rank in range(2)]
    assert [f"pid {rank.process.pid}" for rank in state.ranks] == [log.splitlines()[0] for log in logs]
    assert "rank" in launcher.call("stacks").stdout
    assert launcher.call("logs", "--rank", "1").stdout == logs[1]


@pytest.mark.parametrize(("number", "words"), {signal.SIGTERM: (), signal.SIGQUIT: ("--kill",)}.items())
def test_a_run_is_ended_by_stop(launcher, script, number, words):
    deed = [sys.executable, PROGRAMS / "stubborn.py", "ignore"] if words else ["sh", "-c", WAITS]
    process = script.running("--grace", 3600, "--", *deed)
    done = launcher.call("stop", *words, code=0)
    assert launcher.processes() == []
    assert "stopped after" in done.stderr
    assert number.name in done.stderr
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    state = state_of(launcher)
    assert (state.state, state.exit_code) == (State.STOPPED, 128 + number)
    assert all(rank.status is not None for rank in state.ranks)


def test_ranks_of_a_killed_script_can_be_ended_with_what_they_have_started(launcher, script):
    """They run on, and are known by their processes; a worker would keep its device."""
    deed = 'sleep 1000 & trap "exit 0" TERM; echo ready; wait'
    # What it leaves would hold a pipe.
    process = script.running("--grace", 60, "--", "sh", "-c", deed, stdout=subprocess.DEVNULL)
    end(process, signal.SIGKILL)
    state = state_of(launcher)
    assert (state.state, state.lives) == (State.LOST, True)
    done = launcher.call("stop")
    assert (done.returncode, "ranks 0-1" in done.stderr, launcher.processes()) == (0, True, [])
    assert [rank.status for rank in state_of(launcher).ranks] == [0, 0]


def test_each_server_tells_of_its_own_part(launcher, script, table_of, snapshot):
    script.render(
        "--rank-table", table_of({"h1": [0, 1], "h2": [2, 3]}), "--name", "both", "--", "sh", "-c", "exit $RANK"
    )
    assert script.run("0").returncode == 1
    assert script.run("1").returncode in {2, 3}
    run_dir = launcher.latest.resolve()
    parts = [look(RunDir(run_dir, index)) for index in range(2)]
    assert [part.state for part in parts] == [State.FAILED] * 2
    assert [part.part for part in parts] == [(0, 1), (2, 3)]
    status = launcher.call("status", "both")
    assert [line for line in status.stdout.splitlines() if "part" in line] == snapshot
    assert launcher.call("logs", "both").returncode == 0
    first = run_dir / "server0" / "events.jsonl"
    first.write_text(re.sub(r'"host": "[^"]*"', '"host": "another"', first.read_text()))
    assert "part is shown, ranks 2-3" in launcher.call("status").stdout
