"""`tlaunch ckpt merge`: a checkpoint of any layout as one model."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.checkpoint import merge as files
from launcher.checkpoint.index import read_index
from launcher.checkpoint.tensors import state_bytes
from launcher.cli.commands.ckpt.output import check_new, opened_with_bar, output_option
from launcher.cli.launch.resume import checkpoints_meant
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.stdout import write_out
from launcher.core.errors import EXIT_OK
from launcher.core.run_dir import LATEST
from launcher.core.text import printable

EPILOG = """\b
Examples:
  tlaunch ckpt merge --output model                  # of the latest run's newest checkpoint
  tlaunch ckpt merge runs/latest/checkpoints/step-500 --output model --optimizer

DIR gets model.safetensors, config.json and, of a translation model, tokenizer.model, as the trainer leaves them in the run directory, whatever the layout was.
Weights are those that the optimizer keeps: float32 of a training in bfloat16.

CHECKPOINT is its directory, or a directory of some or a run, of which the newest is meant. All of its files are compared
with their digests first.

Exit codes: 0; 1 DIR cannot be written; 2 wrong usage, DIR exists, no such checkpoint, or one that is damaged.
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint", default=LATEST, metavar="[CHECKPOINT]")
@output_option("the model")
@click.option(
    "--optimizer",
    is_flag=True,
    help="Write the optimizer's moments, too: optimizer.safetensors, first_moment/NAME and so on.",
)
@runs_dir_option
def merge(*, checkpoint: str, output: Path, optimizer: bool, runs_dir: Path) -> int:
    """Write a checkpoint of any layout as one model."""
    path = checkpoints_meant(runs_dir, checkpoint)[0]
    check_new(output, path)
    index = read_index(path)
    with opened_with_bar("merge", path, index, state_bytes(index, None if optimizer else 1)) as stored:
        files.merge(stored, output, moments=optimizer)
    write_out(f"{printable(str(output))}\n")
    return EXIT_OK
