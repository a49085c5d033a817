"""`tlaunch ckpt merge`: a checkpoint of any layout as one model."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.checkpoint import merge as files
from launcher.checkpoint.index import read_index
from launcher.checkpoint.tensors import state_bytes
from launcher.cli.commands.ckpt.averaging import averaged_with_bar
from launcher.cli.commands.ckpt.output import check_new, opened_with_bar, output_option
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.stdout import write_out
from launcher.cli.training.resume import checkpoints_meant
from launcher.core.errors import EXIT_OK, UsageError
from launcher.core.run_dir import LATEST
from launcher.core.text import printable

EPILOG = """\b
Examples:
  tlaunch ckpt merge --output model                  # of the latest run's newest checkpoint
  tlaunch ckpt merge runs/latest/checkpoints/step-500 --output model --optimizer
  tlaunch ckpt merge runs/latest --output model --average 10

DIR gets model.safetensors, config.json and, of a translation model, tokenizer.model, as the trainer leaves them in the run directory, whatever the layout was.
Weights are those that the optimizer keeps: float32 of a training in bfloat16.

CHECKPOINT is its directory, or a directory of some or a run, of which the newest is meant. All of its files are compared
with their digests first. With --average a run or a directory is meant, and damaged checkpoints in it do not count.

Exit codes: 0; 1 DIR cannot be written; 2 wrong usage, DIR exists, no such checkpoint, or one that is damaged;
fewer than N, or not of one training.
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint", default=LATEST, metavar="[CHECKPOINT]", shell_complete=complete_runs_or_files)
@output_option("the model")
@click.option(
    "--optimizer",
    is_flag=True,
    help="Write the optimizer's moments, too: optimizer.safetensors, first_moment/NAME and so on.",
)
@click.option(
    "--average",
    type=click.IntRange(min=2),
    metavar="N",
    help="Average the weights of the newest N whole checkpoints of the run or directory, in float64.",
)
@runs_dir_option
def merge(*, checkpoint: str, output: Path, optimizer: bool, average: int | None, runs_dir: Path) -> int:
    """Write a checkpoint of any layout as one model."""
    if average is not None and optimizer:
        raise UsageError(
            f"--average {average} --optimizer: an average of weights has no moments", hint="leave --optimizer out"
        )
    paths = checkpoints_meant(runs_dir, checkpoint)
    check_new(output, paths[0])
    if average is not None:
        with averaged_with_bar(paths, average, checkpoint) as averaged:
            files.merge(averaged, output, moments=False)
    else:
        index = read_index(paths[0])
        with opened_with_bar("merge", paths[0], index, state_bytes(index, None if optimizer else 1)) as stored:
            files.merge(stored, output, moments=optimizer)
    write_out(f"{printable(str(output))}\n")
    return EXIT_OK
