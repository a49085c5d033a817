"""Stop a run from another shell: which processes get signals, and which never do."""

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import replace

import pytest

from launcher.core.events import AgentStarted, RankStarted
from launcher.core.machine.proc import identify
from launcher.runs.ending import StopOutcome, send, stop
from launcher.runs.progress import State
from launcher.runs.status import RunStatusReader
from tests.programs import acted_run

LONG_S = 60.0  # never reached where all is well


@pytest.fixture
def bystander():
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def stop_run(directory, *, kill=False, timeout_s=LONG_S):
    return stop(RunStatusReader(acted_run.RunDir(directory)), kill=kill, timeout_s=timeout_s)


@pytest.mark.parametrize("wish", ["alone", "head", "deaf-head"])
def test_a_run_is_asked_and_waited_for(tmp_path, monkeypatch, wish):
    """By its launcher; by its agent where that is gone or does not listen. Without pidfds, ages of processes tell."""
    if wish == "alone":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with acted_run.playing(tmp_path / "a", wish):
        stopped = stop_run(tmp_path / "a")
        state = stopped.state
        ended = (StopOutcome.ENDED, State.STOPPED, 128 + signal.SIGTERM)
        assert (stopped.outcome, state.state, state.exit_code) == ended
        assert not state.progress.agent.lives


def test_the_wait_can_be_limited_and_the_grace_too(tmp_path):
    with acted_run.playing(tmp_path / "a", "deaf"):
        stopped = stop_run(tmp_path / "a", timeout_s=0.3)
        assert (stopped.outcome, stopped.state.state) == (StopOutcome.STILL_ENDING, State.RUNNING)
        stopped = stop_run(tmp_path / "a", kill=True)
        assert (stopped.outcome, stopped.state.exit_code) == (StopOutcome.ENDED, 128 + signal.SIGQUIT)
        assert stop_run(tmp_path / "a").outcome is StopOutcome.NOT_RUNNING


@pytest.mark.parametrize("kill", [False, True])
def test_a_pid_that_is_used_again_is_never_signalled(tmp_path, bystander, kill):
    stranger = identify(bystander.pid)
    before = replace(stranger, started=stranger.started - 1)
    events = [AgentStarted(before, before, 1), RankStarted(0, before.pid, before.started)]
    acted_run.make(tmp_path / "a", events)
    assert stop_run(tmp_path / "a", kill=kill).outcome is StopOutcome.NOT_RUNNING
    assert not send(before, signal.SIGTERM)
    assert bystander.poll() is None
    assert stranger.lives


def test_a_run_of_another_machine_is_left_alone(tmp_path, bystander):
    agent = replace(identify(bystander.pid), host="another")
    acted_run.make(tmp_path / "a", [AgentStarted(agent, agent, 1)])
    stopped = stop_run(tmp_path / "a")
    assert (stopped.outcome, stopped.state.host) == (StopOutcome.OUT_OF_REACH, "another")
    assert bystander.poll() is None


@pytest.fixture
def orphaned(tmp_path):
    """Return a function that makes a run with living ranks, but without launcher and agent. It returns their first lines."""
    ranks = []

    def begin(*programs, **fields):
        ranks.extend(
            subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, start_new_session=True)
            for program in programs
        )
        words = [rank.stdout.readline() for rank in ranks]
        started = [RankStarted(i, rank.pid, identify(rank.pid).started) for i, rank in enumerate(ranks)]
        gone = acted_run.someone_gone()
        acted_run.make(tmp_path / "a", [AgentStarted(gone, gone, len(ranks)), *started], **fields)
        return ranks, words

    yield begin
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
        rank.stdout.close()


HEEDS, STUBBORN = "echo ready; exec sleep 1000", "trap '' TERM; echo ready; while :; do sleep 0.1; done"


def test_ranks_without_launcher_and_agent_are_ended(tmp_path, orphaned):
    ranks, _ = orphaned(HEEDS, STUBBORN, supervision={"grace_s": 2.0})
    stopped = stop_run(tmp_path / "a", timeout_s=0.2)
    assert (stopped.outcome, stopped.killed, ranks[1].poll()) == (StopOutcome.STILL_ENDING, (), None)
    assert ranks[0].wait(LONG_S) == -signal.SIGTERM
    stopped = stop_run(tmp_path / "a")
    assert (stopped.outcome, stopped.orphans, stopped.killed, stopped.grace_s) == (StopOutcome.ENDED, (1,), (1,), 2.0)
    assert ranks[1].wait(LONG_S) == -signal.SIGKILL
    assert stop_run(tmp_path / "a").outcome is StopOutcome.NOT_RUNNING


def test_ranks_without_launcher_and_agent_are_killed_at_once_if_wanted(tmp_path, orphaned):
    ranks, _ = orphaned(HEEDS, HEEDS)
    stopped = stop_run(tmp_path / "a", kill=True)
    assert (stopped.outcome, stopped.orphans, stopped.killed) == (StopOutcome.ENDED, (0, 1), (0, 1))
    assert [rank.wait(LONG_S) for rank in ranks] == [-signal.SIGKILL] * 2


def test_a_child_in_the_group_of_a_rank_that_is_alone_is_ended_with_it(tmp_path, orphaned):
    _, [child] = orphaned("trap '' TERM; sleep 1000 & trap 'exit 0' TERM; echo $!; wait")
    known = identify(int(child))
    stopped = stop_run(tmp_path / "a")
    assert (stopped.outcome, stopped.orphans, stopped.killed) == (StopOutcome.ENDED, (0,), ())
    assert not known.lives


def test_a_process_that_has_gone_gets_nothing():
    process = subprocess.Popen(["sleep", "1000"])
    known = identify(process.pid)
    assert send(known, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not send(known, signal.SIGTERM)
    process.wait()
    assert not send(known, signal.SIGTERM)
