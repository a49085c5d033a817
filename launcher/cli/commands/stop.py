"""`tlaunch stop` and `wait`: stop a run from any shell on its machine, and wait for its end."""

from __future__ import annotations

import time
from pathlib import Path

import click

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, ONLY_RUN_HELP, active_run_argument, chosen_live, chosen_only
from launcher.cli.options.types import Seconds
from launcher.cli.text.columns import counted
from launcher.cli.text.run_text import describe_run, shown_name
from launcher.cli.text.saved_text import going_on
from launcher.cli.text.stdout import say
from launcher.cli.text.verdict_text import rank_list
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, EXIT_TIMED_OUT, TlaunchError
from launcher.core.text import shell_word
from launcher.runs import ending
from launcher.runs.ending import StopOutcome, Stopped
from launcher.runs.progress import State
from launcher.runs.status import RunStatusReader

STOP_EPILOG = """\b
Examples:
  tlaunch stop
  tlaunch stop --kill 20261121-053712-transformer
  tlaunch stop --timeout 60 || tlaunch stop --kill

tlaunch sends SIGTERM to the run's launcher, or to its agent if the launcher is gone. Every rank gets SIGTERM, and
SIGKILL after the run's --grace seconds. So do ranks that outlived launcher and agent. The bundled trainer saves a
checkpoint at SIGTERM; `tlaunch stop` then prints the newest checkpoint and the command that resumes from it. A
process is never signalled if it only reuses the PID of an ended one, or if it belongs to another user than the run.

Exit codes: 0 no process of the run is left; 1 the run is still active after --timeout, or cannot be stopped from here
(another machine, another user, another version of tlaunch), or you answered no; 2 wrong usage, no such run, several
runs are active and RUN is not given, or the run is in another directory, RUN is not its full name or a path, and stdin
is not a terminal.
"""
WAYS_OUT = {State.UNKNOWN: "use the tlaunch that started it", State.UNWATCHED: "end the mpirun or srun that started it"}


@click.command(epilog=STOP_EPILOG, help=f"Stop a run and wait until its processes have ended.\n\n{ONLY_RUN_HELP}")
@click.option("--kill", is_flag=True, help="Send SIGKILL immediately, without a grace period.")
@click.option(
    "--timeout", type=Seconds(min=0), metavar="TIME", help="Stop waiting after this time.  [default: no limit]"
)
@active_run_argument
def stop(*, run: str | None, kill: bool, timeout: float | None, runs_dir: Path) -> int:
    run_dir = chosen_only(runs_dir, run)
    try:
        stopped = ending.stop(RunStatusReader(run_dir), kill=kill, timeout_s=timeout)
    except PermissionError:
        raise TlaunchError(
            f"{run_dir.root.name} belongs to another user, and only that user or root can stop it",
            hint=f"to stop this run as root, use `sudo tlaunch stop {shell_word(str(run_dir.root))}`",
        ) from None
    say(_report(stopped, kill=kill))
    if stopped.outcome is StopOutcome.ENDED and stopped.state.state is not State.FINISHED:
        for line in going_on(run_dir, stopped.state.ended_ns):
            say(line)
    return EXIT_FAILURE if stopped.outcome in {StopOutcome.STILL_ENDING, StopOutcome.OUT_OF_REACH} else EXIT_OK


def _report(stopped: Stopped, *, kill: bool) -> str:
    name, how = shown_name(stopped.state), describe_run(stopped.state)
    match stopped.outcome:
        case StopOutcome.ENDED:
            ended = ""
            if stopped.orphans:  # ranks that outlived launcher and agent
                ended = f"; {rank_list(stopped.orphans)} still ran and {'was' if len(stopped.orphans) == 1 else 'were'} ended"
                when = f"after {stopped.grace_s:g} s of grace" if stopped.grace_s else "at once"
                ended += f", {rank_list(stopped.killed)} by SIGKILL {when}" if stopped.killed else ""
            elif killed := stopped.state.attempts[-1].killed:
                ended = f"; {counted(killed, 'process', 'processes')} had to be killed"
            return f"{name}: {how}{ended}"
        case StopOutcome.NOT_RUNNING:
            return f"{name} is not running: {how}"
        case StopOutcome.STILL_ENDING:
            progress = stopped.state.progress
            left = [look.global_rank for look in stopped.state.ranks if look.process and look.process.lives]
            count = len(left) if stopped.orphans else progress.current.running
            who = rank_list(left) if stopped.orphans else f"{count} of {progress.rank_count} ranks"
            hint = "" if kill else "\nhint: use --kill to skip the grace time"
            return f"{name}: stop requested, but {who} still run{'s' if count == 1 else ''}{hint}"
        case StopOutcome.OUT_OF_REACH:
            there = "run `tlaunch stop` on its machine, or end the job that it belongs to"
            hint = WAYS_OUT.get(stopped.state.state, there)
            return f"error: {name} cannot be stopped from here: it is {how}\nhint: {hint}"


WAIT_EPILOG = """\b
Examples:
  tlaunch wait && tlaunch evaluate latest --source test.en --reference test.fr
  tlaunch wait --timeout 2h 20261121-053712-transformer

Exit codes: the run's exit code; 1 the run was lost (its launcher or agent was killed), or its end cannot be detected on
this machine (started on another one, or by another version of tlaunch), or you answered no; 2 wrong usage, no such
run, or the run is in another directory, RUN is not given, and stdin is not a terminal; 124 the run is still active
after --timeout; 130 Ctrl-C.
"""
LOOK_S = 0.5
UNSEEN = frozenset({State.ELSEWHERE, State.UNKNOWN, State.UNWATCHED})


@click.command(epilog=WAIT_EPILOG, help=f"Wait for a run to end, and exit with its exit code.\n\n{LIVE_RUN_HELP}")
@click.option(
    "--timeout", type=Seconds(min=0), metavar="TIME", help="Stop waiting after this time.  [default: no limit]"
)
@active_run_argument
def wait(*, run: str | None, timeout: float | None, runs_dir: Path) -> int:
    watch = RunStatusReader(chosen_live(runs_dir, run, asks="wait for it"))
    until_s = None if timeout is None else time.monotonic() + timeout
    while not (state := watch.look()).state.over:
        if state.state in UNSEEN:
            raise TlaunchError(f"cannot wait for {shown_name(state)}: it is {describe_run(state)}")
        if until_s is not None and time.monotonic() >= until_s:
            say(f"{shown_name(state)}: {describe_run(state)}")
            return EXIT_TIMED_OUT
        time.sleep(LOOK_S)
    say(f"{shown_name(state)}: {describe_run(state)}")
    return EXIT_FAILURE if state.exit_code is None else state.exit_code
