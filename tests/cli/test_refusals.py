"""What is refused before any process starts: the exit code, one helpful message, and nothing left behind."""

import json
import os
import re
import socket
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from launcher.cli.launch import engine_commands
from launcher.core.errors import UsageError
from tests.conftest import executable
from tests.rank_table.tables import make_lab, make_nodes, make_pods

from .transcript import typed_lines

USAGE = """
--rank-table t.json --devices 2; --json; --devices 2 --mpi-ranks -- true; --devices 2 --no-mpi-ranks -- true
--devices 2 --server h1 -- true; --server '' -- true; --engine mpi --rank-table t.json --server h1 -- true
--engine slurm --server h1 -- true; --engine slurm --coordinator-port 29450 -- true; --config x.toml -- true
--set a=1 --data d -- true; -- ''; --devices 0 -- true; --grace -1 -- true; --env NOVALUE -- true
--devices 1000000000 -- true; --env RANK=3 -- true; --env MASTER_PORT=3 -- true; --env MASTER_ADDR=10.0.0.1 -- true
--name a/b -- true; --set model.hedas=4
"""
FILES = """
--rank-table missing.json -- true; --config missing.toml; --data missing; -- no-such-program; -- ./missing
-- ./plain.py; -- plain.py; -- plain.py --lr '1 2'; --rank-table rank_table_8pcs.json; --rank-table elsewhere/rank_table_8pcs.json
-- python -Wignore /dev/stdin; -- bash; -- bash -x -s a; -- sh -; -- bash -o pipefail --norc; -- env A=1 bash /dev/stdin; -- perl
-- python; -- python -u -; -- env python; -- python nosuch.py; -- python -u plain.py/nosuch.py; -- env python nosuch.py x; --detach -- python nosuch.py
-- python -m nosuchmod; -- python -I -m plain; -- python -P -m plain; -- python -E -m nosuchmod; -- python -m ''; -- python -m plain.py; -- python -m package; --detach -- python -m package.nosuch
-- 'python plain.py --x 1'; -- 'python plain.py' 'a b'; -- VAR=1 'B=2 3' python plain.py; API_KEY=1; -- 'cd x && python plain.py'; -- source env.sh; -- './a b'; -- --lr 1
-- 'FOO=1 python plain.py' --lr 1; -- 'FOO=1 python plain.py && true'; -- source env.sh '&&' python x '2>&1' '>' '<pad>'
-- ./windows.sh; -- ./nosuch.sh; -- ./spaced.py; -- ./bare.sh; -- ./bare.py
--runs-dir plain.py -- true; --runs-dir plain.py/deeper/still -- true; --detach -- no-such-program
"""
FIRST_LINES = {
    "windows.sh": "#!/bin/sh\r", "nosuch.sh": "#!/nowhere/sh", "spaced.py": "#!/usr/bin/env python3 -u",
    "bare.sh": "python train.py", "bare.py": "import torch",
}  # fmt: skip
LAYOUTS = """
--rank-table {tables}/rank_table_8pcs.json --dp 3 --mp 2 --pp 2 -- true; --devices 8 --dp 4 -- true
--devices 2 --mp 2 --set model.heads=1; --rank-table {tables}/rank_table_16pcs.json -- true
"""


def lines_of(text):
    return [f"run {typed}" for typed in typed_lines(text)]


def test_usage_errors_end_with_2(launcher, snapshot):
    more = [["run", "--env", "A\nFAKE=1", "--", "true"], ["run", "--name", "é" * 101, "--", "true"]]
    assert launcher.refused(2, *lines_of(USAGE), *more) == snapshot
    launcher.refused(2, ["run", "--mp", str(10**400), "--", "true"])


def test_missing_files_end_with_2(launcher, snapshot):
    launcher.write("plain.py", "print()")
    launcher.write("package/__init__.py")
    for name, line in FIRST_LINES.items():
        executable(launcher.directory / name, f"{line}\n")
    assert launcher.refused(2, *lines_of(FILES)) == snapshot


def test_the_mask_of_a_secret_is_no_value(launcher):
    """It has been copied from what tlaunch has shown."""
    told = launcher.call("run", "--env", "HF_TOKEN=********", "--", "true", code=2).stderr
    assert told == "error: --env HF_TOKEN: ******** is the placeholder of a masked secret\nhint: fill in the value\n"


