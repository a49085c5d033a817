"""A module of the trainer in a process of its own, which may import torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from launcher.cli.launch.program_faults import missing_for_trainer
from launcher.core.env import PYTHONSAFEPATH


def check_installed() -> None:
    """Find out, before anything is read, whether modules of the trainer can be started.

    Raises:
        UnreadableError: a package that the trainer needs is not installed.
    """
    if (missing := missing_for_trainer()) is not None:
        raise missing


@contextmanager
def started(
    module: str, *words: str, stdin: int = subprocess.DEVNULL, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    """Give a process, whose stdout is a pipe, with more `variables` in its environment.

    It has ended afterwards, also where this one was asked to end.
    """
    argv = [sys.executable, "-m", module, *words]
    with subprocess.Popen(
        argv, stdin=stdin, stdout=subprocess.PIPE, text=True, errors="replace",
        env={**_environment(), **variables},
        start_new_session=True,  # Ctrl-C is for this process alone, which ends the other one
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            child.terminate()  # it removes what it has written by then; of one that has ended nothing is left to end
            child.wait()


def _environment() -> Mapping[str, str]:
    """Return variables with which no file in the current directory is imported as a module of ours."""
    return {**os.environ, PYTHONSAFEPATH: "1"}
