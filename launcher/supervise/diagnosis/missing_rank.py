"""The missing rank: one that has not failed, but does not come, where every failure is only a consequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from launcher.core.frozen import frozen
from launcher.core.verdict import Confidence
from launcher.supervise.diagnosis.error_patterns import Kind
from launcher.supervise.diagnosis.evidence import FailureSummary, RankEvidence, file_and_line

LEAVES = "in destroy_process_group"
MIN_ALIKE = 2  # ranks at one place make another one odd
NEED_A_DEAD_PEER = (Kind.PEER_CLOSED, Kind.STORE_LOST, Kind.PEER_FAILED)


@frozen
class MissingRank:
    """A rank that has not failed, but that others wait for, or waited for, in vain."""

    evidence: RankEvidence
    what: str  # completes "rank 3 ..."
    reason: str
    confidence: Confidence
    signature: str | None = None


def find_missing_rank(
    evidence: Sequence[RankEvidence], summaries: Sequence[FailureSummary], hung: Collection[int]
) -> MissingRank | None:
    """Return the rank that the others miss."""
    if not summaries and not hung:
        return None
    failed = {one.global_rank for one in summaries}
    healthy = [rank for rank in evidence if rank.heard and rank.global_rank not in failed]
    waiting = len(summaries) + sum(_waits(rank) for rank in healthy)
    rules: list[Callable[[], list[MissingRank]]] = [
        lambda: [_of_stopped(rank, waiting) for rank in healthy if stopped(rank)],
        lambda: [_of_only_hung(rank, evidence) for rank in _only_hung(healthy, hung)],
        lambda: [_of_odd(rank, healthy) for rank in _odd(healthy)] if waiting in {0, len(evidence)} else [],
        lambda: [_of_busy(rank, waiting, len(evidence)) for rank in healthy if _busy(rank)],
        lambda: [_of_ended(rank, waiting) for rank in _ended_before(healthy, summaries, len(evidence))],
        lambda: [_of_named(rank, summaries) for rank in healthy if rank.global_rank in _named(summaries)],
        lambda: [_of_silent(rank, waiting) for rank in healthy if _silent(rank) and waiting == len(evidence) - 1],
        lambda: [_of_behind(rank, evidence) for rank in _behind(healthy, evidence)],
    ]
    if any(one.symptom.kind in NEED_A_DEAD_PEER for one in summaries):
        rules.insert(1, rules.pop(4))  # whoever lives has not closed its connections,
        rules.insert(1, lambda: [_of_leaving(rank) for rank in healthy if leaves(rank)])  # unless it leaves the group
    found = next((absences for rule in rules if (absences := rule())), [])
    missing, unheard = _outstanding(found, hung), sum(not rank.heard for rank in evidence)
    return _beside_unheard(missing, unheard) if missing is not None and unheard else missing


def _beside_unheard(missing: MissingRank, unheard: int) -> MissingRank:
    """Ranks of which nothing is known may be missed as well; but one that is stopped would be enough."""
    reason = f"{missing.reason}; what {count(unheard, 'other rank')} did is not known"
    confidence = Confidence.LIKELY if stopped(missing.evidence) else Confidence.UNSURE
    return replace(missing, reason=reason, confidence=confidence)


def _outstanding(found: Sequence[MissingRank], hung: Collection[int]) -> MissingRank | None:
    """One of several that may be missed equally: of those that hang, if any do, the one with the fewest steps."""
    suspects = [one for one in found if one.evidence.global_rank in hung] or found
    if len(suspects) <= 1:
        return next(iter(suspects), None)
    first = min(suspects, key=lambda one: _progress(one.evidence))
    likewise = f"{first.reason}; the same is true of {count(len(suspects) - 1, 'other rank')}"
    return replace(first, reason=likewise, confidence=Confidence.UNSURE)


def _progress(rank: RankEvidence) -> tuple[float, float, int]:
    unknown = float("inf")
    return (
        unknown if rank.step is None else rank.step,
        unknown if rank.ended_index is None else rank.ended_index,
        rank.global_rank,
    )


def stopped(rank: RankEvidence) -> bool:
    return rank.alive and rank.stack is not None and rank.stack.state == "stopped"


def _waits(rank: RankEvidence) -> bool:
    return rank.alive and rank.stack is not None and rank.stack.in_collective


def _busy(rank: RankEvidence) -> bool:
    """Return whether it lives and is seen to do something else than wait for others."""
    if not rank.alive or rank.stack is None or rank.stack.in_collective:
        return False
    return rank.stack.state == "uninterruptible" or (rank.stack.state == "running" and bool(rank.stack.place))


def _only_hung(healthy: Sequence[RankEvidence], hung: Collection[int]) -> list[RankEvidence]:
    """Return the one that makes no progress while all others do, unless it is seen to wait for them."""
    found = [rank for rank in healthy if rank.global_rank in hung]
    return found if len(found) == 1 < len(healthy) and not _waits(found[0]) else []


def _odd(healthy: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Return the one that is elsewhere while all others are at one place: perhaps these wait in an unknown way."""
    places = Counter(_place(rank) for rank in healthy if rank.alive)
    [(usual, times), *others] = places.most_common() or [("", 0)]
    if times < MIN_ALIKE or len(others) != 1 or others[0][1] != 1:
        return []
    return [rank for rank in healthy if rank.alive and _place(rank) != usual]


