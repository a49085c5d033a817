"""`tlaunch why`: show why a run failed, attempt by attempt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.chosen_run import RUN_HELP, chosen, json_option, run_argument
from launcher.cli.text.columns import duration
from launcher.cli.text.run_text import (
    as_json,
    culprit,
    describe_run,
    not_exiting,
    self_reported_verdict,
    shown_name,
)
from launcher.cli.text.saved_text import how_to_resume
from launcher.cli.text.stdout import as_argument, as_people_call_it, write_out
from launcher.cli.text.style import PLAIN, Screen, screen_of
from launcher.cli.text.summary import LAST_LINES, culprit_log_tail, quoted, remote_log, shows_traceback, start_failure
from launcher.cli.text.verdict_text import about_not_exiting, describe_status, headline, rank_list, render
from launcher.core.codec import json_text
from launcher.core.errors import UnreadableError
from launcher.core.events import Cause
from launcher.core.run_report import Attempt
from launcher.core.verdict import Verdict
from launcher.logs.log_file import last_lines
from launcher.logs.terminal import printable
from launcher.runs.progress import State
from launcher.runs.record import RankPlace, read_fields, read_recorded
from launcher.runs.status import RunState, look
from launcher.runs.store import newest_first, run_at

EPILOG = """\b
Examples:
  tlaunch why
  tlaunch why 20261121-053712-transformer
  tlaunch why --json | jq '.attempts[-1].verdict.culprit'

Each verdict is certain, likely or unsure, and gives its reason. Ranks listed as consequences failed because another
rank had failed or was missing. For a run of `tlaunch exec`, only failures that its Python ranks recorded are known.

