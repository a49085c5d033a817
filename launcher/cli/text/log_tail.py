"""What the rank that a run failed of wrote last: for the closing words of `tlaunch run` and for `tlaunch why`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launcher.cli.text.verdict_text import culprit_failure
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Verdict
from launcher.logs.tail import last_lines
from launcher.logs.terminal import one_line
from launcher.runs.progress import Progress

LAST_LINES = 10


def tells_enough(verdict: Verdict) -> bool:
    """Return whether the verdict shows its culprit's traceback, which the end of the log would repeat."""
    failure = culprit_failure(verdict)
    return failure is not None and bool(failure.traceback)


def log_tail(culprit: int, progress: Progress, run_dir: RunDir) -> list[str]:
    """Return the end of the culprit's log, as far as the attempt wrote it that `progress` is in. Safe to show.

    Raises:
        OSError: the log is missing or unreadable.
    """
    start = progress.current.starts.get(culprit)
    if start is None and progress.current.number > 0:
        return []  # it never ran in this attempt: whatever the log holds is older
    return last_lines(run_dir.train_log(culprit), LAST_LINES, 0 if start is None else start.event.log_offset)


def log_elsewhere(global_rank: int, first_server: str) -> str:
    """Return where to look for the log of a rank of another server, with which no disk is shared. Safe to show."""
    return one_line(f"log of rank {global_rank}: on server {first_server}, which has the logs of all ranks")


def end_of(log: Path) -> list[str]:
    """Return the last lines of a log that is no rank's. Raises OSError where it is missing or unreadable."""
    return last_lines(log, LAST_LINES)


def quoted(lines: list[str]) -> Iterator[str]:
    return (f"  | {line}" for line in lines)
