"""What ranks of a run that nobody watches over have noted of their own failures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.core.verdict import Confidence, Verdict

if TYPE_CHECKING:
    from launcher.runs.status import RunState


def noted_verdict(state: RunState) -> Verdict | None:
    """Judged by what the hook in each rank wrote; None where a run is watched over, or no rank has written.

    Never certain: clocks of servers differ, and a rank that was killed notes nothing.
    """
    from launcher.supervise.diagnosis.failure_files import read_failure
    from launcher.supervise.diagnosis.root_cause import RankEvidence, judge  # most runs need none of it

    if state.engine is None:
        return None
    found = ((rank, read_failure(state.run_dir.failure(rank))) for rank in range(state.progress.rank_count))
    evidence = [RankEvidence(rank, None, None, None, failure=failure) for rank, failure in found if failure]
    if not evidence:
        return None
    verdict = judge(evidence)
    return replace(verdict, confidence=Confidence.LIKELY) if verdict.confidence is Confidence.CERTAIN else verdict
