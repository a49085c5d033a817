"""The attempts of a run as a report shows them: why each failed, and what the culprit wrote last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.cli.commands.report.facts import RunFacts
from launcher.cli.text.columns import duration
from launcher.cli.text.verdict_text import NUMBER, culprit_failure, headline, rank_list
from launcher.core.events import Cause, RankStarted
from launcher.core.frozen import frozen
from launcher.core.report import Attempt
from launcher.core.run_dir import RunDir, mark_of
from launcher.core.verdict import Role, Verdict
from launcher.logs.log_file import TAIL_BYTES
from launcher.logs.terminal import one_line, printable, shortened
from launcher.runs.rank_logs import AttemptStarts
from launcher.runs.status import EventReader

MAX_LINES = 15  # of a traceback or a log


@frozen
class AttemptSummary:
    """One attempt in words."""

    number: int
    took: str
    cause: str
    verdict: str = ""
    confidence: str = ""  # of the verdict, and its reason
    culprit: int | None = None
    last_lines: tuple[str, ...] = ()  # the culprit's traceback, else the end of its log in this attempt
    log: str = ""  # the culprit's
    consequences: str = ""  # which ranks failed only because another had, and how


def attempts_of(facts: RunFacts) -> Iterator[AttemptSummary]:
    """Yield the run's attempts in their order."""
    starts = _starts(facts.state.run_dir)
    for attempt in facts.state.attempts:
        verdict = attempt.verdict
        is_open = attempt.number == facts.state.attempts[-1].number and facts.state.report is None
        ended_ns = (facts.ended_ns or facts.state.looked_ns) if is_open else attempt.ended_ns
        took = duration(max(0.0, (ended_ns - attempt.started_ns) / 1e9))
        cause = facts.state.state.value if is_open else attempt.cause.value
        if verdict is None:
            is_missing = attempt.cause in {Cause.FAILED, Cause.HUNG}
            yield AttemptSummary(attempt.number, took, cause, "no judgement was recorded" if is_missing else "")
            continue
        failure = culprit_failure(verdict)
        yield AttemptSummary(
            attempt.number,
            took,
            cause,
            headline(verdict),
            f"{verdict.confidence.value}: {failure.reason if failure else verdict.reason}",
            verdict.culprit,
            tuple(
                shortened(printable(line)) for line in _last_lines(attempt, facts.state.run_dir, starts)[-MAX_LINES:]
            ),
            "" if verdict.culprit is None else str(facts.state.run_dir.train_log(verdict.culprit)),
            _consequences(verdict),
        )


def _consequences(verdict: Verdict) -> str:
    """Return all ranks that only followed, and how the first of them failed."""
    failures = [failure for failure in verdict.failures if failure.role is Role.CONSEQUENCE]
    if not failures:
        return ""
    ways = {NUMBER.sub("#", failure.what) for failure in failures}
    ranks = rank_list(failure.global_rank for failure in failures)
    return f"{ranks}: {shortened(one_line(failures[0].what))}{' and others' if len(ways) > 1 else ''}"


# Where an attempt begins in a rank's log: the attempt, the offset of its mark, and the one of the text behind the mark.
_Start = tuple[int, int, int]


def _starts(run_dir: RunDir) -> dict[int, list[_Start]]:
    """Return where the attempts began in each rank's log, by global rank; some of that may be gone from the log."""
    found: dict[int, list[_Start]] = {}
    starts = AttemptStarts()
    for stamped in EventReader(run_dir.events).read():
        starts.apply(stamped.event)
        match stamped.event:
            case RankStarted(global_rank=global_rank, log_offset=text_offset):
                mark_offset, attempt = starts.of(global_rank)[-1]
                found.setdefault(global_rank, []).append((attempt, mark_offset, text_offset))
    return found


def _last_lines(attempt: Attempt, run_dir: RunDir, starts: dict[int, list[_Start]]) -> list[str]:
    """Return the culprit's traceback, else the end of what it wrote in that attempt, as far as that is still there."""
    if attempt.verdict is None or attempt.verdict.culprit is None:
        return []
    culprit, failure = attempt.verdict.culprit, culprit_failure(attempt.verdict)
    text = failure.traceback if failure and failure.traceback else ""
    following = iter(starts.get(culprit, ()))
    start = next((start for start in following if start[0] == attempt.number), None)
    if not text and start is not None:
        with suppress(OSError):
            text = _text_between(run_dir.train_log(culprit), start, next(following, None)).decode(errors="replace")
    return text.rstrip().split("\n") if text.strip() else []


def _text_between(path: Path, start: _Start, following: _Start | None) -> bytes:
    """Return the end of what stands between two starts in a log; the log may have been emptied at any time."""
    with path.open("rb") as log:
        end = log.seek(0, 2)
        if following is not None:
            number, end, _ = following
            mark = mark_of(number)
            log.seek(end)
            if log.read(len(mark)) != mark:
                return b""  # the log was emptied in that attempt, or later
        begin = start[2] if start[2] <= end else 0  # the log was emptied in this attempt
        log.seek(max(begin, end - TAIL_BYTES))
        return log.read(end - log.tell())
