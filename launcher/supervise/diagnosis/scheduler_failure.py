"""Decides if a failure of MindSpore's scheduler or of a rank is the root cause.

| finding besides the scheduler's failure                                 | cause         | confidence |
|-------------------------------------------------------------------------|---------------|------------|
| a rank failed by itself with the same message, within `ALIKE_S` seconds | that rank     | unchanged  |
| the scheduler gave up, and one rank is stopped, is at a different       | that rank     | likely     |
|     location than all others, or has succeeded without them             |               |            |
| the scheduler gave up, and its log names the rank that was lost         | that rank     | likely     |
| a rank failed by itself, and was noticed first                          | that rank     | unchanged  |
| the ranks' command started the scheduler, and a rank failed with the    | that rank     | likely     |
|     same exit code within `ALIKE_S` seconds, before they connected      |               |            |
| ... or a rank failed in another way                                     | the scheduler | likely     |
| anything else                                                           | the scheduler | certain    |

The scheduler gives up if a rank does not connect, or sends no heartbeat for half a minute, so never within `PATIENT_S`.
Then MindSpore ends the other ranks by SIGTERM, which counts as a consequence (evidence.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.verdict import Confidence, Failure, Role, Verdict
from launcher.supervise.diagnosis.error_patterns import of_log
from launcher.supervise.diagnosis.evidence import RankEvidence, summarize
from launcher.supervise.diagnosis.failure_files import last_traceback, log_tail
from launcher.supervise.diagnosis.root_cause import at_most_likely, judge, with_remark
from launcher.supervise.rank_ends import ALIKE_S

TAIL_BYTES = 16 << 10
PATIENT_S = 10.0  # a scheduler that fails sooner did not wait for ranks; its port may be in use
_NO_RANK = -1
_ALIKE = "MindSpore's scheduler failed in the same way"
_ALIKE_BY_COMMAND = "MindSpore's scheduler, started by the same command, failed in the same way"


@frozen
class SchedulerFailure:
    what: str  # "SIGKILL (signal 9)", "RuntimeError: the port is in use"
    status: int  # of its process, as in subprocess
    ended_ns: int  # when its exit was noticed, since 1970
    lived_s: float
    signature: str | None = None  # as in a verdict
    missed: tuple[int, ...] = ()  # global ranks without a heartbeat, according to its log
    is_command: bool = False  # the ranks' command has started it, so every rank may fail in the same way
    tells_why: bool = True  # False: `what` is only an exit code or a signal from another process


def read_scheduler_failure(
    status: int,
    ended_ns: int,
    log: Path,
    log_offset: int,
    *,
    lived_s: float,
    is_command: bool = False,
    reason: str | None = None,
) -> SchedulerFailure:
    """Summarize the scheduler's failure from its exit status and its log.

    The log is read from `log_offset` (bytes). `reason` says why the scheduler could not be started, if it could not.
    """
    tail, logged = log_tail(log, log_offset, TAIL_BYTES), last_traceback(log, log_offset)
    summary = summarize(
        RankEvidence(_NO_RANK, status, ended_ns, None, logged=logged, log_tail=tail, exit_reason=reason)
    )
    missed = of_log(tail).named if status > 0 else ()
    return SchedulerFailure(
        summary.what, status, ended_ns, lived_s, summary.signature, missed, is_command, summary.tells_why
    )


def weigh_scheduler(verdict: Verdict, ranks: Sequence[RankEvidence], failure: SchedulerFailure) -> Verdict:
    cause = _cause_of(verdict)
    at_one_time = cause is not None and abs((cause.time_ns or 0) - failure.ended_ns) <= ALIKE_S * 1e9
    # For example, both may have failed in `import mindspore`.
    says_the_same = cause is not None and failure.tells_why and cause.what == failure.what and at_one_time
    if says_the_same and verdict.confidence is not Confidence.UNSURE:
        return with_remark(verdict, _ALIKE)
    if failure.status > 0 and failure.lived_s >= PATIENT_S:
        missed = judge(ranks, hung=[rank.global_rank for rank in ranks if rank.status is None])
        absent = _cause_of(missed)
        if absent is not None and not absent.status and missed.confidence is not Confidence.UNSURE:
            gave_up = f"MindSpore's scheduler gave up: {failure.what}"
            return with_remark(replace(missed, stacks=verdict.stacks, confidence=at_most_likely(missed)), gave_up)
        if failure.missed:
            return _blame_lost_rank(failure.missed[0], verdict, ranks)
    if cause is not None and cause.status is not None and (cause.time_ns or 0) <= failure.ended_ns:
        return verdict
    by_itself = cause if cause is not None and cause.status else None
    before_they_met = failure.is_command and failure.status > 0 and failure.lived_s < PATIENT_S
    is_alike = by_itself is not None and (by_itself.status, verdict.signature) == (failure.status, failure.signature)
    if before_they_met and is_alike and at_one_time:
        return with_remark(replace(verdict, confidence=at_most_likely(verdict)), _ALIKE_BY_COMMAND)
    return Verdict(
        culprit=None,
        confidence=Confidence.LIKELY if before_they_met and by_itself else Confidence.CERTAIN,
        reason="MindSpore's scheduler ended before any rank failed by itself",
        failures=tuple(replace(one, role=Role.CONSEQUENCE) for one in verdict.failures if one.status is not None),
        stacks=verdict.stacks,
        scheduler=failure.what,
        signature=None if failure.signature is None else f"scheduler: {failure.signature}",
    )


def _blame_lost_rank(global_rank: int, verdict: Verdict, ranks: Sequence[RankEvidence]) -> Verdict:
    """Return a verdict that blames the rank from which the scheduler received no heartbeats."""
    status = next((rank.status for rank in ranks if rank.global_rank == global_rank), None)
    reason = "MindSpore's scheduler received no heartbeat from it, and ends the other ranks"
    cause = Failure(global_rank, Role.CAUSE, "does not take part", reason, status=status)
    others = (one for one in verdict.failures if one.global_rank != global_rank)
    return Verdict(
        culprit=global_rank,
        confidence=Confidence.LIKELY,
        reason=f"rank {global_rank} does not take part: {reason}",
        failures=(cause, *(replace(one, role=Role.CONSEQUENCE) for one in others)),
        stacks=verdict.stacks,
    )


def _cause_of(verdict: Verdict) -> Failure | None:
    return next((one for one in verdict.failures if one.global_rank == verdict.culprit), None)
