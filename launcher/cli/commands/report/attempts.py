"""The attempts of a run for its report: what each failed of, and what the rank to blame wrote last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

from launcher.cli.commands.report.figures import Facts
from launcher.cli.text.columns import duration
from launcher.cli.text.verdict_text import NUMBER, culprit_failure, headline, rank_list
from launcher.core.attempt_mark import mark_of
from launcher.core.events import Cause, RankStarted
from launcher.core.frozen import frozen
from launcher.core.report import Attempt
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Failure, Role, Verdict
from launcher.logs.stored import StoredLog
from launcher.logs.tail import TAIL_BYTES
from launcher.logs.terminal import one_line, printable, shortened
from launcher.runs.attempt_starts import AttemptStarts
from launcher.runs.status import EventReader

LAST_LINES = 15


@frozen
class AttemptTold:
    number: int
    took: str
    cause: str
    verdict: str
    sure: str  # how sure the verdict is, and why
    culprit: int | None
    words: tuple[str, ...]  # of the culprit: its traceback, else the end of its log in this attempt
    log: str  # the culprit's
    followed: str  # who failed only because others had, and of what


def attempts_of(facts: Facts) -> Iterator[AttemptTold]:
    parts = _LogParts(facts.state.run_dir)
    for attempt in facts.state.attempts:
        verdict = attempt.verdict
        failure = culprit_failure(verdict) if verdict else None
        is_open = attempt.number == facts.state.attempts[-1].number and facts.state.report is None
        reason = (failure.reason if failure else verdict.reason) if verdict else ""
        yield AttemptTold(
            number=attempt.number,
            took=duration(max(0.0, (_end_ns(attempt, facts, is_open=is_open) - attempt.started_ns) / 1e9)),
            cause=facts.state.state.value if is_open else attempt.cause.value,
            verdict=headline(verdict) if verdict else _without_verdict(attempt),
            sure=f"{verdict.confidence.value}: {reason}" if verdict else "",
            culprit=verdict.culprit if verdict else None,
            words=tuple(_words(attempt, parts)),
            log=_log_of(verdict, facts.state.run_dir),
            followed=_followed(verdict) if verdict else "",
        )


def _end_ns(attempt: Attempt, facts: Facts, *, is_open: bool) -> int:
    """`is_open`: nobody has written down its end."""
    return (facts.ended_ns or facts.state.looked_ns) if is_open else attempt.ended_ns


def _without_verdict(attempt: Attempt) -> str:
    return "no judgement was recorded" if attempt.cause in {Cause.FAILED, Cause.HUNG} else ""


def _log_of(verdict: Verdict | None, run_dir: RunDir) -> str:
    return "" if verdict is None or verdict.culprit is None else str(run_dir.train_log(verdict.culprit))


def _followed(verdict: Verdict) -> str:
    """In short: all the ranks, and what the first of them said."""
    failures = [failure for failure in verdict.failures if failure.role is Role.CONSEQUENCE]
    if not failures:
        return ""
    what = shortened(one_line(failures[0].what))
    return (
        f"{rank_list(failure.global_rank for failure in failures)}: {what}{' and others' if _differ(failures) else ''}"
    )


def _differ(failures: list[Failure]) -> bool:
    return len({NUMBER.sub("#", failure.what) for failure in failures}) > 1


def _words(attempt: Attempt, parts: _LogParts) -> Iterator[str]:
    if attempt.verdict is None or attempt.verdict.culprit is None:
        return
    failure = culprit_failure(attempt.verdict)
    if failure is not None and failure.traceback:
        lines = failure.traceback.rstrip().split("\n")
    else:
        lines = parts.last_lines(attempt.verdict.culprit, attempt.number)
    yield from (shortened(printable(line)) for line in lines[-LAST_LINES:])


@frozen
class _Start:
    """Of an attempt in a rank's log, by logical offsets."""

    attempt: int
    mark_offset: int
    text_offset: int  # behind the mark


class _LogParts:
    """What of each rank's log each attempt wrote."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._starts: dict[int, list[_Start]] = {}  # by global rank; also of what is gone from the log
        starts = AttemptStarts()
        for stamped in EventReader(run_dir.events).read():
            starts.take(stamped.event)
            match stamped.event:
                case RankStarted(global_rank=global_rank, log_offset=text_offset):
                    mark_offset, attempt = starts.of(global_rank)[-1]
                    self._starts.setdefault(global_rank, []).append(_Start(attempt, mark_offset, text_offset))

    def last_lines(self, global_rank: int, attempt: int) -> list[str]:
        """Of what the rank wrote in that attempt; nothing where it wrote nothing, or this part of the log is gone."""
        starts = iter(self._starts.get(global_rank, ()))
        start = next((start for start in starts if start.attempt == attempt), None)
        if start is None:
            return []
        text = ""
        with suppress(OSError), closing(StoredLog(self._run_dir.train_log(global_rank))) as log:
            text = _text_between(log, start, next(starts, None)).decode(errors="replace").rstrip()
        return text.split("\n") if text else []


def _text_between(log: StoredLog, start: _Start, following: _Start | None) -> bytes:
    """The end of it."""
    if following is None:
        end = log.end
    elif _is_marked(log, following):
        end = following.mark_offset
    else:
        return b""  # the log was emptied in that attempt, or later
    begin = start.text_offset if start.text_offset <= end else log.start  # it was emptied in this attempt
    return _bytes_between(log, max(begin, end - TAIL_BYTES), end)


def _is_marked(log: StoredLog, start: _Start) -> bool:
    mark = mark_of(start.attempt)
    return _bytes_between(log, start.mark_offset, start.mark_offset + len(mark)) == mark


def _bytes_between(log: StoredLog, begin: int, end: int) -> bytes:
    return b"".join(chunk for _, chunk in log.chunks(begin, end))
