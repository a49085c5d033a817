"""Merges the evidence of all servers of a failed attempt, and decides if a lost server is the cause. No I/O.

The state of a lost server's ranks is unknown, unless the server had reported before. The rules, in this order:

| finding besides a server that was lost before it reported  | cause        | confidence                             |
|------------------------------------------------------------|--------------|----------------------------------------|
| a rank certainly failed by itself before the loss          | that rank    | unchanged if the server responded      |
|                                                            |              | `ENDED_S` after it; else likely        |
| ... certainly after the loss                               | the server   | certain                                |
| ... before or after it; its recorded time is before        | that rank    | likely                                 |
| ... before or after it; its recorded time is after         | the server   | likely                                 |
| a rank is stopped, and others waited for it before         | that rank    | likely                                 |
| only consequences, or ranks that others wait for           | the server   | certain; likely if these may have      |
|                                                            |              | been before the loss                   |
| several such servers, within `TOGETHER_S`                  | all of them  | as for one; likely if their order is   |
|                                                            |              | unknown                                |
| such a server, and no other machine responds               | the server   | likely                                 |
| such a server, and the coordinator's machine was suspended | that machine | likely                                 |

A server that had reported was lost after the failures in its report. So its loss is the cause only if no other cause
is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from launcher.core.events import Event, Trouble
from launcher.core.frozen import frozen
from launcher.core.text import counted
from launcher.core.verdict import Confidence, Verdict
from launcher.supervise.diagnosis.evidence import FailureSummary, RankEvidence
from launcher.supervise.diagnosis.missing_rank import NEED_A_DEAD_PEER, leaves, stopped
from launcher.supervise.diagnosis.rank_stacks import group
from launcher.supervise.diagnosis.root_cause import (
    at_most_likely,
    first_by_itself,
    is_doubtful,
    judge,
    summaries_of,
    with_remark,
)
from launcher.supervise.diagnosis.scheduler_failure import SchedulerFailure, weigh_scheduler

# Time after which a rank that failed by itself has very likely exited, and its server has reported it.
ENDED_S = 5.0
TOGETHER_S = 5.0  # maximum time between losses of servers that one verdict names


@frozen
class Evidence:
    """The evidence about a failed attempt, from one server or merged from all servers."""

    ranks: tuple[RankEvidence, ...]
    hung: tuple[int, ...] = ()  # global ranks
    highest_step: int | None = None  # reported by any rank
    scheduler: SchedulerFailure | None = None  # of MindSpore

    @property
    def verdict(self) -> Verdict:
        # The stack of a rank that has raised gives no further information.
        stacks = {rank.global_rank: rank.stack for rank in self.ranks if rank.stack and not rank.failure}
        steps = {rank.global_rank: rank.step for rank in self.ranks}
        verdict = replace(judge(self.ranks, hung=self.hung), stacks=group(stacks, steps))
        return verdict if self.scheduler is None else weigh_scheduler(verdict, self.ranks, self.scheduler)


def judged(evidence: Evidence, record: Callable[[Event], object], remark: str | None = None) -> Verdict:
    """Return the verdict on the evidence. If the diagnosis raises an exception, return an unsure verdict."""
    try:
        verdict = evidence.verdict
    except Exception as error:  # noqa: BLE001 - see above
        record(Trouble(f"cannot diagnose the failure: {error!r}"))
        verdict = Verdict(None, Confidence.UNSURE, "the evidence is unreadable")
    return with_remark(verdict, remark) if remark else verdict


def merge_evidence(
    reports: Mapping[int, Evidence],
    ahead_ns: Mapping[int, int],
    error_ns: Mapping[int, int] | None = None,
    unheard: Iterable[int] = (),
) -> Evidence:
    """Merge the evidence of all servers, with times converted to the coordinator's clock.

    `ahead_ns` is how far each server's clock is ahead of the coordinator's; `error_ns` is the maximum error of that.
    `unheard` are the global ranks without a report. The order of exits on different servers is known only if their
    times differ by more than the clock errors and the delays in noticing exits.
    """
    errors_ns = error_ns or {}
    ranks, scheduler = [], None
    for server_index, evidence in sorted(reports.items()):
        ahead = ahead_ns.get(server_index, 0)
        ranks += [_on_one_clock(rank, server_index, ahead, errors_ns.get(server_index, 0)) for rank in evidence.ranks]
        if evidence.scheduler is not None:
            scheduler = replace(evidence.scheduler, ended_ns=evidence.scheduler.ended_ns - ahead)
    silent = (RankEvidence(global_rank, None, None, None, heard=False) for global_rank in unheard)
    return Evidence(
        ranks=tuple(sorted((*_with_order_of_ends(ranks), *silent), key=lambda rank: rank.global_rank)),
        hung=tuple(sorted({rank for one in reports.values() for rank in one.hung})),
        highest_step=max((one.highest_step for one in reports.values() if one.highest_step is not None), default=None),
        scheduler=scheduler,
    )


def _on_one_clock(rank: RankEvidence, server_index: int, ahead_ns: int, error_ns: int) -> RankEvidence:
    failure = rank.failure
    if failure is not None and failure.time_ns is not None:
        failure = replace(failure, time_ns=failure.time_ns - ahead_ns)
    ended_ns = None if rank.ended_ns is None else rank.ended_ns - ahead_ns
    return replace(rank, failure=failure, ended_ns=ended_ns, server_index=server_index, clock_error_ns=error_ns)


def _with_order_of_ends(ranks: Sequence[RankEvidence]) -> Iterator[RankEvidence]:
    """Sort the exits of ranks on all servers, and set `ended_index` and `order_known` accordingly."""
    ended = sorted(
        (rank for rank in ranks if rank.ended_ns is not None),
        key=lambda rank: (rank.ended_ns or 0, rank.server_index, rank.ended_index or 0),
    )
    places = {rank.global_rank: place for place, rank in enumerate(ended)}
    spans = [
        (one.server_index, ns - one.late_s * 1e9 - one.clock_error_ns, ns + one.clock_error_ns, one.global_rank)
        for one in ended
        if one.status and (ns := one.ended_ns) is not None
    ]
    backwards = [(server, -until, -since, global_rank) for server, since, until, global_rank in reversed(spans)]
    doubtful = _overlapping(spans) | _overlapping(backwards)
    for rank in ranks:
        is_known = rank.order_known and rank.global_rank not in doubtful
        yield replace(rank, ended_index=places.get(rank.global_rank), order_known=is_known)


def _overlapping(spans: Iterable[tuple[int, float, float, int]]) -> set[int]:
    """Return the ranks whose exit order is uncertain, because their time spans overlap with spans on other servers."""
    latest: dict[int, float] = {}  # the latest end of a span, for the two servers with the latest ends
    found = set()
    for server_index, since, until, global_rank in spans:
        if any(since <= other for server, other in latest.items() if server != server_index):
            found.add(global_rank)
        latest[server_index] = max(until, latest.get(server_index, until))
        if len(latest) > 2:
            del latest[min(latest, key=latest.__getitem__)]
    return found


# --- lost servers ---


@frozen
class Loss:
    """The loss of a server. Times are in nanoseconds since 1970, by the coordinator's clock."""

    server_index: int
    since_ns: int  # the earliest time: the server has answered a request sent then
    probably_ns: int
    until_ns: int  # the latest time: the loss was noticed
    testified: bool = False  # it had reported its evidence before
    ended: tuple[int, ...] = ()  # its global ranks that had failed before, according to its reports
    alone: bool = False  # no other machine responded, so the coordinator's network may have failed
    stood_still_s: float = 0.0  # how long the coordinator's machine was suspended, if the server left because of it


