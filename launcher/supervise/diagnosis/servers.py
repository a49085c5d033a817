"""The evidence of all servers of a failed attempt: merged, judged, and weighed beside servers that were lost. No I/O.

What the ranks of a lost server did is not known, unless it had reported before. The rules, in this order:

| what is found, beside a server that was lost before it reported  | the cause          | confidence                          |
|------------------------------------------------------------------|--------------------|-------------------------------------|
| a rank failed by itself, surely before                           | that rank          | as it is, if that server was there  |
|                                                                  |                    | for `ENDED_S` after it; else likely |
| ... surely after                                                 | the server         | certain                             |
| ... before or after, and its own time is before the loss         | that rank          | likely                              |
| ... and its own time is after the loss                           | the server         | likely                              |
| a rank is stopped, and others had missed it surely before        | that rank          | likely                              |
| only consequences, or ranks that others miss                     | the server         | certain; likely if that may have    |
|                                                                  |                    | been before                         |
| several such servers, within `TOGETHER_S`                        | all of them        | as for one; likely if their order   |
|                                                                  |                    | is not known                        |
| such a server, and no other machine is heard                     | the server         | likely                              |
| such a server, and the coordinator's own machine had stood still | that machine       | likely                              |

A server that had reported was there after what it reported: its loss is the cause only where nothing better is known.
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
from launcher.supervise.diagnosis.root_cause import first_by_itself, is_doubtful, judge, summaries_of
from launcher.supervise.diagnosis.scheduler_failure import SchedulerFailure, weigh_scheduler
from launcher.supervise.diagnosis.verdicts import at_most_likely

# A rank that has failed by itself has ended by then, in all likelihood, and its server has reported so.
ENDED_S = 5.0
TOGETHER_S = 5.0  # between losses of servers that a verdict names together


@frozen
class Evidence:
    """The knowledge of one server's agent when an attempt has failed, or all that is known of an attempt."""

    ranks: tuple[RankEvidence, ...]
    hung: tuple[int, ...] = ()  # global ranks
    highest_step: int | None = None  # that any rank reported
    scheduler: SchedulerFailure | None = None  # of MindSpore

    @property
    def verdict(self) -> Verdict:
        """The verdict on this alone."""
        # The stack of a rank that has raised says nothing more.
        stacks = {rank.global_rank: rank.stack for rank in self.ranks if rank.stack and not rank.failure}
        steps = {rank.global_rank: rank.step for rank in self.ranks}
        verdict = replace(judge(self.ranks, hung=self.hung), stacks=group(stacks, steps))
        return verdict if self.scheduler is None else weigh_scheduler(verdict, self.ranks, self.scheduler)


def judged(evidence: Evidence, record: Callable[[Event], object]) -> Verdict:
    """Return the verdict on it; never raise: ranks are ended as they must be, whatever a failing system shows us."""
    try:
        return evidence.verdict
    except Exception as error:  # noqa: BLE001 - see above
        record(Trouble(f"the failure cannot be judged: {error!r}"))
        return Verdict(None, Confidence.UNSURE, "the evidence cannot be read")


def merge_evidence(
    reports: Mapping[int, Evidence],
    ahead_ns: Mapping[int, int],
    error_ns: Mapping[int, int] | None = None,
    unheard: Iterable[int] = (),
) -> Evidence:
    """Return what all servers know, as if one had seen it all, with times by the coordinator's clock.

    `ahead_ns`: by how much the clock of a server is ahead of the coordinator's, in nanoseconds, and `error_ns` how wrong
    that may be. `unheard`: global ranks that no server reported. Which of two ranks ended first is known of one
    server only, unless much time lies between.
    """
    errors_ns = error_ns or {}
    ranks = [
        _on_one_clock(rank, server_index, ahead_ns.get(server_index, 0), errors_ns.get(server_index, 0))
        for server_index, evidence in sorted(reports.items())
        for rank in evidence.ranks
    ]
    scheduler_failures = (
        replace(one.scheduler, ended_ns=one.scheduler.ended_ns - ahead_ns.get(server_index, 0))
        for server_index, one in reports.items()
        if one.scheduler is not None
    )
    silent = (RankEvidence(global_rank, None, None, None, heard=False) for global_rank in unheard)
    return Evidence(
        ranks=tuple(sorted((*_with_order_of_ends(ranks), *silent), key=lambda rank: rank.global_rank)),
        hung=tuple(sorted({rank for one in reports.values() for rank in one.hung})),
        highest_step=max((one.highest_step for one in reports.values() if one.highest_step is not None), default=None),
        scheduler=next(scheduler_failures, None),
    )


