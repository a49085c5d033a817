"""Descriptions of the state of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.cli.text.columns import duration
from launcher.cli.text.verdict_text import describe_status, headline, rank_list
from launcher.core.codec import encode
from launcher.core.events import Cause, NotExiting
from launcher.core.records import ResumedFrom
from launcher.core.verdict import Confidence, Verdict
from launcher.logs.terminal import one_line, printable
from launcher.runs.progress import State
from launcher.runs.rank_figures import RankFigures
from launcher.runs.record import continued_by
from launcher.runs.status import RankState, RunState
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import read_failure
from launcher.supervise.diagnosis.root_cause import judge

HOW_LOST = {
    Cause.HEAD_LOST: "its launcher was killed, so its agent stopped the ranks",
    Cause.COORDINATOR_LOST: "the coordinating launcher stopped responding, so the agent stopped the ranks on this server",
    Cause.AGENT_LOST: "its agent was killed, so its launcher stopped the remaining processes",
}


def shown_name(state: RunState) -> str:
    return printable(state.name.encode(errors="surrogateescape").decode(errors="backslashreplace"))


def describe_run(state: RunState, *, restarts: bool = True) -> str:
    """Describe a run: "running for 3 min 12 s", "failed after 12 s with exit code 7", "lost: ...".

    `restarts` includes the number of restarts of an active run.
    """
    engine, age = printable(state.engine or "?"), duration(state.elapsed_s)
    match state.state:
        case State.LOST:
            return f"lost: {_how_lost(state)}"
        case State.ELSEWHERE:
            host = printable(state.host or "?")
            return f"on {host} (another machine, or this one before its last boot); run the command there for details"
        case State.UNWATCHED:
            return f"not supervised: {engine} started it {age} ago"
        case State.ENDED:
            return f"ended: {engine} started it {age} ago and has its exit codes"
        case State.UNKNOWN:
            return "written by another version of tlaunch"
        case _:
            since = "after" if state.state.over else "after running for" if state.state is State.PAUSED else "for"
            return f"{state.state.value} {since} {age}{_details(state, restarts=restarts)}"


def _details(state: RunState, *, restarts: bool) -> str:
    match state.state:
        case State.FINISHED:
            return ": all ranks succeeded"
        case State.FAILED | State.HUNG:
            return f" with exit code {state.exit_code}"
        case State.STOPPED:
            ending = state.progress.current.ending
            if ending.cause is Cause.TIMED_OUT:
                return " by its time limit"
            stopping = ending.stopping
            return f" by {one_line(stopping.asked_by)}" if stopping is not None and stopping.asked_by else ""
        case _:
            count = state.progress.restarts if restarts else 0
            return f", restarted {count}x" if count else ""


def culprit(state: RunState) -> str:
    """Describe the rank that failed first, on one line. Return "" if no rank failed."""
    if state.verdict is not None:
        return headline(state.verdict)
    failed = state.progress.current.first_failure
    if failed is None:
        return next((one_line(described(one)) for one in not_exiting(state)), "")
    return printable(f"rank {failed.global_rank}: {failed.reason or describe_status(failed.status)}")


def not_exiting(state: RunState) -> list[NotExiting]:
    return list(state.progress.current.not_exiting.values()) if state.state.going_on else []


def described(failed: NotExiting) -> str:
    return f"rank {failed.global_rank}: {failed.what} (it does not exit)"


def continued_from(continued: ResumedFrom) -> str:
    """Describe where a run was resumed from: "20261121-053712-transformer from step 500"."""
    source = (continued.run or str(continued.checkpoint)).encode(errors="backslashreplace").decode()
    return one_line(f"{source} from step {continued.step:,}")


def running_ranks(state: RunState) -> int:
    """Return the number of running ranks, as agents report it. For a run without agents, count the processes."""
    if state.engine is not None:
        return sum(look.state in {RankState.RUNNING, RankState.STOPPED} for look in state.ranks)
    return 0 if state.state.over else state.progress.current.running


def printed_figures(figures: Mapping[int, RankFigures]) -> list[str]:
    """Return a line that lists the ranks whose figures come from logs, or says why logs are not parsed."""
    refused = next((each.refused for each in figures.values() if each.refused is not None), None)
    if refused is not None:
        return [f"figures are not read from logs: {one_line(refused)}"]
    ranks = [global_rank for global_rank, each in figures.items() if each.from_log]
    samples = "; STEP counts samples" if any(each.counts_samples for each in figures.values()) else ""
    return [f"figures of {rank_list(ranks)} are read from logs{samples}"] if ranks else []


def scheduler_text(state: RunState) -> str:
    """Describe the state of MindSpore's scheduler: "running, process 4711". Return "" if there is no scheduler."""
    scheduler, found = state.progress.current.scheduler, state.scheduler
    if scheduler is None or found is None:
        return "not supervised" if state.run_dir.scheduler_log.exists() else ""
    ended, process = scheduler.ended, state.progress.scheduler_process
    if ended is not None and ended.pid is None:
        return one_line(f"could not be started: {ended.reason or describe_status(ended.status)}")
    how = found.value if ended is None else describe_status(ended.status)
    return how if process is None else f"{how}, process {process.pid}"


def scheduler_json(state: RunState) -> dict[str, Any] | None:
    """Return the state of MindSpore's scheduler for `status --json`, or None if there is no scheduler."""
    scheduler, found = state.progress.current.scheduler, state.scheduler
    if scheduler is None or found is None:
        return None
    process = state.progress.scheduler_process
    return {
        "state": found.value,
        "pid": process.pid if process else None,
        "status": scheduler.ended.status if scheduler.ended else None,
        "reason": scheduler.ended.reason if scheduler.ended else None,
        "log": str(state.run_dir.scheduler_log),
    }


def as_json(state: RunState) -> dict[str, Any]:
    """Return the JSON fields that all commands with --json have for a run. Times are ns since 1970."""
    progress = state.progress
    return {
        "name": state.name,
        "directory": str(state.run_dir.root),
        "state": state.state.value,
        "host": state.host,
        "ranks": progress.rank_count,
        "running": running_ranks(state),
        "attempt": progress.current.number,
        "started_ns": state.started_ns,
        "ended_ns": state.ended_ns,
        "exit_code": state.exit_code,
        "continues": encode(continued_by(state.run_dir)),
        "culprit": state.verdict.culprit if state.verdict else None,
        "failure": culprit(state) or None,
        "head_pid": progress.head.pid if progress.head else None,
        "agent_pid": progress.agent.pid if progress.agent else None,
    }


def _how_lost(state: RunState) -> str:
    cause = state.report.cause if state.report else state.progress.current.ending.cause
    if state.exit_code is not None and cause in HOW_LOST:
        return HOW_LOST[cause]
    if state.progress.agent is None:
        return "its launcher disappeared before it started anything"
    return "its launcher and agent disappeared without a report"


def self_reported_verdict(state: RunState) -> Verdict | None:
    """If tlaunch does not supervise the run, return a verdict from the failures that ranks recorded themselves.

    The verdict is never certain, because the clocks of servers differ and killed ranks do not record failures.
    """
    if state.engine is None:
        return None
    found = ((rank, read_failure(state.run_dir.failure(rank))) for rank in range(state.progress.rank_count))
    evidence = [RankEvidence(rank, None, None, None, failure=failure) for rank, failure in found if failure]
    if not evidence:
        return None
    verdict = judge(evidence)
    return replace(verdict, confidence=Confidence.LIKELY) if verdict.confidence is Confidence.CERTAIN else verdict