def test_a_name_that_is_too_long_names_no_file(launcher):
    launcher.write("plain.py")
    long = "x" * 300
    whole = f"python plain.py {long}"
    for words in ([long], [f"./{long}"], ["python", long], ["python", "-m", long], [whole]):
        told = launcher.call("run", "--", *words, code=2).stderr
        assert ("too long" in told, "remove the quotes" in told) == (False, words == [whole])


def test_a_program_with_wrong_syntax_is_not_started(launcher):
    launcher.write("train.py", "import os\nx = = 1\n")
    shown = launcher.refused(2, "run --devices 2 -- python train.py", "run -- python -c 'x = = 1'")
    assert "error: train.py, line 2: " in shown
    assert shown.count("    x = = 1\n") == 2
    assert shown.count("^\n") == 2
    assert "error: the code after -c, line 1: " in shown
    rendered = launcher.call("render", "kubernetes", "--devices", "2", "--image", "i", "--", "python", "train.py")
    assert rendered.returncode == 0
    assert "warning: train.py, line 2: " in rendered.stderr


def test_an_encoding_that_there_is_not_is_placed_at_its_comment(launcher):
    cookie = "# ä coding: nosuch"
    sources = {f"{cookie}\n": 1, f"#!/bin/x\n{cookie}\nx = 1\n": 2, "\ufeff# coding: latin-1\n": 1}
    for source, line in sources.items():
        launcher.write("train.py", source)
        told = launcher.call("run", "--", "python", "train.py", code=2).stderr
        assert told.startswith(f"error: train.py, line {line}: ")
        assert ("# ä coding: nosuch\n                ^^^^^^\n" in told) == (cookie in source)


@pytest.mark.skipif(sys.version_info < (3, 11, 4), reason="Python calls it an error of syntax since then")
def test_a_null_byte_is_placed_at_its_line(launcher):
    launcher.write("train.py", "# coding: utf-8\nx\0\n")
    told = launcher.call("run", "--", "python", "train.py", code=2).stderr
    assert told.startswith("error: train.py, line 2: source code ")


def test_layouts_that_do_not_fit_end_with_3(launcher, sample_tables, snapshot):
    assert launcher.refused(3, *lines_of(LAYOUTS.format(tables=sample_tables))) == snapshot
    table = sample_tables / "rank_table_16pcs.json"
    shown = launcher.call("run", "--rank-table", table, "--dry-run", "--json", "--", "true")
    assert len(json.loads(shown.stdout)["ranks"]) == 16


def test_program_is_looked_for_where_the_ranks_will_look(launcher):
    tools = launcher.write("tools/mine", "#!/bin/sh\necho found\n").parent
    (tools / "mine").chmod(0o755)
    assert launcher.call("run", "--", "mine").returncode == 2
    near = launcher.call("run", "--env", f"PATH={tools}", "--", "miine", code=2)
    assert "did you mean mine?" in near.stderr
    assert str(tools) not in near.stderr
    assert launcher.run("run", "--env", f"PATH={tools}", "--", "mine").stdout == "found\n"


def test_table_that_hccl_could_not_use_is_refused(launcher, sample_tables, snapshot):
    """At its line; an address of two devices, a slip of the hand, on every machine and whatever the hardware."""
    for name, key in (("device.json", "device_id"), ("address.json", "device_ip")):
        table = json.loads((sample_tables / "rank_table_2pcs.json").read_text())
        first, second = table["server_list"][0]["device"]
        second[key] = first[key]
        launcher.write(name, table)
    chips = ("", "--chip none ", "--chip a2 ")
    tables = ("--rank-table device.json", *(f"{chip}--rank-table address.json" for chip in chips))
    assert launcher.refused(3, *(f"run {words} -- touch started" for words in tables)) == snapshot


@pytest.mark.parametrize("servers", [{"h1": [0, 1]}, {"h1": [0], "h2": [1]}], ids=["one", "two"])
def test_a_server_that_is_said_is_one_of_the_table(launcher, table_of, servers):
    words = ["run", "--rank-table", table_of(servers), "--server", "no\x1b[2J"]
    for more in ((), ("--dry-run",)):
        told = launcher.refused(2, [*words, *more, "--", "true"])
        assert (r"--server no\x1b[2J " in told, "h1" in told) == (True, True)


