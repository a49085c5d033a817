"""`tlaunch ps`: list runs with their states."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import click

from launcher.cli.options.chosen_run import json_option, other_run_directories
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text import run_text as run_words
from launcher.cli.text.columns import counted, duration, fitted
from launcher.cli.text.run_text import continued_from, culprit, running_ranks, shown_name
from launcher.cli.text.stdout import as_people_call_it, say, write_lines, write_out
from launcher.cli.text.style import PLAIN, Screen, screen_of
from launcher.core.codec import json_text
from launcher.core.text import printable, some_of
from launcher.runs.record import continued_by
from launcher.runs.status import RunState, look
from launcher.runs.store import run_at, run_names

EPILOG = """\b
Examples:
  tlaunch ps
  tlaunch ps --everywhere
  tlaunch ps --all --json | jq -r '.[] | select(.state == "failed") | .name'

States: starting, preloading, running, paused, ending, restarting; finished, failed, hung, stopped; lost (its launcher
or agent was killed); elsewhere (started on another machine, or before this machine's last boot: its state is unknown
here); unwatched (`tlaunch exec`: only mpirun or srun knows its state); ended (all ranks have ended, and only mpirun or
srun knows their exit codes); unknown (written by another version of tlaunch).

Exit codes: 0, also if there is no run; 2 wrong usage.
"""
CONTINUES = "CONTINUES"  # shown if any run was resumed from another
DIRECTORY = "DIRECTORY"  # shown if runs of several directories are listed
HEADER: tuple[str, ...] = ("NAME", "STATE", "RANKS", "ATTEMPT", "AGE", "EXIT", DIRECTORY, CONTINUES, "FIRST FAILURE")
PLACES_SHOWN = 3
NOTHING = "-"
RIGHT = frozenset({"RANKS", "ATTEMPT", "AGE", "EXIT"})
# How a narrow terminal shrinks the table, in this order: column and new width, 0 drops it. STATE and EXIT never shrink.
GIVING_WAY: tuple[tuple[str, int], ...] = (
    (DIRECTORY, 24), ("FIRST FAILURE", 24), ("ATTEMPT", 0), ("RANKS", 0), (CONTINUES, 0), ("FIRST FAILURE", len("FIRST FAILURE")), ("AGE", 0),
    ("FIRST FAILURE", 0), (DIRECTORY, 12), ("NAME", 1),
)  # fmt: skip


@click.command(epilog=EPILOG)
@click.option("-a", "--all", "everything", is_flag=True, help="List finished runs too.")
@click.option("--everywhere", is_flag=True, help="Also list runs outside --runs-dir.")
@json_option
@runs_dir_option
def ps(*, everything: bool, everywhere: bool, as_json: bool, runs_dir: Path) -> None:
    """List the active runs, newest first.

    If --runs-dir has no runs, the command lists your runs in other directories.
    """
    has_runs = bool(run_names(runs_dir))
    elsewhere = other_run_directories(runs_dir, asked=everywhere) if everywhere or not has_runs else ()
    places = (runs_dir, *elsewhere) if has_runs or not elsewhere else elsewhere
    directories = [run_at(place.absolute() / name) for place in places for name in run_names(place)]
    # The agent writes report.json last, so runs that have one are only read with --all.
    looked = [look(run_dir) for run_dir in directories if everything or not run_dir.report.exists()]
    states = [state for state in looked if everything or _may_be_active(state)]
    states.sort(key=lambda state: state.started_ns or 0, reverse=True)
    if as_json:
        write_out(json_text([run_words.as_json(state) for state in states]))
    elif states:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        write_lines(to_lines(states, width, screen_of(sys.stdout), placed=places != (runs_dir,)))
    elif everything:
        say(f"no run in {_listed(places)}")
    unwatched = 0 if everything else sum(state.state.value == "unwatched" and not state.lives for state in looked)
    if not everything and not states:
        known = "known to be " if unwatched else ""
        say(f"no run is {known}active in {_listed(places)}; --all lists finished runs too")
    if unwatched:
        words = f"{counted(unwatched, 'run')} of `tlaunch exec` may be active; only mpirun or srun knows"
        say(f"{words}, and --all lists such runs")


def _listed(places: tuple[Path, ...]) -> str:
    return some_of([printable(str(as_people_call_it(place))) for place in places], PLACES_SHOWN)


def to_lines(states: list[RunState], width: int, screen: Screen = PLAIN, *, placed: bool = False) -> list[str]:
    """Return the lines of the table of runs, at most `width` columns wide. `placed` adds the DIRECTORY column."""
    table, giving_way = [HEADER, *map(_row, states)], GIVING_WAY
    without = [] if placed else [DIRECTORY]
    if all(row[HEADER.index(CONTINUES)] == NOTHING for row in table[1:]):
        without.append(CONTINUES)
    for name in without:
        at = table[0].index(name)
        table = [row[:at] + row[at + 1 :] for row in table]
        giving_way = tuple(each for each in giving_way if each[0] != name)
    return fitted(table[0], table[1:], width, giving_way=giving_way, right=RIGHT, paint={"STATE": screen.state})


def _may_be_active(state: RunState) -> bool:
    """Return True if a run may be active. A run that started before this machine's last boot is not active."""
    return (
        state.state.going_on
        or (state.state.value == "unwatched" and state.lives)
        or (state.state.value == "elsewhere" and state.host != socket.gethostname())
    )


def _row(state: RunState) -> tuple[str, ...]:
    progress = state.progress
    running = running_ranks(state)
    ranks = f"{running}/{progress.rank_count}" if running or state.state.going_on else str(progress.rank_count)
    age_s = None if state.started_ns is None else max(0.0, (state.looked_ns - state.started_ns) / 1e9)
    return (
        shown_name(state),
        state.state.value,
        ranks,
        str(progress.current.number),
        duration(age_s),
        NOTHING if state.exit_code is None else str(state.exit_code),
        printable(str(as_people_call_it(state.run_dir.root.parent))),
        NOTHING if (continued := continued_by(state.run_dir)) is None else continued_from(continued),
        culprit(state),
    )
