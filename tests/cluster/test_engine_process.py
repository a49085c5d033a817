"""The process of an engine: its files, its environment, its output, its end."""

import os
import shlex
import signal
import socket
from pathlib import Path

import pytest

from launcher.cluster import engine_process
from launcher.cluster.engine_process import LAST_LINES, EngineProcess, unreachable
from launcher.core.errors import UnreadableError
from launcher.engines.engine_command import EngineCommand
from tests.conftest import refusing_port


def test_an_engine_finds_what_its_command_names(start_engine, tmp_path):
    file = tmp_path / "hosts"
    engine = start_engine(
        'cat hosts; echo "$OLD-$NEW-$KEPT"; cat; ps -o sid= -p $$; echo $$ >&2',
        env={"OLD": None, "NEW": "z"}, files={file: "h1\n"},
        environment={"PATH": os.environ["PATH"], "OLD": "x", "KEPT": "y"},
    )  # fmt: skip
    words = (tmp_path / "engine.log").read_text().split()
    assert words == ["h1", "-z-y", str(engine.pid), str(engine.pid)]
    assert (engine.name, engine.exit_code) == ("sh 1.0", 0)


def test_an_engine_that_goes_on_has_no_exit_code(start_engine, wait_until):
    engine = start_engine("sleep 1000 & sleep 1000", waits=False)
    assert (engine.ended, engine.exit_code) == (False, None)
    engine.signal(signal.SIGTERM)
    wait_until(lambda: engine.ended, "its end")
    assert engine.exit_code == 143


def test_its_last_lines_are_those_of_this_start(start_engine):
    start_engine("echo former")
    engine = start_engine("echo; echo -----; seq 100000; printf ===; echo; printf 'no newline \\377'")
    assert engine.last_lines() == [*map(str, range(100001 - LAST_LINES + 1, 100001)), "no newline �"]


@pytest.mark.parametrize(("argv", "log"), [(("/no/such",), "engine.log"), (("sh",), "no/such/engine.log")])
def test_an_engine_that_cannot_be_started_is_told(tmp_path, argv, log):
    with pytest.raises(UnreadableError, match=r"MPI 9 cannot be started: .*No such file"):
        EngineProcess(EngineCommand("MPI 9", argv, {}, {}), {}, Path("/"), tmp_path / log)


@pytest.fixture(name="ask")
def _ask(monkeypatch):
    """Gives a function: what a shell's script in the place of ssh is asked, with all the time that it needs."""
    monkeypatch.setattr(engine_process, "LIMIT_S", 60.0)
    return lambda script, *server_ids, endpoints=(): unreachable(
        tuple(shlex.split(f"sh -c {shlex.quote(script)}")), server_ids, dict(os.environ), endpoints
    )


def test_what_the_remote_shell_says_last_is_the_reason(ask):
    assert ask('[ "$0" = h2 ] || { echo "$0 refuses" >&2; exit 1; }', "h1", "h2") == {"h1": "h1 refuses"}


def test_a_server_that_is_reached_and_does_not_reach_this_machine_is_reported(ask):
    with refusing_port() as port:
        refusing = f"127.0.0.1:{port}"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listening = f"127.0.0.1:{listener.getsockname()[1]}"
            assert ask('eval "$1"', "h1", endpoints=[refusing, listening]) == {}
        # The system reports a missing route at once, where other failures come later.
        for endpoint, why in ((refusing, "Connection refused"), ("255.255.255.255:1", "Network is unreachable")):
            found = ask('eval "$1"', "h1", endpoints=[endpoint])
            assert found == {"h1": f"it does not reach this machine: {endpoint}: {why}"}


def test_a_shell_whose_child_holds_its_output_is_not_waited_for(ask, monkeypatch):
    monkeypatch.setattr(engine_process, "LIMIT_S", 0.5)
    monkeypatch.setattr(engine_process, "KILLED_S", 60.0)  # it ends at once, where there is a CPU for it
    assert ask("sleep 600 & wait", "h1") == {"h1": "no answer"}
