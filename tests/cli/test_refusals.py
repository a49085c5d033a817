"""What is refused before any process starts: the exit code, one helpful message, and nothing left behind."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from launcher.cli.launch import engine_commands
from launcher.core.errors import UsageError


def assert_refused(done, launcher, code, *words):
    assert done.returncode == code, done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not launcher.runs.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rank-table", "t.json", "--devices", "2"], ["--rank-table and --devices"]),
        (["--json"], ["--json", "--dry-run"]),
        (["--devices", "2", "--mpi-ranks", "--", "true"], ["--mpi-ranks", "add --engine mpi"]),
        (["--devices", "2", "--no-mpi-ranks", "--", "true"], ["--no-mpi-ranks", "add --engine mpi"]),
        (["--devices", "2", "--server", "h1", "--", "true"], ["--server", "only server", "hint: "]),
        (["--server", "", "--", "true"], ["--server", "only server"]),
        (["--engine", "mpi", "--rank-table", "t.json", "--server", "h1", "--", "true"], ["--server", "each agent"]),
        (["--engine", "slurm", "--server", "h1", "--", "true"], ["--server", "each agent", "by hand"]),
        (["--engine", "slurm", "--coordinator-port", "29450", "--", "true"], ["--coordinator-port", "by hand"]),
        (["--config", "x.toml", "--", "true"], ["--config", "bundled trainer"]),
        (["--set", "a=1", "--data", "d", "--", "true"], ["--set and --data", "bundled trainer"]),
        (["--", ""], ["COMMAND is empty"]),
        (["--devices", "0", "--", "true"], ["--devices"]),
        (["--grace", "-1", "--", "true"], ["--grace"]),
        (["--grace", "nan", "--", "true"], ["--grace", "is not a number of seconds"]),
        (["--hang-timeout", "nan", "--", "true"], ["--hang-timeout", "is not a number of seconds"]),
        (["--grace", "inf", "--", "true"], ["--grace"]),
        (["--env", "NOVALUE", "--", "true"], ["--env", "KEY=VALUE"]),
        (["--env", "A\nFAKE=1", "--", "true"], ["--env", "control characters"]),
        (["--devices", str(10**9), "--", "true"], ["--devices"]),
        (["--mp", str(10**400), "--", "true"], ["--mp"]),
        (["--env", "RANK=3", "--", "true"], ["--env RANK", "tlaunch decides"]),
        (["--env", "MASTER_PORT=3", "--", "true"], ["use --master-port"]),
        (["--env", "MASTER_ADDR=10.0.0.1", "--", "true"], ["--env MASTER_ADDR", "tlaunch decides"]),
        (["--name", "a/b", "--", "true"], ["--name 'a/b'"]),
        (["--name", "é" * 101, "--", "true"], ["--name is too long: 202 bytes", "a shorter"]),
        (["--set", "model.hedas=4"], ["model.hedas"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") and len(value) > 1 else None,
)
def test_usage_errors_end_with_2(launcher, arguments, words):
    """Options that cannot be meant are named, with what to do instead."""
    assert_refused(launcher.run("run", *arguments), launcher, 2, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rank-table", "missing.json", "--", "true"], ["missing.json", "does not exist"]),
        (["--config", "missing.toml"], ["missing.toml"]),
        (["--data", "missing"], ["missing", "tlaunch data preprocess"]),
        (["--", "no-such-program"], ["no-such-program", "PATH"]),
        (["--", "./missing"], ["./missing does not exist"]),
        (["--", "./plain.py"], ["./plain.py is not executable", "python script.py"]),
        (["--", "plain.py"], ["./plain.py is a file here"]),
    ],
    ids=lambda value: value[0] + " " + value[1] if value[0].startswith("--") else None,
)
def test_missing_files_end_with_2(launcher, arguments, words):
    """What is missing or cannot be executed is named before any process."""
    (launcher.directory / "plain.py").write_text("print()")
    assert_refused(launcher.run("run", *arguments), launcher, 2, *words)


def test_program_is_looked_for_where_the_ranks_will_look(launcher):
    """A PATH given by --env decides whether COMMAND is found."""
    tools = launcher.directory / "tools"
    tools.mkdir()
    (tools / "mine").write_text("#!/bin/sh\necho found\n")
    (tools / "mine").chmod(0o755)
    assert launcher.run("run", "--", "mine").returncode == 2
    assert launcher.run("run", "--env", f"PATH={tools}", "--", "mine").stdout == "found\n"


def test_table_with_a_repeated_device_is_refused(launcher, sample_tables):
    """A table that HCCL could not use ends with 3, at its line."""
    table = json.loads((sample_tables / "rank_table_4pcs.json").read_text())
    table["server_list"][0]["device"][2]["device_id"] = "1"
    (launcher.directory / "table.json").write_text(json.dumps(table, indent=1))
    done = launcher.run("run", "--rank-table", "table.json", "--", "touch", "started")
    assert_refused(done, launcher, 3, "table.json:", "device_id")
    assert not (launcher.directory / "started").exists()


def test_layout_that_does_not_fit_names_those_that_do(launcher, sample_tables):
    """dp*mp*pp = 12 on 8 devices ends with 3 and lists the nearest layouts."""
    table = sample_tables / "rank_table_8pcs.json"
    done = launcher.run("run", "--rank-table", table, "--dp", 3, "--mp", 2, "--pp", 2, "--", "true")
    assert_refused(done, launcher, 3, "= 12 is more than 8 devices", "--dp 2 --mp 2 --pp 2")


def test_idle_devices_must_be_allowed(launcher):
    """dp*mp*pp = 4 on 8 devices is refused, with the option that allows it."""
    done = launcher.run("run", "--devices", 8, "--dp", 4, "--", "true")
    assert_refused(done, launcher, 3, "leaves 4 devices of 8 idle", "--allow-idle-devices")


def test_recipe_is_checked_against_the_layout(launcher):
    """Heads that mp does not divide are refused for the bundled trainer before any process."""
    done = launcher.run("run", "--devices", 2, "--mp", 2, "--set", "model.heads=1")
    assert_refused(done, launcher, 3, "model.heads = 1 cannot be divided by mp = 2")


def test_servers_that_are_elsewhere_can_be_shown_but_not_started(launcher, sample_tables):
    """A table of two other machines is refused by a run, which says what would work here, and shown by a dry run."""
    table = sample_tables / "rank_table_16pcs.json"
    assert_refused(launcher.run("run", "--rank-table", table, "--", "true"), launcher, 3, "--devices 16", "--dry-run")
    shown = launcher.run("run", "--rank-table", table, "--dry-run", "--json", "--", "true")
    assert len(json.loads(shown.stdout)["ranks"]) == 16


@pytest.mark.parametrize("servers", [{"h1": [0, 1]}, {"h1": [0], "h2": [1]}], ids=["one", "two"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_a_server_that_is_said_is_one_of_the_table(launcher, table_of, servers, more):
    """However many the table has, and in words that cannot act on a terminal."""
    table = table_of(servers)
    done = launcher.run("run", "--rank-table", table, "--server", "no\x1b[2J", *more, "--", "true")
    assert_refused(done, launcher, 2, r"--server no\x1b[2J: the rank table has no such server", "its servers are h1")


def test_a_shell_may_say_which_server_it_is_on(launcher):
    """Where nobody needs to know, that is no mistake."""
    env = {"TLAUNCH_SERVER": "h7"}
    assert launcher.run("run", "--devices", 2, "--", "true", env=env).returncode == 0


@pytest.mark.parametrize("below", ["file", "file/deeper/still"])
def test_unwritable_runs_dir_ends_with_2(launcher, below):
    """A runs directory that cannot be made is named, and nothing starts."""
    (launcher.directory / "file").touch()
    done = launcher.run("run", "--runs-dir", below, "--", "touch", "started")
    assert_refused(done, launcher, 2, f"{below}: no run directory can be made here", "--runs-dir DIR")
    assert [path.name for path in launcher.directory.iterdir()] == ["file"]


def test_taken_master_port_is_refused(launcher):
    """--master-port names a port that something listens on: 2, before any directory is made."""
    import socket

    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        done = launcher.run("run", "--master-port", port, "--", "true")
    assert_refused(done, launcher, 2, f"port {port} cannot be used", "Address already in use")


def test_a_missing_torch_is_one_message_not_a_traceback_per_rank(launcher):
    """Where only the launcher is installed, the bundled trainer is refused before any rank."""
    without_torch = "import sys; sys.modules['torch'] = None; from launcher.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", without_torch, "run", "--devices", "2"],
        cwd=launcher.directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert_refused(done, launcher, 2, "the bundled trainer needs torch", "tlaunch[train]")


def test_a_removed_working_directory_is_named(launcher):
    """Ranks would start in a directory that is not there any more."""
    (launcher.directory / "gone").mkdir()
    script = f"cd gone && rmdir ../gone && exec {sys.executable} -m launcher run --runs-dir ../runs -- true"
    done = subprocess.run(["sh", "-c", script], cwd=launcher.directory, capture_output=True, text=True, check=False)
    assert_refused(done, launcher, 2, "the current directory has been removed")


@pytest.mark.parametrize(("arguments", "code"), [(["--dp", "3"], 3), (["--no-such-option"], 2), (["--", "true"], 0)])
def test_a_stderr_that_takes_nothing_does_not_change_the_exit_code(launcher, arguments, code):
    """A full disk behind stderr costs the message, never the code."""
    environment = {name: value for name, value in launcher.environment({}).items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            launcher.argv("run", "--devices", "2", *arguments),
            cwd=launcher.directory, env=environment, stderr=full, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    assert done.returncode == code


def test_a_table_cannot_add_lines_to_a_dry_run(launcher, sample_tables):
    """A line break in a server's name stays inside the comment that shows it."""
    text = (sample_tables / "rank_table_2pcs.json").read_text().replace("10.0.40.11", r"x\ntouch pwned")
    (launcher.directory / "t.json").write_text(text)
    done = launcher.run("run", "--rank-table", "t.json", "--dry-run", "--", "true")
    assert done.returncode == 0
    assert all(line.startswith(("#", "cd ")) for line in done.stdout.splitlines())


