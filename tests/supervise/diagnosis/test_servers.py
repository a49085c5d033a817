"""What several servers know of a failed attempt, judged as if one had seen it all, and beside lost servers."""

import json

import pytest

from launcher.core.codec import decode, encode
from launcher.core.verdict import Confidence
from launcher.logs.tracebacks import FoundTraceback
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.servers import (
    ENDED_S,
    Evidence,
    Loss,
    judged,
    merge_evidence,
    weigh,
)
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.event_log import EventLog

S = 10**9
CERTAIN, LIKELY, UNSURE = Confidence.CERTAIN, Confidence.LIKELY, Confidence.UNSURE
WAITING = RankStack("running", "in all_reduce, called at a.py:4", "a.py:4", in_collective=True)
SLEEPING = RankStack("running", "at a.py:7: time.sleep(9)", "a.py:7")
STOPPED = RankStack("stopped", "stopped (SIGSTOP)")
CLOSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:34185"
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete"


def at(seconds):
    return int(seconds * S)


def raised(global_rank, at_s, name="ValueError", message="no", *, place=0, noticed_s=None, **more):
    """A rank whose hook noted when it raised."""
    failure = FailureRecord(at(at_s), 100 + global_rank, "exception", name, message, "a.py:1 in f")
    return RankEvidence(global_rank, 1, at(at_s if noticed_s is None else noticed_s), place, failure=failure, **more)


def ended(global_rank, at_s, status=1, *, place=0, **more):
    """A rank of which only the noticed end is known."""
    return RankEvidence(global_rank, status, at(at_s), place, **more)


def living(global_rank, stack=WAITING):
    return RankEvidence(global_rank, None, None, None, stack=stack)


@pytest.fixture
def event_log(tmp_path):
    made = EventLog(tmp_path / "events.jsonl", 0)
    yield made
    made.close()


def test_evidence_comes_back_from_json_as_it_was():
    """Stacks, failures and logs of ranks too."""
    stack = RankStack("running", "at a.py:1", "a.py:1 in f", in_collective=True, frames=("a", "b"), others=(("c",), ()))
    evidence = Evidence(
        (
            raised(3, 5.5, order_known=False, log_tail="x\n\udcff", oom=True, open_mpi=True, disk_full=True, step=7, exit_reason="no"),
            living(4, stack=stack),
            ended(5, 1, logged=FoundTraceback("ValueError", "no", None, "text", lines_after=3)),
        ),
        (4,), 9,
    )  # fmt: skip
    assert decode(Evidence, json.loads(json.dumps(encode(evidence)))) == evidence


@pytest.mark.parametrize("fields", [None, [], {}, "x", {"ranks": None}, {"ranks": [1]}, {"ranks": [{}]}], ids=repr)
def test_what_is_no_evidence_is_refused(fields):
    """As a ValueError."""
    with pytest.raises(ValueError, match="not a valid Evidence"):
        decode(Evidence, fields)


def test_the_first_failure_over_servers_is_named_by_one_clock(event_log, tmp_path):
    """The second server's clock is a minute ahead: what reads as later there was first."""
    first, second = Evidence((raised(0, 100.5), living(1))), Evidence((living(2), raised(3, 160.2)))
    assert judged(merge_evidence({0: first, 1: second}, {1: 60 * S}), event_log.record).culprit == 3
    assert judged(merge_evidence({0: first, 1: second}, {}), event_log.record).culprit == 0
    assert judged(merge_evidence({1: second, 0: first}, {0: -60 * S, 1: -1 * S}), event_log.record).culprit == 0


def test_times_become_the_coordinator_s():
    """Of failures and of ends; what was not known stays unknown."""
    whole = merge_evidence({0: Evidence((living(0),)), 1: Evidence((raised(1, 10, noticed_s=11),))}, {1: 3 * S})
    assert [rank.global_rank for rank in whole.ranks] == [0, 1]
    assert (whole.ranks[0].ended_ns, whole.ranks[0].ended_index) == (None, None)
    assert (whole.ranks[1].failure.time_ns, whole.ranks[1].ended_ns) == (7 * S, 8 * S)


def test_places_are_counted_over_all_servers():
    """In the order of the noticed ends; those of one server in the order that it saw."""
    first = Evidence((ended(0, 5, place=1), ended(1, 5, place=0)))
    second = Evidence((ended(2, 3, place=0), ended(3, 9, place=1)))
    whole = merge_evidence({0: first, 1: second}, {})
    assert {rank.global_rank: rank.ended_index for rank in whole.ranks} == {2: 0, 1: 1, 0: 2, 3: 3}


