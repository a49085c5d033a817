"""Which rank is to blame: one table for every rule."""

import json
import random
import signal
from dataclasses import asdict, replace

import pytest

from launcher.core.codec import decode
from launcher.core.verdict import Confidence, Role, Verdict
from launcher.logs.tracebacks import find_traceback
from launcher.supervise.diagnosis.failure_files import FailureRecord, read_failure
from launcher.supervise.diagnosis.rank_ends import LATE_S
from launcher.supervise.diagnosis.root_cause import RankEvidence, judge
from launcher.supervise.diagnosis.stack_parser import RankStack

START_NS = 1_700_000_000_000_000_000
CERTAIN, LIKELY, UNSURE = Confidence.CERTAIN, Confidence.LIKELY, Confidence.UNSURE
CLOSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34185."
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
SLEEPING = RankStack("running", "at data.py:88 in load: time.sleep(30)", "data.py:88 in load")
COMPUTING = RankStack("running", "at model.py:5 in forward", "model.py:5 in forward")
WAITING = RankStack(
    "running", "in all_reduce, called at train.py:40 in step", "train.py:40 in step", in_collective=True
)
LEAVING = RankStack("running", "in destroy_process_group, called at train.py:9 in main", in_collective=True)
RECEIVING = RankStack("running", "in recv, called at train.py:50 in step", "train.py:50 in step", in_collective=True)
STOPPED = RankStack("stopped", "stopped (SIGSTOP)")
SILENT = RankStack("silent", "no Python stack; waits in futex")


def at(milliseconds):
    return START_NS + int(milliseconds * 1e6)


def record(milliseconds, type_name="ValueError", message="no such word", **fields):
    fields = {"where": "train.py:88 in step", "kind": "exception", **fields}
    return FailureRecord(time_ns=at(milliseconds), pid=1, type=type_name, message=message, **fields)


def raised(rank, milliseconds, *what, end_ms=None, **fields):
    """A rank whose hook noted an exception, and that has ended a while after."""
    ended_ms = milliseconds + 50 if end_ms is None else end_ms
    return RankEvidence(rank, 1, at(ended_ms), int(ended_ms * 10), failure=record(milliseconds, *what, **fields))


def lost(rank, milliseconds, message=CLOSED, **fields):
    return raised(rank, milliseconds, "RuntimeError", message, **{"where": "c10d.py:3252 in all_reduce", **fields})


def ended(rank, milliseconds, status, **fields):
    """A rank of which only the end is known."""
    return RankEvidence(rank, status, at(milliseconds), int(milliseconds * 10), **fields)


def unheard(rank):
    """A rank of a server that was lost, or that has not testified in time."""
    return RankEvidence(rank, None, None, None, heard=False)


def living(rank, stack=None, **fields):
    return RankEvidence(rank, None, None, None, stack=stack, **fields)


def printed(rank, milliseconds, status, text):
    return ended(rank, milliseconds, status, logged=find_traceback(text), log_tail=text)


def traceback(what, place='File "/a/train.py", line 88, in step'):
    return f"Traceback (most recent call last):\n  {place}\n    x\n{what}\n"


def judged(*evidence, **options):
    verdict = judge(evidence, **options)
    assert decode(Verdict, json.loads(json.dumps(asdict(verdict)))) == verdict
    return verdict


def short(verdict):
    return verdict.culprit, verdict.confidence, verdict.signature


def roles(verdict):
    return [(failure.global_rank, failure.role.value) for failure in verdict.failures]


# --- a rank failed by itself ---


