"""Finds the root cause of a failed attempt: the rank that failed first by itself, or that others waited for. No I/O.

The rules, in this order, with the confidence of each:

| finding                                                        | cause                 | confidence                 |
|----------------------------------------------------------------|-----------------------|----------------------------|
| one rank failed by itself                                      | that rank             | certain                    |
| ... by a signal that tlaunch forwarded to all ranks            | none: the signal      | certain                    |
| several ranks failed in the same way within `ALIKE_S` seconds  | the first of them     | certain; likely if another |
|                                                                |                       | may have been earlier      |
| several ranks failed, in a known order                         | the first             | certain                    |
| ... at most `late_s` apart, by the clocks of different servers | the first             | likely                     |
| ... in an unknown order at the same time on one server         | the first noticed     | likely                     |
| an exit was noticed more than `LATE_S` seconds after a         | that rank             | likely                     |
|     doubtful failure, by an agent that was delayed             |                       |                            |
| the first failure is doubtful: a lost connection or a timeout  | that rank             | likely; unsure if a rank   |
|     of unknown origin                                          |                       | has succeeded, is stopped, |
|                                                                |                       | or has an unknown state    |
| only consequences, and one rank is stopped                     | that rank             | certain                    |
| ... no rank is known to wait, and one rank is at a different   | that rank             | likely                     |
|     location than all others                                   |                       |                            |
| ... logs of joining ranks repeat that they cannot connect      | that rank, or the one | likely                     |
|                                                                | they cannot reach     |                            |
| ... one rank is alive, and neither in a collective nor in a    | that rank             | certain; likely if others  |
|     library that may wait, such as MindSpore's executor        |                       | are not known to wait      |
| ... one rank had succeeded before (checked before a busy rank  | that rank             | likely                     |
|     if connections were lost, which requires a dead peer)      |                       |                            |
| ... a message names a rank, one has no Python stack while all  | that rank             | likely                     |
|     others wait, or one has completed fewer steps              |                       |                            |
| ... several ranks match one of these rules                     | the first of them     | unsure                     |
| ... and no rule matches                                        | the first that failed | unsure                     |
| no failure, a hang, and no rule matches, or a rule matches     | none                  | unsure                     |
|     several ranks at the same step and no rank is known to wait |                       |                            |
| no failure, a hang, and evidence of only one rank              | that rank             | likely; unsure if it waits |
| no rank failed by itself, and some ranks have an unknown       | as above              | likely if it is stopped,   |
|     state, so they may be missing, too                         |                       | else unsure                |

error_patterns.py recognizes consequences; evidence.py recognizes the exit code of Open MPI. If any rank failed by
itself, only a doubtful consequence can be the cause instead. Another consequence cannot, even if its time is earlier,
because exits are noticed late. The time of a failure comes from the hook in the rank. Without the hook, it is the time
when the exit was noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from launcher.core.text import counted
from launcher.core.verdict import Confidence, Failure, Role, Verdict
from launcher.supervise.diagnosis.evidence import FailureSummary, RankEvidence, failed, summarize
from launcher.supervise.diagnosis.missing_rank import MissingRank, find_missing_rank, hang_at, stopped
from launcher.supervise.rank_ends import ALIKE_S, FROM_OUTSIDE, LATE_S

MIN_S = 0.0001  # a shorter time between two failures is not significant


def judge(evidence: Sequence[RankEvidence], *, hung: Collection[int] = ()) -> Verdict:
    """Diagnose a failed attempt, and return a verdict that does not contain the ranks' stacks.

    `hung` holds the global ranks without progress. If the evidence covers only one server, the reported cause may be a
    consequence of a failure on another server.
    """
    summaries = summaries_of(evidence)
    cause = first_by_itself(summaries)
    if cause is not None:
        return _blame_signal(cause, summaries) if cause.forwarded else _blame_failure(cause, summaries, evidence)
    missing = find_missing_rank(evidence, summaries, hung)
    if missing is None and not summaries and hung and len(evidence) == 1:
        # The state of ranks on other servers is unknown.
        [rank] = evidence
        doing = rank.stack.doing if rank.stack else "its state is unknown"
        confidence = Confidence.UNSURE if rank.stack and rank.stack.in_collective else Confidence.LIKELY
        missing = MissingRank(rank, "makes no progress", doing, confidence, hang_at(rank))
    if missing is not None:
        return _blame_missing_rank(missing, summaries)
    if summaries:
        return _blame_first(summaries)
    if not hung:
        return Verdict(None, Confidence.UNSURE, "no rank has failed")
    still = f"{len(hung)} of {counted(len(evidence), 'rank')} made no progress"
    signature = min((place for rank in evidence if (place := hang_at(rank))), default=None)
    reason = f"{still}, and the stacks do not show which rank the others wait for"
    return Verdict(None, Confidence.UNSURE, reason, signature=signature)


def summaries_of(evidence: Sequence[RankEvidence]) -> list[FailureSummary]:
    """Return summaries of all failures, sorted by time."""
    return sorted((summarize(rank) for rank in evidence if failed(rank)), key=lambda one: one.order)


def at_most(confidence: Confidence, limit: Confidence) -> Confidence:
    return max(confidence, limit, key=list(Confidence).index)


def at_most_likely(verdict: Verdict) -> Confidence:
    return at_most(verdict.confidence, Confidence.LIKELY)


# --- a rank failed by itself ---


def first_by_itself(summaries: Sequence[FailureSummary]) -> FailureSummary | None:
    """Return the failure that is the root cause, or None if all failures are consequences."""
    own = [one for one in summaries if not one.symptom.consequence]
    doubtful = next((one for one in summaries if is_doubtful(one)), None)
    if doubtful is not None:
        before = next((one for one in own if _perhaps_before(one, doubtful)), None)
        if before is not None:
            return before
        if _perhaps_before(doubtful, summaries[0]):
            return doubtful
    return own[0] if own else None


def is_doubtful(one: FailureSummary) -> bool:
    """Return True if a failure is a lost connection or a timeout of unknown origin."""
    return one.symptom.consequence and not one.symptom.certain


def _perhaps_before(one: FailureSummary, other: FailureSummary) -> bool:
    """Return True if `one` may have happened before `other`, given delays and clock errors."""
    late_ns = 0 if one.exact else one.evidence.late_s * 1e9
    return one.order <= other.order or one.time_ns - other.time_ns <= late_ns + _clock_error_ns(one, other)


def _blame_failure(
    cause: FailureSummary, summaries: Sequence[FailureSummary], evidence: Sequence[RankEvidence]
) -> Verdict:
    others = [one for one in summaries if one is not cause]
    alike = [
        one
        for one in others
        if cause.signature is not None
        and one.signature == cause.signature
        and one.symptom.consequence == cause.symptom.consequence
        and abs(_later_s(one, cause)) <= ALIKE_S
    ]
    reason = _why_cause(cause, others, alike)
    if cause.doubt is not None:
        reason = f"{reason}; {cause.doubt}"
    return Verdict(
        culprit=cause.global_rank,
        confidence=_confidence(cause, others, alike, evidence),
        reason=f"rank {cause.global_rank}: {_what_and_where(cause)}; {reason}",
        failures=(
            _failure(cause, Role.CAUSE, reason),
            *(_failure(one, Role.CAUSE, f"it failed in the same way, {_relative(one, cause)}") for one in alike),
            *(_follower(one, cause) for one in others if one not in alike),
        ),
        signature=cause.signature,
    )


def _blame_signal(cause: FailureSummary, summaries: Sequence[FailureSummary]) -> Verdict:
    """Return a verdict that blames no rank, because a signal that was forwarded to all ranks ended them."""
    ended = [one for one in summaries if one.forwarded and one.signature == cause.signature]
    others = [one for one in summaries if one not in ended]
    failures = (*(_failure(one, Role.CAUSE, "") for one in ended), *(_follower(one, cause) for one in others))
    reason = f"{cause.what}, ended {counted(len(ended), 'rank')}, rank {cause.global_rank} first"
    return Verdict(None, Confidence.CERTAIN, reason, failures, signature=cause.signature)


def _confidence(
    cause: FailureSummary,
    others: Sequence[FailureSummary],
    alike: Sequence[FailureSummary],
    evidence: Sequence[RankEvidence],
) -> Confidence:
    doubtful = [one for one in others if is_doubtful(one)]
    if is_doubtful(cause):
        elsewhere = any(rank.status == 0 or stopped(rank) or not rank.heard for rank in evidence)
        return Confidence.UNSURE if elsewhere else at_most(Confidence.LIKELY, cause.at_most)
    rivals = [one for one in others if one not in alike and not one.symptom.consequence]
    first = all(_surely_before(cause, one) for one in rivals) and not _another_perhaps_first(cause, alike)
    # A delayed agent may have noticed the exit after a doubtful failure, although the exit was earlier.
    late = not cause.exact and any(_later_s(cause, one) > LATE_S for one in doubtful)
    # Within the error of the clocks, a doubtful failure on another server may have been first.
    elsewhere = any(
        one.evidence.server_index != cause.evidence.server_index
        and one.time_ns - cause.time_ns < _clock_error_ns(cause, one)
        for one in doubtful
    )
    return at_most(Confidence.CERTAIN if first and not late and not elsewhere else Confidence.LIKELY, cause.at_most)


def _another_perhaps_first(cause: FailureSummary, alike: Sequence[FailureSummary]) -> bool:
    """Return True if a failure in `alike` may be earlier than `cause`, because one of the two times is not exact."""
    return any(not (cause.exact and one.exact) and not _surely_before(cause, one) for one in alike)


def _surely_before(cause: FailureSummary, other: FailureSummary) -> bool:
    if not cause.exact and not other.exact:
        return cause.evidence.order_known and (other.evidence.order_known or cause.time_ns < other.time_ns)
    between_ns = other.time_ns - cause.time_ns - _clock_error_ns(cause, other)
    if cause.exact and other.exact:
        return between_ns > 0
    # An exit is noticed at its time or later. So the other failure may have been before this one.
    return between_ns > other.evidence.late_s * 1e9 if cause.exact else between_ns >= 0


def _clock_error_ns(one: FailureSummary, other: FailureSummary) -> int:
    if one.evidence.server_index == other.evidence.server_index:
        return 0
    return one.evidence.clock_error_ns + other.evidence.clock_error_ns


def _why_cause(cause: FailureSummary, others: Sequence[FailureSummary], alike: Sequence[FailureSummary]) -> str:
    outside = -(cause.evidence.status or 0) in FROM_OUTSIDE and not cause.evidence.oom
    if alike:
        later_s = min(_later_s(one, cause) for one in alike)
        noticed = "was noticed first" if _another_perhaps_first(cause, alike) else "was first"
        first = f"{noticed} by {_span(later_s)}" if later_s >= MIN_S else "was noticed first, at the same moment"
        every = "all " if len(alike) == len(others) else ""
        return f"{every}{len(alike) + 1} ranks failed in the same way; rank {cause.global_rank} {first}"
    if not others:
        killed = "it was killed from outside (by a user, the batch system or the kernel); " if outside else ""
        return f"{killed}no other rank had failed"
    second = next((one for one in others if not one.symptom.consequence), None)
    if second is None:
        how = "was killed from outside" if outside else "failed by itself"
        return f"it {how}, and {counted(len(others), 'other rank')} failed because of it"
    later_s = _later_s(second, cause)
    if later_s >= MIN_S:
        before = f"it failed {_span(later_s)} before"
    elif later_s <= -MIN_S:
        before = f"it was noticed {_span(later_s)} after, but may have failed before"
    else:
        before = "it failed just before" if _surely_before(cause, second) else "it was noticed at the same moment as"
    return f"{before} rank {second.global_rank}, which failed by itself too"


# --- no rank failed by itself ---


def _blame_missing_rank(missing: MissingRank, summaries: Sequence[FailureSummary]) -> Verdict:
    rank = missing.evidence
    where = (rank.stack and rank.stack.place) or None
    cause = Failure(rank.global_rank, Role.CAUSE, missing.what, missing.reason, rank.ended_ns, where, rank.status)
    return Verdict(
        culprit=rank.global_rank,
        confidence=missing.confidence,
        reason=f"rank {rank.global_rank} {missing.what}: {missing.reason}",
        failures=(cause, *(_failure(one, Role.CONSEQUENCE, f"it {one.symptom.kind.value}") for one in summaries)),
        signature=missing.signature,
    )


def _blame_first(summaries: Sequence[FailureSummary]) -> Verdict:
    """Return an unsure verdict that blames the first failure, if all failures are consequences."""
    first = next((one for one in summaries if is_doubtful(one)), summaries[0])
    reason = f"it {first.symptom.kind.value}; no rank is known to have failed by itself or to be missing"
    return Verdict(
        culprit=first.global_rank,
        confidence=Confidence.UNSURE,
        reason=f"rank {first.global_rank}: {_what_and_where(first)}; {reason}",
        failures=(
            _failure(first, Role.CAUSE, reason),
            *(_follower(one, first) for one in summaries if one is not first),
        ),
    )


# --- words ---


def with_remark(verdict: Verdict, remark: str) -> Verdict:
    """Return the verdict with a remark appended to its reason and to the reason of the culprit's failure."""
    failures = (
        replace(one, reason=f"{one.reason}; {remark}") if one.global_rank == verdict.culprit else one
        for one in verdict.failures
    )
    return replace(verdict, reason=f"{verdict.reason}; {remark}", failures=tuple(failures))


