"""Which run a command is about: what `ps`, `status`, `top`, `why`, `stacks` and `stop` have in common, and `run` in part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from launcher.core.env import TLAUNCH_RUNS_DIR

if TYPE_CHECKING:
    from launcher.core.run_dir import RunDir

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_RUNS_DIR = Path("runs")
RUN_HELP = "RUN is a run's name or its directory.  [default: the latest]"
LIVE_RUN_HELP = "RUN is a run's name or its directory.  [default: the newest that goes on, else the latest]"
ONLY_RUN_HELP = "RUN is a run's name or its directory.  [default: the only one that goes on, else the latest]"


def runs_dir_option(command: Command) -> Command:
    return click.option(
        "--runs-dir", type=click.Path(path_type=Path), metavar="DIR", envvar=TLAUNCH_RUNS_DIR, default=DEFAULT_RUNS_DIR,
        help=f"Where run directories are.  [default: ${TLAUNCH_RUNS_DIR} or {DEFAULT_RUNS_DIR}]",
    )(command)  # fmt: skip


def run_argument(command: Command) -> Command:
    return click.argument("run", required=False, metavar="[RUN]")(runs_dir_option(command))


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")(command)


def chosen(runs_dir: Path, run: str | None) -> RunDir:
    """The run that was meant.

    Raises:
        UnreadableError: there is no such run.
    """
    from launcher.runs.store import find_run

    return find_run(runs_dir, run)


def chosen_live(runs_dir: Path, run: str | None) -> RunDir:
    """The run that was meant; without a name the newest that goes on, with a word on stderr where others do too.

    Raises:
        UnreadableError: there is no such run.
    """
    going_on = _going_on(runs_dir) if run is None else ()
    if not going_on:
        return chosen(runs_dir, run)
    if others := going_on[1:]:
        go = "other run goes on" if len(others) == 1 else "other runs go on"
        with suppress(OSError):  # nobody reads stderr
            print(f"{len(others)} {go}: {_names(others)}", file=sys.stderr)
    return going_on[0]


def chosen_only(runs_dir: Path, run: str | None) -> RunDir:
    """The run that was meant; without a name the only one that goes on, for what cannot be undone.

    Raises:
        UsageError: several go on.
        UnreadableError: there is no such run.
    """
    from launcher.core.errors import UsageError

    going_on = _going_on(runs_dir) if run is None else ()
    if len(going_on) > 1:
        raise UsageError(f"{len(going_on)} runs go on: {_names(going_on)}", hint="say which one is meant")
    return going_on[0] if going_on else chosen(runs_dir, run)


def _going_on(runs_dir: Path) -> tuple[RunDir, ...]:
    from launcher.runs.live import runs_going_on

    return runs_going_on(runs_dir)


def _names(run_dirs: tuple[RunDir, ...]) -> str:
    from launcher.logs.terminal import escaped

    return ", ".join(escaped(run_dir.root.name) for run_dir in run_dirs)
