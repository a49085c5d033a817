"""`tlaunch ckpt merge`: merge the shards of a checkpoint into one model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.checkpoint import model_merge as files
from launcher.checkpoint.index import DamagedError, Index, read_index
from launcher.checkpoint.tensors import StoredBoxes, all_bytes, opened, state_bytes
from launcher.cli.commands.ckpt.output import check_new, check_numpy, chosen_checkpoints, opened_with_bar, output_option
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.columns import counted
from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.stdout import say, write_out
from launcher.core.errors import UsageError
from launcher.core.text import printable

if TYPE_CHECKING:
    from launcher.checkpoint.average import AveragedBoxes  # imports numpy

EPILOG = """\b
Examples:
  tlaunch ckpt merge --output model                  # newest of the newest run with checkpoints
  tlaunch ckpt merge runs/latest/checkpoints/step-500 --output model --optimizer
  tlaunch ckpt merge runs/latest --output model --average 10

DIR gets model.safetensors, config.json and, for a translation model, tokenizer.model, like the run directory of a
finished training. Weights are the optimizer's copies: float32 for a training in bfloat16.

CHECKPOINT is a checkpoint directory. For a run or a directory of checkpoints, the newest is used. Its files are
verified against their digests first. --average needs a run or a directory of checkpoints, and skips damaged ones.

Exit codes: 0; 1 DIR cannot be written; 2 wrong usage, DIR exists, no such checkpoint, or a damaged one; with --average
also fewer than N checkpoints, or checkpoints of different trainings.
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint", required=False, metavar="[CHECKPOINT]", shell_complete=complete_runs_or_files)
@output_option("New directory for the model.")
@click.option("--optimizer", is_flag=True, help="Also write the optimizer's moments to optimizer.safetensors.")
@click.option(
    "--average",
    type=click.IntRange(min=2),
    metavar="N",
    help="Average the weights of the newest N intact checkpoints in a run or directory. The average is computed in float64.",
)
@runs_dir_option
def merge(*, checkpoint: str | None, output: Path, optimizer: bool, average: int | None, runs_dir: Path) -> None:
    """Merge the shards of a checkpoint into one model."""
    if average is not None and optimizer:
        raise UsageError(
            "--average cannot be combined with --optimizer: averaged weights have no optimizer moments",
            hint="leave --optimizer out",
        )
    paths = chosen_checkpoints(runs_dir, checkpoint)
    check_new(output, paths[0])
    if average is not None:
        with _averaged_with_bar(paths, average, checkpoint or "") as averaged:
            files.merge(averaged, output, moments=False, averaged_steps=averaged.steps)
    else:
        index = read_index(paths[0])
        with opened_with_bar("merge", paths[0], index, state_bytes(index, None if optimizer else 1)) as stored:
            files.merge(stored, output, moments=optimizer)
    write_out(f"{printable(str(output))}\n")


@contextmanager
def _averaged_with_bar(paths: Sequence[Path], count: int, reference: str) -> Iterator[AveragedBoxes]:
    """Yield the average of the newest `count` intact checkpoints in `paths`, and show a progress bar.

    `reference` is the command's argument. Files are verified against their digests first. A damaged checkpoint is
    reported and replaced by an older one. Raises UsageError if too few are intact, or if their trainings differ.
    """
    check_numpy()
    from launcher.checkpoint.average import AveragedBoxes

    if len(paths) == 1 and paths[0].name == Path(reference).name:
        hint = f"give a run or a directory of checkpoints, such as {paths[0].parent}"
        raise UsageError(f"--average {count}: {paths[0]} is a single checkpoint", hint=hint)
    readable: list[tuple[Path, Index]] = []
    for path in paths:
        try:
            readable.append((path, read_index(path)))
        except DamagedError as error:  # noqa: PERF203 - few checkpoints
            say(f"{error.message}; {path.name} is left out")
    total = sum(all_bytes(index) + state_bytes(index, 1) for _, index in readable[:count])
    with progress_bar("merge", total) as advance, ExitStack() as stack:
        stored: list[StoredBoxes] = []
        for path, index in readable:
            if len(stored) == count:
                break
            try:
                stored.append(stack.enter_context(opened(path, index, advance, say)))
            except DamagedError as error:
                say(f"{error.message}; {path.name} is left out")
        if len(stored) < count:
            fewer = f"use --average {len(stored)}" if len(stored) > 1 else "leave --average out"
            raise UsageError(
                f"--average {count}: {paths[0].parent} has {counted(len(stored), 'intact checkpoint')}",
                hint=f"{fewer}; to keep more checkpoints in the next run, use the settings checkpoint.every_steps and checkpoint.keep",
            )
        yield AveragedBoxes(stored)
