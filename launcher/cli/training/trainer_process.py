"""A module of the trainer in a process of its own, which may import torch."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.stdout import say
from launcher.core.env import OMP_WAIT_POLICY
from launcher.core.errors import UnreadableError
from launcher.core.resources import module_argv
from launcher.core.text import printable
from launcher.engines.variables import SPINNING

_BYTES = re.compile(r"[0-9]{1,19}\n")
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
    module: str, *words: str, stdin: int | None = subprocess.DEVNULL, pass_fds: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose stdout is a pipe, and end it afterwards. With `stdin=None` it reads this process's stdin."""
    # Ctrl-C interrupts this process alone, which ends the other one. Both stay in one session: only then can the other one read
    # a terminal, and Ctrl-Z stops both.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with subprocess.Popen(
        module_argv(module, *words), stdin=stdin, stdout=subprocess.PIPE, text=True, errors="replace",
        env={**({} if OMP_WAIT_POLICY in os.environ else SPINNING), **os.environ}, pass_fds=pass_fds,
    ) as child:  # fmt: skip
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield child
        finally:
            child.terminate()  # it removes unfinished files
            child.wait()


def show_progress(child: subprocess.Popen[str], what: str, total_bytes: int | None) -> None:
    """Read the stdout of a process until it ends, and show a bar of the numbers of bytes that it writes there."""
    with progress_bar(what, total_bytes) as advance:
        assert child.stdout is not None, "it is a pipe"
        for line in child.stdout:
            if _BYTES.fullmatch(line):
                advance(int(line))
            else:  # a package that it imports, or sitecustomize, has written it
                say(printable(line.rstrip("\n")))
