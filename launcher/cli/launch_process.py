"""The launcher's own process of a run that a Python program has started by `launcher.launch`."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import click

from launcher.cli.launch.options import RunOptions
from launcher.cli.launch.start import run
from launcher.cli.main import exit_after
from launcher.cli.options.run import RUN_PARAMETERS
from launcher.cli.options.table import keep_max_table_size
from launcher.cli.options.usage import as_usage_error
from launcher.core import errors
from launcher.core.codec import decode
from launcher.supervise.spawn import signal_of_parents_end


def main() -> None:
    """Run what stdin says; write where the run is, or why there is none, to the file of the descriptor that is named."""
    parent_pid, answer_fd = map(int, sys.argv[1:])
    os.set_inheritable(answer_fd, False)
    signal_of_parents_end(signal.SIGTERM)
    if os.getppid() != parent_pid:  # it ended before this process could ask for a signal
        sys.exit(errors.exit_code_of(-signal.SIGTERM))
    told = json.load(sys.stdin)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    exit_after(lambda: _run(told, answer_fd))


def _run(told: dict[str, Any], answer_fd: int) -> int:
    try:
        outcome = run(_checked(told))
    except errors.TlaunchError as error:
        error.is_reported = True
        _answer(answer_fd, {"error": _told(error)})
        raise
    _answer(answer_fd, {"run_dir": None if outcome.run_dir is None else str(outcome.run_dir)})
    return outcome.exit_code


def _checked(told: dict[str, Any]) -> RunOptions:
    """Return the options, within the bounds that `tlaunch run` has.

    Raises:
        UsageError: one has another type, or is out of its bounds.
    """
    try:
        options = decode(RunOptions, told)
        keep_max_table_size()
        for parameter in RUN_PARAMETERS:
            value = getattr(options, parameter.name or "", None)
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                parameter.type.convert(value, parameter, None)
    except ValueError as error:
        raise errors.UsageError(str(error)) from error
    except click.ClickException as error:
        raise as_usage_error(error) from error
    return options


def _told(error: errors.TlaunchError) -> dict[str, Any]:
    known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    told = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code, "has_lines": error.has_lines}
    return {"kind": known.__name__, **told}


def _answer(answer_fd: int, answer: dict[str, Any]) -> None:
    with open(answer_fd, "w", encoding="ascii") as file:
        json.dump(answer, file)
