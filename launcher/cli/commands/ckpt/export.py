"""`tlaunch ckpt export`: convert a checkpoint to the format of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.checkpoint.index import read_index
from launcher.checkpoint.mindspore import MINDSPORE_SUFFIX
from launcher.checkpoint.mindspore_export import write_mindspore
from launcher.checkpoint.tensors import all_bytes, state_bytes
from launcher.cli.commands.ckpt.conversion import DCP, FORMATS, check_convertible, convert
from launcher.cli.commands.ckpt.output import check_new, opened_with_bar
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import A_PATH
from launcher.cli.text.stdout import write_out
from launcher.cli.training.resume import resolve_checkpoints
from launcher.core.errors import EXIT_OK, UsageError
from launcher.core.run_dir import LATEST
from launcher.core.text import printable

EPILOG = """\b
Contents of the output, for each parameter NAME:
  dcp        {"model": {NAME: ...}, "step": ...,
              "optimizer": {"state": {NAME: {"exp_avg": ...,
                            "exp_avg_sq": ..., "step": ...}}}}
  mindspore  NAME, moment1.NAME, moment2.NAME, global_step;
             for adam_weight_decay: adam_m.NAME and adam_v.NAME

\b
Examples:
  tlaunch ckpt export --format dcp --output exported/
  tlaunch ckpt export runs/RUN/checkpoints/step-500 --format mindspore \\
      --output model.ckpt

Exit codes: 0; 1 the output cannot be written; 2 wrong usage, no such checkpoint, or a damaged one.
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint", default=LATEST, metavar="[CHECKPOINT]", shell_complete=complete_runs_or_files)
@click.option("--format", "form", required=True, type=click.Choice(FORMATS), help="Format of the output.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=A_PATH,
    metavar="PATH",
    help="Directory (dcp) or file (mindspore) to create.",
)
@runs_dir_option
def export(*, checkpoint: str, form: str, output: Path, runs_dir: Path) -> int:
    """Convert a checkpoint to torch.distributed.checkpoint or MindSpore.

    The output has the weights, the optimizer's moments and the step.

    CHECKPOINT is a checkpoint directory. For a run or a directory of checkpoints, the newest is used. Its files are
    verified against their digests first. The path of the output is printed to stdout.
    """
    path = resolve_checkpoints(runs_dir, checkpoint)[0]
    check_new(output, path)
    index = read_index(path)
    check_convertible(path, index)
    code = EXIT_OK
    if form == DCP:
        code = convert(all_bytes(index) + state_bytes(index), "export", path, "--output", str(output.absolute()))
    elif output.suffix != MINDSPORE_SUFFIX:
        raise UsageError(
            f"{output}: MindSpore only reads files with names that end with {MINDSPORE_SUFFIX}",
            hint=f"use --output {output}{MINDSPORE_SUFFIX}",
        )
    else:
        with opened_with_bar("export", path, index, state_bytes(index)) as stored:
            write_mindspore(stored, output)
    if code == EXIT_OK:
        write_out(f"{printable(str(output))}\n")
    return code
