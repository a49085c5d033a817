"""The evidence of all servers of a failed attempt: merged into one, whether there is one server or many, and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.core.codec import decode, encode
from launcher.core.events import Event, Trouble
from launcher.core.frozen import frozen
from launcher.core.verdict import Confidence, Verdict
from launcher.supervise.diagnosis.evidence import RankEvidence, SeenStack
from launcher.supervise.diagnosis.root_cause import judge
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.diagnosis.stacks import group


@frozen
class Evidence:
    """The knowledge of one server's agent when an attempt has failed, or all that is known of an attempt."""

    ranks: tuple[RankEvidence, ...]
    hung: tuple[int, ...] = ()  # global ranks
    highest_step: int | None = None  # that any rank reported

    @property
    def verdict(self) -> Verdict:
        """The verdict on this alone."""
        # Where a rank writes its last words tells nothing.
        stacks = {
            rank.global_rank: rank.stack
            for rank in self.ranks
            if isinstance(rank.stack, RankStack) and rank.failure is None
        }
        steps = {rank.global_rank: rank.step for rank in self.ranks}
        return replace(judge(self.ranks, hung=self.hung), stacks=group(stacks, steps))


def judged(evidence: Evidence, record: Callable[[Event], object]) -> Verdict:
    """Return the verdict on it; never raise: ranks are ended as they must be, whatever a failing system shows us."""
    try:
        return evidence.verdict
    except Exception as error:  # noqa: BLE001 - see above
        record(Trouble(f"the failure cannot be judged: {error!r}"))
        return Verdict(None, Confidence.UNSURE, "the evidence cannot be read")


def to_fields(evidence: Evidence) -> Any:
    """Return the evidence as JSON has it."""
    return encode(evidence)


def from_fields(fields: Any) -> Evidence:
    """Return the evidence that `to_fields` made fields of.

    Raises:
        ValueError: they are not those of evidence.
    """
    return decode(Evidence, fields, {SeenStack: RankStack})


def merge_evidence(
    reports: Mapping[int, Evidence],
    ahead_ns: Mapping[int, int],
    error_ns: Mapping[int, int] | None = None,
    unheard: Iterable[int] = (),
) -> Evidence:
    """Return what all servers know, as if one had seen it all.

    `ahead_ns`: by how much the clock of a server is ahead of the coordinator's, in nanoseconds, and `error_ns` how wrong
    that may be. `unheard`: global ranks of which nothing was reported. Times become the coordinator's. Which of two
    ranks ended first is known of one server only, unless much time lies between.
    """
    by_server = [
        (server_index, _on_one_clock(rank, ahead_ns.get(server_index, 0)))
        for server_index, evidence in sorted(reports.items())
        for rank in evidence.ranks
    ]
    ended = sorted(
        ((server_index, rank) for server_index, rank in by_server if rank.ended_ns is not None),
        key=lambda one: (one[1].ended_ns or 0, one[0], one[1].ended_index or 0),
    )
    places = {rank.global_rank: place for place, (_, rank) in enumerate(ended)}
    failed = [(server_index, rank) for server_index, rank in ended if rank.status]
    doubtful = _doubtful(failed, error_ns or {})
    ranks = (
        replace(
            rank,
            ended_index=places.get(rank.global_rank),
            order_known=rank.order_known and rank.global_rank not in doubtful,
            server_index=server_index,
            clock_error_ns=(error_ns or {}).get(server_index, 0),
        )
        for server_index, rank in by_server
    )
    steps = [one.highest_step for one in reports.values() if one.highest_step is not None]
    whole = Evidence(
        ranks=tuple(ranks),
        hung=tuple(sorted({rank for one in reports.values() for rank in one.hung})),
        highest_step=max(steps, default=None),
    )
    return with_unheard(whole, unheard)


def with_unheard(evidence: Evidence, unheard: Iterable[int]) -> Evidence:
    """Return `evidence` with global ranks of which nothing was reported, in the order of ranks."""
    silent = (RankEvidence(global_rank, None, None, None, heard=False) for global_rank in unheard)
    return replace(evidence, ranks=tuple(sorted((*evidence.ranks, *silent), key=lambda rank: rank.global_rank)))


def told_beside(verdict: Verdict, more: str) -> Verdict:
    """Return `verdict` with some more words, also where people are shown the culprit's."""
    failures = (
        replace(one, reason=f"{one.reason}; {more}") if one.global_rank == verdict.culprit else one
        for one in verdict.failures
    )
    return replace(verdict, reason=f"{verdict.reason}; {more}", failures=tuple(failures))


def _on_one_clock(rank: RankEvidence, ahead_ns: int) -> RankEvidence:
    failure = rank.failure
    if failure is not None and failure.time_ns is not None:
        failure = replace(failure, time_ns=failure.time_ns - ahead_ns)
    return replace(rank, failure=failure, ended_ns=None if rank.ended_ns is None else rank.ended_ns - ahead_ns)


def _doubtful(ended: Sequence[tuple[int, RankEvidence]], error_ns: Mapping[int, int]) -> set[int]:
    """Return ranks that may have ended before or after one of another server. `ended`: in the order of noticed ends."""
    spans = [(server, *_span_ns(rank, error_ns.get(server, 0)), rank.global_rank) for server, rank in ended]
    backwards = [(server, -until, -since, global_rank) for server, since, until, global_rank in reversed(spans)]
    return _begun_before_others_end(spans) | _begun_before_others_end(backwards)


def _span_ns(rank: RankEvidence, error_ns: int) -> tuple[float, float]:
    """Return since when, and until when, the rank may have ended."""
    noticed_ns = rank.ended_ns or 0
    return noticed_ns - rank.late_s * 1e9 - error_ns, noticed_ns + error_ns


def _begun_before_others_end(spans: Iterable[tuple[int, float, float, int]]) -> set[int]:
    """Return the ranks whose time begins before that of one that came earlier, of another server, is over."""
    latest: dict[int, float] = {}  # ends, of the two servers that have the latest
    found = set()
    for server_index, since, until, global_rank in spans:
        if any(since <= other for server, other in latest.items() if server != server_index):
            found.add(global_rank)
        latest[server_index] = max(until, latest.get(server_index, until))
        if len(latest) > 2:
            del latest[min(latest, key=latest.__getitem__)]
    return found
