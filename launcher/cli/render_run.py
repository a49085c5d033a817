"""What a rendered `tlaunch run` is told beside table and layout, and the way of its script to Slurm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import click
from click.core import ParameterSource

from launcher.core.errors import TlaunchError, UnreadableError, UsageError

# By name in RunOptions: the option, and what it is where it was not given.
OF_RUN: Mapping[str, tuple[str, Any]] = {
    "max_restarts": ("--max-restarts", 0),
    "hang_timeout": ("--hang-timeout", None),
    "forward_signals": ("--forward-signals", "none"),
    "log_max_size": ("--log-max-size", None),
    "console": ("--console", "none"),
    "join_timeout": ("--join-timeout", None),
    "lost_after": ("--lost-after", None),
    "engine_options": ("--engine-option", ()),
}
SBATCH_TIMEOUT_S = 60.0
# How sbatch says that there is nobody to take a script, whatever is in it.
NO_CONTROLLER = re.compile(r"(contact|configuration source|resolve).*|controller", re.IGNORECASE)


def words_for_run(context: click.Context, options: dict[str, Any], *, runs: bool, what: str) -> Iterator[str]:
    """Those that were given, taken out of `options`; `runs`: the file holds a `tlaunch run` that can be told.

    Raises:
        UsageError: it holds none.
    """
    for name, (option, _) in OF_RUN.items():
        value = options.pop(name)
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        if not runs:
            raise UsageError(f"{option} is for slurm (--flavor run), and this is {what}")
        for one in value if isinstance(value, tuple) else (value,):
            yield f"{option}={one}"


def submit(script: str) -> str:
    """Have sbatch take the script; the job's id. What sbatch refuses is told in its words, with its exit code.

    Raises:
        TlaunchError: it does not take it.
    """
    _sbatch(script, "--test-only")
    return _sbatch(script, "--parsable").strip().partition(";")[0]


def _sbatch(script: str, option: str) -> str:
    try:
        done = subprocess.run(
            ["sbatch", option], input=script, capture_output=True, text=True, timeout=SBATCH_TIMEOUT_S, check=False,
            errors="surrogateescape",
        )  # fmt: skip
    except OSError as error:
        raise UnreadableError(f"sbatch cannot be started: {error.strerror}", hint="is Slurm installed here?") from None
    except subprocess.TimeoutExpired:
        raise UnreadableError(
            f"sbatch does not answer within {SBATCH_TIMEOUT_S:.0f} s", hint="is slurmctld up?"
        ) from None
    if done.returncode:
        refused = TlaunchError(f"sbatch takes no such script:\n{done.stderr.strip()}", hint=_hint(done.stderr))
        refused.exit_code = done.returncode
        raise refused
    return done.stdout


def _hint(said: str) -> str | None:
    if NO_CONTROLLER.search(said) is None:
        return None
    return "is slurmctld up, and is this a machine of the cluster? `scontrol ping` asks; -o FILE keeps the script"