@pytest.mark.parametrize(
    ("evidence", "what", "where", "signature"),
    [
        (raised(3, 5), "ValueError: no such word", "train.py:88 in step", "ValueError at train.py:88"),
        (raised(3, 5, "app.Bad", "a\nb", where=None), "app.Bad: a", None, "Bad"),
        (ended(3, 5, 7), "exit code 7", None, "exit code 7"),
        (ended(3, 5, 7, failure=record(1, None, "", kind="os_exit", status=7)), "exit code 7", "train.py:88 in step",
         "exit code 7 at train.py:88"),
        (ended(3, 5, -11), "SIGSEGV (signal 11)", None, "SIGSEGV"),
        (ended(3, 5, -11, log_tail='Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):'
               '\n  File "/a/train.py", line 9 in step\n  File "/a/train.py", line 1 in <module>\n'),
         "SIGSEGV (signal 11)", "train.py:9 in step", "SIGSEGV at train.py:9"),
        (ended(3, 5, -9), "SIGKILL (signal 9)", None, None),
        (ended(3, 5, -15), "SIGTERM (signal 15)", None, None),
        (ended(3, 5, -9, oom=True), "out of memory: killed by the kernel", None, "oom"),
        (ended(3, 5, -40), "signal 40 (signal 40)", None, "signal 40"),
        (ended(3, 5, 1, disk_full=True), "exit code 1; the disk of its run directory is full", None,
         "exit code 1; the disk of its run directory is full"),
        (ended(3, 5, -11, disk_full=True), "SIGSEGV (signal 11)", None, "SIGSEGV"),
        (ended(3, 5, 14), "exit code 14", None, "exit code 14"),
        (ended(3, 5, 13, open_mpi=True), "exit code 13", None, "exit code 13"),
        (ended(3, 5, 14, open_mpi=True, failure=record(4, None, "", kind="exit", where=None)), "exit code 14", None,
         "exit code 14"),
        (replace(printed(3, 5, 14, traceback("ValueError: no")), open_mpi=True), "ValueError: no", "train.py:88 in step",
         "ValueError at train.py:88"),
        (ended(3, 5, 14, open_mpi=True, log_tail="CUDA error: out of memory"), "exit code 14", None, "exit code 14"),
        (replace(ended(3, 5, 127), exit_reason="no such file"), "could not be started: no such file", None,
         "could not be started: no such file"),
        (printed(3, 5, 4, traceback("ValueError: no")), "ValueError: no", "train.py:88 in step",
         "ValueError at train.py:88"),
        (ended(3, 5, 1, failure=record(4, None, "", kind="exit"), logged=find_traceback(traceback("KeyError: 'x'"))),
         "KeyError: 'x'", "train.py:88 in step", "KeyError at train.py:88"),
        (printed(3, 5, 4, traceback("ValueError: no") + "went on\n" * 50), "exit code 4", None, "exit code 4"),
        (ended(3, 5, -6, failure=record(1)), "ValueError: no such word", "train.py:88 in step",
         "ValueError at train.py:88"),
        (printed(3, 5, -9, traceback("ValueError: handled")), "SIGKILL (signal 9)", None, None),
    ],
)  # fmt: skip
def test_what_failed_is_told_by_the_most_direct_evidence(evidence, what, where, signature):
    """The hook, then the last words in the log, then the signal or the exit code; each with its signature."""
    verdict = judged(lost(0, 100), evidence, living(1, WAITING))
    assert short(verdict) == (3, CERTAIN, signature)
    assert (verdict.failures[0].what, verdict.failures[0].where) == (what, where)
    assert what in verdict.reason
    assert roles(verdict) == [(3, "cause"), (0, "consequence")]


def test_consequences_are_no_cause_even_if_they_came_earlier():
    """The end of a rank that was killed is noticed after its peers have raised."""
    verdict = judged(lost(0, 5), lost(1, 6), ended(2, 90, -signal.SIGKILL), living(3, WAITING))
    assert short(verdict) == (2, CERTAIN, None)
    assert roles(verdict) == [(2, "cause"), (0, "consequence"), (1, "consequence")]
    assert "2 failures of other ranks followed" in verdict.reason
    assert verdict.failures[1].reason == "it lost the connection to another rank, 85 ms earlier by the clock"


def test_the_time_of_the_exception_counts_and_not_that_of_the_end():
    """Rank 1 raised first, and took long to end."""
    verdict = judged(raised(0, 30, "KeyError", "'a'"), raised(1, 8, end_ms=900))
    assert short(verdict) == (1, CERTAIN, "ValueError at train.py:88")
    assert "it failed 22 ms before rank 0" in verdict.reason
    assert roles(verdict) == [(1, "cause"), (0, "consequence")]


