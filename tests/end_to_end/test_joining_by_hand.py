"""Servers that are started by hand and come together, or not: who is missing, who differs, who is a stranger."""

import os
import signal
import socket
import sys
import time
from contextlib import suppress

import pytest

from launcher.control.messages import PROTOCOL, Challenge, Welcome, from_line, proof_of, to_line
from launcher.core.events import Judged
from launcher.supervise.port import hold_port
from tests.conftest import PATIENCE_S

from .conftest import BY_HAND, ROOT, table_of

READY = "print('ready', flush=True)"
WAIT = "while not os.path.exists('go'): time.sleep(0.02)"

pytestmark = [pytest.mark.slow]


HOSTILE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b'["Hello", {"proof": ' + b"[" * 900 + b"]" * 900 + b"}]\n",
    b'["Welcome", {"proof": "", "server_index": 0, "run_name": "", "silence_s": ' + b"9" * 400 + b"}]\n",
    b'["Hello", {"proof": "", "nonce": "\\ud800", "version": "", "python": "", "host": "", "addresses": []}]\n',
    b'["Finish", {"cause": "failed", "exit_code": 1}]\n',
    b"x" * (4 << 20),
]


def test_strangers_and_who_comes_too_late_harm_nothing(servers):
    """Whatever strangers say at the coordinator's endpoint, while servers are awaited and while ranks run."""
    first = servers.start(1, command=servers.python(READY, WAIT))
    servers.wait_until(servers.endpoint_open, "the endpoint")
    knock(servers.port)
    second = servers.start(2, command=servers.python(READY, WAIT))
    servers.wait_ready()
    knock(servers.port)
    late = servers.start(2, command=servers.python(READY, WAIT))
    assert servers.end(late)[0] in {2, 3}
    assert servers.said(late)
    (servers.directory / "go").touch()
    assert servers.end(first, second) == [0, 0], servers.said(first)


def knock(port):
    for words in HOSTILE:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection, suppress(OSError):
            connection.sendall(words)
            while connection.recv(1 << 16):  # until it is let go
                pass


def test_a_server_with_another_token_is_not_let_in(servers):
    first = servers.start(1, command=["true"], variables={"TLAUNCH_COORDINATOR_TOKEN": "a"})
    servers.wait_until(servers.endpoint_open, "the endpoint")
    second = servers.start(2, "--join-timeout", 10, command=["true"], variables={"TLAUNCH_COORDINATOR_TOKEN": "b"})
    assert servers.end(second) == [1]
    said = servers.said(second)
    assert f"127.0.0.1 port {servers.port}: connection closed by a process that belongs to" in said
    servers.wait_until(lambda: "waiting for server 127.0.0.2;" in servers.said(first), "that it is awaited")
    first.send_signal(signal.SIGTERM)
    assert servers.end(first) == [143]


def test_what_another_user_starts_ends_no_start(servers):
    """Another command on the same port, by who has neither the directory of runs nor the home directory."""
    own, others = ({"XDG_STATE_HOME": str(servers.directory / name)} for name in ("own", "others"))
    first = servers.start(1, command=["true"], variables=own)
    servers.wait_until(servers.endpoint_open, "the endpoint")
    elsewhere = ("--runs-dir", servers.directory / "elsewhere", "--join-timeout", 3)
    stranger = servers.start(2, *elsewhere, command=["false"], variables=others)
    assert servers.end(stranger) == [1]
    assert "set the same TLAUNCH_COORDINATOR_TOKEN on all servers" in servers.said(stranger)
    second = servers.start(2, command=["true"], variables=own)
    assert servers.end(first, second) == [0, 0], servers.said(first)


def test_servers_of_one_user_need_no_common_directory_of_runs(servers):
    own = {"XDG_STATE_HOME": str(servers.directory / "own")}
    first, second = (
        servers.start(number, "--runs-dir", servers.directory / f"runs{number}", command=["true"], variables=own)
        for number in (1, 2)
    )
    assert servers.end(first, second) == [0, 0], servers.said(second)