def _on_one_clock(rank: RankEvidence, server_index: int, ahead_ns: int, error_ns: int) -> RankEvidence:
    failure = rank.failure
    if failure is not None and failure.time_ns is not None:
        failure = replace(failure, time_ns=failure.time_ns - ahead_ns)
    ended_ns = None if rank.ended_ns is None else rank.ended_ns - ahead_ns
    return replace(rank, failure=failure, ended_ns=ended_ns, server_index=server_index, clock_error_ns=error_ns)


def _with_order_of_ends(ranks: Sequence[RankEvidence]) -> Iterator[RankEvidence]:
    """Yield the ranks, each with its place among all that have ended, and whether that is known."""
    ended = sorted(
        (rank for rank in ranks if rank.ended_ns is not None),
        key=lambda rank: (rank.ended_ns or 0, rank.server_index, rank.ended_index or 0),
    )
    places = {rank.global_rank: place for place, rank in enumerate(ended)}
    spans = [
        (
            rank.server_index,
            ended_ns - rank.late_s * 1e9 - rank.clock_error_ns,
            ended_ns + rank.clock_error_ns,
            rank.global_rank,
        )
        for rank in ended
        if rank.status and (ended_ns := rank.ended_ns) is not None
    ]
    backwards = [(server, -until, -since, global_rank) for server, since, until, global_rank in reversed(spans)]
    doubtful = _begun_before_others_end(spans) | _begun_before_others_end(backwards)
    for rank in ranks:
        is_known = rank.order_known and rank.global_rank not in doubtful
        yield replace(rank, ended_index=places.get(rank.global_rank), order_known=is_known)


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


# --- beside lost servers ---


@frozen
class Loss:
    """The loss of a server, by the coordinator's wall clock in nanoseconds."""

    server_index: int
    since_ns: int  # no sooner: it has answered what it was asked then
    probably_ns: int
    until_ns: int  # no later: it was noticed
    testified: bool = False  # before it was lost
    ended: tuple[int, ...] = ()  # global ranks of it that had failed before, as it had reported
    alone: bool = False  # no other machine was heard any more: the coordinator's own network may be what was lost
    stood_still_s: float = 0.0  # how long the coordinator's machine was suspended, if the server gave it up for that


@frozen
class LossEffect:
    """The effect of losses on a verdict."""

    loss: Loss | None  # that is to blame; None: the verdict stands
    confidence: Confidence
    why: str = ""  # the confidence is no higher
    together: tuple[Loss, ...] = ()  # others at about the same time


def has_own_fault(summaries: Sequence[FailureSummary]) -> bool:
    """Return whether a rank is seen to have failed by itself."""
    cause = first_by_itself(summaries)
    return cause is not None and not is_doubtful(cause)


