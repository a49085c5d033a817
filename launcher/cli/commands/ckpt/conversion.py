"""Convert checkpoints in a process of its own, and show how far it is."""

from __future__ import annotations

from pathlib import Path

from launcher.checkpoint.index import KINDS, KINDS_OF_BUFFERS, TOKENIZER, Index
from launcher.cli.training.trainer_process import check_installed, show_progress, started
from launcher.core.errors import UsageError, exit_code_of

CONVERTER = "launcher.trainer.checkpoint.foreign"
FORMATS = DCP, MINDSPORE = "dcp", "mindspore"


def check_convertible(path: Path, index: Index) -> None:
    """Refuse a checkpoint that the formats of other tools are not told of here: of other values than AdamW's, with buffers, or without a tokenizer.

    Raises:
        UsageError: it is such a one.
    """
    if index.kinds == KINDS and not index.buffers and TOKENIZER in index.files:
        return
    state = ", ".join((*index.kinds, *KINDS_OF_BUFFERS * bool(index.buffers)))
    without = "" if TOKENIZER in index.files else " without a tokenizer"
    raise UsageError(
        f"{path} is of the program {index.program}, whose state is {state}{without}: only {', '.join(KINDS)} of models with a "
        "tokenizer are converted",
        hint="`tlaunch ckpt merge` writes its weights as model.safetensors, which other tools read",
    )


def convert(total_bytes: int, action: str, source: Path, *words: str) -> int:
    """Have so many bytes converted; return the exit code of the process that does it, which says itself why it failed.

    Raises:
        UnreadableError: a package that it needs is not installed.
    """
    check_installed()
    with started(CONVERTER, action, str(source.absolute()), *words) as child:
        show_progress(child, action, total_bytes)
        return exit_code_of(child.wait())