def test_who_listens_on_the_first_server_s_port_names_no_directory(servers):
    own = {"XDG_STATE_HOME": str(servers.directory / "own")}
    heard = []
    with socket.create_server(("127.0.0.1", servers.port)) as listener:
        second = servers.start(2, "--join-timeout", 3, command=["true"], variables=own)
        listener.settimeout(PATIENCE_S)
        with listener.accept()[0] as connection, connection.makefile("rb") as words:
            connection.sendall(to_line(Challenge(PROTOCOL, "aa" * 16)))
            heard.append(from_line(words.readline()))
            proof = proof_of("", heard[0].nonce, "aa" * 16)
            name = str(servers.directory / "elsewhere")
            connection.sendall(to_line(Welcome(proof, 1, name, 15.0)))
    assert servers.end(second) == [1]
    assert heard[0].proof != proof_of("", "aa" * 16, heard[0].nonce)
    assert "authentication failed: the process at this address does not have this run's token" in servers.said(second)
    assert not (servers.directory / "elsewhere").exists()


def test_a_server_that_never_comes_is_named(servers):
    """After --join-timeout, in which this server's own agent comes; nothing was started."""
    first = servers.start(1, "--join-timeout", 15, command=servers.python(READY))
    assert servers.end(first) == [1]
    assert "error: server 127.0.0.2 did not join: after 15 s (--join-timeout)" in servers.said(first)
    assert not any(servers.latest.glob("device*/train.log"))


def test_a_first_server_that_never_comes_is_named(servers):
    held = hold_port()  # else a program of another test may come to listen there meanwhile
    servers.port = held.number
    second = servers.start(2, "--join-timeout", 3, command=servers.python(READY))
    assert servers.end(second) == [1]
    held.close()
    assert servers.said(second).count(f"127.0.0.1 port {servers.port}: Connection refused") == 2
    whom, refused = "the launcher on server 127.0.0.1", f"127.0.0.1 port {servers.port}: Connection refused"
    assert f"waiting for {whom} ({refused}); at most 3 s" in servers.said(second)
    assert f"error: {whom} cannot be reached: " in servers.said(second)
    assert not servers.runs.exists()


@pytest.mark.parametrize("what", ["variables", "rank table"])
def test_another_start_on_another_server_is_refused(servers, what):
    """By both launchers, with both sides; no rank starts. Tables whose addresses differ are other tables."""
    if what == "variables":
        options, table = ("--env", "SECRET=hidden"), None
        told = "a different set of --env variables: SECRET there, none on the first server"
    else:
        options, table = (), table_of(servers.directory / "other.json", BY_HAND, network="192.169")
        told = "a different rank table: 4 devices on 2 servers, with different"
    first = servers.start(1, command=["sleep", "5"])
    second = servers.start(2, *options, command=["sleep", "5"], rank_table=table)
    assert servers.end(first, second) == [3, 3]
    for process in (first, second):
        said = servers.said(process)
        assert f"error: server 127.0.0.2 was started with {told}" in said
        assert ("hint: copy the same table to every server; `tlaunch table diff`" in said) == (what == "rank table")
        assert "hidden" not in said
    assert servers.pids() == {}


def test_servers_may_be_started_long_after_each_other(servers):
    """Longer than a silence that would be a loss: while others are awaited, the first one is heard."""
    first = servers.start(1, "--lost-after", 5, command=["true"])
    servers.wait_until(lambda: "waiting for server 127.0.0.2;" in servers.said(first), "the other one")
    time.sleep(6)
    assert "is lost" not in servers.said(first)
    second = servers.start(2, "--lost-after", 5, command=["true"])
    assert servers.end(first, second) == [0, 0], servers.said(first)


