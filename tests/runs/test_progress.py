"""Compute the state of a run from its events."""

import gc
import time

import pytest

from launcher.core import events
from launcher.core.events import COORDINATOR, AttemptStarted, Cause, RankEnded, RankStarted, Stopping, TimestampedEvent
from launcher.core.machine.proc import ProcessId
from launcher.core.verdict import Confidence, Verdict
from launcher.runs.progress import AttemptEnd, Progress, State

AGENT = ProcessId(11, 500, "host", "boot")
STARTED = events.AgentStarted(AGENT, None, 2)
VERDICT = Verdict(1, Confidence.CERTAIN, "it was first")


def told(*took, rank_count=None):
    """Return a Progress that took these events, one per nanosecond from 1000 ns on."""
    return told_by(*((0, event) for event in took), rank_count=rank_count)


def told_by(*words, rank_count=None):
    """Return a Progress that took each (server_index, event) or (server_index, event, time)."""
    progress = Progress(rank_count)
    for number, (server_index, event, *time_ns) in enumerate(words):
        progress.take(TimestampedEvent(*time_ns or [1000 + number], server_index, event))
    return progress


@pytest.mark.parametrize(("took", "state"), [
    ([], State.STARTING), ([AttemptStarted(0, 1)], State.STARTING),
    ([AttemptStarted(0, 1), events.Preloading(3, ("torch",))], State.PRELOADING),
    ([AttemptStarted(0, 1), events.Preloading(3, ()), events.Preloaded(0.1)], State.STARTING),
    ([AttemptStarted(0, 1), events.Preloading(3, ()), events.Trouble("unsafe"), RankStarted(0, 5)], State.RUNNING),
    ([events.Preloading(3, ()), RankStarted(0, 5), AttemptStarted(1, 2)], State.RESTARTING),
    ([RankStarted(0, 5), events.Paused()], State.PAUSED),
    ([RankStarted(0, 5), events.Paused(), events.Continued()], State.RUNNING),
    ([RankStarted(0, 5), events.Paused(), Stopping(Cause.STOPPED, 1)], State.ENDING),
    ([RankStarted(0, 5), RankEnded(0, 5, 0), events.Leftovers(1)], State.ENDING),
    ([RankStarted(0, 5), Stopping(Cause.FAILED, 1, restarts=True)], State.RESTARTING),
    ([RankStarted(0, 5), Stopping(Cause.FAILED, 1, restarts=True), AttemptStarted(1, 2)], State.RESTARTING),
    ([AttemptStarted(1, 2), RankStarted(0, 6)], State.RUNNING),
])  # fmt: skip
def test_the_state_follows_from_the_events(took, state):
    assert told(STARTED, *took).state is state


@pytest.mark.parametrize(("cause", "state"), [
    (Cause.FINISHED, State.FINISHED), (Cause.FAILED, State.FAILED), (Cause.HUNG, State.HUNG),
    (Cause.STOPPED, State.STOPPED), (Cause.HEAD_LOST, State.LOST), (Cause.AGENT_LOST, State.LOST),
])  # fmt: skip
def test_the_last_word_decides(cause, state):
    progress = told(STARTED, RankStarted(0, 5), Stopping(Cause.FAILED, 1), events.AgentEnded(cause, 9))
    assert (progress.state, progress.exit_code, progress.current.ending.cause) == (state, 9, cause)
    assert progress.ended
    assert state.over
    assert not state.going_on


def test_another_attempt_begins_anew_and_keeps_the_last_one():
    progress = told(
        STARTED, AttemptStarted(0, 100), RankStarted(0, 5, 77), RankStarted(1, 6), RankEnded(1, 6, 3),
        events.Judged(VERDICT), events.Slow(0, 2.0, 1.0, 5), Stopping(Cause.FAILED, 1, restarts=True),
        events.Killing(1), RankEnded(0, 5, -9), AttemptStarted(1, 101), RankStarted(0, 8),
    )  # fmt: skip
    current = progress.current
    assert (current.number, current.running, current.exits, current.verdict) == (1, 1, {}, None)
    assert (current.ending.stopping, current.slow, current.ending.killed, current.first_failure) == (None, {}, 0, None)
    before, now = progress.attempts
    assert (before.number, before.master_port, before.cause, before.killed) == (0, 100, Cause.FAILED, 1)
    assert (before.verdict, [ended.global_rank for ended in before.exits]) == (VERDICT, [1, 0])
    assert (before.started_ns, before.ended_ns) == (1001, 1009)
    assert (now.number, now.master_port, now.started_ns) == (1, 101, 1010)


