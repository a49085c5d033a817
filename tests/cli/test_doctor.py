"""`tlaunch doctor` on this machine; over several hosts: tests/end_to_end/test_doctor.py."""

import json
import socket
import subprocess

import pytest

SERVERS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
def table(tmp_path):
    """One machine as two servers, each with a rank."""
    servers = [
        {"server_id": name, "device": [{"device_id": "0", "device_ip": f"192.168.0.{rank + 1}", "rank_id": str(rank)}]}
        for rank, name in enumerate(SERVERS)
    ]
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"version": "1.0", "server_count": "2", "server_list": servers, "status": "completed"}))
    return path


@pytest.fixture
def port():
    """Free, most likely."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def test_one_machine_is_examined_without_a_table(launcher):
    """Nothing is left behind, and there is no link to measure."""
    done = launcher.run("doctor", "--devices", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 server examined: nothing stands in the way of a run" in done.stdout
    assert not launcher.runs.exists()


def test_what_would_break_a_run_is_the_exit_code(launcher):
    """As JSON it says what; stdout holds nothing else."""
    with socket.create_server(("", 0)) as taken:
        done = launcher.run("doctor", "--devices", "2", "--json", "--master-port", taken.getsockname()[1])
    told = json.loads(done.stdout)
    assert (done.returncode, told["sound"]) == (1, False)
    assert [one["code"] for one in told["findings"] if one["severity"] == "breaks"] == ["port-taken"]


def test_variables_for_ranks_are_judged_as_if_they_were_set(launcher):
    """The interface that gloo would take."""
    done = launcher.run("doctor", "--devices", "2", "--json", "--env", "GLOO_SOCKET_IFNAME=nowhere0")
    assert "no-such-interface" in {one["code"] for one in json.loads(done.stdout)["findings"]}


def test_what_cannot_be_meant_is_refused_before_anything_starts(launcher, table):
    """With the exit codes of `tlaunch run`."""
    assert launcher.run("doctor", "--rank-table", "nowhere.json").returncode == 2
    table.write_text('{"status": "completed", "server_count": "1", "server_list": []}')
    assert launcher.run("doctor", "--rank-table", table).returncode == 3


@pytest.mark.parametrize("option", [("--mp", "2"), ("--pp=2",)])
def test_a_layout_is_refused_with_what_is_examined_instead(launcher, option):
    """It is no misspelt option of another kind."""
    done = launcher.run("doctor", "--devices", "4", *option)
    assert done.returncode == 2
    assert "doctor takes no layout" in done.stderr
    assert "Did you mean" in launcher.run("doctor", "--devises", "4").stderr


def test_servers_started_by_hand_are_examined_together(launcher, table, port):
    """The first reports, with what a run between them measured; the other ends with the same code."""
    options = ("doctor", "--rank-table", table, "--coordinator-port", port)
    other = launcher.start(*options, "--server", SERVERS[1], stderr=subprocess.PIPE, text=True)
    done = launcher.run(*options, "--server", SERVERS[0], "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, other.wait(60)) == (0, 0)
    assert f"what was found is told on server {SERVERS[0]}" in other.stderr.read()
    assert [one["facts"] is not None for one in told["servers"]] == [True, True]
    assert "links-measured" in {one["code"] for one in told["findings"]}
    assert not launcher.runs.exists()


def test_a_server_that_nobody_started_is_missing_and_the_other_is_examined(launcher, table, port):
    """Within --join-timeout."""
    done = launcher.run(
        "doctor",
        "--rank-table",
        table,
        "--coordinator-port",
        port,
        "--server",
        SERVERS[0],
        "--join-timeout",
        "2",
        "--json",
    )
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(one["code"], one["servers"]) for one in told["findings"] if one["severity"] == "breaks"] == [
        ("did-not-come", [1])
    ]
    assert [one["facts"] is not None for one in told["servers"]] == [True, False]


def test_a_run_that_is_started_on_the_other_server_is_no_part_of_it(launcher, table, port):
    """It is refused there, and that is a finding here."""
    options = ("--rank-table", table, "--coordinator-port", port)
    other = launcher.start(
        "run", *options, "--server", SERVERS[1], "--", "sleep", "100", stderr=subprocess.PIPE, text=True
    )
    done = launcher.run("doctor", *options, "--server", SERVERS[0], "--json")
    assert (done.returncode, other.wait(60)) == (1, 3)
    assert "was started with another command" in other.stderr.read()
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "breaks"]
    assert (found["code"], found["servers"]) == ("refused", [1])
