"""What other commands tell of the runs of a run.sh."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from launcher.core.run_dir import RunDir
from launcher.runs.progress import State
from launcher.runs.status import look, runs_going_on

WAITS = 'echo ready; trap "" HUP; while :; do sleep 0.1; done'


def state_of(launcher):
    return look(RunDir(launcher.latest.resolve()))


def test_a_run_that_goes_on_is_one_of_tlaunch(launcher, script):
    """Listed, with its ranks' own processes, and meant where none is named."""
    script.render("--devices", 2, "--name", "mine", "--", "sh", "-c", 'echo "pid $$"; ' + WAITS)
    script.start()
    run_dir = launcher.wait_ready(2)
    assert re.search(r"^\d{8}-\d{6}-mine +running +2/2 ", launcher.call("ps").stdout, re.MULTILINE)
    state = state_of(launcher)
    assert (state.state, [rank.state.value for rank in state.ranks]) == (State.RUNNING, ["running"] * 2)
    logs = [(run_dir / f"device{rank}" / "train.log").read_text() for rank in range(2)]
    assert [f"pid {rank.process.pid}" for rank in state.ranks] == [log.splitlines()[0] for log in logs]
    assert "rank" in launcher.run("stacks").stdout
    assert launcher.call("logs", "--rank", "1").stdout == logs[1]


@pytest.mark.parametrize(
    ("words", "number"), [((), signal.SIGTERM), (("--kill",), signal.SIGQUIT)], ids=["stop", "kill"]
)
def test_a_run_is_ended_by_stop(launcher, script, programs, words, number):
    """Its script is asked, as an agent would be; with --kill no grace passes."""
    deed = [sys.executable, programs / "stubborn.py", "ignore"] if words else ["sh", "-c", WAITS]
    script.render("--devices", 2, "--grace", 3600, "--", *deed)
    process = script.start()
    launcher.wait_ready(2)
    done = launcher.run("stop", *words)
    assert (done.returncode, launcher.processes()) == (0, []), done.stderr
    assert "stopped after" in done.stderr
    assert number.name in done.stderr
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    state = state_of(launcher)
    assert (state.state, state.exit_code) == (State.STOPPED, 128 + number)
    assert all(rank.status is not None for rank in state.ranks)


@pytest.mark.parametrize(
    ("deed", "code", "status"),
    [("true", 0, 0), ("exit 7", 7, 7), ("kill -KILL $$", 137, -9)],
    ids=["well", "failed", "killed"],
)
def test_how_a_run_ended_is_told(launcher, script, deed, code, status):
    script.render("--devices", 2, "--", "sh", "-c", f"echo words of $RANK; if [ $RANK = 1 ]; then {deed}; fi")
    assert script.run().returncode == code
    state = state_of(launcher)
    assert (state.state, state.exit_code) == (State.FAILED if code else State.FINISHED, code)
    ends = {rank.global_rank: rank.status for rank in state.ranks}
    assert ends[1] == status
    assert ends[0] in {0, -signal.SIGTERM}
    why = launcher.call("why")
    assert why.returncode == 0
    assert ("device1/train.log" in why.stdout, "| words of 1" in why.stdout) == (bool(code), bool(code))
    report = json.loads(launcher.call("report", "--json").stdout)["runs"][0]
    assert (report["state"], report["exit_code"], report["ranks"]) == (state.state.value, code, 2)
    assert launcher.call("status").stdout.count("ended") >= 2


def test_ranks_that_had_to_be_killed_are_told_too(launcher, script, programs):
    script.render("--devices", 2, "--grace", 0, "--", sys.executable, programs / "stubborn.py", "ignore")
    process = script.start()
    launcher.wait_ready(2)
    process.terminate()
    process.communicate(timeout=60)
    assert [rank.status for rank in state_of(launcher).ranks] == [-signal.SIGKILL] * 2


def test_a_script_that_was_killed_is_lost_and_its_ranks_can_be_ended(launcher, script, wait_until):
    """They run on, and are known by their processes."""
    script.render("--devices", 2, "--grace", 1, "--", "sh", "-c", WAITS)
    process = script.start(stdout=subprocess.DEVNULL)  # else what it leaves would hold the pipe
    launcher.wait_ready(2)
    process.kill()
    process.communicate(timeout=60)
    state = state_of(launcher)
    assert (state.state, state.lives) == (State.LOST, True)
    done = launcher.run("stop")
    assert done.returncode == 0
    assert "ranks 0-1" in done.stderr
    wait_until(lambda: not launcher.processes(), "that what they had just started has ended, too")


