"""Find the run that a command is about, for `ps`, `status`, `top`, `why`, `stacks`, `stop`, and `run` in part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
from click.core import ParameterSource

from launcher.cli.options.command_types import Command
from launcher.cli.options.completion import Completer, complete_active_runs, complete_runs
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.stdout import as_people_call_it, say
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.run_dir import RunDir
from launcher.logs.terminal import escaped
from launcher.runs.registry import registered
from launcher.runs.status import runs_going_on
from launcher.runs.store import find_run, find_runs, means_latest, place_among, run_names

_RUN_IS = (
    "RUN is the name, --name or directory of a run ({} if several runs have that --name), the beginning of a name if it is "
    "unique, latest, or latest~1 for the run before it."
)
_ONLY = "the only active run, else the"
RUN_IS = _RUN_IS.format("the newest")
RUN_HELP = f"{RUN_IS}  [default: the latest run]"
LIVE_RUN_HELP = f"{RUN_IS}  [default: the newest active run, else the latest]"
ONLY_RUN_HELP = f"{_RUN_IS.format(f'{_ONLY} newest')}  [default: {_ONLY} latest]"


def run_argument(command: Command) -> Command:
    return _run_argument(complete_runs)(command)


def active_run_argument(command: Command) -> Command:
    """Add the argument of a command that is of use while a run goes on: a shell completes no runs that are over."""
    return _run_argument(complete_active_runs)(command)


def _run_argument(completer: Completer) -> Callable[[Command], Command]:
    argument = click.argument("run", required=False, metavar="[RUN]", shell_complete=completer)
    return lambda command: argument(runs_dir_option(command))


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def progress_regex_option(command: Command) -> Command:
    return click.option(
        "--progress-regex", metavar="REGEX",
        help="Read figures from lines that match, as with `tlaunch run`.  [default: what the run was started with]",
    )(command)  # fmt: skip


def places_elsewhere(runs_dir: Path, *, asked: bool = False) -> tuple[Path, ...]:
    """Return the other directories of runs that are known; none where a person has said which one is meant, unless `asked`."""
    source = click.get_current_context().get_parameter_source("runs_dir")
    if source is not ParameterSource.DEFAULT and not asked:
        return ()
    here = runs_dir.resolve()
    return tuple(place for place in registered() if place != here)


def chosen(runs_dir: Path, run: str | None) -> RunDir:
    """Return the run that was meant, with a note on stderr where that may surprise.

    Raises:
        UnreadableError: there is no such run.
        UsageError: several runs' names begin so.
    """
    return _found(runs_dir, _places(runs_dir, run), run)


def chosen_live(runs_dir: Path, run: str | None) -> RunDir:
    """Return the run that was meant; without a name the newest active one, with a note where others are active too.

    Raises:
        UnreadableError: there is no such run.
    """
    places = _places(runs_dir, run)
    active = _active(places, unwatched=True) if run is None else ()
    if not active:
        return _found(runs_dir, places, run)
    if others := active[1:]:
        say(f"{len(others)} other {'run is' if len(others) == 1 else 'runs are'} active: {_names(others, runs_dir)}")
    return _told(active[0], runs_dir, places)


def chosen_only(runs_dir: Path, run: str | None) -> RunDir:
    """Return the run that was meant; without a name, or by one that several have, the only active one.

    It is for what cannot be undone.

    Raises:
        UsageError: several are active, or several runs' names begin so.
        UnreadableError: there is no such run.
    """
    places = _places(runs_dir, run)
    named = () if run is None or means_latest(run) else find_runs(places[0], run)
    active: tuple[RunDir, ...] = ()
    if run is None or len(named) > 1:
        watched = _active(places, unwatched=False)  # an engine ends the others
        active = tuple(run_dir for run_dir in watched if run is None or run_dir in named)
    if len(active) > 1:
        raise UsageError(f"{len(active)} runs are active: {_names(active, runs_dir)}", hint="give RUN to choose one")
    return _told(active[0], runs_dir, places) if active else _found(runs_dir, places, run)


def _places(runs_dir: Path, run: str | None) -> tuple[Path, ...]:
    """Return where to look for a run: here, or elsewhere if there is none here that can be meant.

    By a name that is elsewhere one directory is found, else all that are known.

    Raises:
        UsageError: several runs' names begin so.
    """
    here = (runs_dir,)
    elsewhere = places_elsewhere(runs_dir)
    if not elsewhere:
        return here
    if run is None or means_latest(run):
        return here if run_names(runs_dir) else elsewhere
    with suppress(UnreadableError):
        find_runs(runs_dir, run)
        return here
    place = place_among(elsewhere, run)
    return here if place is None else (place,)


def _found(runs_dir: Path, places: tuple[Path, ...], run: str | None) -> RunDir:
    place = places[0] if len(places) == 1 else place_among(places, run) or runs_dir
    return _told(find_run(place, run, lambda words: say(f"note: {words}")), runs_dir, places)


def _told(run_dir: RunDir, runs_dir: Path, places: tuple[Path, ...]) -> RunDir:
    """Return the run, after a note that says where it is if it was not found here."""
    if places != (runs_dir,):
        say(f"note: this is {run_dir.root.name} in {run_dir.root.parent}; {runs_dir} has no such run")
    return run_dir


def _active(places: tuple[Path, ...], *, unwatched: bool) -> tuple[RunDir, ...]:
    states = [state for place in places for state in runs_going_on(place) if unwatched or state.engine is None]
    states.sort(key=lambda state: state.started_ns or 0, reverse=True)
    return tuple(state.run_dir for state in states)


def _names(run_dirs: tuple[RunDir, ...], runs_dir: Path) -> str:
    """Return the runs by names, by which RUN chooses them: those that are not in `runs_dir` by their directories."""
    here = runs_dir.resolve()
    shown = (run.root.name if run.root.parent == here else str(as_people_call_it(run.root)) for run in run_dirs)
    return ", ".join(map(escaped, shown))
