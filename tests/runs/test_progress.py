"""Events folded into what is known of a run."""

import pytest

from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Cause,
    Continued,
    Judged,
    Killing,
    Leftovers,
    NotRestarting,
    Paused,
    Preloaded,
    Preloading,
    RankEnded,
    RankStarted,
    Slow,
    Stamped,
    Stopping,
    Trouble,
)
from launcher.core.proc import ProcessId
from launcher.core.verdict import Confidence, Verdict
from launcher.runs.progress import Progress, State

AGENT = ProcessId(11, 500, "host", "boot")
STARTED = AgentStarted(AGENT, None, 2)
VERDICT = Verdict(1, Confidence.CERTAIN, "it was first")


def told(*events, rank_count=None):
    """A progress that took `events`, the first at 1000 ns, one every nanosecond."""
    progress = Progress(rank_count)
    for number, event in enumerate(events):
        progress.take(Stamped(1000 + number, 0, event))
    return progress


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], State.STARTING),
        ([STARTED, AttemptStarted(0, 1)], State.STARTING),
        ([STARTED, AttemptStarted(0, 1), Preloading(3, ("torch",))], State.PRELOADING),
        ([STARTED, AttemptStarted(0, 1), Preloading(3, ()), Preloaded(0.1)], State.STARTING),
        ([STARTED, AttemptStarted(0, 1), Preloading(3, ()), Trouble("unsafe"), RankStarted(0, 5)], State.RUNNING),
        ([STARTED, Preloading(3, ()), RankStarted(0, 5), AttemptStarted(1, 2)], State.RESTARTING),
        ([STARTED, RankStarted(0, 5), Paused()], State.PAUSED),
        ([STARTED, RankStarted(0, 5), Paused(), Continued()], State.RUNNING),
        ([STARTED, RankStarted(0, 5), Paused(), Stopping(Cause.STOPPED, 1)], State.ENDING),
        ([STARTED, RankStarted(0, 5), RankEnded(0, 5, 0), Leftovers(1)], State.ENDING),
        ([STARTED, RankStarted(0, 5), Stopping(Cause.FAILED, 1, restarts=True)], State.RESTARTING),
        (
            [STARTED, RankStarted(0, 5), Stopping(Cause.FAILED, 1, restarts=True), AttemptStarted(1, 2)],
            State.RESTARTING,
        ),
        ([STARTED, AttemptStarted(1, 2), RankStarted(0, 6)], State.RUNNING),
    ],
)
def test_the_state_follows_from_the_events(events, state):
    """Each event leads where its name says, and a preloading that was given up is over with the first rank."""
    assert told(*events).state is state


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (Cause.FINISHED, State.FINISHED),
        (Cause.FAILED, State.FAILED),
        (Cause.HUNG, State.HUNG),
        (Cause.STOPPED, State.STOPPED),
        (Cause.HEAD_LOST, State.LOST),
        (Cause.AGENT_LOST, State.LOST),
    ],
)
def test_the_last_word_decides(cause, state):
    """After it a run is over, whatever was said before."""
    progress = told(STARTED, RankStarted(0, 5), Stopping(Cause.FAILED, 1), AgentEnded(cause, 9))
    assert (progress.state, progress.ended, progress.exit_code, progress.cause) == (state, True, 9, cause)
    assert state.over
    assert not state.going_on


def test_another_attempt_begins_anew_and_keeps_the_last_one():
    """Ranks, exits and judgement of the attempt before are in `past`, which ended before the next began."""
    progress = told(
        STARTED, AttemptStarted(0, 100), RankStarted(0, 5, 77), RankStarted(1, 6), RankEnded(1, 6, 3), Judged(VERDICT),
        Slow(0, 2.0, 1.0, 5), Stopping(Cause.FAILED, 1, restarts=True), Killing(1), RankEnded(0, 5, -9),
        AttemptStarted(1, 101), RankStarted(0, 8),
    )  # fmt: skip
    assert (progress.attempt, progress.running, progress.exits, progress.verdict) == (1, 1, {}, None)
    assert (progress.stopping, progress.slow, progress.killed, progress.first_failure) == (None, {}, 0, None)
    before, now = progress.attempts
    assert (before.number, before.master_port, before.cause, before.killed) == (0, 100, Cause.FAILED, 1)
    assert (before.verdict, [ended.global_rank for ended in before.exits]) == (VERDICT, [1, 0])
    assert (before.started_ns, before.ended_ns) == (1001, 1009)
    assert (now.number, now.master_port, now.started_ns) == (1, 101, 1010)


def test_ranks_are_counted_by_their_process():
    """The agent's word is taken where nobody else says how many ranks there are."""
    progress = told(STARTED, RankStarted(0, 5, 77), RankStarted(1, 6, 78), RankEnded(0, 5, 4))
    assert (progress.rank_count, progress.running) == (2, 1)
    assert progress.process_of(1) == ProcessId(6, 78, "host", "boot")
    assert progress.process_of(7) is None
    assert progress.first_failure.status == 4
    assert (progress.exits[0].started_ns, progress.exits[0].ended_ns) == (1001, 1003)
    assert told(STARTED, rank_count=5).rank_count == 5


def test_what_ends_while_it_is_ended_is_no_failure():
    """Nor is a rank that ended well."""
    progress = told(STARTED, RankEnded(0, 5, 0), Stopping(Cause.STOPPED, 2), RankEnded(1, 6, -15), NotRestarting("no"))
    assert progress.first_failure is None
    assert progress.not_restarting == "no"


def test_the_grace_that_passed_is_known():
    """From the first SIGTERM, or the notice of leftovers, to SIGKILL."""
    progress = told(STARTED, Stopping(Cause.STOPPED, 2), Trouble(""), Killing(3))
    assert (progress.killed, progress.grace_passed_s) == (3, 2e-9)
