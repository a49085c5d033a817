"""What a rendered `tlaunch run` is told beside table and layout, and the way of its script to Slurm."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.launch.options import flag, words_of_option
from launcher.core.errors import TlaunchError, UsageError

# As RunOptions calls them.
OF_RUN = (
    "max_restarts", "hang_timeout", "forward_signals", "log_max_size", "console", "join_timeout", "lost_after",
    "engine_options",
)  # fmt: skip
SBATCH_TIMEOUT_S = 60.0
# How sbatch says that there is nobody to take a script, whatever is in it.
NO_CONTROLLER = re.compile(r"(contact|configuration source|resolve).*|controller", re.IGNORECASE)


def words_for_run(context: click.Context, options: dict[str, Any], *, runs: bool, what: str) -> Iterator[str]:
    """Those that were given, taken out of `options`; `runs`: the file holds a `tlaunch run` that can be told.

    Raises:
        UsageError: it holds none.
    """
    for name in OF_RUN:
        value = options.pop(name)
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        if not runs:
            raise UsageError(f"{flag(name)} is for slurm (--flavor run), and this is {what}")
        yield from words_of_option(name, value)


def submit(script: str) -> str:
    """Have sbatch take the script; the job's id. What sbatch refuses is told in its words, with its exit code.

    Raises:
        TlaunchError: it does not take it.
    """
    _sbatch(script, "--test-only")
    return _sbatch(script, "--parsable").strip().partition(";")[0]


def _sbatch(script: str, option: str) -> str:
    from launcher.engines.slurm import answer_of  # `--help` needs none of it

    done = answer_of(("sbatch", option), os.environ, script, timeout_s=SBATCH_TIMEOUT_S)
    if done.returncode:
        refused = TlaunchError(f"sbatch takes no such script:\n{done.stderr.strip()}", hint=_hint(done.stderr))
        refused.has_lines = True
        refused.exit_code = done.returncode
        raise refused
    return done.stdout


def _hint(said: str) -> str | None:
    if NO_CONTROLLER.search(said) is None:
        return None
    return "is slurmctld up, and is this a machine of the cluster? `scontrol ping` asks; -o FILE keeps the script"