@pytest.fixture
def placeholder_table(launcher, sample_tables):
    """A table with an address that only HCCL would mind."""
    path = launcher.directory / "table.json"
    table = json.loads((sample_tables / "rank_table_2pcs.json").read_text())
    table["server_list"][0]["device"][0]["device_ip"] = "192.1.*.6"
    path.write_text(json.dumps(table, indent=1))
    return path


@pytest.mark.skipif(any(Path("/dev").glob("davinci[0-9]*")), reason="this machine has Ascend devices")
def test_rules_of_hccl_are_warnings_without_ascend_devices(launcher, placeholder_table):
    """Where no process will use HCCL, a wrong device_ip is told and the ranks start; --chip makes it an error again."""
    done = launcher.run("run", "--rank-table", placeholder_table, "--", "true")
    assert done.returncode == 0
    assert f"{placeholder_table}:10:19: warning[RT331]: " in done.stderr
    assert "[RT331]" in done.stderr
    refused = launcher.run("run", "--chip", "a2", "--rank-table", placeholder_table, "--", "touch", "started")
    assert refused.returncode == 3
    assert "error[RT331]" in refused.stderr
    assert not (launcher.directory / "started").exists()


def test_an_address_of_two_devices_is_refused_on_every_machine(launcher, sample_tables):
    """Whatever the hardware, a device_ip in two places is a slip of the hand, and no rank starts."""
    table = json.loads((sample_tables / "rank_table_2pcs.json").read_text())
    first, second = table["server_list"][0]["device"]
    second["device_ip"] = first["device_ip"]
    path = launcher.directory / "table.json"
    path.write_text(json.dumps(table, indent=1))
    for chip in ([], ["--chip", "none"], ["--chip", "a2"]):
        done = launcher.run("run", *chip, "--rank-table", path, "--", "touch", "started")
        assert_refused(done, launcher, 3, "error[RT332]")
        assert not (launcher.directory / "started").exists()


