"""The child process that translates with a trained model."""

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
    """The settings of beam search."""

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
    """Translate with a model, and write to the file descriptor `output`.

    `words` are more options for the process.

    Raises:
        UnreadableError: a package of the trainer is not installed.
        TlaunchError: the process failed; `is_reported` is set if the process printed the reason.
    """
    check_installed()
    descriptor = os.dup(output)  # the child's stdout is a pipe
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
            f"the translation process was killed by {signal.Signals(-status).name}",
            hint="if it ran out of memory, reduce --batch-tokens or --beam",
        )
    else:
        error = TlaunchError(f"the translation process failed with exit code {status}")
        error.is_reported = True
    error.exit_code = exit_code_of(status)
    return error