def weigh(verdict: Verdict, evidence: Evidence, losses: Sequence[Loss], stalled_ns: int | None) -> LossEffect:
    """Return whether `verdict`, on what was heard, stands beside `losses`.

    `evidence`: what was heard. `stalled_ns`: since when, at the latest, ranks have made no progress, where they hang.
    """
    silent = sorted((loss for loss in losses if not loss.testified), key=lambda loss: loss.probably_ns)
    if not silent:
        names = verdict.culprit is not None and verdict.confidence is not Confidence.UNSURE
        return LossEffect(None, verdict.confidence) if names else LossEffect(losses[0], Confidence.LIKELY)
    summaries = summaries_of(evidence.ranks)
    cause = first_by_itself(summaries)
    if cause is not None and not is_doubtful(cause):
        return _beside_own_fault(verdict, cause, summaries, silent)
    return _beside_missing_rank(verdict, evidence, summaries, silent, stalled_ns)


def _beside_own_fault(
    verdict: Verdict, cause: FailureSummary, summaries: Sequence[FailureSummary], silent: Sequence[Loss]
) -> LossEffect:
    first, since_ns = silent[0], min(loss.since_ns for loss in silent)
    if cause.latest_ns < since_ns:
        if since_ns - cause.latest_ns >= ENDED_S * 1e9:
            return LossEffect(None, verdict.confidence)
        return LossEffect(None, at_most_likely(verdict), "what its ranks did is not known")
    if cause.earliest_ns <= first.until_ns and cause.time_ns < first.probably_ns:
        return LossEffect(None, at_most_likely(verdict), "which of the two came first is not known")
    perhaps = [one.global_rank for one in summaries if one.earliest_ns <= first.until_ns]
    return _blame_loss(silent, f"rank {perhaps[0]} failed too, perhaps before" if perhaps else "")


def _beside_missing_rank(
    verdict: Verdict,
    evidence: Evidence,
    summaries: Sequence[FailureSummary],
    silent: Sequence[Loss],
    stalled_ns: int | None,
) -> LossEffect:
    """Weigh what is no rank's own fault, and may have followed from a loss."""
    since_ns = min(loss.since_ns for loss in silent)
    missed_ns = [one.latest_ns for one in summaries] + ([] if stalled_ns is None else [stalled_ns])
    doubt = ""
    if missed_ns and min(missed_ns) < since_ns:
        if any(stopped(rank) and rank.global_rank == verdict.culprit for rank in evidence.ranks):
            return LossEffect(None, at_most_likely(verdict), "what its ranks did is not known")
        doubt = "others had failed or waited in vain before"
    elif verdict.culprit is not None:
        # A failure that needs a dead peer has no other rank to follow from, unless one has ended well or leaves.
        left = any(rank.status == 0 or leaves(rank) for rank in evidence.ranks)
        perhaps = [
            one.global_rank
            for one in summaries
            if one.earliest_ns <= silent[0].until_ns
            and (left or one.symptom.kind not in NEED_A_DEAD_PEER or is_doubtful(one))
        ]
        if perhaps:
            doubt = f"rank {perhaps[0]} failed too, perhaps before"
        elif stalled_ns is not None and all(one.global_rank != verdict.culprit for one in summaries):
            doubt = f"rank {verdict.culprit} may have been missed before"
    return _blame_loss(silent, doubt)


def _blame_loss(silent: Sequence[Loss], doubt: str) -> LossEffect:
    """Blame the first loss. What is known of the lost servers comes before `doubt`."""
    first, ended = silent[0], [rank for loss in silent for rank in loss.ended]
    if any(loss.alone for loss in silent):
        doubt = "no other machine is heard, so that the network of the one that coordinates may have failed"
    elif ended:
        doubt = f"{counted(len(ended), 'rank')} of those lost had failed before, rank {ended[0]} first"
    # No server is lost since another one is: what fails them, a switch or a rack, may take a moment.
    together = tuple(other for other in silent[1:] if other.since_ns <= first.until_ns + TOGETHER_S * 1e9)
    in_order = all(first.until_ns < other.since_ns for other in together)
    is_certain = in_order and not (doubt or first.stood_still_s)
    return LossEffect(first, Confidence.CERTAIN if is_certain else Confidence.LIKELY, doubt, together)
