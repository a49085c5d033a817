"""Start modules of the trainer in a child process, so that only the child imports torch."""

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
    """Return an error about missing packages of the bundled trainer, or None if all are installed."""
    if not (lacking := [name for name in NEEDS if importlib.util.find_spec(name) is None]):
        return None
    return UnreadableError(
        f"the bundled trainer needs {', '.join(lacking)}, which {sys.executable} does not have",
        hint="run `pip install '.[train]'` in the tlaunch repository, or give another COMMAND after `--`",
    )


def check_installed() -> None:
    """Raise UnreadableError if a package of the trainer is not installed."""
    if (missing := missing_for_trainer()) is not None:
        raise missing


@contextmanager
def started(
    module: str, *words: str, stdin: int | None = subprocess.DEVNULL, pass_fds: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run a module in a child process with a pipe for stdout. Terminate the process when the context exits."""
    # Only this process handles Ctrl-C, and then terminates the child. Both stay in one session, so that the child can read
    # the terminal, and Ctrl-Z stops both.
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
    """Show a progress bar of the byte counts that a process prints on stdout, until the process ends."""
    with progress_bar(what, total_bytes) as advance:
        assert child.stdout is not None, "it is a pipe"
        for line in child.stdout:
            if _BYTES.fullmatch(line):
                advance(int(line))
            else:  # output of a package or of sitecustomize
                say(printable(line.rstrip("\n")))