TABLES = {
    "v1.1": {
        "version": "1.1", "status": "completed", "collective_id": "c",
        "node_list": [{"node_addr": "10.0.0.1", "ranks": [
            {"rank_id": "0", "device_id": "3"}, {"rank_id": "1", "device_id": "5"}, {"rank_id": "2", "device_id": "6"}]}],
    },
    "legacy-cloud": {
        "status": "completed", "group_count": "1",
        "group_list": [{"group_name": "", "instance_count": "1", "device_count": "3", "instance_list": [
            {"pod_name": "a", "server_id": "10.0.0.1", "devices": [
                {"device_id": "6", "device_ip": ""}, {"device_id": "5", "device_ip": ""}, {"device_id": "3", "device_ip": ""}]}]}],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_every_format_starts_ranks_on_its_devices(launcher, name):
    """A table of another format gives each rank its device; with idle devices the ranks read a table of the same format."""
    (launcher.directory / "table.json").write_text(json.dumps(TABLES[name]))
    say = ["sh", "-c", 'echo "$RANK_ID $DEVICE_ID"; cat "$RANK_TABLE_FILE" > "$TLAUNCH_RUN_DIR/read-by-$RANK_ID"']
    options = ["--rank-table", "table.json", "--dp", 2, "--allow-idle-devices"]
    done = launcher.run("run", *options, "--", *say)
    assert done.returncode == 0, done.stderr
    run_dir = launcher.runs / "latest"
    logs = [(run_dir / f"device{rank}" / "train.log").read_text() for rank in range(2)]
    assert logs == ["0 3\n", "1 5\n"]
    checked = launcher.run("validate", "--chip", "none", "--json", run_dir / "rank_table.json")
    (report,) = json.loads(checked.stdout)
    assert (report["format"], report["devices"], report["valid"]) == (name, 2, True)
    assert (run_dir / "read-by-1").read_text() == (run_dir / "rank_table.json").read_text()


def test_a_part_of_a_lab_table_reaches_the_ranks_in_another_format(launcher):
    """Legacy tables are for 1, 2, 4, 8 devices of a server; with three in use the ranks read a v1.0 table of them."""
    values = {
        "status": "completed", "deploy_mode": "lab", "chip_info": "910", "board_id": "0x0000", "group_count": "1",
        "para_plane_nic_location": "device", "para_plane_nic_num": "1", "para_plane_nic_name": ["eth0"],
        "group_list": [{"group_name": "", "device_num": "4", "server_num": "1", "instance_count": "4", "instance_list": [
            {"rank_id": str(rank), "server_id": "10.0.0.1", "devices": [
                {"device_id": str(rank), "device_ip": f"192.{rank + 1}.0.1"}]} for rank in range(4)]}],
    }  # fmt: skip
    (launcher.directory / "table.json").write_text(json.dumps(values))
    done = launcher.run("run", "--rank-table", "table.json", "--dp", 3, "--allow-idle-devices", "--", "true")
    assert done.returncode == 0, done.stderr
    table = json.loads((launcher.runs / "latest" / "rank_table.json").read_text())
    assert (table["version"], len(table["server_list"][0]["device"])) == ("1.0", 3)


@pytest.mark.parametrize("detach", [[], ["--detach"]], ids=["attended", "detached"])
@pytest.mark.parametrize(
    "command", [["python", "nosuch.py"], ["python", "-u", "file.txt/nosuch.py"], ["env", "python", "nosuch.py", "x"]]
)
def test_a_script_that_is_not_there_is_refused(launcher, command, detach):
    """Before anything is started, as any other program."""
    (launcher.directory / "file.txt").touch()
    done = launcher.run("run", *detach, "--", *command)
    assert done.returncode == 2
    assert "nosuch.py does not exist, so no rank could run it" in done.stderr
    assert "hint: " in done.stderr
    assert not launcher.runs.exists()


def test_a_table_called_as_a_sample_is_hinted(launcher):
    """By the name that works, wherever tlaunch is installed."""
    for name in ("rank_table_8pcs.json", "elsewhere/rank_table_8pcs.json"):
        done = launcher.run("run", "--rank-table", name)
        assert done.returncode == 2
        assert done.stderr.endswith("hint: did you mean rank_tables/rank_table_8pcs.json, a sample?\n")


@pytest.mark.parametrize(
    ("tasks", "started_by_srun", "refused"), [(2, True, True), (1, True, False), (2, False, False)],
    ids=["one of two tasks", "the only task", "what a task starts"],
)  # fmt: skip
def test_one_of_several_tasks_of_srun_starts_no_servers(monkeypatch, tasks, started_by_srun, refused):
    """Each would start all of them. What a task starts may be the only one of its kind."""
    pid = os.getpid() if started_by_srun else os.getppid()
    told = {"JOB_ID": 7, "STEP_ID": 0, "PROCID": 0, "STEP_NUM_TASKS": tasks, "NTASKS": 2, "TASK_PID": pid}
    for name, value in told.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setattr(engine_commands, "reported_once", nullcontext)
    with pytest.raises(UsageError, match="srun started this command 2 times") if refused else nullcontext():
        engine_commands._refuse_several()
