"""The process of the trainer that translates."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from launcher.cli.training.trainer_process import check_installed, show_progress, started
from launcher.core.errors import EXIT_OK, TlaunchError, exit_code_of
from launcher.core.frozen import frozen

MODULE = "launcher.trainer.decode"


@frozen
class Decoding:
    """The settings of a search for translations."""

    beam: int
    alpha: float
    batch_tokens: int
    device: str  # "auto" or "cpu"


def run_translator(
    model: Path,
    how: Decoding,
    *words: str,
    output: int,
    total_bytes: int | None,
    stdin: int | None = subprocess.DEVNULL,
) -> None:
    """Translate by a model directory; write to the file descriptor `output`. `words`: more options of the process.

    Raises:
        UnreadableError: a package that the trainer needs is not installed.
        TlaunchError: the process has failed. If it has printed the reason itself, `is_reported` is set.
    """
    check_installed()
    descriptor = os.dup(output)  # the process has another stdout
    try:
        with started(
            MODULE, str(model), "--output", str(descriptor), "--beam", str(how.beam), "--alpha", str(how.alpha),
            "--batch-tokens", str(how.batch_tokens), "--device", how.device, *words,
            stdin=stdin, pass_fds=(descriptor,),
        ) as child:  # fmt: skip
            show_progress(child, "translate", total_bytes)
            status = child.wait()
    finally:
        os.close(descriptor)
    if status != EXIT_OK:
        raise _error(status)


def _error(status: int) -> TlaunchError:
    if status < 0:
        error = TlaunchError(
            f"the process that translates was ended by {signal.Signals(-status).name}",
            hint="if memory does not suffice, reduce --batch-tokens or --beam",
        )
    else:
        error = TlaunchError(f"the process that translates has ended with {status}")
        error.is_reported = True
    error.exit_code = exit_code_of(status)
    return error
