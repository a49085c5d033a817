"""The failure of MindSpore's scheduler, and whether that or a rank is to blame.

| what is found beside it                                         | the cause     | confidence |
|-----------------------------------------------------------------|---------------|------------|
| a rank failed by itself, and was noticed first                  | that rank     | as it is   |
| the scheduler gave up by itself, and one rank is stopped        | that rank     | as it is   |
| anything else                                                   | the scheduler | certain    |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.verdict import Confidence, Role, Verdict
from launcher.supervise.diagnosis.evidence import RankEvidence, summarize
from launcher.supervise.diagnosis.failure_files import last_traceback, log_tail
from launcher.supervise.diagnosis.missing_rank import stopped
from launcher.supervise.diagnosis.root_cause import judge

TAIL_BYTES = 16 << 10
_NO_RANK = -1


@frozen
class SchedulerFailure:
    what: str  # "SIGKILL (signal 9)", "RuntimeError: the port is in use"
    status: int  # of its process, as in subprocess
    ended_ns: int  # since 1970: when its end was noticed
    signature: str | None = None  # as that of a verdict


def read_scheduler_failure(
    status: int, ended_ns: int, reason: str | None, log: Path, log_offset: int
) -> SchedulerFailure:
    """Return what its status and its log, from `log_offset` (bytes) on, tell. `reason`: why it could not be started."""
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
    return SchedulerFailure(summary.what, status, ended_ns, summary.signature)


def weigh_scheduler(verdict: Verdict, ranks: Sequence[RankEvidence], failure: SchedulerFailure) -> Verdict:
    """Return the verdict on ranks and scheduler, once `verdict` is that on the ranks alone."""
    gave_up = failure.status > 0
    if gave_up and any(rank.status is None and stopped(rank) for rank in ranks):
        of_hang = judge(ranks, hung=[rank.global_rank for rank in ranks])
        return replace(of_hang, stacks=verdict.stacks)
    cause = next((one for one in verdict.failures if one.global_rank == verdict.culprit), None)
    if cause is not None and cause.status is not None and (cause.time_ns or 0) <= failure.ended_ns:
        return verdict
    reason = "MindSpore's scheduler, at which ranks meet, ended before any rank failed by itself"
    return Verdict(
        culprit=None,
        confidence=Confidence.CERTAIN,
        reason=reason,
        failures=tuple(replace(one, role=Role.CONSEQUENCE) for one in verdict.failures if one.status is not None),
        stacks=verdict.stacks,
        scheduler=failure.what,
        signature=None if failure.signature is None else f"scheduler: {failure.signature}",
    )
