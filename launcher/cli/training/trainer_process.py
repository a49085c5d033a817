"""A module of the trainer in a process of its own, which may import torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from launcher.cli.launch.program_faults import missing_for_trainer
from launcher.core.env import OMP_WAIT_POLICY
from launcher.core.resources import module_argv
from launcher.engines.variables import SPINNING


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
    with subprocess.Popen(
        module_argv(module, *words), stdin=stdin, stdout=subprocess.PIPE, text=True, errors="replace",
        env={**({} if OMP_WAIT_POLICY in os.environ else SPINNING), **os.environ, **variables},
        start_new_session=True,  # Ctrl-C is for this process alone, which ends the other one
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            child.terminate()  # it removes what it has written by then; of one that has ended nothing is left to end
            child.wait()
