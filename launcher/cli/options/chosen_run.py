"""Find the run that a command is about, for `ps`, `status`, `top`, `why`, `stacks`, `stop`, and `run` in part."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from launcher.cli.launch.options import DEFAULT_RUNS_DIR
from launcher.cli.options.command_types import Command
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.stdout import as_people_call_it, say
from launcher.core.env import TLAUNCH_RUNS_DIR
from launcher.core.errors import UsageError
from launcher.core.run_dir import RunDir
from launcher.logs.terminal import escaped
from launcher.runs.status import runs_going_on
from launcher.runs.store import find_run, find_runs, means_latest, run_names

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
    return click.argument("run", required=False, metavar="[RUN]", shell_complete=_complete)(runs_dir_option(command))


def _complete(context: click.Context, _argument: click.Parameter, begun: str) -> list[str]:
    """Return the runs whose names begin so, the newest first."""
    runs_dir = Path(context.params.get("runs_dir") or os.environ.get(TLAUNCH_RUNS_DIR) or DEFAULT_RUNS_DIR)
    return sorted((name for name in run_names(runs_dir) if name.startswith(begun)), reverse=True)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def progress_regex_option(command: Command) -> Command:
    return click.option(
        "--progress-regex", metavar="REGEX",
        help="Read figures from lines that match, as with `tlaunch run`.  [default: what the run was started with]",
    )(command)  # fmt: skip


def as_argument(run_dir: RunDir) -> str:
    """Return RUN as one types it into a shell to name this run again from the same directory."""
    own = Path(os.environ.get(TLAUNCH_RUNS_DIR) or DEFAULT_RUNS_DIR).resolve()
    root = run_dir.root
    return shlex.quote(escaped(root.name if root.parent == own else str(as_people_call_it(root))))


def chosen(runs_dir: Path, run: str | None) -> RunDir:
    """Return the run that was meant, with a note on stderr where that may surprise.

    Raises:
        UnreadableError: there is no such run.
        UsageError: several runs' names begin so.
    """
    return find_run(runs_dir, run, lambda words: say(f"note: {words}"))


def chosen_live(runs_dir: Path, run: str | None) -> RunDir:
    """Return the run that was meant; without a name the newest active one, with a note where others are active too.

    Raises:
        UnreadableError: there is no such run.
    """
    active = _active(runs_dir, unwatched=True) if run is None else ()
    if not active:
        return chosen(runs_dir, run)
    if others := active[1:]:
        say(f"{len(others)} other {'run is' if len(others) == 1 else 'runs are'} active: {_names(others)}")
    return active[0]


def chosen_only(runs_dir: Path, run: str | None) -> RunDir:
    """Return the run that was meant; without a name, or by one that several have, the only active one.

    It is for what cannot be undone.

    Raises:
        UsageError: several are active, or several runs' names begin so.
        UnreadableError: there is no such run.
    """
    named = () if run is None or means_latest(run) else find_runs(runs_dir, run)
    active: tuple[RunDir, ...] = ()
    if run is None or len(named) > 1:
        watched = _active(runs_dir, unwatched=False)  # an engine ends the others
        active = tuple(run_dir for run_dir in watched if run is None or run_dir in named)
    if len(active) > 1:
        raise UsageError(f"{len(active)} runs are active: {_names(active)}", hint="give RUN to choose one")
    return active[0] if active else chosen(runs_dir, run)


def _active(runs_dir: Path, *, unwatched: bool) -> tuple[RunDir, ...]:
    return tuple(state.run_dir for state in runs_going_on(runs_dir) if unwatched or state.engine is None)


def _names(run_dirs: tuple[RunDir, ...]) -> str:
    return ", ".join(escaped(run_dir.root.name) for run_dir in run_dirs)
