"""The culprit, not the victim: which rank failed first by itself, and which only followed. No I/O.

The rules, in this order, with the confidence that each gives:

| what is found                                                  | the cause             | confidence                 |
|----------------------------------------------------------------|-----------------------|----------------------------|
| one rank failed by itself                                      | that rank             | certain                    |
| several did, alike, within `ALIKE_S` seconds                   | the first of them     | certain; likely if an end  |
|                                                                |                       | may have been before it    |
| several did, and their order is known                          | the first             | certain                    |
| several did, `late_s` or less apart, by clocks that differ     | the first             | likely                     |
| ... or ended unwatched at one moment, of one server            | the first noticed     | likely                     |
| an end that was noticed more than `LATE_S` seconds after what  | that rank             | likely                     |
|     is doubtful, while nobody looked                           |                       |                            |
| a lost connection or a timeout of whatever origin came first   | that rank             | likely; unsure if a rank   |
|                                                                |                       | has ended well or stopped, |
|                                                                |                       | or was not heard           |
| only consequences, and one rank is stopped                     | that rank             | certain                    |
| ... nobody is seen to wait, and one rank is elsewhere than all | that rank             | likely                     |
|     others, which are at one place                             |                       |                            |
| ... one rank lives, and is not in a collective                 | that rank             | certain; likely if others  |
|                                                                |                       | are not known to wait      |
| ... one rank had ended well before (looked for earlier than a  | that rank             | likely                     |
|     busy rank where connections were lost: the dead lose them) |                       |                            |
| ... a message names a rank, one shows no Python stack while    | that rank             | likely                     |
|     all others wait, or one is behind in steps                 |                       |                            |
| ... several ranks are so                                       | the first of them     | unsure                     |
| ... and nobody stands out                                      | the first that failed | unsure                     |
| no failure, a hang, and nobody stands out                      | nobody                | unsure                     |
| no failure, a hang, and only one rank to be seen               | that rank             | likely; unsure if it waits |
| no rank failed by itself, and some have not been heard: they   | as above              | likely if it is stopped,   |
|     may not have taken part either                             |                       | else unsure                |

Consequences are told by launcher/supervise/diagnosis/error_patterns.py, and where Open MPI ended a rank by its exit code (evidence.py).
They are never the cause while any rank failed by itself, even if they came earlier: ends are noticed late. The time of a
failure is its hook's; without one, that of its noticed end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launcher.core.verdict import Confidence, Failure, Role, Verdict
from launcher.supervise.diagnosis.evidence import FROM_OUTSIDE, FailureSummary, RankEvidence, failed, summarize
from launcher.supervise.diagnosis.exit_order import LATE_S
from launcher.supervise.diagnosis.missing_rank import MissingRank, count, find_missing_rank, hang_at, stopped

__all__ = ["RankEvidence", "first_by_itself", "is_doubtful", "judge", "summaries_of"]

MIN_S = 0.0001  # a shorter time between two failures says nothing
ALIKE_S = 5.0  # the same bug in every rank shows itself within the differences of their start


def judge(evidence: Sequence[RankEvidence], *, hung: Collection[int] = ()) -> Verdict:
    """Return the verdict on one attempt; its stacks are left to the caller.

    What other servers know is not looked at: a cause here may be a consequence of a failure there.

    `hung`: global ranks that made no progress for too long.
    """
    summaries = summaries_of(evidence)
    cause = first_by_itself(summaries)
    if cause is not None:
        return _blame_failure(cause, summaries, evidence)
    missing = find_missing_rank(evidence, summaries, hung)
    if missing is not None:
        return _blame_missing_rank(missing, summaries)
    return _blame_first(summaries) if summaries else _blame_nobody(evidence, hung)


def summaries_of(evidence: Sequence[RankEvidence]) -> list[FailureSummary]:
    """Every failure, in the order of their times."""
    return sorted((summarize(rank) for rank in evidence if failed(rank)), key=lambda one: one.order)


# --- a rank failed by itself ---


def first_by_itself(summaries: Sequence[FailureSummary]) -> FailureSummary | None:
    """Return the cause, if it is among the failures. `summaries` in the order of their times."""
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
    """Return whether it is a lost connection or a timeout of whatever origin."""
    return one.symptom.consequence and not one.symptom.certain


def _perhaps_before(one: FailureSummary, other: FailureSummary) -> bool:
    """Without a hook, the true time of `one` is that of its noticed end, or earlier; and two clocks may differ."""
    late_ns = 0 if one.exact else one.evidence.late_s * 1e9
    return one.order <= other.order or one.time_ns - other.time_ns <= late_ns + _clock_error_ns(one, other)


def _blame_failure(
    cause: FailureSummary, summaries: Sequence[FailureSummary], evidence: Sequence[RankEvidence]
) -> Verdict:
    alike = _alike(cause, summaries)
    others = [one for one in summaries if one is not cause]
    failures = [_failure(cause, Role.CAUSE, _why_cause(cause, others, alike))]
    failures += [_follower(one, cause, alike=one in alike) for one in sorted(others, key=lambda one: one not in alike)]
    return Verdict(
        culprit=cause.global_rank,
        confidence=_confidence(cause, others, alike, evidence),
        reason=f"rank {cause.global_rank}: {cause.what}{_at(cause)}; {failures[0].reason}",
        failures=tuple(failures),
        signature=cause.signature,
    )


def _alike(cause: FailureSummary, summaries: Sequence[FailureSummary]) -> list[FailureSummary]:
    """Return the others that failed of the same at nearly the same time."""
    return [one for one in summaries if one is not cause and _is_alike(one, cause)]


def _is_alike(one: FailureSummary, cause: FailureSummary) -> bool:
    if cause.signature is None or one.signature != cause.signature:
        return False
    return one.symptom.consequence == cause.symptom.consequence and abs(_later_s(one, cause)) <= ALIKE_S


def _confidence(
    cause: FailureSummary,
    others: Sequence[FailureSummary],
    alike: Sequence[FailureSummary],
    evidence: Sequence[RankEvidence],
) -> Confidence:
    if is_doubtful(cause):
        elsewhere = any(rank.status == 0 or stopped(rank) or not rank.heard for rank in evidence)
        return Confidence.UNSURE if elsewhere else Confidence.LIKELY
    rivals = [one for one in others if one not in alike and not one.symptom.consequence]
    first = all(_surely_before(cause, one) for one in rivals) and not _another_perhaps_first(cause, alike)
    doubted = _noticed_long_after_doubtful(cause, others) or any(
        _perhaps_before_elsewhere(cause, one) for one in others
    )
    return Confidence.CERTAIN if first and not doubted else Confidence.LIKELY


def _perhaps_before_elsewhere(cause: FailureSummary, other: FailureSummary) -> bool:
    """Return whether what is doubtful on another server may have come first, as far as the two clocks tell."""
    elsewhere = other.evidence.server_index != cause.evidence.server_index
    return elsewhere and is_doubtful(other) and other.time_ns - cause.time_ns < _clock_error_ns(cause, other)


def _noticed_long_after_doubtful(cause: FailureSummary, others: Sequence[FailureSummary]) -> bool:
    """Return whether, as where nobody looked for seconds, what was doubtful may have come first after all."""
    return not cause.exact and any(is_doubtful(one) and _later_s(cause, one) > LATE_S for one in others)


def _another_perhaps_first(cause: FailureSummary, alike: Sequence[FailureSummary]) -> bool:
    """Between two exceptions of one bug the error of clocks decides, and nobody asks; ends may be noticed seconds late."""
    return any(not (cause.exact and one.exact) and not _surely_before(cause, one) for one in alike)


def _surely_before(cause: FailureSummary, other: FailureSummary) -> bool:
    if not cause.exact and not other.exact:
        return cause.evidence.order_known and (other.evidence.order_known or cause.time_ns < other.time_ns)
    between_ns = other.time_ns - cause.time_ns - _clock_error_ns(cause, other)
    if cause.exact and other.exact:
        return between_ns > 0
    # A noticed end was at that time or earlier. The other one's may thus have been before this failure.
    return between_ns > other.evidence.late_s * 1e9 if cause.exact else between_ns >= 0


def _clock_error_ns(one: FailureSummary, other: FailureSummary) -> int:
    """Return how far the clocks of two servers may differ, beyond what is known."""
    if one.evidence.server_index == other.evidence.server_index:
        return 0
    return one.evidence.clock_error_ns + other.evidence.clock_error_ns


def _why_cause(cause: FailureSummary, others: Sequence[FailureSummary], alike: Sequence[FailureSummary]) -> str:
    if alike:
        first = min(alike, key=lambda one: one.order)
        what = "all" if len(alike) == len(others) else "of which"
        later_s = _later_s(first, cause)
        first_of_all = "was noticed first" if _another_perhaps_first(cause, alike) else "was first"
        told = f"{first_of_all} by {_span(later_s)}" if later_s >= MIN_S else "was noticed first, at the same moment"
        return f"{what} {len(alike) + 1} ranks failed alike; rank {cause.global_rank} {told}"
    if not others:
        outside = "it was killed from outside: by a person, a batch system or the kernel; "
        return f"{outside if _killed_from_outside(cause) else ''}no other rank has failed"
    followers = sum(one.symptom.consequence for one in others)
    if followers == len(others):
        how = "was killed from outside" if _killed_from_outside(cause) else "failed by itself"
        return f"it {how}, and {count(followers, 'failure')} of other ranks followed from it"
    second = next(one for one in others if not one.symptom.consequence)
    return f"{_before(cause, second)} rank {second.global_rank}, which failed by itself too"


def _before(cause: FailureSummary, second: FailureSummary) -> str:
    later_s = _later_s(second, cause)
    if later_s >= MIN_S:
        return f"it failed {_span(later_s)} before"
    if later_s <= -MIN_S:
        return f"it was noticed {_span(later_s)} after, but may have failed before"
    return "it failed just before" if _surely_before(cause, second) else "it was noticed at the same moment as"


def _killed_from_outside(one: FailureSummary) -> bool:
    return -(one.evidence.status or 0) in FROM_OUTSIDE and not one.evidence.oom


def _follower(one: FailureSummary, cause: FailureSummary, *, alike: bool) -> Failure:
    later = _relative(one, cause)
    if alike:
        return _failure(one, Role.CAUSE, f"it failed alike, {later}")
    if one.symptom.consequence:
        return _failure(one, Role.CONSEQUENCE, f"it {one.symptom.kind.value}, {later}")
    return _failure(one, Role.CONSEQUENCE, f"it failed {later}, perhaps of a fault of its own")


# --- nobody failed by itself ---


def _blame_missing_rank(missing: MissingRank, summaries: Sequence[FailureSummary]) -> Verdict:
    rank = missing.evidence
    where = rank.stack.place or None if rank.stack else None
    cause = Failure(
        rank.global_rank, Role.CAUSE, missing.what, missing.reason, rank.ended_ns, where, status=rank.status
    )
    return Verdict(
        culprit=rank.global_rank,
        confidence=missing.confidence,
        reason=f"rank {rank.global_rank} {missing.what}: {missing.reason}",
        failures=(cause, *(_failure(one, Role.CONSEQUENCE, f"it {one.symptom.kind.value}") for one in summaries)),
        signature=missing.signature,
    )


def _blame_first(summaries: Sequence[FailureSummary]) -> Verdict:
    """Everything followed from something else, but that something is not to be seen from here: no signature."""
    first = next((one for one in summaries if is_doubtful(one)), summaries[0])
    others = [one for one in summaries if one is not first]
    reason = f"it {first.symptom.kind.value}; no rank is seen to have failed by itself, or to be missing"
    return Verdict(
        culprit=first.global_rank,
        confidence=Confidence.UNSURE,
        reason=f"rank {first.global_rank}: {first.what}{_at(first)}; {reason}",
        failures=(
            _failure(first, Role.CAUSE, reason),
            *(_follower(one, first, alike=False) for one in others),
        ),
    )


def _blame_nobody(evidence: Sequence[RankEvidence], hung: Collection[int]) -> Verdict:
    if not hung:
        return Verdict(None, Confidence.UNSURE, "no rank has failed")
    if len(evidence) == 1:
        return _blame_missing_rank(_lonely(evidence[0]), ())
    reason = f"{count(len(hung), 'rank')} of {len(evidence)} made no progress, and none of them stands out"
    return Verdict(None, Confidence.UNSURE, reason)


def _lonely(rank: RankEvidence) -> MissingRank:
    """Return the only rank that can be seen; there may be others on other servers."""
    waits = rank.stack is not None and rank.stack.in_collective
    doing = rank.stack.doing if rank.stack else "what it does is not known"
    return MissingRank(
        rank, "makes no progress", doing, Confidence.UNSURE if waits else Confidence.LIKELY, hang_at(rank)
    )


# --- words ---


def _failure(one: FailureSummary, role: Role, reason: str) -> Failure:
    status = one.evidence.status
    return Failure(one.global_rank, role, one.what, reason, one.time_ns or None, one.where, status, one.traceback)


def _at(one: FailureSummary) -> str:
    return f" at {one.where}" if one.where else ""


def _later_s(one: FailureSummary, other: FailureSummary) -> float:
    return (one.time_ns - other.time_ns) / 1e9


def _relative(one: FailureSummary, cause: FailureSummary) -> str:
    later_s = _later_s(one, cause)
    if abs(later_s) < MIN_S:
        return "at the same moment"
    return f"{_span(later_s)} {'later' if later_s >= 0 else 'earlier, as far as clocks tell'}"


def _span(seconds: float) -> str:
    """Three figures at most: "0.3 ms", "22 ms", "4.1 s", "130 s"."""
    value, unit = (abs(seconds) * 1000, "ms") if abs(seconds) < 1 else (abs(seconds), "s")
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
