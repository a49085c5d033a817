"""Which run a command is about: what `ps`, `status`, `top`, `why`, `stacks` and `stop` have in common, and `run` in part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from launcher.core.env import TLAUNCH_RUNS_DIR

if TYPE_CHECKING:
    from launcher.core.run_dir import RunDir

Command = TypeVar("Command", bound=Callable[..., Any])

RUN_HELP = """RUN is a run's name or its directory.  [default: the latest]"""


def runs_dir_option(command: Command) -> Command:
    return click.option(
        "--runs-dir", type=click.Path(path_type=Path), metavar="DIR", envvar=TLAUNCH_RUNS_DIR, default=Path("runs"),
        help=f"Where run directories are.  [default: ${TLAUNCH_RUNS_DIR} or runs]",
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
