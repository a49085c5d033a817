"""The launcher's own process of a run that a Python program has started by `launcher.launch`."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from launcher.cli.launch.options import RunOptions
from launcher.cli.launch.start import run
from launcher.cli.main import exit_after
from launcher.cli.options.table import keep_max_table_size
from launcher.core import errors
from launcher.core.codec import decode
from launcher.supervise.linux import signal_of_parents_end


def main() -> None:
    """Run what stdin says; write where the run is, or why there is none, to the file of the descriptor that is named."""
    parent_pid, answer_fd = map(int, sys.argv[1:])
    os.set_inheritable(answer_fd, False)
    signal_of_parents_end(signal.SIGTERM)
    if os.getppid() != parent_pid:  # it ended before this process could ask for a signal
        sys.exit(errors.exit_code_of(-signal.SIGTERM))
    options = decode(RunOptions, json.load(sys.stdin))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    exit_after(lambda: _run(options, answer_fd))


def _run(options: RunOptions, answer_fd: int) -> int:
    keep_max_table_size()
    try:
        outcome = run(options)
    except errors.TlaunchError as error:
        error.is_reported = True
        _answer(answer_fd, {"error": _told(error)})
        raise
    _answer(answer_fd, {"run_dir": None if outcome.run_dir is None else str(outcome.run_dir)})
    return outcome.exit_code


def _told(error: errors.TlaunchError) -> dict[str, Any]:
    known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    told = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code, "has_lines": error.has_lines}
    return {"kind": known.__name__, **told}


def _answer(answer_fd: int, answer: dict[str, Any]) -> None:
    with open(answer_fd, "w", encoding="ascii") as file:
        json.dump(answer, file)
