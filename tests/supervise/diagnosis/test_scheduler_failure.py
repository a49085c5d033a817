"""Whether MindSpore's scheduler or a rank is to blame, where both have failed."""

import pytest

from launcher.core.verdict import Confidence, Role
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.root_cause import RankEvidence
from launcher.supervise.diagnosis.scheduler_failure import SchedulerFailure, read_scheduler_failure
from launcher.supervise.diagnosis.servers import Evidence, merge_evidence
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.scheduler import patience_s

SECOND = 10**9
AT = 1000 * SECOND


def raised(rank, at_ns):
    failure = FailureRecord(at_ns, 1, "exception", "ValueError", "boom", "train.py:1 in main")
    return RankEvidence(rank, 1, at_ns + 1, rank, failure=failure)


def terminated(rank):
    return RankEvidence(rank, -15, AT - SECOND, rank, meets_scheduler=True)


def living(rank, stack=None):
    return RankEvidence(rank, None, None, None, stack=stack)


MEETING = RankStack("waiting", "in init, called at train.py:3", "train.py:3 in <module>")
BUSY = RankStack("computing", "at train.py:2 in prepare", "train.py:2 in prepare")
STOPPED = RankStack("stopped", "stopped (SIGSTOP)")


@pytest.mark.parametrize(("ranks", "status", "lived_s", "culprit"), [
    ([living(0), living(1)], 1, 40, None),
    ([living(0), raised(1, AT - SECOND)], 1, 40, 1),
    ([living(0), raised(1, AT + SECOND)], 1, 40, None),
    ([living(0), raised(1, AT + SECOND)], -9, 40, None),
    ([living(0), living(1, STOPPED)], 1, 40, 1),
    ([living(0), living(1, STOPPED)], 1, 2, None),
    ([living(0), living(1, STOPPED)], -9, 40, None),
    ([living(0, MEETING), living(1, BUSY), living(2, MEETING)], 1, 40, 1),
    ([terminated(0), living(1, STOPPED)], 1, 40, 1),
])  # fmt: skip
def test_whoever_failed_first_by_itself_is_to_blame(ranks, status, lived_s, culprit):
    """A scheduler that gives up because a rank does not come says so by an exit code of its own; SIGKILL comes from outside."""
    verdict = Evidence(tuple(ranks), scheduler=SchedulerFailure("RuntimeError: x", status, AT, lived_s)).verdict
    assert verdict.culprit == culprit
    assert (verdict.scheduler is None) == (culprit is not None)
    assert not [one for one in verdict.failures if culprit is None and one.role is Role.CAUSE]


def test_a_rank_that_it_says_to_have_missed_is_to_blame(tmp_path):
    log = tmp_path / "scheduler.log"
    words = "The total number of timed out node is 1. Timed out node list is: [const vector]{1}, worker 1 is the first"
    log.write_text(f"RuntimeError: {words}\n")
    failure = read_scheduler_failure(1, AT, log, 0, lived_s=40)
    verdict = Evidence((living(0), living(1), living(2)), scheduler=failure).verdict
    assert (verdict.culprit, verdict.scheduler, failure.missed) == (1, None, (1,))


NO_DIRECTORY = "train.sh: line 3: cd: /data/imagenet: No such file or directory\n"


