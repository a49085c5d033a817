"""Runs of one server whose devices come and go."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.events import AttemptStarted, Cause, DevicesChanged, RankStarted, Trouble
from launcher.core.run_dir import RunDir
from launcher.runs.status import look

from .conftest import PROGRAMS
from .transcript import normalised

COMMAND = ("--", sys.executable, PROGRAMS / "elastic.py")


def attempts(launcher):
    return [(event.allotment.devices, event.allotment.layout) for event in launcher.events(AttemptStarted)]


def wait_attempt(launcher, wait_until, number, ranks):
    def runs():
        begun = [event.number for event in launcher.events(AttemptStarted)]
        logs = [RunDir(launcher.latest).train_log(rank) for rank in range(ranks)]
        said = [log.read_text().splitlines()[-1] for log in logs if log.is_file()]
        return number in begun and all(line.startswith("ready") and line.endswith(f" {number}") for line in said)

    wait_until(runs, f"attempt {number}")


def test_devices_are_left_out_and_taken_back(launcher, wait_until, snapshot):
    run = launcher.running("--elastic", "--name", "shrinks", *COMMAND, ranks=4)
    excluded = RunDir(launcher.latest).excluded
    excluded.write_text("3  # too hot\n127.0.0.1/1\n")
    wait_attempt(launcher, wait_until, 1, 2)
    shown = launcher.call("status", code=0).stdout
    assert [line for line in shown.splitlines() if "elastic" in line] == snapshot(name="status")
    state = json.loads(launcher.call("status", "--json", code=0).stdout)
    assert [(rank["global_rank"], rank["device_id"]) for rank in state["each"]] == [(0, 0), (1, 2)]
    excluded.write_text("")
    wait_attempt(launcher, wait_until, 2, 4)
    (launcher.directory / "go").touch()
    assert run.wait() == 0
    assert [devices for devices, _ in attempts(launcher)] == [(0, 1, 2, 3), (0, 2), (0, 1, 2, 3)]
    assert [(layout.dp, layout.micro_batches) for _, layout in attempts(launcher)] == [(4, 1), (2, 2), (4, 1)]
    assert RunDir(launcher.latest).train_log(1).read_text().split("\n")[2] == "ready 1 2 2 2 2 1"
    told = launcher.call("report", code=0).stdout
    assert [line for line in told.splitlines() if "attempt " in line] == snapshot(name="report")
    causes = [attempt.cause for attempt in launcher.report.attempts]
    assert causes == [Cause.RESIZED, Cause.RESIZED, Cause.FINISHED]
    assert (look(RunDir(launcher.latest)).progress.restarts, "restart" in told) == (0, False)


@pytest.mark.parametrize("options", [(), ("--merge",)], ids=" ".join)
def test_a_prefix_names_the_device_that_a_rank_has_in_each_attempt(launcher, wait_until, options):
    run = launcher.running("--elastic", *COMMAND, ranks=3)
    asked = ("logs", *options, "--prefix", "{device} ")
    follower = launcher.start(*asked, "-f", stdout=subprocess.PIPE)
    first = follower.stdout.readline()
    for number, (left_out, ranks) in enumerate([("0\n1\n", 1), ("0\n", 2)], 1):
        RunDir(launcher.latest).excluded.write_text(left_out)
        wait_attempt(launcher, wait_until, number, ranks)
    (launcher.directory / "go").touch()
    assert run.wait() == 0
    for shown in ((first + follower.stdout.read()).decode(), launcher.call(*asked, code=0).stdout):
        # device ready RANK WORLD_SIZE DEVICE_ID
        lines = [line.split() for line in shown.splitlines() if "ready" in line]
        assert [line[0] for line in lines] == [line[4] for line in lines]
        assert sorted((line[2], line[0]) for line in lines) == [*zip("000112", "012122", strict=True)]
    assert follower.wait() == 0
    variables = launcher.call("logs", "--env", "--prefix", "{device} ", code=0).stdout.splitlines()
    assert [line for line in variables if "DEVICE_ID=" in line] == ["1 DEVICE_ID=1", "2 DEVICE_ID=2", "2 DEVICE_ID=2"]


def test_a_spare_device_takes_the_place_of_one_that_failed_twice(launcher, snapshot):
    (launcher.directory / "go").touch()
    options = ("--devices", 3, "--dp", 2, "--elastic", "--max-restarts", 2)
    done = launcher.run("run", *options, *COMMAND, env={"FAILS_ON": "1"}, code=0)
    assert [devices for devices, _ in attempts(launcher)] == [(0, 1), (0, 1), (0, 2)]
    assert RunDir(launcher.latest).excluded.read_text() == snapshot(name="excluded")
    assert [event.left_out for event in launcher.events(DevicesChanged)] == [(1,)]
    assert look(RunDir(launcher.latest)).progress.restarts == 2
    said = [line for line in done.stderr.splitlines() if re.search("spare|micro_batches|excluded", line)]
    assert said == snapshot(name="said")


def test_each_attempt_has_its_own_table(launcher, table_of):
    table = table_of({"127.0.0.1": range(3)})
    run = launcher.start("run", "--rank-table", table, "--elastic", "--exclude", "0", *COMMAND)
    launcher.wait_ready(2)
    found = json.loads((launcher.latest / "rank_table.0.json").read_text())
    devices = found["server_list"][0]["device"]
    assert [(each["device_id"], each["rank_id"]) for each in devices] == [("1", "0"), ("2", "1")]
    (launcher.directory / "go").touch()
    assert run.wait() == 0
    assert len(launcher.events(RankStarted)) == 2


def test_what_is_shown_before_a_run_is_its_first_attempt(launcher, table_of, snapshot):
    table = table_of({"127.0.0.1": range(4)})
    options = (
        "--rank-table",
        table,
        *["--dp", "2", "--elastic", "--exclude", "0", "--exclude", "127.0.0.1/2", "--name", "n"],
    )
    shown = launcher.call("run", *options, "--dry-run", "--json", *COMMAND, code=0)
    spec = json.loads(shown.stdout)
    lines = launcher.call("run", *options, "--dry-run", "-v", *COMMAND, code=0).stdout.splitlines()
    assert [line for line in lines if line.startswith("#")] == snapshot(name="ranks")
    explained = launcher.call("explain", "--rank", 1, "--json", *options, *COMMAND, code=0)
    assert "attempt 0: dp=2 mp=1 pp=1 micro_batches=1 on 2 devices, without 127.0.0.1/0, 127.0.0.1/2" in shown.stderr
    assert shown.stderr == explained.stderr
    (launcher.directory / "go").touch()
    run = launcher.run("run", *options, *COMMAND, code=0)
    assert "spare" not in run.stderr
    for rank, planned in enumerate(spec["ranks"]):
        names = ("RANK", "WORLD_SIZE", "DEVICE_ID", "TLAUNCH_DP", "TLAUNCH_MICRO_BATCHES", "TLAUNCH_ATTEMPT")
        said = RunDir(launcher.latest).train_log(rank).read_text().split()[1:]
        assert said == [planned["env"][name] for name in names]
    own_table = f"{launcher.latest.resolve()}/rank_table.0.json".replace(launcher.latest.resolve().name, spec["name"])
    variables = {each["name"]: each["value"] for each in json.loads(explained.stdout)["variables"]}
    assert (variables["DEVICE_ID"], variables["WORLD_SIZE"]) == ("3", "2")
    assert spec["ranks"][1]["env"]["RANK_TABLE_FILE"] == own_table
    assert Path(variables["RANK_TABLE_FILE"]).name == Path(own_table).name


def test_what_is_no_device_in_the_file_changes_nothing(launcher, wait_until, snapshot):
    run = launcher.running("--elastic", *COMMAND, ranks=2)
    RunDir(launcher.latest).excluded.write_text("0\nno-such-device\n")
    wait_until(lambda: launcher.events(Trouble), "a warning")
    [trouble] = launcher.events(Trouble)
    assert normalised(trouble.message, launcher.latest.resolve()) == snapshot
    (launcher.directory / "go").touch()
    assert run.wait() == 0
    assert len(attempts(launcher)) == 1


@pytest.mark.parametrize(("code", "options"), [
    (2, ["--devices", 2, "--exclude", "1"]),
    (2, ["--devices", 2, "--elastic", "--exclude", "7"]),
    (2, ["--devices", 4, "--elastic", "--exclude", "0,1,2"]),
    (3, ["--devices", 4, "--mp", 4, "--elastic", "--exclude", "0", "--exclude", "127.0.0.1"]),
    (2, ["--devices", 2, "--engine", "slurm", "--elastic"]),
    (2, ["--devices", 2, "--elastic", "--stdin", "1"]),
    (2, ["--devices", 4, "--elastic", "--exclude", "3", "--console", "3"]),
], ids=["without --elastic", "no such device", "several at once", "nothing left", "an engine's agents", "stdin", "console"])  # fmt: skip
def test_what_no_elastic_run_can_be_is_refused(launcher, code, options, snapshot):
    assert launcher.refused(code, ["run", *options, "--", "true"]) == snapshot