@frozen
class LossEffect:
    loss: Loss | None  # the loss to blame; None: the verdict is unchanged
    confidence: Confidence
    why: str = ""  # reason for a lower confidence
    together: tuple[Loss, ...] = ()  # other losses at about the same time


def own_fault(summaries: Sequence[FailureSummary]) -> FailureSummary | None:
    """Return the root cause if a rank certainly failed by itself, else None."""
    cause = first_by_itself(summaries)
    return None if cause is None or is_doubtful(cause) else cause


def weigh(verdict: Verdict, evidence: Evidence, losses: Sequence[Loss], stalled_ns: int | None) -> LossEffect:
    """Decide whether to keep the verdict or to blame the loss of a server instead.

    `stalled_ns` is the latest time at which hanging ranks stopped making progress, or None if no rank hangs.
    """
    silent = sorted((loss for loss in losses if not loss.testified), key=lambda loss: loss.probably_ns)
    if not silent:
        names = verdict.culprit is not None and verdict.confidence is not Confidence.UNSURE
        return LossEffect(None, verdict.confidence) if names else LossEffect(losses[0], Confidence.LIKELY)
    summaries = summaries_of(evidence.ranks)
    if cause := own_fault(summaries):
        return _loss_with_own_fault(verdict, cause, summaries, silent)
    return _loss_with_missing_rank(verdict, evidence, summaries, silent, stalled_ns)


