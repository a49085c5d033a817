"""What is said of servers that did not come."""

import os
import shlex

import pytest

from launcher.engines.cluster.engine_process import EngineProcess
from launcher.engines.cluster.engine_words import not_come
from launcher.engines.command import EngineCommand, temporary_directory
from launcher.engines.whereabouts import is_here


@pytest.fixture(name="ended")
def _ended(tmp_path, wait_until):
    """Gives a function that lets a shell's script be an engine until it ends. No server can be reached by its shell."""

    def ended(script, files=None):
        refuses = tuple(shlex.split("sh -c 'echo $0 refuses >&2; exit 1'"))
        command = EngineCommand("sh 1.0", ("sh", "-c", script), {}, files or {}, refuses)
        engine = EngineProcess(command, dict(os.environ), tmp_path, tmp_path / "engine.log")
        wait_until(lambda: engine.ended, "its end")
        return engine

    return ended


@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "localhost", os.uname().nodename])
def test_this_machine_is_here(name):
    """By its own name, by any that means it, and by every loopback address."""
    assert is_here(name)


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid"])
def test_no_other_machine_is_here(name):
    """Nor what nobody knows."""
    assert not is_here(name)


def test_an_engine_that_refuses_is_quoted_and_this_machine_not_asked(ended):
    """No ssh is needed to it, and its silence would hide the reason."""
    error = not_come(ended("echo unrecognized option; exit 213"), "sh ended", ("127.0.0.1", "localhost"))
    assert error.message.splitlines() == [
        "servers 127.0.0.1, localhost did not come: sh ended",
        "| unrecognized option",
    ]
    assert "--engine-option" not in error.hint


def test_what_the_remote_shell_says_stands_before_the_engine_s_words(ended):
    """Both may tell the reason."""
    error = not_come(ended("echo lost; exit 1"), "sh ended", ("127.0.0.1", "192.0.2.1"))
    assert error.message.splitlines() == [
        "server 192.0.2.1 did not come: sh ended", "| 192.0.2.1: 192.0.2.1 refuses", "| lost",
    ]  # fmt: skip


def test_a_program_that_ended_well_was_no_agent(ended):
    """A word of the user's was it."""
    assert "--engine-option may have been taken for the program" in not_come(ended("true"), "why", ("localhost",)).hint


def test_files_in_the_system_s_directory_do_not_outlive_the_engine(ended, tmp_path):
    """Those in a run directory do."""
    aside, kept = temporary_directory() / f"tlaunch-test-{os.getpid()}", tmp_path / "hosts"
    engine = ended("cat $0", {aside: "h1\n", kept: "h1\n"})
    assert aside.exists()
    engine.clean_up()
    assert (aside.exists(), kept.exists()) == (False, True)
