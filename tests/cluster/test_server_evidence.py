"""What servers testify of an attempt that failed."""

import time
from types import SimpleNamespace

import pytest

from launcher.cluster.agent_connection import Clock
from launcher.cluster.server_evidence import ServerEvidence
from launcher.control.events import EvidenceReport
from launcher.control.orders import Apart
from launcher.core.codec import encode
from launcher.core.run_report import RankExit
from launcher.core.verdict import Role
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.servers import Evidence
from launcher.supervise.diagnosis.stack_parser import RankStack
from tests.servers import server

NOW_NS = time.time_ns()


def servers(*counts):
    return tuple(server(f"10.0.0.{index + 1}", sum(counts[:index]), ranks) for index, ranks in enumerate(counts))


@pytest.fixture
def make_evidence(event_log):
    return lambda *counts: ServerEvidence(servers(*counts), event_log, 10.0, lambda: NOW_NS)


def raised(global_rank, ago_s=0.0, error=("ValueError", "no")):
    at_ns = NOW_NS - int(ago_s * 10**9)
    failure = FailureRecord(at_ns, 7, "exception", *error, "a.py:1 in f")
    return RankEvidence(global_rank, 1, at_ns, 0, failure=failure)


def living(global_rank, stack=None):
    return RankEvidence(global_rank, None, None, None, stack=stack)


def report(server, *ranks, hung=()):
    return lambda evidence: evidence.take(EvidenceReport(server, 0, encode(Evidence(ranks, hung))), Clock())


def is_lost(server, why, since_s=1.0):
    since_ns = NOW_NS - int(since_s * 10**9)
    return lambda evidence: evidence.lose(server, why, since_ns=since_ns, probably_ns=NOW_NS)


def blamed(evidence, apart=()):
    """Return the rank and the server that are blamed, how confidently, and the cause."""
    found = evidence.diagnosed(apart)
    return found.verdict.culprit, found.verdict.server, found.verdict.confidence.value, found.cause.value