@pytest.mark.parametrize(
    ("first", "second", "confidence", "words"),
    [
        (ended(2, 5, 3), ended(0, 5, 4), CERTAIN, "it failed just before rank 0"),
        (replace(ended(2, 5, 3), order_known=False), ended(0, 5, 4), LIKELY, "noticed at the same moment as rank 0"),
        (ended(2, 5, 3), replace(ended(0, 5, 4), order_known=False), LIKELY, "noticed at the same moment as rank 0"),
        (ended(2, 5, 3), replace(ended(0, 6, 4), order_known=False), CERTAIN, "it failed 1.0 ms before rank 0"),
        (ended(2, 5, 3), raised(0, 6), CERTAIN, "it failed 1.0 ms before rank 0"),
        (raised(2, 5), ended(0, 6, -11), LIKELY, "it failed 1.0 ms before rank 0"),
        (raised(2, 5), ended(0, 6 + LATE_S * 1000, -11), CERTAIN, "before rank 0"),
        (raised(2, 5), replace(ended(0, 2005, -11), late_s=2.5), LIKELY, "it failed 2.0 s before rank 0"),
    ],
)
def test_of_several_own_faults_the_first_is_the_cause(first, second, confidence, words):
    """How sure that is depends on whose clocks told the times. At equal times the order of ends decides."""
    first, second = replace(first, ended_index=0), replace(second, ended_index=1)
    for evidence in ((first, second), (second, first)):
        verdict = judged(*evidence)
        assert (verdict.culprit, verdict.confidence) == (2, confidence)
        assert words in verdict.reason


@pytest.mark.parametrize(
    ("first", "second", "far_ms"),
    [(ended(2, 5, 3), raised(0, 6), 0.9), (raised(2, 5), ended(0, 5 + LATE_S * 1000 + 9, -11), 8.9)],
    ids=["noticed, raised", "raised, noticed"],
)
def test_the_error_of_two_clocks_counts_between_an_end_and_an_exception(first, second, far_ms):
    """As between two exceptions. Of one server there is one clock only."""
    elsewhere = replace(second, server_index=1, clock_error_ns=int(far_ms * 1e6))
    assert judged(first, elsewhere).confidence is CERTAIN
    assert judged(replace(first, clock_error_ns=200_000), elsewhere).confidence is LIKELY
    assert judged(replace(first, clock_error_ns=200_000), replace(elsewhere, server_index=0)).confidence is CERTAIN


def test_ranks_that_fail_alike_are_one_bug():
    """All are causes, the first by its own time is named."""
    verdict = judged(*(raised(rank, 10 + 3 * abs(rank - 2)) for rank in range(8)))
    assert short(verdict) == (2, CERTAIN, "ValueError at train.py:88")
    assert verdict.reason.endswith("all 8 ranks failed alike; rank 2 was first by 3.0 ms")
    assert {failure.role for failure in verdict.failures} == {Role.CAUSE}


@pytest.mark.parametrize(
    ("first", "second", "confidence", "words"),
    [
        (ended(0, 5, -6), ended(2, 9, -6), CERTAIN, "rank 0 was first by 4.0 ms"),
        (ended(0, 5, -6, order_known=False), ended(2, 1305, -6, order_known=False), LIKELY, "rank 0 was noticed first by 1.3 s"),
        (ended(0, 5, 3, order_known=False), ended(2, 5, 3, order_known=False), LIKELY, "noticed first, at the same moment"),
        (raised(0, 5, end_ms=8), raised(2, 5, end_ms=9), CERTAIN, "rank 0 was noticed first, at the same moment"),
    ],
    ids=["order known", "not known", "one moment", "raised"],
)  # fmt: skip
def test_of_ranks_that_end_alike_the_first_is_certain_only_where_their_order_is(first, second, confidence, words):
    """One of another server may have ended while nobody looked, before the first that was noticed."""
    verdict = judged(first, second)
    assert (verdict.culprit, verdict.confidence) == (0, confidence)
    assert words in verdict.reason


def test_some_ranks_fail_alike_and_others_follow():
    """Only those with the same exception at the same place are alike."""
    verdict = judged(raised(0, 10), raised(1, 12), lost(2, 20), living(3, WAITING))
    assert "2 ranks failed alike; rank 0 was first by 2.0 ms" in verdict.reason
    assert roles(verdict) == [(0, "cause"), (1, "cause"), (2, "consequence")]


def test_failures_of_one_moment_are_told_so():
    """No digits that say nothing."""
    first, second = replace(ended(2, 5, 3), ended_index=0), replace(ended(0, 5, 4), ended_index=1)
    assert judged(first, second).failures[1].reason == "it failed at the same moment, perhaps of a fault of its own"


