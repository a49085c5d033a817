"""A module of the trainer in a process of its own, which may import torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from launcher.core.env import OMP_WAIT_POLICY
from launcher.core.errors import UnreadableError
from launcher.core.resources import module_argv
from launcher.engines.variables import SPINNING

NEEDS = ("torch", "numpy", "sentencepiece", "safetensors")


def missing_for_trainer() -> UnreadableError | None:
    """Return the error that names packages which the bundled trainer needs, and this Python has not."""
    if not (lacking := [name for name in NEEDS if importlib.util.find_spec(name) is None]):
        return None
    return UnreadableError(
        f"the bundled trainer needs {', '.join(lacking)}, not installed for {sys.executable}",
        hint="pip install '.[train]' in the checkout of tlaunch, or give a COMMAND of your own after --",
    )


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
