"""What servers tell of an attempt that failed."""

import time
from types import SimpleNamespace

import pytest

from launcher.cluster.agent_connection import Clock
from launcher.cluster.server_evidence import ServerEvidence
from launcher.control.orders import Apart
from launcher.core.codec import encode
from launcher.core.records import Device, Server
from launcher.core.verdict import Confidence, Role
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.servers import Evidence
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.event_log import EventLog

SERVERS = (Server("10.0.0.1", (Device(0, 0),)), Server("10.0.0.2", (Device(0, 1),)))


@pytest.fixture(name="evidence")
def _evidence(tmp_path):
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    yield ServerEvidence(SERVERS, event_log)
    event_log.close(None)


def raised(global_rank, at_ns=1, error=("ValueError", "no")):
    failure = FailureRecord(at_ns, 7, "exception", *error, "a.py:1 in f")
    return RankEvidence(global_rank, 1, at_ns, 0, failure=failure)


def test_a_server_speaks_of_its_own_ranks_only(evidence):
    evidence.take(0, encode(Evidence((RankEvidence(0, None, None, None),))), Clock())
    evidence.take(1, encode(Evidence((raised(0), raised(1)), hung=(0,))), Clock())
    assert evidence.awaited({0: None, 1: None}) == []
    found = evidence.diagnosed()
    verdict = found.verdict
    assert (verdict.culprit, verdict.confidence, found.cause) == (1, Confidence.CERTAIN, "failed")


def test_a_lost_server_is_not_awaited(evidence):
    evidence.lost[1] = "nothing was heard of it"
    assert evidence.awaited([0, 1]) == [0]
    evidence.take(0, "nonsense", Clock())
    assert evidence.awaited([0, 1]) == [0]
    evidence.take(0, encode(Evidence((RankEvidence(0, None, None, None),))), Clock())
    assert evidence.diagnosed().verdict.server == "10.0.0.2"


def test_all_servers_that_are_lost_are_named(evidence):
    """Only one could be the first, and who that was cannot be told."""
    evidence.lost[1] = "the connection was closed"
    evidence.lost[0] = "nothing was heard of it"
    assert evidence.diagnosed().verdict.reason == (
        "server 10.0.0.2 with rank 1 was lost: the connection was closed; "
        "server 10.0.0.1 with rank 0 was lost: nothing was heard of it"
    )


def test_a_loss_beside_a_certain_failure_is_told(evidence):
    evidence.lost[1] = "nothing was heard of it"
    evidence.take(0, encode(Evidence((raised(0),))), Clock())
    verdict = evidence.diagnosed().verdict
    assert (verdict.culprit, verdict.confidence) == (0, Confidence.CERTAIN)
    assert verdict.reason.endswith("; server 10.0.0.2 with rank 1 was lost: nothing was heard of it")


def test_nothing_is_certain_while_a_server_has_not_been_heard(evidence):
    evidence.take(0, encode(Evidence((raised(0),))), Clock())
    verdict = evidence.diagnosed().verdict
    assert (verdict.culprit, verdict.confidence) == (0, Confidence.LIKELY)
    assert verdict.reason.endswith("; server 10.0.0.2 with rank 1 was not heard in time")
    assert verdict.failures[0].reason.endswith(" was not heard in time")  # as people are shown it
    evidence.take(1, encode(Evidence((RankEvidence(1, None, None, None),))), Clock())
    verdict = evidence.diagnosed().verdict
    assert (verdict.culprit, verdict.confidence) == (0, Confidence.CERTAIN)
    assert "heard" not in verdict.reason


def test_a_loss_is_blamed_for_no_failure_that_only_an_unheard_server_puts_in_doubt(tmp_path):
    """That may have been before it; the loss was not, as far as all know that were heard."""
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    evidence = ServerEvidence((*SERVERS, Server("10.0.0.3", (Device(0, 2),))), event_log)
    evidence.lost[1] = "nothing was heard of it"
    evidence.take(0, encode(Evidence((raised(0),))), Clock())
    verdict = evidence.diagnosed().verdict
    event_log.close(None)
    assert (verdict.culprit, verdict.server, verdict.confidence) == (0, None, Confidence.LIKELY)
    assert verdict.reason.endswith(
        "; server 10.0.0.2 with rank 1 was lost: nothing was heard of it; server 10.0.0.3 with rank 2 was not heard in time"
    )