def _follower(one: FailureSummary, cause: FailureSummary) -> Failure:
    later, symptom = _relative(one, cause), one.symptom
    reason = f"it {symptom.kind.value}, {later}" if symptom.consequence else f"it failed {later}, possibly by itself"
    return _failure(one, Role.CONSEQUENCE, reason)


def _failure(one: FailureSummary, role: Role, reason: str) -> Failure:
    status = one.evidence.status
    if status is None and one.evidence.failure is not None:
        status, reason = one.evidence.failure.status, f"{reason}; its process was still running"
    return Failure(one.global_rank, role, one.what, reason, one.time_ns or None, one.where, status, one.traceback)


def _what_and_where(one: FailureSummary) -> str:
    return f"{one.what} at {one.where}" if one.where else one.what


def _later_s(one: FailureSummary, other: FailureSummary) -> float:
    return (one.time_ns - other.time_ns) / 1e9


def _relative(one: FailureSummary, cause: FailureSummary) -> str:
    later_s = _later_s(one, cause)
    if abs(later_s) < MIN_S:
        return "at the same moment"
    return f"{_span(later_s)} {'later' if later_s >= 0 else 'earlier by the clock'}"


def _span(seconds: float) -> str:
    """Format a duration with at most three digits: "0.3 ms", "22 ms", "4.1 s", "130 s"."""
    value, unit = (abs(seconds) * 1000, "ms") if abs(seconds) < 1 else (abs(seconds), "s")
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
