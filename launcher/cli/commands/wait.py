"""`tlaunch wait`: wait for a run to end."""

from __future__ import annotations

import time
from pathlib import Path

import click

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, active_run_argument, chosen_live
from launcher.cli.options.types import Seconds
from launcher.cli.text.run_text import describe_run, shown_name
from launcher.cli.text.stdout import say
from launcher.core.errors import EXIT_FAILURE, EXIT_HUNG, TlaunchError
from launcher.runs.progress import State
from launcher.runs.status import RunStatusReader

EPILOG = """\b
Examples:
  tlaunch wait && tlaunch evaluate latest --source test.en --reference test.fr
  tlaunch wait --timeout 2h 20261121-053712-transformer

Exit codes: the run's exit code; 1 the run was lost (its launcher or agent was killed), or its end cannot be detected on
this machine (started on another one, or by another version of tlaunch); 2 wrong usage, or no such run; 124 the run is
still active after --timeout; 130 Ctrl-C.
"""
LOOK_S = 0.5
UNSEEN = frozenset({State.ELSEWHERE, State.UNKNOWN, State.UNWATCHED})


@click.command(epilog=EPILOG, help=f"Wait for a run to end, and exit with its exit code.\n\n{LIVE_RUN_HELP}")
@click.option(
    "--timeout", type=Seconds(min=0), metavar="TIME", help="Stop waiting after this time.  [default: no limit]"
)
@active_run_argument
def wait(*, run: str | None, timeout: float | None, runs_dir: Path) -> int:
    watch = RunStatusReader(chosen_live(runs_dir, run))
    until_s = None if timeout is None else time.monotonic() + timeout
    while not (state := watch.look()).state.over:
        if state.state in UNSEEN:
            raise TlaunchError(f"cannot wait for {shown_name(state)}: it is {describe_run(state)}")
        if until_s is not None and time.monotonic() >= until_s:
            say(f"{shown_name(state)}: {describe_run(state)}")
            return EXIT_HUNG
        time.sleep(LOOK_S)
    say(f"{shown_name(state)}: {describe_run(state)}")
    return EXIT_FAILURE if state.exit_code is None else state.exit_code
