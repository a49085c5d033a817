"""Functions that modify verdicts. No I/O."""

from __future__ import annotations

from dataclasses import replace

from launcher.core.verdict import Confidence, Verdict


def with_remark(verdict: Verdict, remark: str) -> Verdict:
    """Return `verdict` with the remark added to its reason and to the reason of the culprit's failure."""
    failures = (
        replace(one, reason=f"{one.reason}; {remark}") if one.global_rank == verdict.culprit else one
        for one in verdict.failures
    )
    return replace(verdict, reason=f"{verdict.reason}; {remark}", failures=tuple(failures))


def at_most(confidence: Confidence, limit: Confidence) -> Confidence:
    """Return the lower of two confidences."""
    return max(confidence, limit, key=list(Confidence).index)


def at_most_likely(verdict: Verdict) -> Confidence:
    """Return the confidence of `verdict`, but at most LIKELY."""
    return at_most(verdict.confidence, Confidence.LIKELY)
