"""Resolve the RUN argument of commands such as `status`, `logs` and `stop`."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
from click.core import ParameterSource

from launcher.cli.options.command_types import Command, together
from launcher.cli.options.completion import Completer, complete_active_runs, complete_runs
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.stdout import as_argument, as_people_call_it, say
from launcher.core.errors import EXIT_FAILURE, UnreadableError, UsageError
from launcher.core.machine.owner import ROOT, called, is_own, is_trusted, uids_of_file
from launcher.core.run_dir import RunDir
from launcher.core.text import printable, shell_word
from launcher.logs.terminal import escaped
from launcher.runs.registry import registered
from launcher.runs.status import RunState, runs_going_on
from launcher.runs.store import find_run, find_runs, means_latest, newest_with, place_among, run_names

_RUN_IS = (
    "RUN is the name, --name or directory of a run, a unique prefix of a name, `latest`, or `latest~1` for the run before "
    "it. If several runs have this --name, RUN is {}."
)
RUN_IS = _RUN_IS.format("the newest")
RUN_HELP = f"{RUN_IS}  [default: the latest run]"
LIVE_RUN_HELP = f"{RUN_IS}  [default: the newest active run, else the latest]"
ONLY_RUN_HELP = (
    f"{_RUN_IS.format('the active one, or else the newest')}  [default: the only active run, else the latest]"
)


def _run_argument(completer: Completer) -> Callable[[Command], Command]:
    argument = click.argument("run", required=False, metavar="[RUN]", shell_complete=completer)
    return together(argument, runs_dir_option)


run_argument = _run_argument(complete_runs)
active_run_argument = _run_argument(complete_active_runs)  # shells complete only active runs
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
progress_regex_option = click.option(
    "--progress-regex", metavar="REGEX",
    help="Read progress from log lines that match REGEX, as in `tlaunch run`.  [default: the run's --progress-regex]",
)  # fmt: skip


def other_run_directories(runs_dir: Path, *, asked: bool = False) -> tuple[Path, ...]:
    """Return the other known runs directories. If the user has set --runs-dir, return () unless `asked` is true."""
    source = click.get_current_context().get_parameter_source("runs_dir")
    if source is not ParameterSource.DEFAULT and not asked:
        return ()
    here = runs_dir.resolve()
    return tuple(place for place in registered() if place != here)


def chosen(runs_dir: Path, run: str | None) -> RunDir:
    """Return the run that RUN names, and print a note if the run is in another runs directory.

    Raises UnreadableError if the run does not exist, and UsageError if RUN is a prefix of several names.
    """
    places = _places(runs_dir, run)
    return _reported(_found(runs_dir, places, run), runs_dir, places)


def chosen_saved(runs_dir: Path, reference: str | None, has_it: Callable[[RunDir], bool], what: str) -> str:
    """Return `reference` if `runs_dir` or the file system has it, or else the path of the run that it names.

    Without `reference`, return the path of the newest run for which `has_it` returns True, and print a note. Other runs
    directories are searched last, and the user must confirm a run found there. `what` names the searched thing in
    messages. Raises UnreadableError if there is no such run, and UsageError if `reference` is a prefix of several
    names, or if a confirmation is needed and stdin is not a terminal.
    """
    elsewhere = other_run_directories(runs_dir)
    if reference is not None:
        if not elsewhere or any(os.path.lexists(path) for path in (reference, runs_dir / reference)):
            return reference
        places = _places(runs_dir, reference)
        return reference if places == (runs_dir,) else str(chosen(runs_dir, reference).root)
    if (found := newest_with((runs_dir,), has_it)) is None:
        if (found := newest_with(elsewhere, has_it)) is None:
            raise UnreadableError(
                f"no run in {runs_dir} has a {what}",
                hint="train the bundled program with `tlaunch run`, or choose a directory with `--runs-dir`",
            )
        why, root = f"no run in {escaped(str(runs_dir))} has a {what}", escaped(str(found.root))
        confirm(f"{why}: use {root}?", why, f"to use the newest run in another directory, add {shell_word(root)}")
    say(f"note: using {as_people_call_it(found.root)}, the newest run with a {what}")
    return str(found.root)


def chosen_live(runs_dir: Path, run: str | None, *, asks: str | None = None) -> RunDir:
    """Return the run that RUN names, or the newest active run. Other active runs are listed on stderr.

    If `asks` is given, such as "wait for it", the user must confirm a run that is found in another runs directory
    without RUN. Raises UnreadableError if the run does not exist, and UsageError if a confirmation is needed and stdin
    is not a terminal.
    """
    places = _places(runs_dir, run)
    active = _active(places, unwatched=True) if run is None else ()
    run_dir = active[0].run_dir if active else _found(runs_dir, places, run)
    if others := active[1:]:
        say(f"{len(others)} other {'run is' if len(others) == 1 else 'runs are'} active: {_names(others, runs_dir)}")
    if asks is not None and (run is None or means_latest(run)) and _confirmed(run_dir, runs_dir, run, asks):
        return run_dir
    return _reported(run_dir, runs_dir, places)


def chosen_only(runs_dir: Path, run: str | None) -> RunDir:
    """Return the run to stop. If RUN is missing or ambiguous, return the only active run.

    Without RUN, the user's own runs are preferred to runs of other users. The user must confirm a run in another runs
    directory, unless RUN is its full name or a path. Raises UsageError if several runs match, or if a confirmation is
    needed and stdin is not a terminal, and UnreadableError if the run does not exist.
    """
    places = _places(runs_dir, run)
    named = () if run is None or means_latest(run) else find_runs(places[0], run)
    active: tuple[RunState, ...] = ()
    if run is None or len(named) > 1:
        watched = _active(places, unwatched=False)  # an engine stops the other runs
        active = tuple(state for state in watched if run is None or state.run_dir in named)
        active = tuple(state for state in active if is_own(state.owner)) or active
    if len(active) > 1:
        raise UsageError(f"{len(active)} runs are active: {_names(active, runs_dir)}", hint="give RUN to choose one")
    if run is None and not active and places != (runs_dir,):
        raise UnreadableError(
            f"{runs_dir} contains no runs, and no run is active elsewhere",
            hint="list all runs with `tlaunch ps --everywhere --all`",
        )
    run_dir = active[0].run_dir if active else _found(runs_dir, places, run)
    is_named = run is not None and not means_latest(run)
    if run is not None and is_named and (why := _linked_by_another(run_dir, run, places)) is not None:
        root = run_dir.root
        confirm(f"{why}, to {root}: stop that run?", why, f"to stop it, use `tlaunch stop {shell_word(str(root))}`")
    elif _confirmed(run_dir, runs_dir, run, "stop it"):
        places = (runs_dir,)  # the question has named the directory
    if not is_named and os.geteuid() == ROOT and (why := _whose(run_dir)) is not None:
        confirm(f"{why}: stop it?", f"{why}, and RUN is not given", f"use `tlaunch stop {as_argument(run_dir)}`")
    return _reported(run_dir, runs_dir, places)


def chosen_to_rerun(runs_dir: Path, run: str | None, *, yes: bool) -> RunDir:
    """Return the run to repeat.

    Unless `yes` is true, the user must confirm a run found in another runs directory, unless RUN is its full name or a
    path, and a run found through another user's symbolic link. Raises UsageError if RUN is a prefix of several names,
    or if a confirmation is needed and stdin is not a terminal, and UnreadableError if the run does not exist.
    """
    places = _places(runs_dir, run)
    run_dir = _found(runs_dir, places, run)
    is_named = run is not None and not means_latest(run)
    if not yes and run is not None and is_named and (why := _linked_by_another(run_dir, run, places)) is not None:
        line = f"to repeat that run, use `tlaunch rerun {shell_word(str(run_dir.root))}`"
        confirm(f"{why}, to {run_dir.root}: run that again?", why, line)
    elif not yes and _confirmed(run_dir, runs_dir, run, "run it again"):
        return run_dir
    return _reported(run_dir, runs_dir, places)


def confirm_owner(run_dir: RunDir, *, yes: bool) -> None:
    """If another user owns the run, ask before running its command. Raises UsageError if stdin is not a terminal."""
    if (why := _whose(run_dir)) is None:
        return
    if yes:
        say(f"note: {why}")
        return
    hint = "inspect the command with --dry-run, then add --yes"
    confirm(f"{why}: run its command as {called(os.geteuid())}?", f"{why}, and running its command needs --yes", hint)


def confirm(question: str, refusal: str, hint: str) -> None:
    """Ask for confirmation on the terminal, and exit with code 1 unless the answer is yes."""
    if not sys.stdin.isatty():
        raise UsageError(refusal, hint=hint)
    if not click.confirm(printable(question), err=True):
        raise click.exceptions.Exit(EXIT_FAILURE)


def _where(run_dir: RunDir, runs_dir: Path) -> str | None:
    """Return a text that says where the run is, or None if it is in `runs_dir`."""
    if run_dir.root.parent == runs_dir.resolve():
        return None
    return f"{escaped(run_dir.root.name)} is in {escaped(str(run_dir.root.parent))}, not in {escaped(str(runs_dir))}"


def _confirmed(run_dir: RunDir, runs_dir: Path, run: str | None, question: str) -> bool:
    """Ask for confirmation if the run is not in `runs_dir` and RUN is not its full name or path. Return True if asked."""
    if (why := _where(run_dir, runs_dir)) is None:
        return False
    reason = "RUN is not given"
    if run is not None and not means_latest(run):
        if run == run_dir.root.name or any(
            os.path.realpath(path) == str(run_dir.root) for path in (run, runs_dir / run)
        ):
            return False
        reason = f"{escaped(run)} is not its full name"
    command = click.get_current_context().command_path
    confirm(f"{why}: {question}?", f"{why}, and {reason}", f"use `{command} {as_argument(run_dir)}`")
    return True


def _linked_by_another(run_dir: RunDir, run: str, places: tuple[Path, ...]) -> str | None:
    """If RUN leads to this run through another user's symbolic link, describe the link. Else, return None."""
    link = _link_of_another(Path(run))
    for place in places:
        link = link or _link_of_another(place / run)
        is_prefix = not os.path.lexists(run) and run_dir.root.parent != place.resolve()
        if link is None and is_prefix:  # of a run's name
            roots = (place / name for name in run_names(place))
            links = (_link_of_another(each) for each in roots if each.resolve() == run_dir.root)
            link = next(filter(None, links), None)
    return None if link is None else f"{escaped(str(link))} is a link that belongs to {called(os.lstat(link).st_uid)}"