def _loss_with_own_fault(
    verdict: Verdict, cause: FailureSummary, summaries: Sequence[FailureSummary], silent: Sequence[Loss]
) -> LossEffect:
    first, since_ns = silent[0], min(loss.since_ns for loss in silent)
    if cause.latest_ns < since_ns:
        if since_ns - cause.latest_ns >= ENDED_S * 1e9:
            return LossEffect(None, verdict.confidence)
        return LossEffect(None, at_most_likely(verdict), "the state of its ranks is unknown")
    if cause.earliest_ns <= first.until_ns and cause.time_ns < first.probably_ns:
        return LossEffect(None, at_most_likely(verdict), "the order of the two is unknown")
    perhaps = [one.global_rank for one in summaries if one.earliest_ns <= first.until_ns]
    return _blame_loss(silent, f"rank {perhaps[0]} failed too, possibly before" if perhaps else "")


def _loss_with_missing_rank(
    verdict: Verdict,
    evidence: Evidence,
    summaries: Sequence[FailureSummary],
    silent: Sequence[Loss],
    stalled_ns: int | None,
) -> LossEffect:
    since_ns = min(loss.since_ns for loss in silent)
    missed_ns = [one.latest_ns for one in summaries] + ([] if stalled_ns is None else [stalled_ns])
    doubt = ""
    if missed_ns and min(missed_ns) < since_ns:
        if any(stopped(rank) and rank.global_rank == verdict.culprit for rank in evidence.ranks):
            return LossEffect(None, at_most_likely(verdict), "the state of its ranks is unknown")
        doubt = "other ranks had failed or timed out before"
    elif verdict.culprit is not None:
        # A failure caused by a dead peer proves the loss, unless another rank has succeeded or is leaving.
        left = any(rank.status == 0 or leaves(rank) for rank in evidence.ranks)
        perhaps = [one for one in summaries if one.earliest_ns <= silent[0].until_ns]
        if not left:
            perhaps = [one for one in perhaps if one.symptom.kind not in NEED_A_DEAD_PEER or is_doubtful(one)]
        if perhaps:
            doubt = f"rank {perhaps[0].global_rank} failed too, possibly before"
        elif stalled_ns is not None and all(one.global_rank != verdict.culprit for one in summaries):
            doubt = f"rank {verdict.culprit} may have been missing before"
    return _blame_loss(silent, doubt)


def _blame_loss(silent: Sequence[Loss], doubt: str) -> LossEffect:
    """Blame the server that was lost first. `doubt` is a reason for a lower confidence."""
    first, ended = silent[0], [rank for loss in silent for rank in loss.ended]
    if any(loss.alone for loss in silent):
        doubt = "no other machine responds, so the coordinator's network may have failed"
    elif ended:
        doubt = f"{counted(len(ended), 'lost rank')} had failed before, rank {ended[0]} first"
    # One loss does not cause another. Their common cause, such as a switch or a rack, may take a moment.
    together = tuple(other for other in silent[1:] if other.since_ns <= first.until_ns + TOGETHER_S * 1e9)
    in_order = all(first.until_ns < other.since_ns for other in together)
    is_certain = in_order and not (doubt or first.stood_still_s)
    return LossEffect(first, Confidence.CERTAIN if is_certain else Confidence.LIKELY, doubt, together)
