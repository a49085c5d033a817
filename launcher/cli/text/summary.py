"""The summary at the end of a run: one line after a success, else the first failure with its last log lines."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from launcher.cli.text import verdict_text
from launcher.cli.text.columns import counted, time_limit
from launcher.cli.text.stdout import as_argument
from launcher.cli.text.style import FAINT, PLAIN, Screen
from launcher.core.devices import device_name
from launcher.core.events import Cause, NotBegun
from launcher.core.machine.proc import is_full
from launcher.core.records import RunSpec
from launcher.core.resources import called_function
from launcher.core.run_dir import RunDir
from launcher.core.run_report import RankExit
from launcher.core.verdict import Verdict
from launcher.logs.log_file import last_lines
from launcher.logs.terminal import one_line, printable
from launcher.runs.progress import Progress

LAST_LINES = 10
PROMPT_ROWS = 3  # below the summary: the next commands and the shell's prompt
# Frames of tlaunch in a crash dump: '  File ".../launcher/preload/run_main.py", line 54 in main'.
_BELOW_PROGRAM = re.compile(r'  File ".*/launcher/preload/\w+\.py", line \d+ in \S+')


def render(
    progress: Progress, spec: RunSpec, shown_dir: Path, server_index: int | None = None, screen: Screen = PLAIN
) -> Iterator[str]:
    """Yield the lines of the summary, formatted for the terminal that `screen` describes.

    `shown_dir` is the run directory for display. `server_index` is given if `progress` covers only that server's ranks.
    """
    attempt, ending = progress.current, progress.current.ending
    if not progress.ended:  # the console failed
        yield f"error: the console failed before the run ended; see the result in {RunDir(shown_dir).report}"
    elif progress.not_begun is not None:
        if attempt.verdict is not None:  # of the previous attempt
            yield from _failure(progress, spec, shown_dir, server_index, screen)
            yield "the restart failed:"
        yield from start_failure(progress.not_begun)
    elif ending.cause in {Cause.FAILED, Cause.HUNG}:
        yield from _failure(progress, spec, shown_dir, server_index, screen)
    elif ending.cause in {Cause.STOPPED, Cause.TIMED_OUT}:
        stopping = ending.stopping  # the request may have come from another server
        by = "" if stopping is None or stopping.server is None else f" by {one_line(stopping.asked_by or '')}"
        is_timed_out = ending.cause is Cause.TIMED_OUT
        limit = f"{time_limit(spec.supervision.time_limit_s)} reached; " if is_timed_out else ""
        ended = _how_ended(progress, "rank")
        yield f"{limit}stopped{by} after {progress.seconds:.2f} s: {ended}; logs in {shown_dir}"
        yield from _going_on(spec, progress)
    elif ending.cause is Cause.AGENT_LOST:
        yield from _agent_lost(progress, RunDir(spec.run_dir, server_index))
    elif ending.cause in {Cause.COORDINATOR_LOST, Cause.HEAD_LOST}:  # on the launchers of other servers
        first, ended = printable(spec.ranks[0].server_id), _how_ended(progress, "rank", " on this server")
        yield f"error: lost the coordinating launcher on server {first}; {ended}; logs in {shown_dir}"
    else:
        yield f"{counted(progress.rank_count, 'rank')} succeeded after {progress.seconds:.2f} s; logs in {shown_dir}"
    if ending.leftovers:
        yield f"terminated {counted(ending.leftovers, 'process', 'processes')} that ranks had left running"
    if progress.unkillable is not None:
        pids = ", ".join(str(pid) for pid in progress.unkillable) or "with changing ids"
        yield f"warning: SIGKILL did not end these processes, which are blocked in the kernel: {pids}"


def on_screen(
    progress: Progress, spec: RunSpec, shown_dir: Path, server_index: int | None, screen: Screen
) -> Iterator[str]:
    """Yield the lines of `render`, and the headline again if it would scroll away."""
    lines = [*render(progress, spec, shown_dir, server_index, screen)]
    yield from lines
    yield from repeated_headline(progress, lines, screen)


def repeated_headline(progress: Progress, lines: Sequence[str], screen: Screen) -> Iterator[str]:
    """If the verdict in `lines` does not fit on the terminal, yield its headline again, because it scrolls away."""
    verdict = progress.current.verdict
    if verdict is None or not progress.ended or screen.columns is None or screen.rows is None:
        return
    if sum(screen.rows_of(line) for line in lines) > screen.rows - PROMPT_ROWS:
        yield from ("", screen.wrapped(f"error: {verdict_text.headline(verdict)}"))


def next_commands(progress: Progress, spec: RunSpec, screen: Screen) -> Iterator[str]:
    """If the run has started and ended, yield a line with commands to use next.

    The commands include the run's name, because other runs may have started since.
    """
    if not progress.ended or progress.not_begun is not None:
        return
    verdict = progress.current.verdict
    verbs = ["report"]
    if verdict is not None:
        verbs.insert(0, "why" if verdict.culprit is None else "logs --rank failed")
    run = RunDir(spec.run_dir)
    if progress.exit_code == 0 and run.model.is_dir():
        from launcher.cli.text.saved_text import translates  # only for runs with a model

        if translates(run):
            verbs = ["translate", "evaluate", *verbs]
    if called_function(spec.ranks[0].argv) is None:
        verbs.append("rerun")
    more = {"evaluate": " --source FILE --reference FILE"}
    *others, last = (f"`tlaunch {verb} {as_argument(run)}{more.get(verb, '')}`" for verb in verbs)
    yield screen.paint(f"next: {', '.join(others)}{' or ' if others else ''}{last}", FAINT)


def start_failure(event: NotBegun) -> Iterator[str]:
    yield from (printable(line) for line in f"error: {event.message}".split("\n"))
    if event.hint is not None:
        yield f"hint: {printable(event.hint)}"


def describe_exit(ended: RankExit) -> str:
    """Describe how a rank ended: "exit code 7", "SIGKILL (signal 9)", or why its program could not be started."""
    return verdict_text.describe_status(ended.status) if ended.reason is None else ended.reason


def _agent_lost(progress: Progress, run_dir: RunDir) -> Iterator[str]:
    pid = f" (pid {progress.agent.pid})" if progress.agent else ""
    reason = "was killed"
    if (progress.exit_code or 0) < verdict_text.SIGNALLED:
        reason = "failed"
        with suppress(OSError, IndexError):
            reason += f": {last_lines(run_dir.agent_log, 1)[-1]}"
    yield f"error: the agent process{pid} {reason}; the processes that it left running were terminated"
    if os.strerror(errno.EMFILE) in reason:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield f"hint: raise the limit on open files with `ulimit -n`; it is {limit}"


def _going_on(spec: RunSpec, progress: Progress) -> Iterator[str]:
    if RunDir(spec.run_dir).checkpoints.is_dir():
        from launcher.cli.text.saved_text import going_on  # only for runs with checkpoints

        yield from going_on(RunDir(spec.run_dir), progress.last_ns)


# --- the last lines of the culprit's log, also for `tlaunch why` ---


def shows_traceback(verdict: Verdict) -> bool:
    """Return True if the verdict includes the culprit's traceback, so that the log need not be shown."""
    failure = verdict_text.culprit_failure(verdict)
    return failure is not None and bool(failure.traceback)