CLOSED, SILENT = "the connection was closed", "nothing was heard from it"
WAITING = RankStack("running", "in recv, called at a.py:4 in f", "a.py:4 in f", in_collective=True)
SLEEPING = RankStack("running", "at a.py:5 in f: time.sleep(60)", "a.py:5 in f")
STOPPED = RankStack("stopped", "stopped (SIGSTOP)")
PEER_CLOSED = ("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:34185")
APART = Apart((0, 1), (40001, 40002), "no answer")
BOTH_WAIT = report(0, living(0, WAITING), living(1, WAITING), hung=(0, 1))
# Ranks on each server; what happens; the rank and the server that are blamed, how surely, for what; the reason's end.
VERDICTS = {
    "a server speaks of its own ranks only":
        ((1, 1), [report(0, living(0)), report(1, raised(0), raised(1), hung=(0,))], (1, None, "certain", "failed"),
         ""),
    "the first of two losses":
        ((1, 1), [is_lost(1, CLOSED), is_lost(0, SILENT)], (None, "10.0.0.2", "likely", "failed"),
         f"server 10.0.0.2 with rank 1 was lost: {CLOSED}; server 10.0.0.1 with rank 0 was lost: {SILENT}"),
    "a failure long before a loss":
        ((1, 1), [is_lost(1, SILENT), report(0, raised(0, 1e9))], (0, None, "certain", "failed"),
         f"; server 10.0.0.2 with rank 1 was lost: {SILENT}"),
    "a server that is not heard":
        ((1, 1), [report(0, raised(0))], (0, None, "likely", "failed"),
         "; server 10.0.0.2 with rank 1 was not heard in time"),
    "all are heard":
        ((1, 1), [report(0, raised(0)), report(1, living(1))], (0, None, "certain", "failed"), "no other rank had failed"),
    # The unheard one may have failed before; the loss was not before, as far as all know that were heard.
    "a server that is lost, one that is not heard":
        ((1, 1, 1), [is_lost(1, SILENT), report(0, raised(0, 1e9))], (0, None, "likely", "failed"),
         f"; server 10.0.0.2 with rank 1 was lost: {SILENT}; server 10.0.0.3 with rank 2 was not heard in time"),
    # What the lost ones did is not known: of those that were heard, one waits and the other does not.
    "a rank that is only busy":
        ((2, 2), [is_lost(1, CLOSED), report(0, raised(0, -0.01, PEER_CLOSED), living(1, SLEEPING))],
         (None, "10.0.0.2", "certain", "failed"), f"server 10.0.0.2 with ranks 2-3 was lost: {CLOSED}"),
    "a failure before a loss":
        ((2, 2), [is_lost(1, SILENT), report(0, raised(0, 2.0), living(1, WAITING))], (0, None, "likely", "failed"),
         f"server 10.0.0.2 with ranks 2-3 was lost: {SILENT}; the state of its ranks is unknown"),
    "a server that is lost after it has testified":
        ((2, 2), [BOTH_WAIT, report(1, raised(2), living(3, WAITING)), is_lost(1, CLOSED, 1e9)],
         (2, None, "certain", "hung"), f"was lost: {CLOSED}"),
    "a hang that began before a loss":
        ((2, 2), [is_lost(1, SILENT, 0.0), report(0, living(0, WAITING), living(1, STOPPED), hung=(0, 1))],
         (1, None, "likely", "hung"), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_on_what_servers_testify_and_on_those_that_are_lost(make_evidence, name):
    counts, happens, expected, reason = VERDICTS[name]
    evidence = make_evidence(*counts)
    for step in happens:
        step(evidence)
    assert blamed(evidence) == expected
    verdict = evidence.diagnosed().verdict
    assert verdict.reason.endswith(reason)
    # People are shown the reason beside the failure.
    assert all(one.reason.endswith(reason) for one in verdict.failures if one.global_rank == verdict.culprit)


def test_all_servers_that_were_lost_at_about_the_same_time_are_named(make_evidence):
    evidence = make_evidence(1, 1, 1, 1, 1)
    for index in (3, 1, 2):
        is_lost(index, CLOSED)(evidence)
    report(0, living(0))(evidence)
    report(4, living(4))(evidence)
    verdict = evidence.diagnosed().verdict
    assert (verdict.server, verdict.servers) == ("10.0.0.4", ("10.0.0.2", "10.0.0.3", "10.0.0.4"))


@pytest.mark.parametrize(
    ("later_s", "named"), [(0.3, ("10.0.0.2", "10.0.0.3")), (4, ("10.0.0.2", "10.0.0.3")), (6, ())]
)
def test_servers_that_were_lost_one_shortly_after_the_other_are_named_together(make_evidence, later_s, named):
    """A rack fails in steps, and the next start is to leave all of its servers out."""
    evidence = make_evidence(1, 1, 1)
    for index, after_ns in ((1, 0), (2, int(later_s * 1e9))):
        evidence._now_ns = lambda now_ns=NOW_NS + after_ns: now_ns
        evidence.lose(index, CLOSED, since_ns=NOW_NS + after_ns, probably_ns=NOW_NS + after_ns)
    report(0, living(0))(evidence)
    verdict = evidence.diagnosed().verdict
    assert (verdict.server, verdict.servers, verdict.confidence.value) == ("10.0.0.2", named, "certain")


@pytest.mark.parametrize(
    ("others", "expected"),
    [((living(0),), (None, None, "likely")), ((raised(0, 1e9),), (0, None, "certain"))],
    ids=["nothing else", "a rank had failed long before"],
)
def test_a_machine_that_stood_still_blames_no_server_that_gave_it_up(make_evidence, others, expected):
    evidence = make_evidence(1, 1)
    evidence.lose(1, "gave up", since_ns=NOW_NS - 10**9, probably_ns=NOW_NS, stood_still_s=9.0)
    report(0, *others)(evidence)
    assert blamed(evidence)[:3] == expected
    assert evidence.diagnosed().verdict.stood_still_s == (9.0 if expected[0] is None else None)
    assert blamed(evidence)[3] == "failed"


def test_a_server_that_has_gone_after_its_ranks_ended_well_leaves_no_doubt(make_evidence):
    evidence = make_evidence(1, 2)
    evidence.note_finished(1, {rank: RankExit(rank, 7, 0, None, NOW_NS - 10**10) for rank in (1, 2)})
    assert evidence.awaited([0, 1]) == [0]
    report(0, raised(0))(evidence)
    assert blamed(evidence)[:3] == (0, None, "certain")


def test_a_lost_server_is_not_awaited(make_evidence):
    evidence = make_evidence(1, 1)
    is_lost(1, SILENT)(evidence)
    assert not evidence.take(EvidenceReport(0, 0, "nonsense"), Clock())
    assert not evidence.take(EvidenceReport(0, 0), Clock())
    assert evidence.awaited([0, 1]) == [0]
    report(0, living(0))(evidence)
    assert evidence.awaited([0, 1]) == []
    assert blamed(evidence)[1] == "10.0.0.2"


@pytest.mark.parametrize(
    ("rank", "asks"), [(living(2, WAITING), True), (living(2, SLEEPING), True), (raised(2), False)]
)
def test_servers_are_asked_whether_they_reach_each_other_where_no_rank_failed_by_itself(make_evidence, rank, asks):
    """A network that parts them would look the same; and only where several can answer."""
    evidence = make_evidence(2, 2)
    BOTH_WAIT(evidence)
    assert not evidence.diagnosed().asks_reach
    report(1, rank, living(3, WAITING))(evidence)
    assert evidence.diagnosed().asks_reach is asks
    is_lost(1, SILENT)(evidence)
    assert not evidence.diagnosed().asks_reach


@pytest.mark.parametrize(("first", "second", "expected"), [
    # What ranks failed of is given as what followed; a rank that is busy is not missed.
    (report(0, raised(0, 5.0, PEER_CLOSED), living(1, SLEEPING), hung=(1,)),
        report(1, living(2, WAITING), living(3, WAITING), hung=(2, 3)), (None, None, "likely", "hung")),
    # No network stops a rank, and a firewall may keep servers apart that ranks reach by a network of their own.
    (BOTH_WAIT, report(1, living(2, STOPPED), living(3, WAITING), hung=(2, 3)), (2, None, "likely", "hung")),
    (BOTH_WAIT, report(1, raised(2), living(3, WAITING)), (2, None, "certain", "hung")),
], ids=["no fault", "stopped", "own fault"])  # fmt: skip
def test_where_servers_do_not_reach_each_other_only_a_rank_s_own_fault_is_blamed(
    make_evidence, first, second, expected
):
    evidence = make_evidence(2, 2)
    first(evidence)
    second(evidence)
    assert blamed(evidence, [APART]) == expected
    verdict = evidence.diagnosed([APART]).verdict
    assert verdict.apart == ((("10.0.0.1", "10.0.0.2"),) if verdict.culprit is None else ())
    apart = "no connection can be made in either direction between 10.0.0.1 (port 40001) and 10.0.0.2 (port 40002): no answer"
    assert (apart in verdict.reason) == (expected[2] == "likely")
    assert [(one.global_rank, one.role) for one in verdict.failures] == (
        [(0, Role.CONSEQUENCE)] if verdict.culprit is None else [(2, Role.CAUSE)]
    )


def test_where_large_packets_are_lost_the_way_is_blamed(make_evidence):
    evidence = make_evidence(2, 2)
    BOTH_WAIT(evidence)
    report(1, living(2, WAITING), living(3, WAITING), hung=(2, 3))(evidence)
    lossy = Apart((0, 1), (40001, 40002), "", loses_large=True)
    assert blamed(evidence, [lossy]) == (None, None, "likely", "hung")
    verdict = evidence.diagnosed([lossy]).verdict
    assert (verdict.apart, verdict.loses_large) == ((("10.0.0.1", "10.0.0.2"),), True)
    assert (
        "are lost between 10.0.0.1 (port 40001) and 10.0.0.2 (port 40002); `ping -M do -s 1472 10.0.0.2`"
        in verdict.reason
    )


def lose_agent(evidence, silent_s, *, alone=False):
    """Lose the agent of the second server, which answered 19 s ago last and has owed an answer for 16 s."""
    now_ns = time.monotonic_ns()
    pings = SimpleNamespace(answered_ns=now_ns - 19 * 10**9, unanswered_ns=now_ns - 16 * 10**9)
    evidence.lose_agent(1, "why", SimpleNamespace(pings=pings, silent_s=silent_s), 15.0, failed=(), alone=alone)


@pytest.mark.parametrize("silent_s", [0.0, 20.0], ids=["closed", "silent"])
def test_when_a_server_was_lost_is_kept_by_the_wall_clock(event_log, silent_s):
    """It was there when it was asked what it has answered; where it fell silent, that was about when it owed an answer."""
    evidence = ServerEvidence(servers(1, 1), event_log)
    ago_s = (time.time_ns() - NOW_NS) / 1e9
    lose_agent(evidence, silent_s)
    report(0, raised(0, 17.5 - ago_s))(evidence)
    assert blamed(evidence)[:3] == (0, None, "likely")
    report(0, raised(0, 8.0 - ago_s))(evidence)
    assert blamed(evidence)[1] == ("10.0.0.2" if silent_s else None)


@pytest.mark.parametrize(
    ("silent_s", "alone", "expected"),
    [(20.0, False, "certain"), (20.0, True, "likely"), (0.0, True, "certain")],
    ids=["others are heard", "no other is heard", "its agent was killed"],
)
def test_silence_is_no_certain_loss_where_no_other_machine_is_heard(make_evidence, silent_s, alone, expected):
    """The coordinator's own network may have failed; an agent that closes a connection was there to do so."""
    evidence = make_evidence(1, 1)
    lose_agent(evidence, silent_s, alone=alone)
    report(0, living(0))(evidence)
    assert blamed(evidence)[1:3] == ("10.0.0.2", expected)
