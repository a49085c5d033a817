"""Finds the missing rank: if all failures are consequences, the living or exited rank that other ranks waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from launcher.core.frozen import frozen
from launcher.core.text import counted
from launcher.core.verdict import Confidence
from launcher.supervise.diagnosis.error_patterns import Kind, unconnected
from launcher.supervise.diagnosis.evidence import FailureSummary, RankEvidence
from launcher.supervise.diagnosis.stack_parser import RankStack

MIN_ALIKE = 2  # ranks at one location make a rank elsewhere the exception
_JOINING = ("in init_process_group", "in TCPStore")
NEED_A_DEAD_PEER = (Kind.PEER_CLOSED, Kind.STORE_LOST, Kind.PEER_FAILED)


@frozen
class MissingRank:
    """A rank that has not failed, but that other ranks are waiting for."""

    evidence: RankEvidence
    what: str  # completes "rank 3 ..."
    reason: str
    confidence: Confidence = Confidence.LIKELY
    signature: str | None = None


def find_missing_rank(
    evidence: Sequence[RankEvidence], summaries: Sequence[FailureSummary], hung: Collection[int]
) -> MissingRank | None:
    if not summaries and not hung:
        return None
    find = _Rules(evidence, summaries, hung)
    rules = [find.unconnected, find.only_hung, find.odd, find.busy, find.ended, find.named, find.silent, find.lagging]
    if any(one.symptom.kind in NEED_A_DEAD_PEER for one in summaries):
        # A living rank still has its connections, unless it is leaving the group.
        rules.remove(find.ended)
        rules = [find.leaving, find.ended, *rules]
    found = next((missing for rule in [find.stopped, *rules] if (missing := rule())), [])
    # Of several candidates prefer those that hang, then the one with the fewest steps.
    suspects = [one for one in found if one.evidence.global_rank in hung] or found
    if not suspects:
        return None
    first = min(suspects, key=_progress)
    if len(suspects) > 1:
        if find.any_may_be_missing and len({one.evidence.step for one in suspects}) == 1:
            return None
        reason = f"{first.reason}; the same applies to {counted(len(suspects) - 1, 'other rank')}"
        first = replace(first, reason=reason, confidence=Confidence.UNSURE)
    if unheard := sum(not rank.heard for rank in evidence):
        # They may be missing, too; but one stopped rank is a sufficient cause.
        reason = f"{first.reason}; the state of {counted(unheard, 'other rank')} is unknown"
        confidence = Confidence.LIKELY if stopped(first.evidence) else Confidence.UNSURE
        first = replace(first, reason=reason, confidence=confidence)
    return first


def _progress(missing: MissingRank) -> tuple[float, float, int]:
    unknown, rank = float("inf"), missing.evidence
    step, ended = (unknown if value is None else value for value in (rank.step, rank.ended_index))
    return step, ended, rank.global_rank


def stopped(rank: RankEvidence) -> bool:
    return rank.seen is not None and rank.seen.state == "stopped"


def leaves(rank: RankEvidence) -> bool:
    """Return True if a rank is about to close its connections."""
    return rank.seen is not None and rank.seen.doing.startswith("in destroy_process_group")


def joins(stack: RankStack | None) -> bool:
    return stack is not None and stack.doing.startswith(_JOINING)


def hang_at(rank: RankEvidence) -> str | None:
    """Return a signature for the location of a hang. Return None for unknown locations and for collectives."""
    if rank.stack is None or rank.stack.in_collective or not rank.stack.place:
        return None
    return f"hang at {rank.stack.place.partition(' in ')[0]}"


class _Rules:
    """The rules that find missing ranks. Each rule is a method that returns the matching ranks."""

    def __init__(
        self, evidence: Sequence[RankEvidence], summaries: Sequence[FailureSummary], hung: Collection[int]
    ) -> None:
        failed = {one.global_rank for one in summaries}
        self._evidence, self._summaries, self._hung = evidence, summaries, hung
        self._healthy = [rank for rank in evidence if rank.heard and rank.global_rank not in failed]
        self._waiting = len(summaries) + sum(_waits(rank) for rank in self._healthy)

    @property
    def any_may_be_missing(self) -> bool:
        """True if no rank has failed or is known to wait, so that each living rank may be the missing one."""
        return self._waiting == 0 and all(rank.alive for rank in self._healthy)

    def stopped(self) -> list[MissingRank]:
        """Return the ranks whose processes are stopped.

        If all other ranks are at one location, they count as waiting: a wait inside a C library leaves no Python frame.
        """
        others = [rank for rank in self._healthy if rank.alive and not stopped(rank) and not _waits(rank)]
        wait = len(others) >= MIN_ALIKE and len({_place(rank) for rank in others}) == 1
        waiting = self._waiting + len(others) if wait else self._waiting
        reason = f"stopped (SIGSTOP){_meanwhile(waiting, at_least=bool(others) and not wait)}"
        found = [rank for rank in self._healthy if stopped(rank)]
        return [MissingRank(rank, "does not take part", reason, Confidence.CERTAIN) for rank in found]

    def leaving(self) -> list[MissingRank]:
        closes = "this closes connections that other ranks need"
        leavers = [rank for rank in self._healthy if leaves(rank)]
        return [MissingRank(rank, "leaves the group", f"{_doing(rank)}; {closes}") for rank in leavers]

    def unconnected(self) -> list[MissingRank]:
        """Return the rank to which no other rank can connect. If there is none, return the ranks that cannot connect.

        At most one rank of each server is returned. The rule applies only while all ranks are joining.
        """
        if self._summaries or not all(joins(rank.seen) for rank in self._healthy):
            return []  # a rank that is not joining yet cannot be reached
        told = [(rank, unconnected(rank.log_tail)) for rank in sorted(self._healthy, key=lambda one: one.global_rank)]
        found, others = [one for one in told if one[1]], [rank for rank, words in told if not words]
        if len(others) == 1 < len(found):
            first, words = found[0]
            says = f"the log of rank {first.global_rank} says: {words}"
            reason = f"{counted(len(found), 'other rank')} cannot connect; {says}"
            return [MissingRank(others[0], "cannot be reached", reason)]
        of_servers = {rank.server_index: (rank, words) for rank, words in reversed(found)}.values()
        meanwhile = _meanwhile(len(others))
        return [MissingRank(rank, "does not join", f"its log says: {words}{meanwhile}") for rank, words in of_servers]

    def only_hung(self) -> list[MissingRank]:
        """If only one rank makes no progress, return this rank, unless it is waiting for other ranks."""
        found = [rank for rank in self._healthy if rank.global_rank in self._hung]
        if not len(found) == 1 < len(self._healthy) or _waits(found[0]):
            return []
        alive = sum(rank.alive for rank in self._evidence if rank is not found[0])
        verb = "reports steps, writes output or uses" if alive == 1 else "report steps, write output or use"
        others = f"{counted(alive, 'other rank')} {verb} the CPU" if alive else "all others have ended"
        reason = f"{_doing(found[0])}; only this rank makes no progress, while {others}"
        return [MissingRank(found[0], "makes no progress", reason, signature=hang_at(found[0]))]

    def odd(self) -> list[MissingRank]:
        """If all ranks except one are at the same code location, return the remaining rank."""
        living = [rank for rank in self._healthy if rank.alive]
        [(usual, times), *others] = Counter(map(_place, living)).most_common() or [("", 0)]
        if self._waiting not in {0, len(self._evidence)} or times < MIN_ALIKE or [each[1] for each in others] != [1]:
            return []
        elsewhere = f"while {len(living) - 1} other ranks are {usual or 'in an unknown state'}"
        rank = next(rank for rank in living if _place(rank) != usual)
        return [MissingRank(rank, "does not take part", f"{_doing(rank)}, {elsewhere}", signature=hang_at(rank))]

    def busy(self) -> list[MissingRank]:
        """Return the living ranks that are known to be doing something other than waiting for other ranks.

        If there are several, ranks at a location where another rank timed out are excluded. They wait, too, in a C
        library that leaves no Python frames. Of the rest, ranks inside a library that may wait are excluded if the
        others are not.
        """
        found = [
            (rank, seen)
            for rank in self._healthy
            if (seen := rank.seen) is not None
            and not seen.in_collective
            and (seen.state == "uninterruptible" or (seen.state == "running" and seen.place))
        ]
        gave_up_at = {one.where for one in self._summaries if one.symptom.kind is Kind.TIMEOUT}
        not_given_up = [(rank, seen) for rank, seen in found if seen.place not in gave_up_at] or found
        busy = [(rank, seen) for rank, seen in not_given_up if not seen.may_wait] or not_given_up
        waiting, is_known = self._waiting + len(found) - len(busy), len(busy) == len(not_given_up)
        certain = is_known and 0 < waiting == len(self._evidence) - 1
        confidence = Confidence.CERTAIN if certain else Confidence.LIKELY
        meanwhile = _meanwhile(waiting, verb="waited" if is_known else "may have waited")
        return [
            MissingRank(rank, "does not take part", f"{seen.doing}{meanwhile}", confidence, hang_at(rank))
            for rank, seen in busy
        ]

    def ended(self) -> list[MissingRank]:
        """Return the ranks that exited successfully and probably did so before the first failure.

        If every rank but the failed one did, returns an empty list: then the failed rank is the odd one.
        """
        first_ns = self._summaries[0].time_ns if self._summaries else None
        ended = [rank for rank in self._healthy if rank.status == 0]
        if first_ns is not None:
            ended = [rank for rank in ended if rank.ended_ns is None or rank.ended_ns - rank.late_s * 1e9 <= first_ns]
        if len(ended) > 1 and len(self._summaries) == 1 and len(ended) + 1 == len(self._evidence):
            return []
        reason = f"it exited successfully, but {counted(self._waiting, 'other rank')} still waited for it"
        return [MissingRank(rank, "ended too early", reason) for rank in ended]

    def named(self) -> list[MissingRank]:
        witnesses = {rank: one for one in reversed(self._summaries) for rank in one.symptom.named}
        return [
            MissingRank(rank, "does not take part", f"rank {witness.global_rank} says: {witness.symptom.evidence}")
            for rank in self._healthy
            if (witness := witnesses.get(rank.global_rank))
        ]

    def silent(self) -> list[MissingRank]:
        if self._waiting != len(self._evidence) - 1:
            return []
        return [
            MissingRank(rank, "does not take part", f"{rank.seen.doing}{_meanwhile(self._waiting)}")
            for rank in self._healthy
            if rank.seen is not None and not rank.seen.in_collective and not rank.seen.place
        ]

    def lagging(self) -> list[MissingRank]:
        ahead = max((rank.step for rank in self._evidence if rank.step is not None), default=0)
        others = f"while others are at step {ahead}"
        return [
            MissingRank(rank, "does not keep up", f"it is at step {rank.step} {others}")
            for rank in self._healthy
            if rank.alive and rank.step is not None and rank.step < ahead
        ]


def _meanwhile(waiting: int, *, at_least: bool = False, verb: str = "waited") -> str:
    number = f"{'at least ' if at_least else ''}{counted(waiting, 'other rank')}"
    return f", while {number} {verb} for it" if waiting else ""


def _waits(rank: RankEvidence) -> bool:
    return rank.seen is not None and rank.seen.in_collective


def _doing(rank: RankEvidence) -> str:
    return rank.stack.doing if rank.stack else "in an unknown state"


def _place(rank: RankEvidence) -> str:
    """Return the location of a rank. If the rank is in a collective, this is only the name of the collective."""
    if rank.stack is None:
        return ""
    return rank.stack.doing.partition(", called ")[0] if rank.stack.in_collective else rank.stack.doing