def test_taken_master_port_is_refused(launcher):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert f"port {port} " in launcher.refused(2, f"run --master-port {port} -- true")


def test_a_missing_torch_is_one_message_not_a_traceback_per_rank(launcher, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    told = launcher.refused(2, "run --devices 2")
    assert ("'.[train]'" in told, told.count("\n! ")) == (True, 2)


@pytest.mark.parametrize(
    "words",
    ["run --runs-dir ../runs -- true", "ps", "status", "stop", "rerun", "wait", "prune --keep 1", "report --html x.html",
     "ckpt prune --keep 1", "plan operators x", "ps --everywhere"],
)  # fmt: skip
def test_a_removed_working_directory_is_named(launcher, words):
    line = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m launcher {words}"
    done = launcher.shell(line, code=2)
    assert (done.stdout, done.stderr.count("error: the current directory has been removed")) == ("", 1)
    assert not launcher.runs.exists()


@pytest.mark.parametrize(("arguments", "code"), [(["--dp", "3"], 3), (["--no-such-option"], 2), (["--", "true"], 0)])
def test_a_stderr_that_takes_nothing_does_not_change_the_exit_code(launcher, arguments, code):
    buffered = {"PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("wb") as full:
        assert launcher.run("run", "--devices", 2, *arguments, stderr=full, env=buffered).returncode == code


def test_a_table_cannot_add_lines_to_a_dry_run(launcher, sample_tables):
    text = (sample_tables / "rank_table_2pcs.json").read_text().replace("10.0.40.11", r"x\ntouch pwned")
    launcher.write("t.json", text)
    words = ["run", "--rank-table", "t.json", "--dry-run"]
    done = launcher.call(*words, "-v", "--", "true", code=0)
    assert all(line.startswith(("#", "cd ")) for line in done.stdout.splitlines())
    assert "\ntouch" not in launcher.call(*words, "--", "true", code=0).stdout


@pytest.mark.skipif(any(Path("/dev").glob("davinci[0-9]*")), reason="this machine has Ascend devices")
def test_rules_of_hccl_are_warnings_without_ascend_devices(launcher, sample_tables):
    """Where no process will use HCCL, a wrong device_ip is told and the ranks start; --chip makes it an error again."""
    table = json.loads((sample_tables / "rank_table_2pcs.json").read_text())
    table["server_list"][0]["device"][0]["device_ip"] = "192.1.*.6"
    path = launcher.write("table.json", table)
    assert f"{path}:10:19: warning[RT331]: " in launcher.run("run", "--rank-table", path, "--", "true", code=0).stderr
    refused = launcher.refused(3, ["run", "--chip", "a2", "--rank-table", path, "--", "touch", "started"])
    assert "error[RT331]" in refused


@pytest.mark.parametrize(("made", "written_as"), [(make_nodes, "v1.0"), (make_lab, "v1.0"), (make_pods, "v1.2")])
def test_every_format_starts_ranks_on_its_devices(launcher, made, written_as):
    """A table of another format gives each rank its device; with idle devices the ranks read a table of them alone."""
    text = json.dumps(made(1, 4) if made is not make_pods else made(0, 1, 4))
    launcher.write("table.json", re.sub(r'(?<="device_id": ")\d', lambda found: str(4 + int(found[0])), text))
    say = ["sh", "-c", 'echo "$RANK_ID $DEVICE_ID"; cat "$RANK_TABLE_FILE" > "$TLAUNCH_RUN_DIR/read-by-$RANK_ID"']
    options = ["--rank-table", "table.json", "--dp", 3, "--allow-idle-devices"]
    done = launcher.run("run", *options, "--", *say, code=0)
    assert "the layout uses 3 of 4 devices; the device of rank 3 is idle" in done.stderr
    logs = [(launcher.latest / f"device{rank}" / "train.log").read_text() for rank in range(3)]
    assert logs == ["0 4\n", "1 5\n", "2 6\n"]
    written = launcher.latest / "rank_table.json"
    (report,) = json.loads(launcher.call("validate", "--chip", "none", "--json", written).stdout)
    assert (report["format"], report["devices"], report["valid"]) == (written_as, 3, True)
    assert (launcher.latest / "read-by-1").read_text() == written.read_text()


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
    with pytest.raises(UsageError, match=" 2 ") if refused else nullcontext():
        engine_commands._refuse_several()
