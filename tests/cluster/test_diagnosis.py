"""Why a server could not be reached."""

import os
import shlex
import socket

from launcher.cluster import engine_process
from launcher.cluster.engine_process import unreachable


def asked(script, *server_ids, endpoints=()):
    return unreachable(tuple(shlex.split(f"sh -c {shlex.quote(script)}")), server_ids, dict(os.environ), endpoints)


def test_what_the_remote_shell_says_last_is_the_reason(monkeypatch):
    """Nothing is said of those that answer."""
    monkeypatch.setattr(engine_process, "LIMIT_S", 60.0)
    assert asked('[ "$0" = h2 ] || { echo "$0 refuses" >&2; exit 1; }', "h1", "h2") == {"h1": "h1 refuses"}


def test_a_server_that_is_reached_and_does_not_reach_this_machine_is_told(monkeypatch):
    """It is asked to connect to where its agent would. One address that it reaches is enough."""
    monkeypatch.setattr(engine_process, "LIMIT_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refusing = f"127.0.0.1:{closed.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listening = f"127.0.0.1:{listener.getsockname()[1]}"
        assert asked('eval "$1"', "h1", endpoints=[refusing, listening]) == {}
    told = f"it does not reach this machine: {refusing}: Connection refused"
    assert asked('eval "$1"', "h1", endpoints=[refusing]) == {"h1": told}


def test_an_address_to_which_there_is_no_way_is_not_taken_for_one_that_is_reached(monkeypatch):
    """The system says so at once, where other failures come later."""
    monkeypatch.setattr(engine_process, "LIMIT_S", 60.0)
    told = asked('eval "$1"', "h1", endpoints=["255.255.255.255:1"])
    assert told == {"h1": "it does not reach this machine: 255.255.255.255:1: Network is unreachable"}


def test_a_shell_whose_child_holds_its_output_holds_nobody_up(monkeypatch):
    """Such as a wrapper, or ssh by way of another host. Nothing is left of either."""
    monkeypatch.setattr(engine_process, "LIMIT_S", 0.5)
    monkeypatch.setattr(engine_process, "KILLED_S", 60.0)  # it ends at once, where there is a CPU for it
    assert asked("sleep 600 & wait", "h1") == {"h1": "no answer"}
