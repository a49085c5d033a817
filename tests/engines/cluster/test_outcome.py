"""What becomes of a run when servers, engines and people want different things."""

import os
import shlex
import time
from types import SimpleNamespace

import pytest

from launcher.core.events import Cause, Judged, NotRestarting, Stopping
from launcher.core.records import Cluster, Device, Layout, RankSpec, RunSpec, Server, Supervision
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Confidence
from launcher.engines.cluster.agent_connection import Clock
from launcher.engines.cluster.chronicle import Chronicle
from launcher.engines.cluster.engine_process import EngineProcess
from launcher.engines.cluster.outcome import Outcome
from launcher.engines.command import EngineCommand
from launcher.supervise.agent import LauncherLink
from launcher.supervise.court import Evidence, to_fields
from launcher.supervise.dumps import RankStack
from launcher.supervise.evidence import RankEvidence
from launcher.supervise.failures import FailureRecord

SERVERS = (Server("10.0.0.1", (Device(0, 0),)), Server("10.0.0.2", (Device(0, 1),)))
RANKS = tuple(RankSpec(rank, 0, server.server_id, rank, 0, ("true",), {}) for rank, server in enumerate(SERVERS))
NAMES = {0: ("10.0.0.1", "h1"), 1: ("10.0.0.2", "h2")}
GAVE_UP = "HNP daemon   : [prterun@0,0] on node 10.0.0.1\nRemote daemon: [prterun@0,1] on node 10.0.0.2"


def raised(global_rank, at_s):
    failure = FailureRecord(int(at_s * 1e9), 7, "exception", "ValueError", "no", "a.py:1 in f")
    return RankEvidence(global_rank, 1, int(at_s * 1e9), 0, failure=failure)


@pytest.fixture(name="outcome")
def _outcome(tmp_path):
    """Of a run by an engine that may be restarted once; `events` gives what was recorded of it, kind by kind."""
    spec = RunSpec(
        name="run", run_dir=tmp_path, cluster=Cluster(SERVERS), layout=Layout(dp=2), ranks=RANKS, cwd=tmp_path,
        master_addr="10.0.0.1", master_port=0, supervision=Supervision(max_restarts=1),
    )  # fmt: skip
    reader, writer = os.pipe()
    chronicle = Chronicle(spec, RunDir(tmp_path), LauncherLink(death_fd=reader, events_fd=writer, pid=os.getpid()))
    outcome = Outcome(spec, SimpleNamespace(brings_all=True, engine_anew=False, silence_s=15.0), SERVERS, chronicle)
    recorded = []
    outcome.events = lambda kind: [event for event in recorded if isinstance(event, kind)]
    chronicle.record, record = (lambda event: (recorded.append(event), record(event))), chronicle.record
    yield outcome
    chronicle.event_log.close(None)
    os.close(reader)
    os.close(writer)


@pytest.fixture(name="engine")
def _engine(tmp_path, wait_until):
    """Gives a function: an engine that has said something and ended."""

    def ended(said, end="exit 1"):
        command = EngineCommand("sh 1.0", ("sh", "-c", f"printf '%s\n' {shlex.quote(said)}; {end}"), {}, {})
        engine = EngineProcess(command, dict(os.environ), tmp_path, tmp_path / "engine.log")
        wait_until(lambda: engine.ended, "its end")
        return engine

    return ended


def test_an_engine_that_gives_up_is_a_failure_which_may_be_repeated(outcome, engine):
    """Open MPI 5 names the machine that mpirun runs on before the one that was lost."""
    outcome.stop(Cause.STOPPED, 15, by_server=1)
    outcome.note_engine_end(engine(GAVE_UP), NAMES)
    assert [judged.verdict.server for judged in outcome.events(Judged)] == ["10.0.0.2"]
    assert (outcome.again, outcome.finish.cause) == (True, Cause.FAILED)


def test_an_engine_that_gives_up_may_end_well(outcome, engine):
    """Some do, with a word of why: that is believed."""
    outcome.stop(Cause.STOPPED, 15, by_server=1)
    outcome.note_engine_end(engine("connection to h2 was lost", "exit 0"), NAMES)
    [judged] = outcome.events(Judged)
    assert judged.verdict.reason == "sh 1.0 gave the run up: connection to h2 was lost"
    assert (judged.verdict.server, outcome.finish.cause) == ("10.0.0.2", Cause.FAILED)


def test_an_engine_that_was_killed_is_the_cause_and_no_wish(outcome, engine):
    """Whatever it had said before; it takes agents with it, which are not to blame. It may be started again."""
    outcome.hearing.lost[0] = outcome.hearing.lost[1] = "the process that started its agent was killed"
    outcome.judge(0, engine("Warning: setpgid failed", "kill -9 $$"))
    [judged] = outcome.events(Judged)
    assert judged.verdict.reason == "sh 1.0 itself was killed, by SIGKILL (signal 9)"
    assert (judged.verdict.server, outcome.again) == (None, True)