def culprit_log_tail(culprit: int, progress: Progress, run_dir: RunDir) -> list[str]:
    """Return the last lines of the culprit's log in the current attempt. Raises OSError if it is unreadable."""
    start = progress.current.starts.get(culprit)
    if start is None and progress.current.number > 0:
        return []  # it did not run in this attempt, so the log is older
    offset = 0 if start is None else start.event.log_offset
    lines = last_lines(run_dir.train_log(culprit), 2 * LAST_LINES, offset)
    return [line for line in lines if not _BELOW_PROGRAM.fullmatch(line)][-LAST_LINES:]


def remote_log(global_rank: int, first_server: str) -> str:
    """Return a line that names the server that has the log of a rank."""
    return one_line(f"log of rank {global_rank}: on server {first_server}, with the logs of all ranks")


def quoted(lines: list[str]) -> Iterator[str]:
    return (f"  | {line}" for line in lines)


# --- a failure ---


def _failure(
    progress: Progress, spec: RunSpec, shown_dir: Path, server_index: int | None, screen: Screen
) -> Iterator[str]:
    """Yield the verdict, the culprit's last log lines, and how the other ranks ended."""
    verdict = progress.current.verdict
    if verdict is None and progress.not_restarting is not None:
        yield f"error: the ranks could not be restarted: {progress.not_restarting}"
        yield from _going_on(spec, progress)
        return
    if verdict is None:
        yield "error: a rank failed for an unknown reason"
        return
    is_here = partial(_ran_on, progress, spec, server_index)
    if screen.columns is not None:
        yield ""  # separates the error from rank 0's lines above
    yield from verdict_text.render(
        verdict, lambda rank: _place(rank, progress, spec, is_here=is_here(rank)), screen=screen, lead="error: ",
        stdin=spec.stdin, offers_stdin=spec.offers_stdin, brief=True,
    )  # fmt: skip
    culprit = verdict.culprit
    culprit_here = server_index is None if culprit is None else is_here(culprit)
    if culprit is not None:
        log = _log_of(culprit, verdict, progress, spec, shown_dir, is_here=culprit_here)
        yield from map(screen.wrapped, log)
    if verdict.scheduler is not None:
        yield f"log of the scheduler: {RunDir(shown_dir).scheduler_log}"
    if progress.rank_count > 1 or not culprit_here:
        one = "other rank" if culprit is not None and culprit_here else "rank"
        on_server = "" if server_index is None else " on this server"
        yield _how_ended(progress, one, on_server, without=culprit)
    yield from _restarts(progress)
    if is_full(spec.run_dir):
        yield f"the file system of {shown_dir} is full"
    yield from _going_on(spec, progress)


