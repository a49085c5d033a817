"""Ending a run from outside: who is asked, and who never."""

import os
import signal
import subprocess
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from launcher.core.events import AgentStarted, RankStarted
from launcher.core.proc import identify
from launcher.runs.ending import Outcome, send, stop
from launcher.runs.live import Watch
from launcher.runs.progress import State

SPEC = spec_from_file_location("acted_run", Path(__file__).parents[1] / "programs" / "acted_run.py")
acted_run = module_from_spec(SPEC)
SPEC.loader.exec_module(acted_run)

LONG_S = 60.0  # never reached where all is well


@pytest.fixture
def bystander():
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def stop_run(directory, *, kill=False, timeout_s=LONG_S):
    return stop(Watch(acted_run.RunDir(directory)), kill=kill, timeout_s=timeout_s)


@pytest.mark.parametrize("wish", ["alone", "head", "deaf-head"])
def test_a_run_is_asked_and_waited_for(tmp_path, wish):
    """By its launcher; by its agent where the launcher is gone or does not listen."""
    with acted_run.playing(tmp_path / "a", wish):
        outcome, state = stop_run(tmp_path / "a")
        assert (outcome, state.state, state.exit_code) == (Outcome.ENDED, State.STOPPED, 128 + signal.SIGTERM)
        assert not state.progress.agent.lives


def test_the_wait_can_be_limited_and_the_grace_too(tmp_path):
    """A run that does not end in time is told as such, and ends at once when it is killed; then there is none."""
    with acted_run.playing(tmp_path / "a", "deaf"):
        outcome, state = stop_run(tmp_path / "a", timeout_s=0.3)
        assert (outcome, state.state) == (Outcome.STILL_ENDING, State.RUNNING)
        outcome, state = stop_run(tmp_path / "a", kill=True)
        assert (outcome, state.exit_code) == (Outcome.ENDED, 128 + signal.SIGQUIT)
        assert stop_run(tmp_path / "a")[0] is Outcome.NOT_RUNNING


def test_a_stopped_agent_acts_on_it(tmp_path):
    """It is continued, since it could not hear otherwise."""
    with acted_run.playing(tmp_path / "a") as process:
        process.send_signal(signal.SIGSTOP)
        assert stop_run(tmp_path / "a")[0] is Outcome.ENDED


@pytest.mark.parametrize("kill", [False, True])
def test_a_pid_that_is_used_again_is_never_signalled(tmp_path, bystander, kill):
    """A stranger with the number of the agent, the launcher and a rank lives on."""
    stranger = identify(bystander.pid)
    before = replace(stranger, started=stranger.started - 1)
    events = [AgentStarted(before, before, 1), RankStarted(0, before.pid, before.started)]
    acted_run.make(tmp_path / "a", events)
    assert stop_run(tmp_path / "a", kill=kill)[0] is Outcome.NOT_RUNNING
    assert not send(before, signal.SIGTERM)
    assert bystander.poll() is None
    assert stranger.lives


def test_a_run_of_another_machine_is_left_alone(tmp_path, bystander):
    """Though a process here has its agent's pid and age."""
    agent = replace(identify(bystander.pid), host="another")
    acted_run.make(tmp_path / "a", [AgentStarted(agent, agent, 1)])
    outcome, state = stop_run(tmp_path / "a")
    assert (outcome, state.host) == (Outcome.ELSEWHERE, "another")
    assert bystander.poll() is None


def test_a_process_that_has_gone_gets_nothing():
    """Whether a zombie or reaped."""
    process = subprocess.Popen(["sleep", "1000"])
    known = identify(process.pid)
    assert send(known, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not send(known, signal.SIGTERM)
    process.wait()
    assert not send(known, signal.SIGTERM)


def test_it_works_without_pidfds(tmp_path, monkeypatch):
    """Where the system has none, the age of the process tells."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with acted_run.playing(tmp_path / "a"):
        assert stop_run(tmp_path / "a")[0] is Outcome.ENDED
