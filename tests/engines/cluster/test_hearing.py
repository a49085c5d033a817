"""What servers tell of an attempt that failed."""

import pytest

from launcher.core.records import Device, Server
from launcher.core.verdict import Confidence
from launcher.engines.cluster.hearing import Hearing
from launcher.engines.cluster.peers import Clock
from launcher.supervise.court import Evidence, to_fields
from launcher.supervise.evidence import RankEvidence
from launcher.supervise.failures import FailureRecord
from launcher.supervise.journal import Journal

SERVERS = (Server("10.0.0.1", (Device(0, 0),)), Server("10.0.0.2", (Device(0, 1),)))


@pytest.fixture(name="hearing")
def _hearing(tmp_path):
    journal = Journal(tmp_path / "events.jsonl", 0)
    yield Hearing(SERVERS, journal)
    journal.close(None)


def raised(global_rank):
    failure = FailureRecord(1, 7, "exception", "ValueError", "no", "a.py:1 in f")
    return RankEvidence(global_rank, 1, 1, 0, failure=failure)


def test_a_server_speaks_of_its_own_ranks_only(hearing):
    """What it says of others proves nothing."""
    hearing.take(0, to_fields(Evidence((RankEvidence(0, None, None, None),))), Clock())
    hearing.take(1, to_fields(Evidence((raised(0), raised(1)), hung=(0,))), Clock())
    assert hearing.awaited({0: None, 1: None}) == []
    verdict, cause, _ = hearing.verdict()
    assert (verdict.culprit, verdict.confidence, cause) == (1, Confidence.CERTAIN, "failed")


def test_a_lost_server_is_not_awaited(hearing):
    """It is the cause, if nothing else is certain."""
    hearing.lost[1] = "nothing was heard of it"
    assert hearing.awaited([0, 1]) == [0]
    hearing.take(0, "nonsense", Clock())
    assert hearing.awaited([0, 1]) == [0]
    hearing.take(0, to_fields(Evidence((RankEvidence(0, None, None, None),))), Clock())
    assert hearing.verdict()[0].server == "10.0.0.2"


def test_all_servers_that_are_lost_are_named(hearing):
    """Only one could be the first, and who that was cannot be told."""
    hearing.lost[1] = "the connection was closed"
    hearing.lost[0] = "nothing was heard of it"
    assert hearing.verdict()[0].reason == (
        "server 10.0.0.2 with rank 1 was lost: the connection was closed; "
        "server 10.0.0.1 with rank 0 was lost: nothing was heard of it"
    )


def test_a_loss_beside_a_certain_failure_is_told(hearing):
    """It is not the cause."""
    hearing.lost[1] = "nothing was heard of it"
    hearing.take(0, to_fields(Evidence((raised(0),))), Clock())
    verdict, _, _ = hearing.verdict()
    assert (verdict.culprit, verdict.confidence) == (0, Confidence.CERTAIN)
    assert verdict.reason.endswith("; server 10.0.0.2 with rank 1 was lost: nothing was heard of it")


def test_nothing_is_certain_while_a_server_has_not_been_heard(hearing):
    """One of its ranks may have failed before."""
    hearing.take(0, to_fields(Evidence((raised(0),))), Clock())
    verdict, _, _ = hearing.verdict()
    assert (verdict.culprit, verdict.confidence) == (0, Confidence.LIKELY)
    assert verdict.reason.endswith("; server 10.0.0.2 with rank 1 was not heard in time")
    assert verdict.failures[0].reason.endswith(" was not heard in time")  # as people are shown it
    hearing.take(1, to_fields(Evidence((RankEvidence(1, None, None, None),))), Clock())
    verdict, _, _ = hearing.verdict()
    assert (verdict.culprit, verdict.confidence) == (0, Confidence.CERTAIN)
    assert "heard" not in verdict.reason


def test_a_loss_is_blamed_for_no_failure_that_only_an_unheard_server_puts_in_doubt(tmp_path):
    """That may have been before it; the loss was not, as far as all know that were heard."""
    journal = Journal(tmp_path / "events.jsonl", 0)
    hearing = Hearing((*SERVERS, Server("10.0.0.3", (Device(0, 2),))), journal)
    hearing.lost[1] = "nothing was heard of it"
    hearing.take(0, to_fields(Evidence((raised(0),))), Clock())
    verdict, _, _ = hearing.verdict()
    journal.close(None)
    assert (verdict.culprit, verdict.server, verdict.confidence) == (0, None, Confidence.LIKELY)
    assert verdict.reason.endswith(
        "; server 10.0.0.2 with rank 1 was lost: nothing was heard of it; server 10.0.0.3 with rank 2 was not heard in time"
    )
