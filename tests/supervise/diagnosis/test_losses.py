"""Lost servers beside what the others tell."""

import pytest

from launcher.core.verdict import Confidence
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.servers import ENDED_S, Evidence, Loss, weigh
from launcher.supervise.diagnosis.stack_parser import RankStack

CERTAIN, LIKELY, UNSURE = Confidence.CERTAIN, Confidence.LIKELY, Confidence.UNSURE
START_NS = 1_700_000_000_000_000_000
WAITING = RankStack("running", "in all_reduce, called at a.py:4", "a.py:4", in_collective=True)
SLEEPING = RankStack("running", "at a.py:7: time.sleep(9)", "a.py:7")
STOPPED = RankStack("stopped", "stopped (SIGSTOP)")
CLOSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:34185"
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete"


def at(seconds):
    return START_NS + int(seconds * 1e9)


def raised(rank, at_s, name="ValueError", message="no", **more):
    failure = FailureRecord(at(at_s), 1, "exception", name, message, "a.py:1 in f")
    return RankEvidence(rank, 1, at(at_s + 0.05), rank, failure=failure, **more)


def ended(rank, at_s, status, **more):
    return RankEvidence(rank, status, at(at_s), rank, **more)


def living(rank, stack=WAITING):
    return RankEvidence(rank, None, None, None, stack=stack)


def unheard(rank):
    return RankEvidence(rank, None, None, None, heard=False)


def loss(since_s, until_s, *, server_index=1, probably_s=None, **more):
    return Loss(server_index, at(since_s), at(until_s if probably_s is None else probably_s), at(until_s), **more)


def weighed(ranks, *losses, hung=(), stalled_s=None):
    """Who is to blame, a rank or "server N", and how sure that is."""
    evidence = Evidence((*ranks, unheard(8), unheard(9)), hung)
    verdict = evidence.verdict
    found = weigh(verdict, evidence, losses, None if stalled_s is None else at(stalled_s))
    return (verdict.culprit if found.loss is None else f"server {found.loss.server_index}"), found.confidence


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (raised(0, 9.0 - ENDED_S), (0, CERTAIN)),
        (raised(0, 8.9), (0, LIKELY)),
        (raised(0, 9.5), (0, LIKELY)),
        (raised(0, 10.1), ("server 1", CERTAIN)),
        (raised(0, 10.1, clock_error_ns=200_000_000), ("server 1", LIKELY)),
        (raised(0, 8.9, clock_error_ns=200_000_000), (0, LIKELY)),
        (ended(0, 10.5, -11), ("server 1", LIKELY)),
        (ended(0, 11.5, -11), ("server 1", CERTAIN)),
        (ended(0, 11.5, -11, late_s=3.0), ("server 1", LIKELY)),
    ],
)
def test_a_rank_s_own_fault_beats_a_loss_only_where_it_was_first(fault, expected):
    """The server answered what it was asked at 9 s, and was found lost at 10 s."""
    assert weighed([fault, living(1)], loss(9, 10)) == expected


def test_a_rank_s_own_fault_while_a_server_was_silent_already_is_less_likely_the_first():
    """It has not answered what it was asked at 10 s, and was taken for lost at 24 s."""
    silent = loss(9, 24, probably_s=10)
    assert weighed([raised(0, 9.5), living(1)], silent) == (0, LIKELY)
    assert weighed([raised(0, 15), living(1)], silent) == ("server 1", LIKELY)


@pytest.mark.parametrize(
    "ranks",
    [
        [living(0), living(1, SLEEPING)],
        [living(0), living(1, STOPPED)],
        [raised(0, 10.01, "RuntimeError", CLOSED), living(1, SLEEPING)],
        [raised(0, 9.9, "RuntimeError", CLOSED), living(1, SLEEPING)],
    ],
)
def test_a_loss_beats_whoever_is_only_missed(ranks):
    """A connection is closed by who has died, and not by who is busy."""
    assert weighed(ranks, loss(9, 10)) == ("server 1", CERTAIN)


@pytest.mark.parametrize(
    ("ranks", "stalled_s", "expected"),
    [
        ([raised(0, 9.5, "RuntimeError", TIMED_OUT), living(1, SLEEPING)], None, ("server 1", LIKELY)),
        ([raised(0, 9.5, "RuntimeError", CLOSED), ended(1, 9.3, 0)], None, ("server 1", LIKELY)),
        ([raised(0, 9.5, "ConnectionResetError", "reset"), living(1)], None, ("server 1", LIKELY)),
        ([raised(0, 8.5, "RuntimeError", CLOSED), living(1)], None, ("server 1", LIKELY)),
        ([raised(0, 8.5, "RuntimeError", TIMED_OUT), living(1, STOPPED)], None, (1, LIKELY)),
        ([living(0), living(1, STOPPED)], 5, (1, LIKELY)),
        ([living(0), living(1, STOPPED)], 9.5, ("server 1", LIKELY)),
        ([living(0), living(1, SLEEPING)], 5, ("server 1", LIKELY)),
        ([living(0), living(1)], 9.5, ("server 1", CERTAIN)),
    ],
)
def test_a_loss_is_only_likely_where_others_may_have_been_missed_before(ranks, stalled_s, expected):
    """And a stopped rank that surely was beats it."""
    hung = () if stalled_s is None else (0, 1)
    assert weighed(ranks, loss(9, 10), hung=hung, stalled_s=stalled_s) == expected


def test_of_several_losses_at_one_time_the_first_is_likely():
    """Where their times lie apart it is certain; what was noticed first may be the later one."""
    later = loss(9.5, 10.5, server_index=2)
    assert weighed([living(0)], later, loss(9, 10)) == ("server 1", LIKELY)
    assert weighed([living(0)], later, loss(4, 9)) == ("server 1", CERTAIN)


def test_a_loss_is_only_likely_where_its_own_ranks_had_failed_before():
    """That was told; what of, was not. Of any of the lost servers."""
    assert weighed([living(0)], loss(9, 10, ended=(8,))) == ("server 1", LIKELY)
    assert weighed([living(0)], loss(4, 9), loss(9.5, 10.5, server_index=2, ended=(9,))) == ("server 1", LIKELY)


def test_a_server_that_had_testified_is_the_cause_only_where_nothing_else_is():
    """What was told before it was lost came before its loss."""
    testified = loss(9, 10, testified=True)
    assert weighed([raised(0, 9.9), living(1)], testified) == (0, CERTAIN)
    assert weighed([living(0), living(1)], testified, hung=(0, 1)) == ("server 1", LIKELY)
