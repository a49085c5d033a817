"""The failure of MindSpore's scheduler, and whether that or a rank is to blame.

| what is found beside it                                                 | the cause     | confidence |
|-------------------------------------------------------------------------|---------------|------------|
| a rank failed by itself with the same words, within `ALIKE_S` seconds   | that rank     | as it is   |
| it gave up by itself, and one rank is stopped, is elsewhere than all    | that rank     | likely     |
|     others, or has ended well without them                              |               |            |
| it gave up, and says which rank it has not heard                        | that rank     | likely     |
| a rank failed by itself, and was noticed first                          | that rank     | as it is   |
| it is the ranks' own command, and a rank failed with the same exit      | that rank     | likely     |
|     code within `ALIKE_S` seconds, before they met                      |               |            |
| ... or failed otherwise                                                 | the scheduler | likely     |
| anything else                                                           | the scheduler | certain    |

It gives up when a rank does not come, or is not heard for half a minute (never within `PATIENT_S`); then MindSpore ends other ranks by SIGTERM, which
is a consequence (evidence.py).
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
from launcher.supervise.diagnosis.root_cause import ALIKE_S, judge
from launcher.supervise.diagnosis.verdicts import at_most_likely, with_remark

TAIL_BYTES = 16 << 10
PATIENT_S = 10.0  # one that gives up sooner has not waited for a rank: its port is taken, say
_NO_RANK = -1
_ALIKE = "MindSpore's scheduler failed alike"
_ALIKE_BY_COMMAND = "MindSpore's scheduler, which the same command starts, failed alike"


@frozen
class SchedulerFailure:
    what: str  # "SIGKILL (signal 9)", "RuntimeError: the port is in use"
    status: int  # of its process, as in subprocess
    ended_ns: int  # since 1970: when its end was noticed
    lived_s: float
    signature: str | None = None  # as that of a verdict
    missed: tuple[int, ...] = ()  # global ranks that it has not heard for too long, as it says
    is_command: bool = False  # the ranks' own command has started it, and may fail in each of them as it did here
    tells_why: bool = True  # False: `what` is no more than an exit code, or a signal that came from outside


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
    """Return what the scheduler's status and its log, from `log_offset` (bytes) on, tell. `reason`: why it could not be started."""
    as_of_rank = RankEvidence(
        _NO_RANK,
        status,
        ended_ns,
        None,
        logged=last_traceback(log, log_offset),
        log_tail=log_tail(log, log_offset, TAIL_BYTES),
        exit_reason=reason,
    )
    summary = summarize(as_of_rank)
    missed = of_log(as_of_rank.log_tail).named if status > 0 else ()
    return SchedulerFailure(
        summary.what, status, ended_ns, lived_s, summary.signature, missed, is_command, summary.tells_why
    )


def weigh_scheduler(verdict: Verdict, ranks: Sequence[RankEvidence], failure: SchedulerFailure) -> Verdict:
    """Return the verdict on ranks and scheduler, once `verdict` is that on the ranks alone."""
    cause = _cause_of(verdict)
    if cause is not None and verdict.confidence is not Confidence.UNSURE and _says_the_same(cause, failure):
        return with_remark(verdict, _ALIKE)
    if failure.status > 0 and failure.lived_s >= PATIENT_S:
        missed = judge(ranks, hung=[rank.global_rank for rank in ranks if rank.status is None])
        absent = _cause_of(missed)
        if absent is not None and not absent.status and missed.confidence is not Confidence.UNSURE:
            gave_up = f"MindSpore's scheduler gave up: {failure.what}"
            return with_remark(replace(missed, stacks=verdict.stacks, confidence=at_most_likely(missed)), gave_up)
        if failure.missed:
            return _blame_unheard(failure.missed[0], verdict, ranks)
    if cause is not None and cause.status is not None and (cause.time_ns or 0) <= failure.ended_ns:
        return verdict
    by_itself = cause if cause is not None and cause.status else None
    before_they_met = failure.is_command and failure.status > 0 and failure.lived_s < PATIENT_S
    if before_they_met and by_itself and _failed_alike(by_itself, verdict, failure):
        return with_remark(replace(verdict, confidence=at_most_likely(verdict)), _ALIKE_BY_COMMAND)
    return Verdict(
        culprit=None,
        confidence=Confidence.LIKELY if before_they_met and by_itself else Confidence.CERTAIN,
        reason="MindSpore's scheduler, at which ranks meet, ended before any rank failed by itself",
        failures=tuple(replace(one, role=Role.CONSEQUENCE) for one in verdict.failures if one.status is not None),
        stacks=verdict.stacks,
        scheduler=failure.what,
        signature=None if failure.signature is None else f"scheduler: {failure.signature}",
    )


def _says_the_same(cause: Failure, failure: SchedulerFailure) -> bool:
    """Return whether a rank and the scheduler failed of one fault of what both run, as an `import mindspore` that raises."""
    return failure.tells_why and cause.what == failure.what and _at_one_time(cause, failure)


def _failed_alike(cause: Failure, verdict: Verdict, failure: SchedulerFailure) -> bool:
    is_alike = cause.status == failure.status and verdict.signature == failure.signature
    return is_alike and _at_one_time(cause, failure)


def _at_one_time(cause: Failure, failure: SchedulerFailure) -> bool:
    return abs((cause.time_ns or 0) - failure.ended_ns) <= ALIKE_S * 1e9


def _blame_unheard(global_rank: int, verdict: Verdict, ranks: Sequence[RankEvidence]) -> Verdict:
    """Blame the rank that the scheduler has not heard: its process was stopped or has gone, or its network."""
    status = next((rank.status for rank in ranks if rank.global_rank == global_rank), None)
    reason = "MindSpore's scheduler has not heard it for too long, and ends the others"
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
