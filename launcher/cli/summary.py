"""How a run ended, in words: one line when all is well, the first failure with its last lines when not."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from launcher.cli.progress import Progress
from launcher.core.events import Cause, RankExit
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.logs.tail import last_lines

LAST_LINES = 10


def render(progress: Progress, spec: RunSpec, shown_dir: Path) -> Iterator[str]:
    """The lines for stderr. `shown_dir` is the run directory as a person would call it."""
    if not progress.ended:  # the console failed, and was let go
        yield f"error: the run was not watched to its end; how it ended is in {RunDir(shown_dir).report}"
    elif progress.first_failure is not None and progress.cause is Cause.FAILED:
        yield from _failure(progress.first_failure, progress, spec, shown_dir)
    elif progress.cause is Cause.STOPPED:
        yield f"stopped after {progress.seconds:.2f} s: {_how_ended(progress, without=None)}; logs in {shown_dir}"
    elif progress.cause is Cause.AGENT_LOST:
        yield (
            f"error: the process that supervised the ranks (pid {progress.agent_pid}) was killed; "
            "everything that it left behind was ended"
        )
    else:
        yield f"{ranks(progress.rank_count)} ended well after {progress.seconds:.2f} s; logs in {shown_dir}"
    yield from _remains(progress)


def describe(ended: RankExit) -> str:
    """In words: "exit code 7", "SIGKILL (signal 9)", or why there was no program to run."""
    if ended.reason is not None:
        return ended.reason
    if ended.status >= 0:
        return f"exit code {ended.status}"
    return f"{_signal_name(-ended.status)} (signal {-ended.status})"


def ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _failure(failed: RankExit, progress: Progress, spec: RunSpec, shown_dir: Path) -> Iterator[str]:
    rank = spec.ranks[failed.global_rank]
    log = RunDir(spec.run_dir).train_log(failed.global_rank)
    when = "" if failed.started_ns is None else f", {(failed.ended_ns - failed.started_ns) / 1e9:.2f} s after its start"
    yield f"error: rank {failed.global_rank} failed: {describe(failed)}{when}"
    process = "no process" if failed.pid is None else f"process {failed.pid}"
    yield f"  server {rank.server_id}, device {rank.device_id}, {process}"
    what, lines = _last_words(log)
    yield f"  log: {RunDir(shown_dir).train_log(failed.global_rank)}, {what}"
    yield from (f"  | {line}" for line in lines)
    if progress.rank_count > 1:
        yield f"  the others: {_how_ended(progress, without=failed)}"


def _last_words(log: Path) -> tuple[str, list[str]]:
    try:
        lines = last_lines(log, LAST_LINES)
    except OSError as error:
        return f"which cannot be read: {error.strerror}", []
    return "its last lines:" if lines else "which is empty", lines


def _how_ended(progress: Progress, *, without: RankExit | None) -> str:
    """Counts of the ways in which ranks ended, those that were never started included."""
    counts = Counter(_way(ended) for ended in progress.exits.values() if ended is not without)
    missing = progress.rank_count - len(progress.exits)
    if missing:
        counts["never started"] = missing
    grace = _grace(progress)
    ways = (f"{count} {way}{grace if way.startswith('by SIGKILL') else ''}" for way, count in counts.most_common())
    return ", ".join(ways) or "none was started"


def _grace(progress: Progress) -> str:
    """A second Ctrl-C may have cut it short. Times are a wall clock's: a hair's breadth is no difference."""
    if progress.grace_passed_s is None or progress.stopping is None:
        return ""
    cut_short = progress.grace_passed_s < 0.9 * progress.stopping.grace_s
    return " at once, when asked again" if cut_short else f" after {progress.stopping.grace_s:g} s of grace"


def _way(ended: RankExit) -> str:
    return f"{'by' if ended.status < 0 else 'with'} {describe(ended)}" if ended.reason is None else "not started"


def _remains(progress: Progress) -> Iterator[str]:
    if progress.leftovers:
        yield f"{progress.leftovers} processes that ranks had left running were ended"
    if progress.unkillable is not None:
        pids = ", ".join(str(pid) for pid in progress.unkillable) or "of ever new numbers"
        yield f"warning: these processes outlived SIGKILL, since they wait inside the kernel: {pids}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
