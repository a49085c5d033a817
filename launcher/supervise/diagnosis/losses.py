"""Lost servers beside what the others tell: which of the two was first, and how sure that is. No I/O.

What the ranks of a lost server did is not known, unless it had testified before. The rules, in this order:

| what is found, beside a server that was lost before it testified | the cause          | confidence                          |
|------------------------------------------------------------------|--------------------|-------------------------------------|
| a rank failed by itself, surely before                           | that rank          | as it is, if that server was there  |
|                                                                  |                    | for `ENDED_S` after it; else likely |
| ... surely after                                                 | the server         | certain                             |
| ... before or after, and its own time is before the loss         | that rank          | likely                              |
| ... and its own time is after the loss                           | the server         | likely                              |
| a rank is stopped, and others had missed it surely before        | that rank          | likely                              |
| only consequences, or ranks that others miss                     | the server         | certain; likely if that may have    |
|                                                                  |                    | been before                         |
| several such servers, lost at about the same time                | probably the first | likely                              |
| such a server, and no other machine is heard                     | the server         | likely                              |

A server that had testified was there after whatever was told: its loss is the cause only where nothing better is known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launcher.core.frozen import frozen
from launcher.core.verdict import Confidence, Verdict
from launcher.supervise.diagnosis.evidence import FailureSummary
from launcher.supervise.diagnosis.merge import Evidence
from launcher.supervise.diagnosis.missing_rank import NEED_A_DEAD_PEER, count, leaves, stopped
from launcher.supervise.diagnosis.root_cause import first_by_itself, is_doubtful, summaries_of

# A rank that has failed by itself has ended by then, in all likelihood, and its server has told so.
ENDED_S = 5.0


@frozen
class Loss:
    """The loss of a server, by the coordinator's wall clock in nanoseconds."""

    server_index: int
    since_ns: int  # no sooner: it has answered what it was asked then
    probably_ns: int
    until_ns: int  # no later: it was noticed
    testified: bool = False  # before it was lost
    ended: tuple[int, ...] = ()  # global ranks of it that had failed before, as it had told
    alone: bool = False  # no other machine was heard any more: the coordinator's own network may be what was lost

    def overlaps(self, other: Loss) -> bool:
        return self.since_ns <= other.until_ns and other.since_ns <= self.until_ns


@frozen
class Finding:
    """The effect of losses on a verdict."""

    loss: Loss | None  # that is to blame; None: the verdict stands
    confidence: Confidence
    why: str = ""  # it is no more than that


def has_own_fault(summaries: Sequence[FailureSummary]) -> bool:
    """Return whether a rank is seen to have failed by itself."""
    cause = first_by_itself(summaries)
    return cause is not None and not is_doubtful(cause)


def weigh(verdict: Verdict, evidence: Evidence, losses: Sequence[Loss], stalled_ns: int | None) -> Finding:
    """Return whether `verdict`, on what was heard, stands beside `losses`.

    `evidence`: what was heard. `stalled_ns`: since when, at the latest, ranks have made no progress, where they hang.
    """
    silent = sorted((loss for loss in losses if not loss.testified), key=lambda loss: loss.probably_ns)
    if not silent:
        names = verdict.culprit is not None and verdict.confidence is not Confidence.UNSURE
        return Finding(None, verdict.confidence) if names else Finding(losses[0], Confidence.LIKELY)
    summaries = summaries_of(evidence.ranks)
    cause = first_by_itself(summaries)
    if cause is not None and not is_doubtful(cause):
        return _beside_own_fault(verdict, cause, summaries, silent)
    return _beside_missing_rank(verdict, evidence, summaries, silent, stalled_ns)


def _beside_own_fault(
    verdict: Verdict, cause: FailureSummary, summaries: Sequence[FailureSummary], silent: Sequence[Loss]
) -> Finding:
    first = silent[0]
    since_ns = min(loss.since_ns for loss in silent)
    if cause.latest_ns < since_ns:
        if since_ns - cause.latest_ns >= ENDED_S * 1e9:
            return Finding(None, verdict.confidence)
        return Finding(None, at_most_likely(verdict), "what its ranks did is not known")
    if cause.earliest_ns <= first.until_ns and cause.time_ns < first.probably_ns:
        why = "which of the two came first is not known"
        return Finding(None, at_most_likely(verdict), why)
    doubt = _doubt_of_loss(silent)
    perhaps = [one for one in summaries if one.earliest_ns <= first.until_ns]
    if not doubt and perhaps:
        doubt = f"rank {perhaps[0].global_rank} failed too, perhaps before"
    return _blame_loss(silent, doubt)


def _beside_missing_rank(
    verdict: Verdict,
    evidence: Evidence,
    summaries: Sequence[FailureSummary],
    silent: Sequence[Loss],
    stalled_ns: int | None,
) -> Finding:
    """Nothing that was heard of is a rank's own fault: what was lost may be what all followed from."""
    first, since_ns = silent[0], min(loss.since_ns for loss in silent)
    missed_ns = min(
        (*(one.latest_ns for one in summaries), *(() if stalled_ns is None else (stalled_ns,))), default=None
    )
    missed_before = missed_ns is not None and missed_ns < since_ns
    if missed_before and any(stopped(rank) and rank.global_rank == verdict.culprit for rank in evidence.ranks):
        return Finding(None, at_most_likely(verdict), "what its ranks did is not known")
    doubt = _doubt_of_loss(silent)
    if not doubt and missed_before:
        doubt = "others had failed or waited in vain before"
    if not doubt and verdict.culprit is not None:
        perhaps = [
            one.global_rank for one in summaries if one.earliest_ns <= first.until_ns and _has_rival(one, evidence)
        ]
        if perhaps:
            doubt = f"rank {perhaps[0]} failed too, perhaps before"
        elif stalled_ns is not None and _names_absent(verdict, summaries):
            doubt = f"rank {verdict.culprit} may have been missed before"
    return _blame_loss(silent, doubt)


def _has_rival(one: FailureSummary, evidence: Evidence) -> bool:
    """Return whether a rank that was heard could be what this failure followed from, instead of a lost server's."""
    if one.symptom.kind in NEED_A_DEAD_PEER and not is_doubtful(one):
        return any(rank.status == 0 or leaves(rank) for rank in evidence.ranks)
    return True


def _names_absent(verdict: Verdict, summaries: Collection[FailureSummary]) -> bool:
    return verdict.culprit not in {one.global_rank for one in summaries}


def _doubt_of_loss(silent: Sequence[Loss]) -> str:
    """Return what is known of the lost servers that makes the loss less than certain."""
    if any(loss.alone for loss in silent):
        return "no other machine is heard, so that the network of the one that coordinates may have failed"
    ended = [rank for loss in silent for rank in loss.ended]
    return f"{count(len(ended), 'rank')} of those lost had failed before, rank {ended[0]} first" if ended else ""


def _blame_loss(silent: Sequence[Loss], doubt: str) -> Finding:
    at_once = any(silent[0].overlaps(other) for other in silent[1:])  # all of them are told anyway
    return Finding(silent[0], Confidence.LIKELY if doubt or at_once else Confidence.CERTAIN, doubt)


def at_most_likely(verdict: Verdict) -> Confidence:
    """Its confidence, where something makes it less than certain."""
    return Confidence.LIKELY if verdict.confidence is Confidence.CERTAIN else verdict.confidence
