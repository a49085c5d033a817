"""`tlaunch prune`: remove finished runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import IntRange, Seconds
from launcher.cli.text.columns import aligned, counted, duration, size
from launcher.cli.text.run_text import shown_name
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, UsageError
from launcher.core.regular_files import bytes_in
from launcher.runs.progress import State
from launcher.runs.registry import registered
from launcher.runs.removal import FoundRun, Removal, needed_among, runs_found
from launcher.runs.store import run_names

EPILOG = """\b
Examples:
  tlaunch prune --keep 20 --dry-run
  tlaunch prune --older-than 30d
  tlaunch prune --state failed --state hung --state lost --yes

A run is removed with its logs, checkpoints and model. Never removed: active runs, and runs that may be active (on
another machine, or under mpirun or srun); runs that another run, which you keep, was resumed from (--resume) or
started from (--init-from); runs of other users; links to other directories. --keep 0 removes every finished run.

Exit codes: 0; 1 a run cannot be removed, or you answered no; 2 wrong usage; 130 Ctrl-C.
"""
OVER = (State.FINISHED, State.FAILED, State.HUNG, State.STOPPED, State.LOST, State.ENDED)
HEADER = ("NAME", "STATE", "OVER FOR", "SIZE")


@click.command(epilog=EPILOG)
@click.option("--keep", type=IntRange(min=0), metavar="N", help="Keep the newest N of the selected runs.")
@click.option(
    "--older-than",
    type=Seconds(min=0, needs_unit=True),
    metavar="TIME",
    help="Select runs that ended at least TIME ago, for example 12h or 7d.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in OVER]),
    metavar="STATE",
    help=f"Select runs in this state: {', '.join(state.value for state in OVER)}. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print the runs that would be removed, without removing them.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@runs_dir_option
def prune(
    *, keep: int | None, older_than: float | None, states: tuple[str, ...], dry_run: bool, yes: bool, runs_dir: Path
) -> int:
    """Remove finished runs and print their names."""
    if keep is None and older_than is None and not states:
        raise UsageError("no runs are selected", hint="give --keep N, --older-than TIME or --state STATE")
    found = runs_found(runs_dir)
    chosen = [each for each in found if _is_wanted(each, older_than, states)][keep or 0 :]
    here = runs_dir.resolve()
    others = [place / name for place in registered() if place != here for name in run_names(place)] if chosen else []
    going = _without_needed(found, chosen, others)
    sizes = {each.root: bytes_in(each.root) for each in going}
    total = f"{counted(len(going), 'run')}, {size(sum(sizes.values()))}"
    if not going:
        say("there are no runs to remove")
        return EXIT_OK
    if not dry_run and not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                f"cannot ask whether to remove {total}: stdin is not a terminal", hint="add --yes or --dry-run"
            )
        rows = [
            (
                shown_name(each.state),
                each.state.state.value,
                duration(max(0.0, (time.time_ns() - each.over_ns) / 1e9)),
                size(sizes[each.root]),
            )
            for each in going
        ]
        for line in aligned(HEADER, rows, right=frozenset(HEADER[2:])):
            say(line)
        if not click.confirm(f"Remove {total}?", err=True):
            return EXIT_FAILURE
    if dry_run:
        write_lines(shown_name(each.state) for each in going)
        say(f"would free {size(sum(sizes.values()))}")
        return EXIT_OK
    return _remove_all(going, Removal(runs_dir, [*(each.root for each in found), *others]), sizes)


def _is_wanted(found: FoundRun, older_than_s: float | None, states: tuple[str, ...]) -> bool:
    """Return True if a run should be removed. If a finished run is selected but must be kept, report the reason."""
    state = found.state
    if states and state.state.value not in states:
        return False
    if older_than_s is not None and (time.time_ns() - found.over_ns) / 1e9 < older_than_s:
        return False
    if found.stays is not None and not state.lives:
        _say_kept(found, found.stays)
    return found.stays is None


def _without_needed(found: Iterable[FoundRun], chosen: list[FoundRun], others: list[Path]) -> list[FoundRun]:
    """Keep each chosen run that a remaining run needs, and print the reason. Return the runs to remove."""
    while True:
        left = [each.root for each in found if each not in chosen]
        needed = needed_among([each.root for each in chosen], [*left, *others])
        if not needed:
            return chosen
        for each in chosen:
            if each.root in needed:
                _say_kept(each, needed[each.root])
        chosen = [each for each in chosen if each.root not in needed]


def _remove_all(going: Iterable[FoundRun], removal: Removal, sizes: Mapping[Path, int]) -> int:
    freed_bytes, code = 0, EXIT_OK
    removal.finish_earlier()
    try:
        for each in going:
            try:
                stays = removal.remove(each.root)
            except FileNotFoundError:
                continue  # another process has removed it
            except OSError as error:
                where = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
                say(f"error: cannot remove {shown_name(each.state)}{where}: {error.strerror}")
                code = EXIT_FAILURE
                continue
            if stays is not None:
                _say_kept(each, stays)
                continue
            freed_bytes += sizes[each.root]
            write_out(f"{shown_name(each.state)}\n")
    finally:
        removal.mend_latest()
        say(f"freed {size(freed_bytes)}")
    return code


def _say_kept(found: FoundRun, why: str) -> None:
    say(f"kept {shown_name(found.state)}: {why}")
