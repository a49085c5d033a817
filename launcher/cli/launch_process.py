"""The launcher process that `launcher.launch` starts for a run."""

from __future__ import annotations

import json
import os
import reprlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from launcher.cli.launch.start import run
from launcher.cli.main import exit_after
from launcher.cli.options.refusals import as_usage_error
from launcher.cli.options.run import RUN_PARAMETERS, keep_max_table_size
from launcher.cli.run_options import RunOptions
from launcher.core import errors
from launcher.core.codec import decode, encode
from launcher.preload.masking import masked_argv
from launcher.supervise.spawn import signal_of_parents_end

# Type of an option: its words in errors.
KINDS = {"int": "an integer", "float": "a number", "str": "a string", "bool": "True or False", "Path": "a path"}


def main() -> None:
    """Read a run's options from stdin, start the run, and write the outcome as JSON to a file descriptor.

    If a second descriptor is given, the path of the run directory is written to it when the run begins.
    """
    parent_pid, answer_fd, *begin_fds = map(int, sys.argv[1:])
    for descriptor in (answer_fd, *begin_fds):
        os.set_inheritable(descriptor, False)
    signal_of_parents_end(signal.SIGTERM)
    if os.getppid() != parent_pid:  # the parent ended before this process could request the signal
        sys.exit(errors.exit_code_of(-signal.SIGTERM))
    options = json.load(sys.stdin)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)

    def on_begin(run_dir: Path) -> None:
        for descriptor in begin_fds:
            with open(descriptor, "wb") as pipe:  # noqa: PTH123 - a descriptor
                pipe.write(os.fsencode(run_dir))

    exit_after(lambda: _run(options, answer_fd, on_begin))


def _run(given: dict[str, Any], answer_fd: int, on_begin: Callable[[Path], None]) -> int:
    try:
        outcome = run(_checked(given), on_begin)
    except errors.TlaunchError as error:
        error.is_reported = True
        if error.instead is not None:
            error.hint = f"write tlaunch.launch({list(masked_argv(error.instead[1]))!r})"
        known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
        fields = {name: getattr(error, name) for name in ("message", "hint", "exit_code", "has_lines")}
        _answer(answer_fd, {"error": {"kind": known.__name__, **fields}})
        raise
    # The answer includes the exit code because a parent that ignores SIGCHLD cannot wait for this process.
    _answer(answer_fd, encode(outcome))
    return outcome.exit_code


def _checked(given: dict[str, Any]) -> RunOptions:
    """Decode the options. Raises UsageError if a value has the wrong type or is out of range."""
    try:
        options = decode(RunOptions, given)
        keep_max_table_size()
        for parameter in RUN_PARAMETERS:
            value = getattr(options, parameter.name or "", None)
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                parameter.type.convert(value, parameter, None)
    except ValueError as error:
        raise _wrong_type(given) or errors.UsageError(str(error)) from error
    except click.ClickException as error:
        raise as_usage_error(error) from error
    return options


def _wrong_type(given: dict[str, Any]) -> errors.UsageError | None:
    """Return an error that names the first option whose value has the wrong type."""
    for name, value in given.items():
        try:
            decode(RunOptions, {name: value})
        except ValueError:  # noqa: PERF203 - only after an error
            wanted = str(RunOptions.__annotations__.get(name, "")).removesuffix(" | None")
            expected = KINDS.get(wanted, "one of the option's choices")
            return errors.UsageError(f"{name}: {reprlib.repr(value)} is not {expected}")
    return None


def _answer(answer_fd: int, answer: dict[str, Any]) -> None:
    with open(answer_fd, "w", encoding="ascii") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
