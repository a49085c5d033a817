"""`tlaunch doctor` on this machine; over several hosts: tests/end_to_end/test_doctor.py."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.cluster.join import AgentInfo, Endpoint, join
from launcher.control.messages import ProbeQuestion
from tests.conftest import PATIENCE_S

SERVERS = ("127.0.0.1", "127.0.0.2")
MEASURED = {"links-measured", "slow-link"}  # a busy machine may be slow one way
EXAMINED = {"sound", "findings", "servers", "links"}  # keys of an examination as JSON


@pytest.fixture
def table(table_of):
    """One machine as two servers, each with a rank."""
    return table_of({name: [rank] for rank, name in enumerate(SERVERS)})


@pytest.fixture
def port():
    """Free, and none that the kernel gives to somebody else until a server listens there."""
    while True:
        number = random.randrange(10_000, 20_000)
        with suppress(OSError), socket.create_server(("", number)):
            return number


def test_one_machine_is_examined_without_a_table(launcher):
    done = launcher.run("doctor", "--devices", "2", "--", sys.executable, "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 server examined: no problem would break a run" in done.stdout or "[slow-name]" in done.stdout
    assert not launcher.runs.exists()


def test_what_would_break_a_run_is_the_exit_code(launcher):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--json", "--master-port", port, "--env", "GLOO_SOCKET_IFNAME=nowhere0")
        done = launcher.run("doctor", "--devices", "2", "--runs-dir", "/dev/null/runs", *options)
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr, told["sound"]) == (1, "", False)
    messages = {one["code"]: one["message"] for one in told["findings"] if one["severity"] == "breaks"}
    assert messages.keys() == {"no-such-interface", "port-taken", "not-writable"}
    assert "no file can be created in the runs directory (/dev/null/runs: Not a directory)" in messages["not-writable"]
    assert told.keys() == EXAMINED


def test_what_cannot_be_meant_is_refused_before_anything_starts(launcher, table):
    table.write_text('{"status": "completed", "server_count": "1", "server_list": []}')
    assert launcher.call("doctor", "--rank-table", table).returncode == 3
    done = launcher.call("doctor", "--rank-table", table, "--json")
    told = json.loads(done.stdout)
    (validated,) = json.loads(launcher.call("validate", "--chip", "none", table, "--json").stdout)
    assert (done.returncode, told["exit_code"], told["sound"]) == (3, 3, False)
    assert told["findings"] == told["servers"] == []
    assert told.keys() == {*EXAMINED, "error", "exit_code", "problems"}
    assert told["links"] is None
    assert told["problems"] == validated["problems"] != []
    assert told["error"].strip() == done.stderr.strip()
    assert launcher.call("doctor", "--rank-table", "nowhere.json").returncode == 2
    done = launcher.call("doctor", "--rank-table", "nowhere.json", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit_code"], told["problems"]) == (2, 2, [])
    assert f"error: {told['error']}" == done.stderr.strip()


def test_shared_memory_that_takes_no_file_is_found(launcher):
    mount = 'mount -t tmpfs -o ro none /dev/shm && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", mount, "sh", *launcher.argv("doctor", "--devices", "2")]
    done = launcher.ended(argv)
    if not done.stdout:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.returncode == 0
    assert "no file can be created in shared memory (/dev/shm: Read-only file system), on server" in done.stdout


@pytest.mark.parametrize("words", [
    ("--devices", "2", "--server", "foo"), ("--engine", "mpi", "--server", "nosuch"),
    ("--engine", "mpi", "--coordinator-port", "3"),
])  # fmt: skip
def test_what_a_run_would_have_no_use_for_is_refused_as_by_it(launcher, table, words):
    given = words if "--devices" in words else ("--rank-table", table, *words)
    done, by_run = (launcher.call(command, *given) for command in ("doctor", "run"))
    assert (done.returncode, by_run.returncode) == (2, 2)
    assert done.stderr == by_run.stderr


@pytest.mark.parametrize(("words", "why"), [
    (("--devices", "4", "--mp", "2"), "doctor has no layout options"),
    (("--devices", "4", "--pp=2"), "doctor has no layout options"),
    (("--devices", "4", "table.json"), "unexpected argument table.json"),
    (("--devises", "4"), "did you mean --devices?"),
])  # fmt: skip
def test_what_doctor_does_not_take_is_refused(launcher, words, why):
    """A layout is no misspelt option; a word is taken for a program only after two dashes, before them it is a slip."""
    assert why in launcher.call("doctor", *words, code=2).stderr


def test_servers_started_by_hand_are_examined_together(launcher, table, port):
    """The first reports, with what a run between them measured; the other ends with the same code.

    A table that can be read only once, as a shell's `<(...)` gives it, is enough.
    """
    options = ("--coordinator-port", port, "--server")
    other = launcher.start(
        "doctor", "--rank-table", table, *options, SERVERS[1], stderr=subprocess.PIPE, encoding="utf-8"
    )
    reader, writer = os.pipe()
    os.write(writer, table.read_bytes())
    os.close(writer)
    try:
        piped = ("doctor", "--rank-table", f"/dev/fd/{reader}")
        done = launcher.run(*piped, *options, SERVERS[0], "--json", pass_fds=(reader,))
    finally:
        os.close(reader)
    told = json.loads(done.stdout)
    assert (done.returncode, other.wait(PATIENCE_S)) == (0, 0), done.stdout
    assert f"server {SERVERS[0]} shows the report" in other.stderr.read()
    assert [one["facts"] is not None for one in told["servers"]] == [True, True]
    codes = {one["code"] for one in told["findings"]}
    assert MEASURED & codes
    assert not [code for code in codes if code.startswith("table")]
    (pair,) = told["links"]["pairs"]
    assert pair["servers"] == [0, 1]
    assert 0 < pair["bytes_per_s"] == min(pair["forth_bytes_per_s"], pair["back_bytes_per_s"])
    assert all(one["bus_bytes_per_s"] > 0 for one in told["links"]["all_reduce"])
    assert not launcher.runs.exists()


def test_a_server_that_nobody_started_is_missing_and_the_other_is_examined(launcher, table, port):
    options = ("--coordinator-port", port, "--server", SERVERS[0], "--join-timeout", "2")
    done = launcher.run("doctor", "--rank-table", table, *options, "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(one["code"], one["servers"]) for one in told["findings"] if one["severity"] == "breaks"] == [
        ("did-not-come", [1])
    ]
    assert [one["facts"] is not None for one in told["servers"]] == [True, False]


def test_a_run_that_is_started_on_the_other_server_is_no_part_of_it(launcher, table, port):
    options = ("--rank-table", table, "--coordinator-port", port)
    other = launcher.start(
        "run", *options, "--server", SERVERS[1], "--", "sleep", "100", stderr=subprocess.PIPE, text=True
    )
    done = launcher.run("doctor", *options, "--server", SERVERS[0], "--json")
    assert (done.returncode, other.wait(60)) == (1, 3)
    assert "was started with a different command" in other.stderr.read()
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "breaks"]
    assert (found["code"], found["servers"]) == ("refused", [1])


def test_a_stranger_who_joins_is_told_no_values_of_variables(launcher, table, port):
    """But for those that servers are asked about: which interface they would choose."""
    given = [f"--env={each}" for each in ("API_TOKEN=s3cret-0", "GLOO_SOCKET_IFNAME=nowhere0")]
    options = ("doctor", "--rank-table", table, "--coordinator-port", port, "--server", SERVERS[0], *given)
    head = launcher.start(*options, "--no-links")
    stranger = AgentInfo(host="x", addresses=(), said=SERVERS[1], agreement={"command": "tlaunch doctor"})
    membership = join(Endpoint(((SERVERS[0], port),), ""), stranger, time.monotonic() + PATIENCE_S, lambda _why: None)
    channel = membership.channel
    asked = next(one for one in channel.wait_for(time.monotonic() + PATIENCE_S) if isinstance(one, ProbeQuestion))
    channel.close()
    head.terminate()
    head.wait(PATIENCE_S)
    assert asked.content["request"]["variables"] == [["GLOO_SOCKET_IFNAME", "nowhere0"]]
    assert "s3cret-0" not in json.dumps(asked.content)


@pytest.mark.parametrize(("ended", "number"), [(1, signal.SIGTERM), (0, signal.SIGKILL)])
def test_whoever_is_ended_while_links_are_measured_leaves_nothing_behind(  # noqa: PLR0917 - fixtures
    launcher, table, port, wait_until, tmp_path_factory, ended, number
):
    """No rank, no run, and no directory, as somebody is left who removes them; the other server tells of it."""
    temporary = tmp_path_factory.mktemp("of-the-killed")  # what a killed doctor has there besides is its own
    kept = tmp_path_factory.mktemp("of-the-other")
    options = ("doctor", "--rank-table", table, "--coordinator-port", port)
    servers = [
        launcher.start(
            *options, "--server", name, "--json",
            stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(temporary if ended == index else kept)},
        )
        for index, name in enumerate(SERVERS)
    ]  # fmt: skip
    wait_until(launcher.processes, "ranks that measure")
    servers[ended].send_signal(number)
    told = servers[0].communicate(timeout=PATIENCE_S)[0]
    codes = [each.wait(PATIENCE_S) for each in servers]
    assert codes == ([1, 143] if ended else [-signal.SIGKILL, 1])
    if ended:
        assert ("no-answer", (1,)) in {(one["code"], tuple(one["servers"])) for one in json.loads(told)["findings"]}
    wait_until(lambda: not at_work(launcher.runs), "the end of all that measures")
    wait_until(lambda: not launcher.runs.exists(), "no directory of a run")
    assert list(temporary.glob("*/*")) == []
    # The measuring run is kept if its ranks failed before their server was missed; the report says where.
    assert all(ended and str(run) in told for run in kept.glob("*/*"))


def at_work(runs_dir):
    """The command of each process that has that directory's name in it, or in its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(runs_dir).encode() in told:
            found.append(process.name)
    return found


def test_why_another_server_takes_no_part_in_the_measuring_is_told(launcher, table, port, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'launcher.cli.commands.doctor.trial_run' in sys.orig_argv:\n"
        "    print('error: no such luck', flush=True)\n"
        "    os._exit(9)\n"
    )
    options = ("doctor", "--rank-table", table, "--coordinator-port", port)
    other = launcher.start(*options, "--server", SERVERS[1], env={"PYTHONPATH": str(tmp_path)})
    done = launcher.run(*options, "--server", SERVERS[0], "--json")
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "breaks"]
    assert (done.returncode, other.wait(PATIENCE_S), found["code"]) == (1, 1, "trial-run-failed")
    why = f"server {SERVERS[1]}: its part of the link measurement ended with exit code 9: error: no such luck"
    assert found["message"].endswith(why)
    for kept in Path(tempfile.gettempdir()).glob("tlaunch-links-*"):  # how far it came by then is chance
        assert str(kept) in found["hint"]
        shutil.rmtree(kept)