@pytest.mark.parametrize(("of_rank", "of_scheduler", "culprit", "confidence"), [
    ((1, 0.1), (True, 0.1), 0, Confidence.LIKELY),
    ((1, -0.1), (True, 0.1), 0, Confidence.CERTAIN),
    ((2, 0.1), (True, 0.1), None, Confidence.LIKELY),
    ((1, 9), (True, 0.1), None, Confidence.LIKELY),
    ((1, 0.1), (True, 40), None, Confidence.CERTAIN),
    ((1, 0.1), (False, 0.1), None, Confidence.CERTAIN),
])  # fmt: skip
def test_a_command_that_fails_before_its_program_is_the_ranks_fault(
    tmp_path, of_rank, of_scheduler, culprit, confidence
):
    """`of_rank`: exit code, seconds after the scheduler's end. `of_scheduler`: if it is that command, and its seconds."""
    (status, after_s), (is_command, lived_s) = of_rank, of_scheduler
    log = tmp_path / "scheduler.log"
    log.write_text(NO_DIRECTORY)
    failure = read_scheduler_failure(1, AT, log, 0, lived_s=lived_s, is_command=is_command)
    rank = RankEvidence(0, status, AT + int(after_s * SECOND), 0, log_tail=NO_DIRECTORY)
    verdict = Evidence((rank, living(1)), scheduler=failure).verdict
    assert (verdict.culprit, verdict.confidence) == (culprit, confidence)
    assert (verdict.scheduler is None) == (culprit is not None)


MISSING = "libopenblas.so.0: cannot open shared object file"
IMPORT = f'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nImportError: {MISSING}\n'


@pytest.mark.parametrize(("status", "message", "after_s", "culprit"), [
    (1, MISSING, 0.1, 0), (1, MISSING, -0.1, 0), (1, MISSING, 60, None), (1, MISSING, -60, 0),
    (1, "libmindspore_core.so: cannot open shared object file", 0.1, None),
    (1, None, 0.1, None), (-4, None, 0.1, 0), (-9, None, 0.1, None),
])  # fmt: skip
def test_a_fault_of_the_ranks_that_the_scheduler_shares_is_the_ranks(tmp_path, status, message, after_s, culprit):
    """Only where both failed at one time, however long they had lived. `message`: of the exceptions, if any."""
    log = tmp_path / "scheduler.log"
    log.write_text(IMPORT if message else "")
    failure = read_scheduler_failure(status, AT, log, 0, lived_s=900)
    failed_ns = AT + int(after_s * SECOND)
    record = FailureRecord(failed_ns, 1, "exception", "ImportError", message, "train.py:3 in <module>")
    rank = RankEvidence(0, status, failed_ns, 0, failure=record if message else None)
    verdict = Evidence((rank, living(1)), scheduler=failure).verdict
    assert (verdict.culprit, verdict.confidence) == (culprit, Confidence.CERTAIN)
    assert ("scheduler failed in the same way" in verdict.reason) == (culprit is not None and abs(after_s) < 1)


def test_the_clock_of_its_server_is_taken_into_account():
    """Its server is two seconds ahead: it ended a second before the rank of the other one."""
    of_scheduler = Evidence((living(0),), scheduler=SchedulerFailure("x", 1, AT + SECOND, 40))
    merged = merge_evidence({0: of_scheduler, 1: Evidence((raised(1, AT),))}, {0: 2 * SECOND, 1: 0})
    assert merged.verdict.scheduler == "x"
    assert merge_evidence({0: of_scheduler, 1: Evidence((raised(1, AT),))}, {}).verdict.culprit == 1


def test_its_log_tells_of_what_it_failed(tmp_path):
    log = tmp_path / "scheduler.log"
    before = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: old\n'
    log.write_text(before + before.replace("OSError: old", "RuntimeError: new"))
    assert read_scheduler_failure(1, AT, log, len(before), lived_s=40).what == "RuntimeError: new"
    assert read_scheduler_failure(-9, AT, log, 0, lived_s=40).what == "SIGKILL (signal 9)"
    not_started = read_scheduler_failure(126, AT, tmp_path / "none", 0, lived_s=0, reason="no such file")
    assert not_started.what == "could not be started: no such file"


@pytest.mark.parametrize(("lived_s", "waits_s"), [(0.1, 2), (3.5, 3.5), (900, 5)])
def test_ranks_get_as_long_as_the_scheduler_had_to_fail_of_the_same(lived_s, waits_s):
    assert patience_s(lived_s) == waits_s