Exit codes: 0, also if nothing failed; 2 wrong usage, or no such run.
"""
LOOKED_AT = 20  # earlier runs


@click.command(epilog=EPILOG, help=f"Show which rank failed first and why.\n\n{RUN_HELP}")
@json_option
@click.option("--lost-server", is_flag=True, hidden=True)  # prints only IDs, for job scripts
@run_argument
def why(*, run: str | None, as_json: bool, lost_server: bool, runs_dir: Path) -> None:
    state = look(chosen(runs_dir, run))
    if lost_server:
        verdict = state.attempts[-1].verdict if state.attempts else None
        if verdict is not None and verdict.server is not None and not verdict.apart:
            write_out(f"{printable(','.join(verdict.servers or (verdict.server,)))}\n")
    elif as_json:
        write_out(json_text(_to_json(state)))
    else:
        screen = screen_of(sys.stdout)
        lines = [*to_lines(state, screen), *(_failed_before(state) if run is None else ())]
        write_out("".join(f"{screen.message(line)}\n" for line in lines))


def to_lines(state: RunState, screen: Screen = PLAIN) -> Iterator[str]:
    """Yield lines with everything that is known about the failures of a run."""
    failed = [attempt for attempt in state.attempts if _failed(attempt, state)]
    stuck = not_exiting(state)
    nothing = "; nothing failed" if not failed and not stuck and state.state.going_on else ""
    yield f"{shown_name(state)}: {'still ' if nothing else ''}{screen.description(describe_run(state))}{nothing}"
    for line in about_not_exiting(stuck):
        yield from ("", line)
    for attempt in failed:
        yield ""
        if len(state.attempts) > 1:
            took = duration((attempt.ended_ns - attempt.started_ns) / 1e9)
            yield f"attempt {attempt.number} {attempt.cause.value} after {took}:"
        yield from (
            _judged(attempt.verdict, attempt, state, screen)
            if attempt.verdict is not None
            else _without_verdict(attempt, state)
        )
    if state.progress.not_begun is not None:
        if failed:
            yield ""
            yield "the next attempt could not start:"
        yield from start_failure(state.progress.not_begun)
    if state.engine is not None:
        verdict = self_reported_verdict(state)
        found = "no rank recorded a failure" if verdict is None else "ranks recorded failures themselves"
        yield f"  {found}; killed ranks and programs other than Python record none"
        if verdict is not None:
            yield ""
            yield from _judged(verdict, state.attempts[-1], state, screen)
    yield from _going_on(state)


def _failed_before(state: RunState) -> Iterator[str]:
    """If nothing failed in an active run, yield lines about the newest earlier run that failed."""
    if not state.state.going_on or not_exiting(state) or any(_failed(attempt, state) for attempt in state.attempts):
        return
    runs_dir, name = state.run_dir.root.parent, state.run_dir.root.name
    names = newest_first(runs_dir)
    earlier = names[names.index(name) + 1 :][:LOOKED_AT] if name in names else ()
    found = (look(run_at(runs_dir / each)) for each in earlier)
    last = next((each for each in found if each.state in {State.FAILED, State.HUNG, State.LOST}), None)
    if last is not None:
        age = duration((state.looked_ns - (last.ended_ns or last.started_ns or state.looked_ns)) / 1e9)
        why = f": {failure}" if (failure := culprit(last)) else ""
        yield f"the earlier run {shown_name(last)} {last.state.value} {age} ago{why}"
        yield f"details: `tlaunch why {as_argument(last.run_dir)}`"


def _going_on(state: RunState) -> Iterator[str]:
    """Yield lines about a run: its last known state if it was lost, why it was not restarted, and how to resume it."""
    progress, is_lost = state.progress, state.state.value == "lost"
    if is_lost and progress.last_ns and state.exit_code is None:
        age = duration((state.looked_ns - progress.last_ns) / 1e9)
        yield f"  the last event is {age} old; {progress.current.running} of {progress.rank_count} ranks were running then"
    living = [look.global_rank for look in state.ranks if look.state.value in {"running", "stopped"}]
    if is_lost and living:
        yield f"  processes of {rank_list(living)} are still alive: `tlaunch stop {as_argument(state.run_dir)}` ends them"
    for log in (state.run_dir.agent_log, state.run_dir.console_log) if is_lost else ():
        with suppress(OSError):
            lines = last_lines(log, LAST_LINES)
            yield f"  the end of {log.name}:"
            yield from quoted(lines)
    if state.not_restarting:
        yield ""
        yield f"not restarted: {printable(state.not_restarting)}"
    if state.run_dir.checkpoints.is_dir():
        yield from how_to_resume(state)


def _failed(attempt: Attempt, state: RunState) -> bool:
    """Return True if an attempt failed. An attempt that was stopped together with the run did not fail."""
    if attempt.verdict is None and not attempt.exits and state.progress.not_begun is not None:
        return False  # not all servers joined; nothing else is known
    return attempt.verdict is not None or attempt.cause in {Cause.FAILED, Cause.HUNG}


def _judged(verdict: Verdict, attempt: Attempt, state: RunState, screen: Screen) -> Iterator[str]:
    fields = read_fields(state.run_dir)
    stdin, offers_stdin = fields.get("stdin"), fields.get("offers_stdin", True)
    yield from render(verdict, _place(attempt, state), screen=screen, stdin=stdin, offers_stdin=offers_stdin)
    if verdict.culprit is not None:
        yield from _log(verdict.culprit, attempt.number, state, with_end=not shows_traceback(verdict))


def _without_verdict(attempt: Attempt, state: RunState) -> Iterator[str]:
    """Yield the failed ranks of an attempt without a verdict, and the log of the rank that failed first."""
    failed = [ended for ended in attempt.exits if ended.failed]
    yield "no verdict was recorded; ranks failed in this order:" if failed else "no verdict was recorded"
    for ended in failed:
        yield printable(f"  rank {ended.global_rank}: {ended.reason or describe_status(ended.status)}")
    if failed:
        yield from _log(failed[0].global_rank, attempt.number, state, with_end=True)


def _place(attempt: Attempt, state: RunState) -> Callable[[int], str]:
    places: dict[int, RankPlace] = {}
    with suppress(UnreadableError):  # the verdict is useful without it
        places = {place.global_rank: place for place in read_recorded(state.run_dir).places_in(attempt.allotment)}
    pids = {ended.global_rank: ended.pid for ended in attempt.exits}

    def place(global_rank: int) -> str:
        found, pid = places.get(global_rank), pids.get(global_rank)
        words = [f"server {found.server_id}", f"device {found.device_id}"] if found else []
        return ", ".join([*words, *([f"process {pid}"] if pid else [])])

    return place


def _log(culprit: int, attempt: int, state: RunState, *, with_end: bool) -> Iterator[str]:
    """Yield the path of the culprit's log. `with_end` adds the log's last lines if this is the latest attempt."""
    path = state.run_dir.train_log(culprit)
    if state.part is not None and culprit not in state.part and not path.exists():
        with suppress(UnreadableError):
            yield remote_log(culprit, read_recorded(state.run_dir).places[0].server_id)
        return
    yield printable(f"log of rank {culprit}: {as_people_call_it(path)}")
    if attempt == state.attempts[-1].number == state.progress.current.number and with_end:
        with suppress(OSError):
            yield from quoted(culprit_log_tail(culprit, state.progress, state.run_dir))


def _to_json(state: RunState) -> dict[str, Any]:
    noted = self_reported_verdict(state)
    verdicts = [noted or attempt.verdict for attempt in state.attempts]  # an unwatched run has one attempt
    attempts = [
        {
            "number": attempt.number,
            "cause": attempt.cause.value if _is_over(attempt, state) else None,
            "started_ns": attempt.started_ns,
            "ended_ns": attempt.ended_ns if _is_over(attempt, state) else None,
            "verdict": asdict(verdict) if verdict else None,
        }
        for attempt, verdict in zip(state.attempts, verdicts, strict=True)
    ]
    known = {"culprit": noted.culprit, "failure": headline(noted)} if noted else {}
    return as_json(state) | known | {"attempts": attempts, "not_restarting": state.not_restarting}


def _is_over(attempt: Attempt, state: RunState) -> bool:
    return attempt.number != state.attempts[-1].number or (state.state.over and state.engine is None)