TWO_EACH = (Server("10.0.0.1", (Device(0, 0), Device(1, 1))), Server("10.0.0.2", (Device(0, 2), Device(1, 3))))
WAITING = RankStack("running", "in recv, called at a.py:4 in f", "a.py:4 in f", in_collective=True)
CLOSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:34185"
SLEEPING = RankStack("running", "at a.py:5 in f: time.sleep(60)", "a.py:5 in f")
STOPPED = RankStack("stopped", "stopped (SIGSTOP)")
APART = [Apart((0, 1), (40001, 40002), "no answer")]


@pytest.fixture(name="two_each")
def _two_each(tmp_path):
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    yield ServerEvidence(TWO_EACH, event_log, hang_timeout_s=10.0)
    event_log.close(None)


def living(global_rank, stack):
    return RankEvidence(global_rank, None, None, None, stack=stack)


def told_by(*ranks, hung=()):
    return encode(Evidence(ranks, hung))


def test_a_rank_that_is_only_busy_is_not_blamed_for_a_lost_server(two_each):
    """What the lost ones did is not known: of those that were heard, one waits and the other does not."""
    now_ns = time.time_ns()
    two_each.lose(1, "the connection was closed", since_ns=now_ns - 10**9, probably_ns=now_ns)
    two_each.take(0, told_by(raised(0, now_ns + 10**7, ("RuntimeError", CLOSED)), living(1, SLEEPING)), Clock())
    found = two_each.diagnosed()
    verdict = found.verdict
    assert (verdict.culprit, verdict.server, verdict.confidence, found.cause) == (
        None, "10.0.0.2", Confidence.CERTAIN, "failed",
    )  # fmt: skip
    assert verdict.reason == "server 10.0.0.2 with ranks 2-3 was lost: the connection was closed"
    assert [one.global_rank for one in verdict.failures] == [0]


def test_a_rank_that_failed_before_a_loss_is_blamed_and_the_loss_is_with_remark_it(two_each):
    """As people are shown it; what the lost server's ranks did before, nobody can know."""
    two_each.lose(1, "nothing was heard of it", since_ns=time.time_ns() - 10**9, probably_ns=time.time_ns())
    two_each.take(0, told_by(raised(0, time.time_ns() - 2 * 10**9), living(1, WAITING)), Clock())
    verdict = two_each.diagnosed().verdict
    assert (verdict.culprit, verdict.server, verdict.confidence) == (0, None, Confidence.LIKELY)
    told = "server 10.0.0.2 with ranks 2-3 was lost: nothing was heard of it; what its ranks did is not known"
    assert verdict.failures[0].reason.endswith(told)


def test_a_server_that_was_lost_after_it_had_testified_leaves_a_verdict_as_it_is(two_each):
    two_each.take(0, told_by(living(0, WAITING), living(1, WAITING)), Clock())
    two_each.take(1, told_by(raised(2, time.time_ns()), living(3, WAITING)), Clock())
    two_each.lose(1, "the connection was closed", since_ns=0, probably_ns=time.time_ns())
    verdict = two_each.diagnosed().verdict
    assert (verdict.culprit, verdict.confidence) == (2, Confidence.CERTAIN)
    assert "was lost: the connection was closed" in verdict.failures[0].reason


def test_a_hang_that_began_before_a_loss_keeps_its_stopped_rank(two_each):
    two_each.lose(1, "nothing was heard of it", since_ns=time.time_ns(), probably_ns=time.time_ns())
    two_each.take(0, told_by(living(0, WAITING), living(1, STOPPED), hung=(0, 1)), Clock())
    found = two_each.diagnosed()
    verdict = found.verdict
    assert (verdict.culprit, verdict.confidence, found.cause) == (1, Confidence.LIKELY, "hung")


@pytest.mark.parametrize(
    ("ranks", "asks"),
    [
        ([living(2, WAITING)], True),
        ([living(2, SLEEPING)], True),
        ([raised(2)], False),
    ],
)
def test_servers_are_asked_whether_they_reach_each_other_where_no_rank_failed_by_itself(two_each, ranks, asks):
    """A network that parts them would look the same; and only where several can answer."""
    two_each.take(0, told_by(living(0, WAITING), living(1, WAITING), hung=(0, 1)), Clock())
    assert not two_each.diagnosed().asks_reach
    two_each.take(1, told_by(*ranks, living(3, WAITING)), Clock())
    assert two_each.diagnosed().asks_reach is asks
    two_each.lose(1, "nothing was heard of it", since_ns=0, probably_ns=0)
    assert not two_each.diagnosed().asks_reach