def test_ranks_are_counted_by_their_process():
    """The agent's word is taken where nobody else says how many ranks there are."""
    progress = told(STARTED, RankStarted(0, 5, 77), RankStarted(1, 6, 78), RankEnded(0, 5, 4))
    assert (progress.rank_count, progress.current.running) == (2, 1)
    assert progress.process_of(1) == ProcessId(6, 78, "host", "boot")
    assert progress.process_of(7) is None
    assert progress.current.first_failure.status == 4
    assert (progress.current.exits[0].started_ns, progress.current.exits[0].ended_ns) == (1001, 1003)
    assert told(STARTED, rank_count=5).rank_count == 5


def test_what_ends_while_it_is_ended_is_no_failure():
    progress = told(
        STARTED, RankEnded(0, 5, 0), Stopping(Cause.STOPPED, 2), RankEnded(1, 6, -15), events.NotRestarting("no")
    )
    assert progress.current.first_failure is None
    assert progress.not_restarting == "no"


def test_the_grace_that_passed_is_known():
    progress = told(STARTED, Stopping(Cause.STOPPED, 2), events.Trouble(""), events.Killing(3))
    assert (progress.current.ending.killed, progress.current.ending.grace_passed_s) == (3, 2e-9)


COORDINATES = ProcessId(10, 1, "h1", "b1")
THERE = [ProcessId(pid, 2, f"h{pid}", f"b{pid}") for pid in (1, 2)]
OF_TWO_SERVERS = [
    (COORDINATOR, events.AgentStarted(COORDINATES, None, 3)), (0, events.AgentStarted(THERE[0], COORDINATES, 2)),
    (1, events.AgentStarted(THERE[1], None, 1)), (COORDINATOR, AttemptStarted(0, 9)), (0, RankStarted(0, 5, 70)),
    (1, RankStarted(2, 5, 71)), (0, RankStarted(1, 6, 72)),
]  # fmt: skip


def test_the_coordinator_of_several_servers_speaks_for_all():
    progress = told_by(*OF_TWO_SERVERS)
    assert (progress.agent, progress.head, progress.rank_count) == (COORDINATES, None, 3)
    assert progress.agents == {COORDINATOR: COORDINATES, 0: THERE[0], 1: THERE[1]}
    assert progress.process_of(0) == ProcessId(5, 70, "h1", "b1")
    assert progress.process_of(2) == ProcessId(5, 71, "h2", "b2")


def test_what_several_servers_count_is_added_up():
    words = [
        (0, events.Leftovers(1)), (1, events.Leftovers(2)), (COORDINATOR, Stopping(Cause.FAILED, 1)),
        (0, events.Killing(1)), (1, events.Killing(4)), (0, events.Killing(3)),
        (0, events.Unkillable((7,))), (1, events.Unkillable((8, 9))),
    ]  # fmt: skip
    progress = told_by(*OF_TWO_SERVERS, *words)
    assert (progress.current.ending.killed, progress.current.ending.leftovers, progress.unkillable) == (7, 3, [7, 8, 9])
    again = told_by(*OF_TWO_SERVERS, *words, (COORDINATOR, AttemptStarted(1, 10)))
    assert (again.current.ending, again.past[0].killed) == (AttemptEnd(), 7)


def test_clocks_of_servers_that_differ_a_little_turn_no_time_back():
    assert told_by((0, STARTED, 1000), (0, events.Trouble("a"), 5000), (1, events.Trouble("b"), 4000)).seconds == 4e-6


def test_a_run_that_did_not_begin_says_why():
    waiting = told_by((COORDINATOR, STARTED), (COORDINATOR, events.Awaiting(("h2",), 2.0)))
    assert (waiting.state, waiting.not_begun) == (State.STARTING, None)
    refused = events.NotBegun("server h2 did not come", "start it")
    over = told_by((COORDINATOR, STARTED), (COORDINATOR, refused), (COORDINATOR, Stopping(Cause.FAILED, 1)),
                   (COORDINATOR, events.AgentEnded(Cause.FAILED, 3)))  # fmt: skip
    assert (over.state, over.not_begun, over.exit_code) == (State.FAILED, refused, 3)


@pytest.mark.parametrize("event_of", [
    lambda number: AttemptStarted(number, 1), lambda number: events.Unkillable((number,)),
    lambda number: RankStarted(number, 5),
], ids=["attempts", "unkillable", "ranks"])  # fmt: skip
def test_time_grows_in_proportion_to_the_events(event_of):
    """Anybody may have written the events; time that grows with their square keeps `status` busy for minutes."""

    def passed_s(count):
        stamped = [TimestampedEvent(number, 0, event_of(number)) for number in range(count)]
        progress = Progress()
        gc.disable()  # its work grows faster than the number of objects
        began_s = time.process_time()
        for one in stamped:
            progress.take(one)
        passed_s = time.process_time() - began_s
        gc.enable()
        return passed_s

    few_s = min(passed_s(1_000) for _ in range(3))
    assert min(passed_s(64_000) for _ in range(2)) < 200 * few_s  # 64 in proportion