def test_the_same_exception_much_later_is_not_alike():
    """It may be what the first one led to."""
    verdict = judged(raised(0, 10), raised(1, 60_000))
    assert roles(verdict) == [(0, "cause"), (1, "consequence")]


def test_a_rank_that_still_runs_may_have_failed():
    """Its exception is known, but a thread or an exit handler keeps the process."""
    verdict = judged(lost(0, 3000, TIMED_OUT), living(1, SLEEPING, failure=record(5)))
    assert short(verdict) == (1, CERTAIN, "ValueError at train.py:88")
    assert verdict.failures[0].status is None


def test_a_watchdog_that_aborts_its_process_is_a_consequence():
    """SIGABRT is an own fault unless the log says that a collective timed out."""
    tail = "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8) ran for 600020 ms\n"
    aborted = ended(0, 5, -6, log_tail=tail)
    assert judged(aborted, living(1, SLEEPING)).culprit == 1
    assert judged(replace(aborted, log_tail="free(): invalid pointer\n"), living(1, SLEEPING)).culprit == 0


def test_a_message_that_names_its_own_rank_confesses():
    """Every rank may print who called MPI_Abort: that one did it itself."""
    tail = "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD"
    verdict = judged(ended(0, 5, 1, log_tail=tail), ended(1, 6, 1, log_tail=tail))
    assert (verdict.culprit, roles(verdict)) == (1, [(1, "cause"), (0, "consequence")])
    assert judged(lost(0, 5), raised(1, 6, "RuntimeError", tail)).culprit == 1


def lost_in_mpi(rank, milliseconds):
    """Open MPI ended it: neither a record nor a word of it in its log."""
    return ended(rank, milliseconds, 14, open_mpi=True, log_tail="step 7\n", order_known=False)


@pytest.mark.parametrize("cause", [ended(3, 6, -9), ended(3, 6, 9), raised(3, 1)], ids=["killed", "exit", "raised"])
def test_ranks_that_open_mpi_ends_follow_from_one_that_failed(cause):
    """Whichever end is noticed first."""
    verdict = judged(lost_in_mpi(0, 5), replace(cause, order_known=False), lost_in_mpi(1, 7), living(2, WAITING))
    assert (verdict.culprit, verdict.confidence) == (3, CERTAIN)
    assert roles(verdict) == [(3, "cause"), (0, "consequence"), (1, "consequence")]
    assert verdict.failures[2].what == "exit code 14"
    assert "it lost the connection to another rank" in verdict.failures[2].reason


def test_where_open_mpi_alone_ends_ranks_the_one_that_left_is_missed():
    """Without one, whoever lost its connection first stands for a cause that is not to be seen."""
    gone = judged(lost_in_mpi(1, 50), ended(3, 20, 0), living(0, WAITING), living(2, WAITING))
    assert short(gone) == (3, LIKELY, None)
    assert "ended too early: it ended well, but 3 other ranks still expected it" in gone.reason
    assert short(judged(lost_in_mpi(1, 50), lost_in_mpi(2, 60), living(0, WAITING))) == (1, UNSURE, None)


def test_ranks_whose_disk_is_full_fail_alike():
    """Whatever else each of them was to write."""
    verdict = judged(ended(0, 5, 1, disk_full=True), ended(1, 9, 1, disk_full=True), living(2, WAITING))
    assert verdict.reason.startswith("rank 0: exit code 1; the disk of its run directory is full; all 2 ranks failed")
    assert verdict.confidence == CERTAIN


# --- doubtful: lost connections and timeouts of whatever origin ---

HTTP = ("ConnectionResetError", "[Errno 104] Connection reset by peer")


