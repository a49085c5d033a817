"""How a run ended, in words: one line when all is well, the first failure with its last lines when not."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from launcher.cli.text import verdict_text
from launcher.cli.text.columns import counted
from launcher.cli.text.log_tail import log_elsewhere, log_tail, quoted, tells_enough
from launcher.core.events import Cause, NotBegun
from launcher.core.proc import is_full
from launcher.core.records import RunSpec
from launcher.core.report import RankExit
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Verdict
from launcher.logs.terminal import one_line, printable
from launcher.runs.progress import Progress


def render(progress: Progress, spec: RunSpec, shown_dir: Path, server_index: int | None = None) -> Iterator[str]:
    """Yield the lines for stderr. `shown_dir` is the run directory as a person would call it.

    `server_index`: of the server whose ranks alone `progress` knows of; None: it knows of all.
    """
    if not progress.ended:  # the console failed, and was let go
        yield f"error: the run was not watched to its end; how it ended is in {RunDir(shown_dir).report}"
    elif progress.not_begun is not None:
        if progress.current.verdict is not None:  # of the attempt before, which was to be repeated
            yield from _failure(progress, spec, shown_dir, server_index)
            yield "it was to start again, and could not:"
        yield from not_begun(progress.not_begun)
    elif progress.current.ending.cause in {Cause.FAILED, Cause.HUNG}:
        yield from _failure(progress, spec, shown_dir, server_index)
    elif progress.current.ending.cause is Cause.STOPPED:
        after = f"stopped{_elsewhere(progress)} after {progress.seconds:.2f} s"
        yield f"{after}: {_how_ended(progress, without=None)}; logs in {shown_dir}"
    elif progress.current.ending.cause is Cause.AGENT_LOST:
        pid = progress.agent.pid if progress.agent else "unknown"
        yield (
            f"error: the process that supervised the ranks (pid {pid}) was killed; "
            "everything that it left behind was ended"
        )
    elif progress.current.ending.cause in {Cause.COORDINATOR_LOST, Cause.HEAD_LOST}:  # at the other servers' launchers
        ways = _how_ended(progress, without=None)
        first = printable(spec.ranks[0].server_id)
        yield f"error: server {first}, whose launcher coordinated the run, is lost; ranks here: {ways}; logs in {shown_dir}"
    else:
        yield f"{counted(progress.rank_count, 'rank')} ended well after {progress.seconds:.2f} s; logs in {shown_dir}"
    yield from _remains(progress)


def _elsewhere(progress: Progress) -> str:
    """Return who asked for the end, where that may have been on another server."""
    stopping = progress.current.ending.stopping
    return "" if stopping is None or stopping.server is None else f" by {one_line(stopping.asked_by or '')}"


def not_begun(event: NotBegun) -> Iterator[str]:
    """Yield the lines of an error, as of one that is found before a run is made."""
    yield from (printable(line) for line in f"error: {event.message}".split("\n"))
    if event.hint is not None:
        yield f"hint: {printable(event.hint)}"


def describe(ended: RankExit) -> str:
    """Return how a rank ended: "exit code 7", "SIGKILL (signal 9)", or why there was no program to run."""
    return verdict_text.describe_status(ended.status) if ended.reason is None else ended.reason


def _failure(progress: Progress, spec: RunSpec, shown_dir: Path, server_index: int | None) -> Iterator[str]:
    """Yield the verdict, and what its culprit wrote last where that says more than the verdict."""
    verdict = progress.current.verdict
    if verdict is None:
        yield "error: a rank failed, and nothing is known about it"
        return
    place = partial(_place, progress=progress, spec=spec, server_index=server_index)
    lines = iter(verdict_text.render(verdict, place, traceback=True))
    yield f"error: {next(lines)}"
    yield from lines
    culprit = verdict.culprit
    is_here = server_index is None or (culprit is not None and _is_on(server_index, culprit, spec))
    if culprit is not None:
        yield from _log_of(verdict, culprit, progress, spec, shown_dir, is_here=is_here)
    if progress.rank_count > 1 or not is_here:
        who = "the others" if server_index is None else "the others here" if is_here else "ranks here"
        yield f"{who}: {_how_ended(progress, without=None if culprit is None else progress.current.exits.get(culprit))}"
    if progress.current.number or progress.not_restarting:
        yield _restarts(progress)
    if is_full(spec.run_dir):
        yield f"the file system of {shown_dir} is full"


def _is_on(server_index: int, global_rank: int, spec: RunSpec) -> bool:
    return spec.ranks[global_rank].server_index == server_index


def _place(global_rank: int, progress: Progress, spec: RunSpec, server_index: int | None) -> str:
    rank = spec.ranks[global_rank]
    if server_index is not None and not _is_on(server_index, global_rank, spec):
        return f"server {rank.server_id}, device {rank.device_id}"
    start = progress.current.starts.get(global_rank)
    process = "no process" if start is None else f"process {start.event.pid}"
    ended = progress.current.exits.get(global_rank)
    after = f", {(ended.ended_ns - ended.started_ns) / 1e9:.2f} s after its start" if ended and ended.started_ns else ""
    return f"server {rank.server_id}, device {rank.device_id}, {process}{after}"


def _log_of(
    verdict: Verdict, culprit: int, progress: Progress, spec: RunSpec, shown_dir: Path, *, is_here: bool
) -> Iterator[str]:
    """Yield the log's last lines, unless a traceback has been shown already. `is_here`: it is no rank of another server."""
    path = RunDir(shown_dir).train_log(culprit)
    if not is_here and not RunDir(spec.run_dir).train_log(culprit).exists():
        yield log_elsewhere(culprit, spec.ranks[0].server_id)
        return
    is_known = is_here or not progress.current.number  # which part of it is this attempt's, only its own server is told
    if tells_enough(verdict) or not is_known:
        yield f"log of rank {culprit}: {path}"
        return
    try:
        lines = log_tail(culprit, progress, RunDir(spec.run_dir))
    except OSError as error:
        yield f"log of rank {culprit}: {path}, which cannot be read: {error.strerror}"
        return
    silent = "to which this attempt wrote nothing" if progress.current.number else "which is empty"
    yield f"log of rank {culprit}: {path}, {'its last lines:' if lines else silent}"
    yield from quoted(lines)


