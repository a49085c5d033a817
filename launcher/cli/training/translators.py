"""Start a child process that translates with a trained model."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.checkpoint.index import checkpoints_in, is_checkpoint, read_index, readable
from launcher.checkpoint.model_merge import merge, read_config
from launcher.checkpoint.tensors import opened, state_bytes
from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.saved_text import TRANSLATION, translates
from launcher.cli.text.stdout import say
from launcher.cli.training.resume import resolve_model
from launcher.cli.training.trainer_process import check_installed, show_progress, started
from launcher.core.errors import EXIT_OK, TlaunchError, UsageError, exit_code_of
from launcher.core.frozen import frozen
from launcher.core.run_dir import RunDir
from launcher.logs.terminal import escaped

MODULE = "launcher.trainer.decode"


@frozen
class Decoding:
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
    """Translate in a child process that writes to the file descriptor `output`.

    Raises UnreadableError if a package of the trainer is not installed, and a TlaunchError if the process failed. The
    error's `is_reported` is set if the process has printed the reason.
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
    if status == EXIT_OK:
        return
    error = TlaunchError(f"the translation process failed with exit code {status}")
    error.is_reported = status > 0
    if status < 0:
        error.message = f"the translation process was killed by {signal.Signals(-status).name}"
        error.hint = "if it ran out of memory, reduce --batch-tokens or --beam"
    error.exit_code = exit_code_of(status)
    raise error


@contextmanager
def translation_model(runs_dir: Path, reference: str) -> Iterator[tuple[Path, str]]:
    """Yield the directory of a trained translation model, and its name for messages.

    `reference` is as in `resolve_model`. A checkpoint of any layout is merged into a temporary directory, removed
    afterwards. Raises UnreadableError if the model is missing or damaged, and UsageError if it belongs to another
    program.
    """
    checkpoint = resolve_model(runs_dir, reference)
    if not is_checkpoint(checkpoint):
        _check_program(read_config(checkpoint)[0], checkpoint)
        yield checkpoint, str(checkpoint)
        return
    index = read_index(checkpoint)
    _check_program(index.program, checkpoint)
    with tempfile.TemporaryDirectory(prefix="tlaunch-model-") as directory:
        model = Path(directory) / "model"
        with progress_bar("merge", state_bytes(index, 1)) as advance, opened(checkpoint, index, advance, say) as stored:
            merge(stored, model, moments=False)
        yield model, str(checkpoint)


def has_translation_model(run: RunDir) -> bool:
    """Return whether `translation_model` finds a model or a checkpoint in the directory of a run."""
    if translates(run):
        return True
    return any(index.program == TRANSLATION for _, index in readable(checkpoints_in(run.checkpoints)[:1]))


def _check_program(program: str, path: Path) -> None:
    if program != TRANSLATION:
        raise UsageError(
            f"{escaped(str(path))} belongs to the program {escaped(program)}, which does not translate",
            hint=f"choose a run that trained the recipe {TRANSLATION}",
        )