@pytest.mark.parametrize(
    ("evidence", "culprit", "confidence"),
    [
        ([raised(0, 5, *HTTP)], 0, LIKELY),
        ([raised(0, 5, *HTTP), living(1, WAITING)], 0, LIKELY),
        ([raised(0, 5, *HTTP), lost(1, 8)], 0, LIKELY),
        ([raised(0, 5, *HTTP), ended(1, 1, 0)], 0, UNSURE),
        ([raised(0, 5, *HTTP), living(1, STOPPED)], 0, UNSURE),
        ([raised(0, 5, *HTTP), raised(1, 8)], 0, LIKELY),
        ([raised(0, 5, *HTTP), raised(1, 2)], 1, CERTAIN),
        ([raised(0, 5, *HTTP), ended(1, 9, -11)], 1, CERTAIN),
        ([raised(0, 5, *HTTP), ended(1, 3000, -11)], 0, LIKELY),
        ([raised(0, 5, *HTTP), ended(1, 3000, -11, late_s=3.5)], 1, LIKELY),
        ([raised(0, 5, *HTTP), raised(2, 8), ended(1, 9, -11)], 1, LIKELY),
        ([raised(0, 5, *HTTP), raised(2, 8), ended(1, 3000, -11)], 0, LIKELY),
        ([lost(0, 5), raised(1, 9, *HTTP), living(2, SLEEPING)], 2, CERTAIN),
        ([lost(0, 5), printed(1, 9, 1, traceback(": ".join(HTTP))), living(2, WAITING)], 1, LIKELY),
    ],
)
def test_a_doubtful_failure_is_the_cause_only_where_nothing_surer_came_before(evidence, culprit, confidence):
    """An own fault that may have come first wins."""
    verdict = judged(*evidence)
    assert (verdict.culprit, verdict.confidence) == (culprit, confidence)


def test_an_end_noticed_after_another_own_fault_is_told_so():
    """It is blamed since it may have come before what is doubtful, which came before that fault."""
    verdict = judged(raised(0, 5, *HTTP), raised(2, 8), ended(1, 708, -11))
    assert (
        "it was noticed 700 ms after, but may have failed before rank 2, which failed by itself too" in verdict.reason
    )


# --- only consequences ---


@pytest.mark.parametrize(
    ("evidence", "culprit", "confidence", "signature", "reason"),
    [
        ([lost(0, 3000, TIMED_OUT), living(1, SLEEPING), living(2, WAITING), living(3, WAITING)], 1, CERTAIN,
         "hang at data.py:88",
         "rank 1 does not take part: at data.py:88 in load: time.sleep(30), while 3 other ranks waited for it"),
        ([lost(0, 3000, TIMED_OUT), living(1, SLEEPING), living(2)], 1, LIKELY, "hang at data.py:88", "time.sleep"),
        ([lost(0, 3000, TIMED_OUT), living(1, STOPPED), living(2, COMPUTING)], 1, CERTAIN, None,
         "rank 1 does not take part: stopped (SIGSTOP), while 1 other rank waited for it"),
        ([lost(0, 3000, TIMED_OUT), living(1, SLEEPING, step=4), living(2, COMPUTING, step=3)], 2, UNSURE,
         "hang at model.py:5", "the same is true of 1 other rank"),
        ([lost(0, 3000, TIMED_OUT), living(1, WAITING, step=4), living(2, WAITING, step=5)], 1, LIKELY, None,
         "rank 1 does not keep up: it is at step 4 while others have come to step 5"),
        ([lost(0, 3000, TIMED_OUT), living(1, SILENT), living(2, WAITING)], 1, LIKELY, None, "waits in futex"),
        ([lost(0, 3000, "Rank 2 failed to pass monitoredBarrier in 2000 ms"), living(1), living(2)], 2, LIKELY, None,
         "rank 0 says: Rank 2 failed to pass monitoredBarrier"),
        ([lost(0, 30), ended(1, 20, 0), living(2, WAITING)], 1, LIKELY, None,
         "rank 1 ended too early: it ended well, but 2 other ranks still expected it"),
        ([lost(0, 30), ended(1, 20, 0), living(2, COMPUTING)], 1, LIKELY, None, "it ended well"),
        ([lost(0, 30), ended(1, 20, 0), ended(2, 10, 0), living(3, WAITING)], 2, UNSURE, None,
         "the same is true of 1 other rank"),
        ([lost(0, 30), living(1, LEAVING), living(2, WAITING)], 1, LIKELY, None,
         "rank 1 leaves the group: in destroy_process_group, called at train.py:9 in main"),
        ([lost(0, 4000, "[c10d] Interrupted system call"), living(1, SLEEPING), living(2, WAITING)], 1, CERTAIN,
         "hang at data.py:88", "time.sleep"),
        ([lost(0, 3000, TIMED_OUT), ended(1, 20, 0), living(2, SLEEPING)], 2, LIKELY, "hang at data.py:88", ""),
        ([lost(0, 30), ended(1, 5000, 0), living(2, SLEEPING)], 2, LIKELY, "hang at data.py:88", ""),
    ],
)  # fmt: skip
def test_a_rank_that_is_missed_is_the_cause_of_consequences(evidence, culprit, confidence, signature, reason):
    """Stopped, busy with something else, gone too early, named by others, or behind: in this order."""
    verdict = judged(*evidence)
    assert short(verdict) == (culprit, confidence, signature)
    assert reason in verdict.reason
    assert roles(verdict)[:2] == [(culprit, "cause"), (0, "consequence")]