def _restarts(progress: Progress) -> Iterator[str]:
    times = f"restarted {counted(progress.restarts, 'time')}"
    if progress.not_restarting is not None:
        yield f"{f'{times}, then gave up' if progress.restarts else 'not restarted'}: {progress.not_restarting}"
    elif progress.restarts:
        yield times


def _ran_on(progress: Progress, spec: RunSpec, server_index: int | None, global_rank: int) -> bool:
    """Return True if the rank ran on this server in the last attempt, or if no server is given."""
    if server_index is None:
        return True
    if (allotment := progress.current.allotment) is None:
        return spec.ranks[global_rank].server_index == server_index
    elastic = spec.supervision.elastic
    return elastic is not None and elastic.servers[allotment.devices[global_rank]] == server_index


def _place(global_rank: int, progress: Progress, spec: RunSpec, *, is_here: bool) -> str:
    rank = spec.ranks[global_rank]
    words = f"server {rank.server_id}, device {rank.device_id}"
    if progress.current.allotment is not None:
        words = f"device {device_name(progress.current.allotment.devices[global_rank], spec.cluster.servers)}"
    if not is_here:
        return words
    start, ended = progress.current.starts.get(global_rank), progress.current.exits.get(global_rank)
    words += ", no process" if start is None else f", process {start.event.pid}"
    if ended and ended.started_ns:
        words += f", {(ended.ended_ns - ended.started_ns) / 1e9:.2f} s after its start"
    return words


def _log_of(
    culprit: int, verdict: Verdict, progress: Progress, spec: RunSpec, shown_dir: Path, *, is_here: bool
) -> Iterator[str]:
    run_dir = RunDir(spec.run_dir)
    if not is_here and not run_dir.train_log(culprit).exists():
        yield remote_log(culprit, spec.ranks[0].server_id)
        return
    words = f"log of rank {culprit}: {RunDir(shown_dir).train_log(culprit)}"
    # Only the rank's server knows where the attempt starts in the log.
    is_known = is_here or not progress.current.number
    if shows_traceback(verdict) or not is_known:
        yield words
        return
    try:
        lines = culprit_log_tail(culprit, progress, run_dir)
    except OSError as error:
        yield f"{words} (cannot be read: {error.strerror})"
        return
    silent = "no output in this attempt" if progress.current.number else "empty"
    yield f"{words}{', last lines:' if lines else f' ({silent})'}"
    yield from quoted(lines)


def _how_ended(progress: Progress, one: str, where: str = "", *, without: int | None = None) -> str:
    """Describe how ranks ended, with counts: "2 other ranks ended with exit code 0, 1 by SIGTERM (signal 15)".

    `one` is what a rank is called, and `where` follows it.
    """
    attempt, grace = progress.current, ""
    stopping, passed_s = attempt.ending.stopping, attempt.ending.grace_passed_s
    if passed_s is not None and stopping is not None:  # both by a wall clock
        if passed_s >= 0.9 * stopping.grace_s:
            grace = f" after {stopping.grace_s:g} s of grace"
        elif stopping.cause is Cause.STOPPED and stopping.signal != signal.SIGQUIT:
            grace = " immediately, after a second request"
        else:
            grace = " immediately"
    counts: Counter[str] = Counter()
    for rank, ended in attempt.exits.items():
        if rank != without:
            by = "by" if ended.status < 0 else "with"
            way = "could not be started" if ended.reason is not None else f"{by} {describe_exit(ended)}"
            counts[f"{way}{grace}" if way.startswith("by SIGKILL") else way] += 1
    unknown = len(attempt.starts.keys() - attempt.exits.keys())
    counts["by the loss of the server"] += unknown
    counts["never started"] += progress.rank_count - len(attempt.exits) - unknown
    found = [(way, count) for way, count in counts.most_common() if count > 0]
    if not found:
        return f"no {one}{where} was started"
    (way, first), *others = found
    verb = "ended " if way.startswith(("by ", "with ")) else ""
    return ", ".join([f"{counted(first, one)}{where} {verb}{way}", *(f"{count} {way}" for way, count in others)])
