"""`tlaunch stop`: end a run from any shell of its machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli.chosen_run import RUN_HELP, chosen, run_argument
from launcher.core.errors import EXIT_FAILURE, TlaunchError

if TYPE_CHECKING:
    from launcher.runs.ending import Outcome
    from launcher.runs.live import RunState

EPILOG = """\b
Examples:
  tlaunch stop
  tlaunch stop --kill 20261121-053712-transformer
  tlaunch stop --timeout 60 || tlaunch stop --kill

\b
The run's launcher is asked by SIGTERM, as `kill` would do; its agent, if the launcher is gone. Every rank gets SIGTERM,
and SIGKILL after the run's own --grace seconds. No signal ever reaches a process that merely has the number of one that
is gone.

\b
Exit codes: 0 nothing of the run runs any more, or nothing did; 1 it still runs after --timeout, or cannot be ended from
here (another machine, another user); 2 wrong usage, or no such run.
"""


@click.command(epilog=EPILOG, help=f"End a run, and wait until nothing of it is left.\n\n{RUN_HELP}")
@click.option("--kill", is_flag=True, help="Let no grace pass: SIGKILL for every rank.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer.  [default: no limit]")
@run_argument
@click.pass_context
def stop(context: click.Context, *, run: str | None, kill: bool, timeout: float | None, runs_dir: Path) -> None:
    from launcher.runs import ending
    from launcher.runs.live import Watch

    run_dir = chosen(runs_dir, run)
    try:
        outcome, state = ending.stop(Watch(run_dir), kill=kill, timeout_s=timeout)
    except PermissionError:
        raise TlaunchError(
            f"{run_dir.root.name} belongs to another user, who alone can end it", hint="sudo tlaunch stop ..."
        ) from None
    _say(outcome, state, kill=kill)
    if outcome in {ending.Outcome.STILL_ENDING, ending.Outcome.ELSEWHERE}:
        context.exit(EXIT_FAILURE)


def _say(outcome: Outcome, state: RunState, *, kill: bool) -> None:
    from launcher.cli.run_words import describe, shown_name
    from launcher.runs.ending import Outcome

    name = shown_name(state)
    match outcome:
        case Outcome.ENDED:
            text = f"{name}: {describe(state)}{_by_force(state)}"
        case Outcome.NOT_RUNNING:
            text = f"{name} is not running: {describe(state)}"
        case Outcome.STILL_ENDING:
            hint = "" if kill else "\nhint: --kill lets no grace pass"
            text = f"{name}: asked, but {state.progress.running} of {state.progress.rank_count} ranks still run{hint}"
        case Outcome.ELSEWHERE:
            text = f"error: {name} cannot be ended from here: it is {describe(state)}\nhint: tlaunch stop there, or end the job that it belongs to"
    print(text, file=sys.stderr)


def _by_force(state: RunState) -> str:
    killed = state.attempts[-1].killed
    processes = "1 process" if killed == 1 else f"{killed} processes"
    return f"; {processes} had to be killed" if killed else ""