def test_where_nobody_is_missed_the_first_consequence_stands_for_an_unknown_cause():
    """It tells nothing of the program, so there is no signature."""
    verdict = judged(lost(0, 9), lost(1, 5), living(2, WAITING))
    assert short(verdict) == (1, UNSURE, None)
    assert roles(verdict) == [(1, "cause"), (0, "consequence")]
    assert short(judged(lost(0, 9))) == (0, UNSURE, None)  # its peers are on other servers


# --- hangs ---


@pytest.mark.parametrize(
    ("evidence", "culprit", "confidence", "signature"),
    [
        ([living(0, WAITING), living(1, SLEEPING), living(2, WAITING)], 1, CERTAIN, "hang at data.py:88"),
        ([living(0, WAITING), living(1, STOPPED), living(2, WAITING)], 1, CERTAIN, None),
        ([living(0, WAITING), living(1, WAITING)], None, UNSURE, None),
        ([living(0, WAITING), living(1, RECEIVING), living(2, WAITING)], 1, LIKELY, None),
        ([living(0, WAITING), living(1, RECEIVING)], None, UNSURE, None),
        ([living(0, WAITING), ended(1, 5, 0)], 1, LIKELY, None),
        ([living(0, SLEEPING)], 0, LIKELY, "hang at data.py:88"),
        ([living(0, WAITING)], 0, UNSURE, None),
        ([living(0)], 0, LIKELY, None),
        ([living(0), living(1)], None, UNSURE, None),
        ([living(0, COMPUTING), living(1, SLEEPING), living(2, COMPUTING)], 1, LIKELY, "hang at data.py:88"),
        ([living(0, COMPUTING), living(1, SLEEPING)], 0, UNSURE, "hang at model.py:5"),
        ([living(0, COMPUTING), living(1, SLEEPING), living(2, COMPUTING), living(3, SLEEPING)], 0, UNSURE,
         "hang at model.py:5"),
    ],
)  # fmt: skip
def test_a_hang_is_blamed_on_the_rank_that_stands_out(evidence, culprit, confidence, signature):
    """Nothing has failed; where all wait for each other nobody can tell."""
    assert short(judged(*evidence, hung={0, 1, 2})) == (culprit, confidence, signature)


def test_the_only_rank_without_progress_is_blamed():
    """However little is known of it, while the others get on; unless it waits for them."""
    verdict = judged(living(0), living(1, SILENT), living(2), hung={1})
    assert (verdict.culprit, verdict.confidence) == (1, LIKELY)
    assert "it alone makes no progress, while 2 other ranks do" in verdict.reason
    assert judged(living(0, SILENT), living(1, WAITING), living(2, SILENT), hung={1}).culprit != 1
    alone = judged(ended(0, 0, 0), living(1, SILENT), hung={1})
    assert alone.culprit == 1
    assert "it alone makes no progress, while all others have ended" in alone.reason


def test_where_all_others_ended_well_the_one_that_failed_differs():
    """It may have called a collective with other sizes, or once too often."""
    assert short(judged(lost(0, 30), ended(1, 20, 0), ended(2, 10, 0))) == (0, UNSURE, None)


def test_of_several_busy_ranks_one_that_hangs_is_blamed():
    """The others still make progress."""
    verdict = judged(living(0, COMPUTING), living(1, SLEEPING), living(2, WAITING), hung={1})
    assert (verdict.culprit, verdict.confidence) == (1, LIKELY)


def test_without_failures_and_hangs_nobody_is_to_blame():
    """Not even without any rank."""
    assert judged(living(0, SLEEPING), ended(1, 5, 0)).culprit is None
    assert judged() == Verdict(None, UNSURE, "no rank has failed")


# --- ranks that were not heard ---


