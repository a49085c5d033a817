"""What several servers know of a failed attempt, judged as if one had seen it all, and beside lost servers."""

import json

import pytest

from launcher.core.codec import decode, encode
from launcher.core.events import Trouble
from launcher.core.verdict import Confidence
from launcher.logs.tracebacks import FoundTraceback
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.servers import ENDED_S, Evidence, Loss, judged, merge_evidence, weigh
from launcher.supervise.diagnosis.stack_parser import RankStack

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
    failure = FailureRecord(at(at_s), 100 + global_rank, "exception", name, message, "a.py:1 in f")
    return RankEvidence(global_rank, 1, at(at_s if noticed_s is None else noticed_s), place, failure=failure, **more)


def ended(global_rank, at_s, status=1, *, place=0, **more):
    return RankEvidence(global_rank, status, at(at_s), place, **more)


def living(global_rank, stack=WAITING):
    return RankEvidence(global_rank, None, None, None, stack=stack)


def test_evidence_comes_back_from_json_as_it_was():
    stack = RankStack("running", "at a.py:1", "a.py:1 in f", in_collective=True, frames=("a", "b"), others=(("c",), ()))
    evidence = Evidence(
        (
            raised(3, 5.5, order_known=False, log_tail="x\n\udcff", oom=True, disk_full=True, step=7, exit_reason="no"),
            raised(6, 5.5, open_mpi=True),
            living(4, stack=stack),
            ended(5, 1, logged=FoundTraceback("ValueError", "no", None, "text", lines_after=3)),
        ),
        (4,), 9,
    )  # fmt: skip
    assert decode(Evidence, json.loads(json.dumps(encode(evidence)))) == evidence


def test_times_become_the_coordinator_s():
    whole = merge_evidence({0: Evidence((living(0),)), 1: Evidence((raised(1, 10, noticed_s=11),))}, {1: 3 * S})
    assert [rank.global_rank for rank in whole.ranks] == [0, 1]
    assert (whole.ranks[0].ended_ns, whole.ranks[0].ended_index) == (None, None)
    assert (whole.ranks[1].failure.time_ns, whole.ranks[1].ended_ns) == (7 * S, 8 * S)
    first = Evidence((ended(0, 5, place=1), ended(1, 5, place=0)))
    whole = merge_evidence({0: first, 1: Evidence((ended(2, 3, place=0), ended(3, 9, place=1)))}, {})
    assert {rank.global_rank: rank.ended_index for rank in whole.ranks} == {2: 0, 1: 1, 0: 2, 3: 3}


def between(held_up):
    return [ended(0, 10)], [ended(1, 11.5)], [ended(2, 13)], [held_up]


FIFTH_S = S // 5


@pytest.mark.parametrize(("servers", "error_ns", "known"), [
    (([ended(0, 5)], [ended(1, 5.9)]), {}, ""),
    (([ended(0, 5)], [ended(1, 6.1)]), {}, "0 1"),
    (([ended(0, 5, place=0), ended(1, 5.1, place=1)], [living(2)]), {}, "0 1 2"),
    (([ended(0, 5)], [ended(1, 5.5, status=0)]), {}, "0 1"),
    (([ended(0, 5, order_known=False)], [ended(1, 9)]), {}, "1"),
    (([ended(0, 5), ended(1, 5.2, place=1), ended(2, 5.4, place=2)], [ended(3, 6.1)]), {}, "0"),
    # One that looked late knows no order within that, and brings those of other servers into doubt only by that.
    (between(ended(3, 15, late_s=10)), {}, ""),  # perhaps it was before all of them
    (between(ended(3, 15, late_s=2.5)), {}, "0 1"),
    (between(ended(3, 15)), {}, "0 1 2 3"),
    (between(ended(3, 8, late_s=7)), {}, "0 1 2 3"),  # late or not: before all of them
    # Clocks may be wrong, by as much as those of both servers may be.
    (([ended(0, 5)], [ended(1, 6.5)]), {0: FIFTH_S, 1: FIFTH_S}, "0 1"),
    (([ended(0, 5)], [ended(1, 6.5)]), {0: FIFTH_S, 1: 2 * FIFTH_S}, ""),
])  # fmt: skip
def test_an_order_over_servers_is_known_only_where_much_time_lies_between(servers, error_ns, known):
    whole = merge_evidence({index: Evidence(tuple(ranks)) for index, ranks in enumerate(servers)}, {}, error_ns)
    assert " ".join(str(rank.global_rank) for rank in whole.ranks if rank.order_known) == known


def test_hung_ranks_and_steps_of_all_servers_count():
    servers = {1: Evidence((living(1),), (1,), 7), 0: Evidence((living(0),), (0,)), 2: Evidence((), (), 3)}
    whole = merge_evidence(servers, {}, unheard=[3, 2])
    assert (whole.hung, whole.highest_step) == ((0, 1), 7)
    assert [rank.global_rank for rank in whole.ranks] == [0, 1, 2, 3]
    assert [(rank.heard, rank.alive) for rank in whole.ranks] == [(True, True)] * 2 + [(False, False)] * 2
    assert merge_evidence({}, {}) == Evidence(())