def test_where_servers_do_not_reach_each_other_no_rank_is_blamed(two_each):
    """What ranks failed of is told as what followed; a rank that is busy is not missed."""
    two_each.take(0, told_by(raised(0, 5, ("RuntimeError", CLOSED)), living(1, SLEEPING), hung=(1,)), Clock())
    two_each.take(1, told_by(living(2, WAITING), living(3, WAITING), hung=(2, 3)), Clock())
    found = two_each.diagnosed(APART)
    verdict = found.verdict
    assert (verdict.culprit, verdict.server, verdict.confidence, found.cause) == (None, None, Confidence.LIKELY, "hung")
    assert verdict.apart == (("10.0.0.1", "10.0.0.2"),)
    assert [(one.global_rank, one.role) for one in verdict.failures] == [(0, Role.CONSEQUENCE)]
    assert "between 10.0.0.1 (port 40001) and 10.0.0.2 (port 40002): no answer" in verdict.reason


def test_a_stopped_rank_is_blamed_though_servers_do_not_reach_each_other(two_each):
    """No network stops a rank, and a firewall may keep servers apart that ranks reach by a network of their own."""
    two_each.take(0, told_by(living(0, WAITING), living(1, WAITING), hung=(0, 1)), Clock())
    two_each.take(1, told_by(living(2, STOPPED), living(3, WAITING), hung=(2, 3)), Clock())
    verdict = two_each.diagnosed(APART).verdict
    assert (verdict.culprit, verdict.confidence, verdict.apart) == (2, Confidence.LIKELY, ())
    assert "no connection can be made either way between 10.0.0.1 (port 40001)" in verdict.reason


def test_a_rank_s_own_fault_is_blamed_though_servers_do_not_reach_each_other(two_each):
    two_each.take(0, told_by(living(0, WAITING), living(1, WAITING)), Clock())
    two_each.take(1, told_by(raised(2), living(3, WAITING)), Clock())
    assert two_each.diagnosed(APART).verdict.culprit == 2


@pytest.mark.parametrize("silent_s", [0.0, 20.0], ids=["closed", "silent"])
def test_when_a_server_was_lost_is_kept_by_the_wall_clock(evidence, silent_s):
    """It was there when it was asked what it has answered; where it fell silent, that was about when it owed an answer."""
    now_s = time.monotonic()
    peer = SimpleNamespace(
        pings=SimpleNamespace(answered_ns=int((now_s - 19) * 1e9), unanswered_ns=int((now_s - 16) * 1e9)),
        silent_s=silent_s,
    )
    evidence.lose_agent(1, "why", peer, 15.0, failed=(), alone=False)
    evidence.take(0, told_by(raised(0, int((time.time() - 17.5) * 1e9))), Clock())
    verdict = evidence.diagnosed().verdict
    assert (verdict.culprit, verdict.confidence) == (0, Confidence.LIKELY)
    evidence.take(0, told_by(raised(0, int((time.time() - 8) * 1e9))), Clock())
    assert evidence.diagnosed().verdict.server == ("10.0.0.2" if silent_s else None)


@pytest.mark.parametrize(
    ("silent_s", "alone", "expected"),
    [(20.0, False, Confidence.CERTAIN), (20.0, True, Confidence.LIKELY), (0.0, True, Confidence.CERTAIN)],
    ids=["others are heard", "nobody else is heard", "its agent was killed"],
)
def test_silence_is_no_certain_loss_where_no_other_machine_is_heard(evidence, silent_s, alone, expected):
    """The network of the machine that coordinates may have failed; who closes a connection was there to do so."""
    now_ns = time.monotonic_ns()
    peer = SimpleNamespace(
        pings=SimpleNamespace(answered_ns=now_ns - 19 * 10**9, unanswered_ns=now_ns - 16 * 10**9), silent_s=silent_s
    )
    evidence.lose_agent(1, "why", peer, 15.0, failed=(), alone=alone)
    evidence.take(0, told_by(living(0, WAITING)), Clock())
    verdict = evidence.diagnosed().verdict
    assert (verdict.server, verdict.confidence) == ("10.0.0.2", expected)