def test_the_failure_is_told_although_a_server_is_lost_before_the_restart(servers):
    """The rank that failed is the last word, and nobody waits for a server that has to be started by hand."""
    command = servers.python(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "open(f'r{rank}', 'w')",
        "while rank == 0 and not all(os.path.exists(f'r{other}') for other in (1, 2, 3)): time.sleep(0.01)",
        "if rank == 0: raise ValueError('bad')",
        "time.sleep(60)",
    )
    first, second = servers.both("--max-restarts", 3, "--grace", 4, command=command)
    servers.wait_until(lambda: servers.events(Judged), "the verdict")
    os.kill(servers.agent(1), signal.SIGKILL)
    codes = servers.end(first, second)
    assert codes[0] == 1, servers.said(first)
    assert "has to be started by hand again" in servers.said(first)
    assert "ValueError: bad" in servers.said(first)


def test_a_coordinator_s_port_in_use_is_told(servers):
    with socket.create_server(("", servers.port)):
        first = servers.start(1, command=["true"])
        assert servers.end(first) == [2]
    assert f"port {servers.port} cannot be used: Address already in use" in servers.said(first)
    assert not servers.runs.exists()


def test_all_servers_may_go_on_in_the_background(servers):
    """Started from one shell, one after the other; each has a file for what it would have shown."""
    for number in (1, 2):
        process = servers.start(number, "--detach", console="all", command=servers.python(READY, WAIT))
        assert servers.end(process) == [0], servers.said(process)
        assert servers.shown(process).strip() == servers.latest.resolve().name
    servers.wait_ready()
    (servers.directory / "go").touch()
    servers.wait_until((servers.latest / "report.json").is_file, "the report")
    for log, words in (("server1/console.log", "2 ranks succeeded"), ("console.log", "4 ranks succeeded")):
        servers.wait_until(lambda log=log, words=words: words in servers.read(servers.latest / log), words)
    servers.wait_until(lambda: not servers.endpoint_open(), "the end of the coordinator")


def test_who_waits_for_others_is_told_who_ended_the_run(servers):
    """Before it began; with the exit code of that signal. A server that is started twice is refused meanwhile, and only that."""
    three = table_of(servers.directory / "three.json", (*BY_HAND, "127.0.0.3"))
    first = servers.start(1, command=["true"], rank_table=three)
    second = servers.start(2, command=["true"], rank_table=three)
    servers.wait_until(lambda: "waiting for server 127.0.0.3" in servers.said(second), "the two of them")
    assert "waiting for server 127.0.0.3; at most 300 s in total (--join-timeout)" in servers.said(second)
    again = servers.start(2, command=["true"], rank_table=three)
    assert servers.end(again) == [3], servers.said(again)
    first.send_signal(signal.SIGTERM)
    assert servers.end(first, second) == [143, 143]
    for process in (again, first):
        assert "two agents joined as server 127.0.0.2 of the rank table" in servers.said(process)
    asked = "stopped by SIGTERM at server 127.0.0.1"
    assert f"error: the run ended before ranks started on this server: {asked}\n" in servers.said(second)
    assert f"{asked} after" in servers.said(first)


def test_another_program_on_another_server_is_refused_before_any_rank_starts(servers):
    for number, text in ((1, "LR = 1"), (2, "LR = 2")):
        (servers.directory / f"code{number}").mkdir()
        (servers.directory / f"code{number}" / "settings.py").write_text(text)
        (servers.directory / f"code{number}" / "train.py").write_text("import settings")

    def start(*options):
        return [
            servers.start(
                number, *options, command=[sys.executable, "-m", "train"],
                variables={"PYTHONPATH": f"{servers.directory / f'code{number}'}{os.pathsep}{ROOT}"},
            )
            for number in (1, 2)
        ]  # fmt: skip

    launchers = start()
    assert servers.end(*launchers) == [3, 3]
    for process in launchers:
        said = servers.said(process)
        assert "the program is not the same on server 127.0.0.2 as on server 127.0.0.1: settings.py differs" in said
    assert "--allow-different-program" in servers.said(launchers[0])
    assert servers.pids() == {}
    launchers = start("--allow-different-program")
    assert servers.end(*launchers) == [0, 0], servers.said(launchers[0])
