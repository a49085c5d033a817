"""What the end of an engine says of the run whose agents it has started: real processes that say what engines say."""

import shlex
from types import SimpleNamespace

import pytest

from launcher.cluster.agent_starter import AgentStarter
from launcher.cluster.registration import Registration

GAVE_UP = "HNP daemon   : [prterun@0,0] on node 10.0.0.1\nRemote daemon: [prterun@0,1] on node 10.0.0.2"


@pytest.fixture
def ended(start_engine, house, spec):
    """Gives a function: the starter of a run whose engine has said something and ended."""
    opened, servers = house(brings_all=True), spec.cluster.servers

    def ended(said, end="exit 1", *, forgotten=False):
        registration = Registration(opened.plan, servers, "run")
        registration.peers.update(
            {index: SimpleNamespace(hello=SimpleNamespace(host=f"h{index + 1}")) for index in (0, 1)}
        )
        starter = AgentStarter(spec, opened.plan, servers, 0, registration)
        starter.note_begin()
        starter.engine = start_engine(f"printf '%s\n' {shlex.quote(said)}; {end}")
        if forgotten:
            starter.engine.forget_words()
        return starter

    return ended


@pytest.mark.parametrize(("said", "end", "server"), [
    (GAVE_UP, "exit 1", "10.0.0.2"),  # Open MPI 5 names the machine that mpirun runs on before the lost one
    ("connection to h2 was lost", "exit 0", "10.0.0.2"),  # some end well, with the reason
    ("h1: cannot talk to h2", "exit 1", None),  # of several that are named, none is guessed
])  # fmt: skip
def test_an_engine_that_gives_up_names_the_server_that_it_has_lost(ended, said, end, server):
    gave_up = ended(said, end).exited().gave_up
    assert (gave_up.reason, gave_up.server) == (f"sh 1.0 aborted the run: {' '.join(said.splitlines())}", server)


def test_an_engine_that_was_killed_is_the_cause_whatever_it_had_said(ended):
    starter = ended("Warning: setpgid failed", "kill -9 $$")
    assert starter.killed().reason == "sh 1.0 itself was killed, by SIGKILL (signal 9)"
    assert starter.exited().killed == starter.killed()


@pytest.mark.parametrize("code", [143, 137])
def test_an_engine_that_ends_its_agents_without_a_word_has_its_reason(ended, code):
    exited = ended("", f"exit {code}", forgotten=True).exited()
    expected = f"sh 1.0 ended with exit code {code} and ended its agents without printing a reason"
    assert (exited.killed, exited.gave_up.reason) == (None, expected)


def test_an_engine_that_ends_well_has_done_what_it_was_asked_for(ended):
    exited = ended("", "exit 0", forgotten=True).exited()
    assert (exited.cancelled, exited.killed, exited.gave_up) == (None, None, None)
    assert ended("slurmstepd: error: *** JOB 7 CANCELLED AT noon ***").exited().cancelled is not None
