"""Convert checkpoints in a child process, with a progress bar."""

from __future__ import annotations

from pathlib import Path

from launcher.checkpoint.index import KINDS, KINDS_OF_BUFFERS, TOKENIZER, Index
from launcher.cli.training.trainer_process import check_installed, show_progress, started
from launcher.core.errors import UsageError, exit_code_of

CONVERTER = "launcher.trainer.checkpoint.foreign"
FORMATS = DCP, MINDSPORE = "dcp", "mindspore"


def check_convertible(path: Path, index: Index) -> None:
    """Check that a checkpoint can be converted: it has only AdamW's values, no buffers, and a tokenizer.

    Raises:
        UsageError: it cannot.
    """
    if index.kinds == KINDS and not index.buffers and TOKENIZER in index.files:
        return
    state = ", ".join((*index.kinds, *KINDS_OF_BUFFERS * bool(index.buffers)))
    without = "" if TOKENIZER in index.files else " without a tokenizer"
    raise UsageError(
        f"{path} is of the program {index.program} and has {state}{without}; only checkpoints with {', '.join(KINDS)} and a "
        "tokenizer can be converted",
        hint="use `tlaunch ckpt merge`, which writes the weights as model.safetensors for other tools",
    )


def convert(total_bytes: int, action: str, source: Path, *words: str) -> int:
    """Run a conversion of `total_bytes` in a child process, which reports its own errors; return its exit code.

    Raises:
        UnreadableError: a required package is not installed.
    """
    check_installed()
    with started(CONVERTER, action, str(source.absolute()), *words) as child:
        show_progress(child, action, total_bytes)
        return exit_code_of(child.wait())