def _place(rank: RankEvidence) -> str:
    """Return where a rank is; where it waits for others only what it waits in: lines that call it may differ."""
    if rank.stack is None:
        return ""
    return rank.stack.doing.partition(", called ")[0] if rank.stack.in_collective else rank.stack.doing


def leaves(rank: RankEvidence) -> bool:
    """Return whether it is about to close its connections."""
    return rank.alive and rank.stack is not None and rank.stack.doing.startswith(LEAVES)


def _silent(rank: RankEvidence) -> bool:
    """Return whether it lives, and has no Python stack that would tell more."""
    return rank.alive and rank.stack is not None and not rank.stack.in_collective and not rank.stack.place


def _ended_before(
    healthy: Sequence[RankEvidence], summaries: Sequence[FailureSummary], rank_count: int
) -> list[RankEvidence]:
    """Ranks that ended well before the first failure, as far as noticed ends tell.

    Where all did but the one that failed, it is that one that differs.
    """
    first_ns = summaries[0].time_ns if summaries else None
    ended = [
        rank
        for rank in healthy
        if rank.status == 0
        and (first_ns is None or rank.ended_ns is None or rank.ended_ns - rank.late_s * 1e9 <= first_ns)
    ]
    everyone_else = len(ended) > 1 and len(ended) + len(summaries) == rank_count and len(summaries) == 1
    return [] if everyone_else else ended


def _behind(healthy: Sequence[RankEvidence], evidence: Sequence[RankEvidence]) -> list[RankEvidence]:
    steps = [rank.step for rank in evidence if rank.step is not None]
    return [rank for rank in healthy if rank.alive and rank.step is not None and rank.step < max(steps)]


def _named(summaries: Sequence[FailureSummary]) -> set[int]:
    return {global_rank for one in summaries for global_rank in one.symptom.named}


def _of_stopped(rank: RankEvidence, waiting: int) -> MissingRank:
    return MissingRank(rank, "does not take part", f"stopped (SIGSTOP){_while(waiting)}", Confidence.CERTAIN)


def _of_leaving(rank: RankEvidence) -> MissingRank:
    assert rank.stack is not None
    reason = f"{rank.stack.doing}; that closes connections which others need"
    return MissingRank(rank, "leaves the group", reason, Confidence.LIKELY)


def _of_only_hung(rank: RankEvidence, evidence: Sequence[RankEvidence]) -> MissingRank:
    doing = rank.stack.doing if rank.stack else "unseen"
    alive = sum(other.alive for other in evidence if other is not rank)
    others = f"{count(alive, 'other rank')} do{'es' if alive == 1 else ''}" if alive else "all others have ended"
    reason = f"{doing}; it alone makes no progress, while {others}"
    return MissingRank(rank, "makes no progress", reason, Confidence.LIKELY, hang_at(rank))


def _of_odd(rank: RankEvidence, healthy: Sequence[RankEvidence]) -> MissingRank:
    others = [other for other in healthy if other.alive and other is not rank]
    reason = f"{rank.stack.doing if rank.stack else 'unseen'}, while {len(others)} other ranks are {_place(others[0]) or 'unseen'}"
    return MissingRank(rank, "does not take part", reason, Confidence.LIKELY, hang_at(rank))


def _of_busy(rank: RankEvidence, waiting: int, rank_count: int) -> MissingRank:
    assert rank.stack is not None
    confidence = Confidence.CERTAIN if 0 < waiting == rank_count - 1 else Confidence.LIKELY
    reason = f"{rank.stack.doing}{_while(waiting)}"
    return MissingRank(rank, "does not take part", reason, confidence, hang_at(rank))


def _of_ended(rank: RankEvidence, waiting: int) -> MissingRank:
    reason = f"it ended well, but {count(waiting, 'other rank')} still expected it"
    return MissingRank(rank, "ended too early", reason, Confidence.LIKELY)


def _of_named(rank: RankEvidence, summaries: Sequence[FailureSummary]) -> MissingRank:
    witness = next(one for one in summaries if rank.global_rank in one.symptom.named)
    reason = f"rank {witness.global_rank} says: {witness.symptom.evidence}"
    return MissingRank(rank, "does not take part", reason, Confidence.LIKELY)


def _of_silent(rank: RankEvidence, waiting: int) -> MissingRank:
    assert rank.stack is not None
    return MissingRank(rank, "does not take part", f"{rank.stack.doing}{_while(waiting)}", Confidence.LIKELY)


def _of_behind(rank: RankEvidence, evidence: Sequence[RankEvidence]) -> MissingRank:
    ahead = max(other.step for other in evidence if other.step is not None)
    reason = f"it is at step {rank.step} while others have come to step {ahead}"
    return MissingRank(rank, "does not keep up", reason, Confidence.LIKELY)


def hang_at(rank: RankEvidence) -> str | None:
    """Return the signature of a hang; None where its place is not known, or is a collective, which tells nothing."""
    if rank.stack is None or rank.stack.in_collective or not rank.stack.place:
        return None
    return f"hang at {file_and_line(rank.stack.place)}"


def _while(waiting: int) -> str:
    return f", while {count(waiting, 'other rank')} waited for it" if waiting else ""


def count(number: int, noun: str) -> str:
    """With its number: "1 rank", "3 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
