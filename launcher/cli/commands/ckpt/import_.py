"""`tlaunch ckpt import`: convert a checkpoint of another tool for --resume."""

from __future__ import annotations

import os
from pathlib import Path

import click

from launcher.checkpoint.index import read_index
from launcher.checkpoint.tensors import state_bytes
from launcher.cli.commands.ckpt.conversion import DCP, FORMATS, MINDSPORE, check_convertible, convert
from launcher.cli.commands.ckpt.output import check_new, checkpoint_output_option
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import NAME_OR_PATH, IntRange
from launcher.cli.text.stdout import write_out
from launcher.cli.training.resume import resolve_checkpoints
from launcher.core.errors import EXIT_OK, UnreadableError, UsageError
from launcher.core.text import printable

MAX_STEP = 10**15

EPILOG = """\b
Examples:
  tlaunch ckpt import dcp/ --format dcp --like latest --output imported/step-500
  tlaunch ckpt import model.ckpt --format mindspore --like latest \\
      --step 500 --output imported/step-500
  tlaunch run --devices 2 --resume imported/step-500

Exit codes: 0; 1 the output cannot be written; 2 wrong usage, or PATH is unreadable or damaged; 3 PATH has another
model.
"""


@click.command("import", epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path), metavar="PATH")
@click.option("--format", "form", required=True, type=click.Choice(FORMATS), help="Format of PATH.")
@click.option(
    "--like",
    type=NAME_OR_PATH,
    required=True,
    metavar="CHECKPOINT",
    help="Checkpoint of the bundled trainer with the same model. Provides settings, tokenizer and training text.",
)
@click.option(
    "--step",
    type=IntRange(1, MAX_STEP),
    metavar="N",
    help="Step of the checkpoint.  [default: the step in PATH]",
)
@checkpoint_output_option
@runs_dir_option
def import_(*, path: Path, form: str, like: str, step: int | None, output: Path, runs_dir: Path) -> int:
    """Convert a checkpoint from torch.distributed.checkpoint or MindSpore.

    PATH is a directory of torch.distributed.checkpoint or a .ckpt file of MindSpore. Pass the new checkpoint to
    `tlaunch run --resume`.

    Names and shapes of all parameters must match the trainer's model, as `tlaunch ckpt show` lists them. Moments that
    PATH lacks are set to zero. Code in a pickle is not run. The path of the new checkpoint is printed to stdout.
    """
    _check_kind(path, form)
    known = resolve_checkpoints(runs_dir, like)[0]
    check_new(output)
    index = read_index(known)
    check_convertible(known, index)
    words = ["--format", form, "--like", str(known), "--output", str(output.absolute())]
    if step is not None:
        words += ["--step", str(step)]
    if (code := convert(state_bytes(index), "import", path, *words)) == EXIT_OK:
        write_out(f"{printable(str(output))}\n")
    return code


def _check_kind(path: Path, form: str) -> None:
    """Check that a path can be of this format.

    Raises:
        UnreadableError: it does not exist.
        UsageError: it is a file and the format is a directory, or vice versa.
    """
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises where a name is too long
        raise UnreadableError(
            f"{path} does not exist", hint="give the directory or .ckpt file that the other tool wrote"
        )
    if path.is_dir() and form == MINDSPORE:
        raise UsageError(f"{path} is a directory, but MindSpore writes files", hint=f"use --format {DCP}")
    if path.is_file() and form == DCP:
        raise UsageError(
            f"{path} is a file, but torch.distributed.checkpoint writes directories", hint=f"use --format {MINDSPORE}"
        )
