"""The common part of the processes that convert models and checkpoints: arguments, signals and errors."""

from __future__ import annotations

import argparse
import faulthandler
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from launcher.core.errors import EXIT_FAILURE, EXIT_OK, TlaunchError, exit_code_of
from launcher.trainer.checkpoint.foreign.progress import report

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_converter(
    parser: argparse.ArgumentParser,
    *commands: tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], None]],
) -> int:
    """Parse sys.argv, run the function of the given subcommand, and return the exit code. Errors go to stderr."""
    faulthandler.enable()
    for number in ENDING:
        signal.signal(number, _end)
    for command, work in commands:
        command.set_defaults(work=work)
        command.add_argument("path", type=Path, help="path to read")
        command.add_argument("--output", type=Path, required=True, help="path to write; must not exist")
    options = parser.parse_args()
    try:
        options.work(options)
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        report(f"error: {error.filename or options.output}: {error.strerror or error}")
        return EXIT_FAILURE
    return EXIT_OK


def _end(number: int, _frame: object) -> NoReturn:
    """Handle a signal by raising SystemExit, so that incomplete output is removed."""
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(exit_code_of(-number))