@pytest.mark.parametrize(
    ("evidence", "culprit", "confidence"),
    [
        ([lost(0, 3000, TIMED_OUT), living(1, SLEEPING)], 1, UNSURE),
        ([living(0, WAITING), living(1, SLEEPING)], 1, UNSURE),
        ([living(0, WAITING), living(1, STOPPED)], 1, LIKELY),
        ([lost(0, 30), ended(1, 20, 0)], 1, UNSURE),
        ([raised(0, 5, *HTTP), living(1, WAITING)], 0, UNSURE),
        ([living(0, SILENT), living(1, WAITING)], None, UNSURE),
    ],
)
def test_whoever_is_missed_is_in_doubt_where_others_were_not_heard(evidence, culprit, confidence):
    """Those may not have taken part either; but a rank that is stopped is enough."""
    verdict = judged(*evidence, unheard(2), unheard(3), hung={1})
    assert (verdict.culprit, verdict.confidence) == (culprit, confidence)


def test_what_is_not_known_of_ranks_that_were_not_heard_is_told():
    """Beside the rank that others miss."""
    verdict = judged(living(0, WAITING), living(1, SLEEPING), unheard(2), unheard(3), hung={1})
    assert verdict.failures[0].reason.endswith("; what 2 other ranks did is not known")


def test_a_rank_s_own_fault_stands_beside_ranks_that_were_not_heard():
    """How sure it is that it was the first is for whoever knows why they were not heard."""
    assert short(judged(raised(0, 5), unheard(1)))[:2] == (0, CERTAIN)


@pytest.mark.parametrize(("far_ms", "culprit", "confidence"), [(1, 1, CERTAIN), (9, 1, LIKELY)])
def test_a_doubtful_failure_of_another_server_may_have_been_first_within_the_error_of_clocks(
    far_ms, culprit, confidence
):
    """By times alone the other one was."""
    doubtful = replace(raised(0, 8, *HTTP), server_index=1, clock_error_ns=int(far_ms * 1e6))
    verdict = judged(doubtful, raised(1, 5))
    assert (verdict.culprit, verdict.confidence) == (culprit, confidence)


# --- whatever ranks left behind ---

ODD_NUMBERS = ("0", "-1", "1e400", "-1e400", "NaN", "1.5", "1" + "0" * 400, "9" * 5000, "true", "null", '"1"', "[]")
ODD_TEXTS = (
    "null", "7", "{}", '""', '"ValueError"', '"\\n\\n"', '"\\ud800"', '"\\u0000:"', '" in "', '":"', '"..."',
    f'"Ranks {"1" * 5000} failed to pass monitoredBarrier"', '"Time out nodes are [\'٣\']"', json.dumps(traceback("E")),
)  # fmt: skip


def odd_record(source):
    """Most of its fields are as they should be, or no failure would be read."""
    fields = {"pid": "1", "time_ns": str(START_NS), "status": "1", "kind": '"exception"', "type": '"ValueError"'}
    for name in source.sample(["time_ns", "status"], source.randint(0, 2)):
        fields[name] = source.choice(ODD_NUMBERS)
    for name in ("kind", "type", "message", "where", "traceback", "thread"):
        if source.random() < 0.4:
            fields[name] = source.choice(ODD_TEXTS)
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


def test_no_record_can_keep_the_verdict_from_being_told(tmp_path):
    """Whatever programs wrote of their failures, somebody is judged, and it can be written down."""
    source, path = random.Random(3), tmp_path / "failure.json"
    read = 0
    for _ in range(500):
        evidence = []
        for rank in range(3):
            path.write_text(odd_record(source))
            failure = read_failure(path, pid=1)
            read += failure is not None
            status = source.choice([None, 1, -9, -6, 0, 255, -64])
            text = traceback(json.loads(source.choice(ODD_TEXTS)))
            evidence.append(ended(rank, rank, status, failure=failure, log_tail=text, logged=find_traceback(text)))
        judged(*evidence, hung=(1,))

    assert read > 500


def test_a_failure_whose_time_cannot_be_has_that_of_its_end():
    """As one has that left no record: it may have failed before one whose time is known."""
    timeless = replace(record(0), time_ns=None)
    verdict = judged(ended(0, 60, 1, failure=timeless), raised(1, 5, "KeyError", "x"), lost(2, 1))
    assert short(verdict)[:2] == (1, LIKELY)
    assert all(failure.time_ns for failure in verdict.failures)