def _link_of_another(path: Path) -> Path | None:
    """Find in a path the first symbolic link that another user owns and could change."""
    for each in (path, *path.parents):
        with suppress(OSError):
            found = os.lstat(each)
            if stat.S_ISLNK(found.st_mode) and not is_trusted(found.st_uid):
                return each
    return None


def _whose(run_dir: RunDir) -> str | None:
    """Return a text that names the owner of the run, or None if this user owns it."""
    owners = uids_of_file(run_dir.root) | uids_of_file(run_dir.run_json)
    stranger = next((uid for uid in sorted(owners) if not is_own(uid)), None)
    return None if stranger is None else f"{escaped(run_dir.root.name)} belongs to {called(stranger)}"


def _places(runs_dir: Path, run: str | None) -> tuple[Path, ...]:
    """Return the runs directories to search: `runs_dir`, or other directories if `runs_dir` has no matching run.

    Raises UsageError if RUN is a prefix of several names.
    """
    here = (runs_dir,)
    if not (elsewhere := other_run_directories(runs_dir)):
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
    return find_run(place, run, lambda words: say(f"note: {words}"))


def _reported(run_dir: RunDir, runs_dir: Path, places: tuple[Path, ...]) -> RunDir:
    if places != (runs_dir,):
        say(f"note: using {run_dir.root.name} in {run_dir.root.parent}; {runs_dir} has no such run")
    return run_dir


def _active(places: tuple[Path, ...], *, unwatched: bool) -> tuple[RunState, ...]:
    states = [state for place in places for state in runs_going_on(place) if unwatched or state.engine is None]
    states.sort(key=lambda state: state.started_ns or 0, reverse=True)
    return tuple(states)


def _names(states: tuple[RunState, ...], runs_dir: Path) -> str:
    """List runs as values for RUN: runs in `runs_dir` by name, and other runs by path."""
    here, roots = runs_dir.resolve(), (state.run_dir.root for state in states)
    shown = (root.name if root.parent == here else str(as_people_call_it(root)) for root in roots)
    return ", ".join(map(escaped, shown))