@pytest.mark.parametrize(
    ("end", "cause", "told"),
    [
        ("kill -9 $$", Cause.FAILED, "sh 1.0 itself was killed, by SIGKILL (signal 9)"),
        ("exit 143", Cause.FAILED, "sh 1.0 ended with exit code 143, and ended its agents, without a word of why"),
        ("exit 137", Cause.FAILED, "sh 1.0 ended with exit code 137, and ended its agents, without a word of why"),
        ("exit 0", Cause.STOPPED, None),
    ],
)
def test_an_end_of_agents_that_nobody_told_the_engine_of_has_its_reason_there(outcome, engine, end, cause, told):
    """One that ends well has done what it was asked for."""
    outcome.stop(Cause.STOPPED, 15, by_server=1)
    ended = engine("", end)
    ended.forget_words()
    outcome.note_engine_end(ended, NAMES)
    assert [judged.verdict.reason for judged in outcome.events(Judged)] == ([told] if told else [])
    assert outcome.finish.cause is cause


def test_who_of_several_that_are_named_was_lost_is_not_guessed(outcome, engine):
    """Then nothing is repeated either."""
    outcome.stop(Cause.STOPPED, 15, by_server=1)
    outcome.note_engine_end(engine("h1: cannot talk to h2"), NAMES)
    assert [judged.verdict.server for judged in outcome.events(Judged)] == [None]
    assert outcome.again is False


@pytest.mark.parametrize("lost", [True, False], ids=["server lost", "engine gave up"])
def test_a_person_who_wants_the_end_after_the_engine_gets_it(outcome, engine, lost):
    """No restart, whatever the engine's own reason was."""
    outcome.stop(Cause.STOPPED, 15, by_server=1)
    outcome.stop_restart(by_server=None)
    if lost:
        outcome.hearing.lost[1] = "nothing was heard of it"
    outcome.settle()
    outcome.note_engine_end(engine(GAVE_UP), NAMES)
    assert (outcome.again, outcome.events(Judged)) == (False, [])
    assert (outcome.finish.cause, outcome.finish.exit_code) == (Cause.STOPPED, 143)


@pytest.mark.parametrize("silent_s", [0.0, 20.0], ids=["closed", "silent"])
def test_when_a_server_was_lost_is_kept_by_the_wall_clock(outcome, silent_s):
    """It was there when it was asked what it has answered; where it fell silent, that was about when it owed an answer."""
    now_s = time.monotonic()
    peer = SimpleNamespace(
        answered_ns=int((now_s - 19) * 1e9), unanswered_ns=int((now_s - 16) * 1e9), silent_s=silent_s
    )
    outcome.note_loss(1, "why", peer, hears_others=True)
    outcome.hearing.take(0, to_fields(Evidence((raised(0, time.time() - 17.5),))), Clock())
    verdict, _, _ = outcome.hearing.verdict()
    assert (verdict.culprit, verdict.confidence) == (0, Confidence.LIKELY)
    outcome.hearing.take(0, to_fields(Evidence((raised(0, time.time() - 8),))), Clock())
    assert outcome.hearing.verdict()[0].server == ("10.0.0.2" if silent_s else None)


@pytest.mark.parametrize(
    ("silent_s", "hears_others", "expected"),
    [(20.0, True, Confidence.CERTAIN), (20.0, False, Confidence.LIKELY), (0.0, False, Confidence.CERTAIN)],
    ids=["others are heard", "nobody else is heard", "its agent was killed"],
)
def test_silence_is_no_certain_loss_where_no_other_machine_is_heard(outcome, silent_s, hears_others, expected):
    """The network of the machine that coordinates may have failed; who closes a connection was there to do so."""
    now_ns = time.monotonic_ns()
    peer = SimpleNamespace(answered_ns=now_ns - 19 * 10**9, unanswered_ns=now_ns - 16 * 10**9, silent_s=silent_s)
    outcome.note_loss(1, "why", peer, hears_others=hears_others)
    waiting = RankStack("running", "in all_reduce, called at a.py:4", "a.py:4", in_collective=True)
    outcome.hearing.take(0, to_fields(Evidence((RankEvidence(0, None, None, None, stack=waiting),))), Clock())
    verdict = outcome.hearing.verdict()[0]
    assert (verdict.server, verdict.confidence) == ("10.0.0.2", expected)


def test_a_restart_that_is_under_way_is_given_up_for_a_person(outcome):
    """And not for an engine, which may end agents while they end their ranks."""
    outcome.hearing.lost[1] = "nothing was heard of it"
    decided = outcome.judge(0, None)
    assert (decided.restarts, outcome.again, outcome.again_here) == (False, True, False)
    outcome.stop_restart(by_server=1)
    assert outcome.again
    outcome.stop_restart(by_server=None)
    assert not outcome.again
    assert outcome.events(NotRestarting)
    assert [stopping.restarts for stopping in outcome.events(Stopping)] == [True]