def _restarts(progress: Progress) -> str:
    times = f"restarted {counted(progress.current.number, 'time')}"
    if progress.not_restarting is None:
        return times
    return f"{f'{times}, and not again' if progress.current.number else 'not restarted'}: {progress.not_restarting}"


def _how_ended(progress: Progress, *, without: RankExit | None) -> str:
    """Count the ways in which ranks ended, those that were never started included."""
    counts = Counter(_way(ended) for ended in progress.current.exits.values() if ended is not without)
    unknown = len(progress.current.starts.keys() - progress.current.exits.keys())
    if unknown:
        counts["lost with their server"] = unknown
    if missing := progress.rank_count - len(progress.current.exits) - unknown:
        counts["never started"] = missing
    grace = _grace(progress)
    ways = (f"{count} {way}{grace if way.startswith('by SIGKILL') else ''}" for way, count in counts.most_common())
    return ", ".join(ways) or "none was started"


def _grace(progress: Progress) -> str:
    """Return how much grace passed, which a second Ctrl-C may have cut short. Times are a wall clock's."""
    stopping = progress.current.ending.stopping
    if progress.current.ending.grace_passed_s is None or stopping is None:
        return ""
    if progress.current.ending.grace_passed_s >= 0.9 * stopping.grace_s:
        return f" after {stopping.grace_s:g} s of grace"
    asked_before = stopping.cause is Cause.STOPPED and stopping.signal != signal.SIGQUIT
    return " at once, when asked again" if asked_before else " at once"


def _way(ended: RankExit) -> str:
    return f"{'by' if ended.status < 0 else 'with'} {describe(ended)}" if ended.reason is None else "not started"


def _remains(progress: Progress) -> Iterator[str]:
    if progress.current.ending.leftovers:
        were = "was" if progress.current.ending.leftovers == 1 else "were"
        yield f"{counted(progress.current.ending.leftovers, 'process', 'processes')} that ranks had left running {were} ended"
    if progress.unkillable is not None:
        pids = ", ".join(str(pid) for pid in progress.unkillable) or "of ever new numbers"
        yield f"warning: these processes outlived SIGKILL, since they wait inside the kernel: {pids}"