def test_an_order_over_servers_is_known_only_where_much_time_lies_between():
    """Within a server it is known as before; ends that were no failures do not count."""

    def known(*servers):
        whole = merge_evidence(dict(enumerate(Evidence(ranks) for ranks in servers)), {})
        return {rank.global_rank: rank.order_known for rank in whole.ranks}

    assert known((ended(0, 5),), (ended(1, 5.9),)) == {0: False, 1: False}
    assert known((ended(0, 5),), (ended(1, 6.1),)) == {0: True, 1: True}
    assert known((ended(0, 5, place=0), ended(1, 5.1, place=1)), (living(2),)) == {0: True, 1: True, 2: True}
    assert known((ended(0, 5),), (ended(1, 5.5, status=0),)) == {0: True, 1: True}
    assert known((ended(0, 5, order_known=False),), (ended(1, 9),)) == {0: False, 1: True}
    near = (ended(0, 5), ended(1, 5.2, place=1), ended(2, 5.4, place=2)), (ended(3, 6.1),)
    assert known(*near) == {0: True, 1: False, 2: False, 3: False}


@pytest.mark.parametrize(
    ("held_up", "expected"),
    [
        (ended(3, 15, late_s=10), {0: False, 1: False, 2: False, 3: False}),  # perhaps it was before all of them
        (ended(3, 15, late_s=2.5), {0: True, 1: True, 2: False, 3: False}),
        (ended(3, 15), {0: True, 1: True, 2: True, 3: True}),
        (ended(3, 8, late_s=7), {0: True, 1: True, 2: True, 3: True}),  # late or not: before all of them
    ],
)
def test_whoever_looked_late_knows_no_order_within_that(held_up, expected):
    """However many other servers noticed something in between; and none of theirs comes into doubt but by that."""
    testimonies = {0: ended(0, 10), 1: ended(1, 11.5), 2: ended(2, 13), 3: held_up}
    whole = merge_evidence({server: Evidence((rank,)) for server, rank in testimonies.items()}, {})
    assert {rank.global_rank: rank.order_known for rank in whole.ranks} == expected


def test_clocks_that_may_be_wrong_leave_an_order_in_doubt():
    """By as much as those of both servers may be."""
    testimonies = {0: Evidence((ended(0, 5),)), 1: Evidence((ended(1, 6.5),))}
    for error_ns, known in (({}, True), ({0: S // 5, 1: S // 5}, True), ({0: S // 5, 1: 2 * S // 5}, False)):
        assert [rank.order_known for rank in merge_evidence(testimonies, {}, error_ns).ranks] == [known, known]


def test_hung_ranks_and_steps_of_all_servers_count():
    """Whoever told of them."""
    whole = merge_evidence(
        {1: Evidence((living(1),), (1,), 7), 0: Evidence((living(0),), (0,)), 2: Evidence((), (), 3)}, {}
    )
    assert (whole.hung, whole.highest_step) == ((0, 1), 7)
    assert merge_evidence({}, {}) == Evidence(())


def test_ranks_of_servers_that_have_told_nothing_are_unheard():
    """They are neither known to run nor to have ended."""
    whole = merge_evidence({0: Evidence((living(0),))}, {}, unheard=[2, 1])
    assert [(rank.global_rank, rank.heard, rank.alive) for rank in whole.ranks] == [
        (0, True, True), (1, False, False), (2, False, False),
    ]  # fmt: skip


def test_evidence_that_cannot_be_judged_ends_no_judge(event_log, tmp_path):
    """It is told as trouble, and nobody is blamed."""
    broken = Evidence((RankEvidence(0, "x", 1, 0),))
    verdict = judged(broken, event_log.record)
    assert (verdict.culprit, verdict.confidence) == (None, Confidence.UNSURE)
    assert "cannot be judged" in (tmp_path / "events.jsonl").read_text()


def test_nobody_heard_is_nobody_blamed(event_log, tmp_path):
    """Where all servers were lost before they could testify."""
    verdict = judged(merge_evidence({}, {}), event_log.record)
    assert verdict.culprit is None
    assert "cannot be judged" not in (tmp_path / "events.jsonl").read_text()


# --- lost servers beside what the others tell ---


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