def test_what_ranks_of_a_killed_script_have_started_is_ended_with_them(launcher, script):
    """A worker would keep its device, and would be found by nobody."""
    script.render("--devices", 2, "--grace", 60, "--", "sh", "-c", 'sleep 1000 & trap "exit 0" TERM; echo ready; wait')
    process = script.start(stdout=subprocess.DEVNULL)  # else what it leaves would hold the pipe
    launcher.wait_ready(2)
    process.kill()
    process.communicate(timeout=60)
    assert launcher.run("stop").returncode == 0
    assert launcher.processes() == []
    assert [rank.status for rank in state_of(launcher).ranks] == [0, 0]


def test_the_record_holds_no_secret_and_says_who_is_where(launcher, script, sample_tables):
    table = sample_tables / "rank_table_4pcs.json"
    arguments = ["--rank-table", table, "--mp", 2, "--grace", 7, "--name", "a"]
    arguments += ["--env", "API_TOKEN=s3cr3t", "--env", "A=b"]
    command = ["sh", "-c", "true", "--password=s3cr3t", "\"'$(x) \\ %s\n"]
    script.render(*arguments, "--", *command)
    former = os.umask(0o022)
    try:
        assert script.run().returncode == 0
    finally:
        os.umask(former)
    run_json = launcher.latest / "run.json"
    by_script = json.loads(run_json.read_text())
    assert run_json.stat().st_mode & 0o777 == 0o644
    assert "s3cr3t" not in run_json.read_text()
    assert launcher.run("run", *arguments, "--", *command).returncode == 0
    by_run = json.loads((launcher.latest / "run.json").read_text())
    alike = ("schema", "cwd", "master_addr", "layout")
    assert [by_script[name] for name in alike] == [by_run[name] for name in alike]
    assert by_script["supervision"]["grace_s"] == by_run["supervision"]["grace_s"]
    assert by_script["cluster"]["source"] == by_run["cluster"]["source"]
    places = ("global_rank", "local_rank", "server_id", "server_index", "device_id", "argv")
    assert [[rank[name] for name in places] for rank in by_script["ranks"]] == [
        [rank[name] for name in places] for rank in by_run["ranks"]
    ]
    assert (by_script["ranks"][0]["env"]["A"], by_script["ranks"][0]["env"]["API_TOKEN"]) == ("b", "********")


def test_each_server_tells_of_its_own_part(launcher, script, table_of, snapshot):
    """In one directory where they share a disk; the part of this machine is shown."""
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


def test_the_part_of_this_machine_is_shown(launcher, script, table_of):
    script.render("--rank-table", table_of({"h1": [0], "h2": [1]}), "--name", "both", "--", "true")
    assert [script.run(str(index)).returncode for index in range(2)] == [0, 0]
    first = launcher.latest.resolve() / "server0" / "events.jsonl"
    first.write_text(re.sub(r'"host": "[^"]*"', '"host": "another"', first.read_text()))
    assert "part, rank 1" in launcher.call("status").stdout


def test_a_signal_before_ranks_start_leaves_no_run_that_goes_on(launcher, script):
    launcher.run("run", "--name", "before", "--", "true")
    script.render("--devices", 2, "--", "sleep", 1000)
    stub = launcher.directory / "stubs" / "mkdir"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\nkill -s TERM 0; exec sleep 1000\n")
    stub.chmod(0o755)
    assert script.run(env={"PATH": f"{stub.parent}{os.pathsep}{launcher.environment({})['PATH']}"}).returncode == 143
    assert runs_going_on(launcher.runs) == ()
    assert "before" in launcher.call("status").stdout.splitlines()[0]


def test_a_disk_that_takes_nothing_of_it_stops_no_rank(launcher, script):
    script.render("--devices", 2, "--", "sh", "-c", "echo done")
    hook = launcher.directory / "hook.sh"
    hook.write_text("set -T\ntrap '[[ $BASH_COMMAND == _identify* ]] && _events=/nowhere/events' DEBUG\n")
    assert script.run(env={"BASH_ENV": str(hook)}).returncode == 0
    assert (launcher.latest / "device1" / "train.log").read_text() == "done\n"