def test_evidence_that_cannot_be_judged_ends_no_judge():
    events = []
    assert judged(merge_evidence({}, {}), events.append).culprit is None
    assert events == []
    verdict = judged(Evidence((RankEvidence(0, "x", 1, 0),)), events.append)
    assert (verdict.culprit, verdict.confidence) == (None, UNSURE)
    assert [type(event) for event in events] == [Trouble]


# --- lost servers beside what the others tell ---


def unheard(rank):
    return RankEvidence(rank, None, None, None, heard=False)


def loss(since_s, until_s, *, server_index=1, probably_s=None, **more):
    return Loss(server_index, at(since_s), at(until_s if probably_s is None else probably_s), at(until_s), **more)


LOST = loss(9, 10)  # the server answered what it was asked at 9 s, and was found lost at 10 s
SILENT = loss(9, 24, probably_s=10)  # it has not answered what it was asked at 10 s, and was taken for lost at 24 s
LATER = loss(9.5, 10.5, server_index=2)
TESTIFIED = loss(9, 10, testified=True)


def closed(at_s):
    return raised(0, at_s, "RuntimeError", CLOSED)


def timed_out(at_s):
    return raised(0, at_s, "RuntimeError", TIMED_OUT)


@pytest.mark.parametrize(("ranks", "losses", "stalled_s", "to_blame", "confidence"), [
    # A rank's own fault beats a loss only where it was first.
    ([raised(0, 9.0 - ENDED_S), living(1)], [LOST], None, 0, CERTAIN),
    ([raised(0, 8.9), living(1)], [LOST], None, 0, LIKELY),
    ([raised(0, 9.5), living(1)], [LOST], None, 0, LIKELY),
    ([raised(0, 10.1), living(1)], [LOST], None, "server 1", CERTAIN),
    ([raised(0, 10.1, clock_error_ns=FIFTH_S), living(1)], [LOST], None, "server 1", LIKELY),
    ([ended(0, 10.5, -11), living(1)], [LOST], None, "server 1", LIKELY),
    ([ended(0, 11.5, -11), living(1)], [LOST], None, "server 1", CERTAIN),
    ([ended(0, 11.5, -11, late_s=3.0), living(1)], [LOST], None, "server 1", LIKELY),
    # While a server was silent already, it is less likely the first.
    ([raised(0, 9.5), living(1)], [SILENT], None, 0, LIKELY),
    ([raised(0, 15), living(1)], [SILENT], None, "server 1", LIKELY),
    # A loss beats a rank that is only missed: a connection is closed by who has died, and not by who is busy.
    ([living(0), living(1, STOPPED)], [LOST], None, "server 1", CERTAIN),
    ([closed(10.01), living(1, SLEEPING)], [LOST], None, "server 1", CERTAIN),
    ([closed(9.9), living(1, SLEEPING)], [LOST], None, "server 1", CERTAIN),
    # It is only likely where others may have been missing before; a stopped rank that surely was beats it.
    ([timed_out(9.5), living(1, SLEEPING)], [LOST], None, "server 1", LIKELY),
    ([closed(9.5), ended(1, 9.3, 0)], [LOST], None, "server 1", LIKELY),
    ([raised(0, 9.5, "ConnectionResetError", "reset"), living(1)], [LOST], None, "server 1", LIKELY),
    ([closed(8.5), living(1)], [LOST], None, "server 1", LIKELY),
    ([timed_out(8.5), living(1, STOPPED)], [LOST], None, 1, LIKELY),
    ([living(0), living(1, STOPPED)], [LOST], 5, 1, LIKELY),
    ([living(0), living(1, STOPPED)], [LOST], 9.5, "server 1", LIKELY),
    ([living(0), living(1)], [LOST], 9.5, "server 1", CERTAIN),
    # Of several losses the first is certain only where their times lie apart.
    ([living(0)], [LATER, LOST], None, "server 1", LIKELY),
    ([living(0)], [LATER, loss(4, 9)], None, "server 1", CERTAIN),
    # A loss is only likely where ranks of any of the lost servers had failed before.
    ([living(0)], [loss(9, 10, ended=(8,))], None, "server 1", LIKELY),
    ([living(0)], [loss(4, 9), loss(9.5, 10.5, server_index=2, ended=(9,))], None, "server 1", LIKELY),
    # A server that had testified is the cause only where nothing else is: what was told came before its loss.
    ([raised(0, 9.9), living(1)], [TESTIFIED], None, 0, CERTAIN),
    ([living(0), living(1)], [TESTIFIED], 9.5, "server 1", LIKELY),
])  # fmt: skip
def test_what_is_to_blame_beside_lost_servers(ranks, losses, stalled_s, to_blame, confidence):
    evidence = Evidence((*ranks, unheard(8), unheard(9)), () if stalled_s is None else (0, 1))
    verdict = evidence.verdict
    found = weigh(verdict, evidence, losses, None if stalled_s is None else at(stalled_s))
    named = verdict.culprit if found.loss is None else f"server {found.loss.server_index}"
    assert (named, found.confidence) == (to_blame, confidence)
