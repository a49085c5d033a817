"""`tlaunch ckpt reshard`: a checkpoint as another layout would have written it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from launcher.checkpoint import reshard as files
from launcher.checkpoint.index import INDEX, Index, name_of, read_index, step_named
from launcher.checkpoint.tensors import state_bytes
from launcher.cli.commands.ckpt.output import check_new, checkpoint_output_option, opened_with_bar
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.run import MAX_DEGREE, runs_dir_option
from launcher.cli.options.types import IntRange
from launcher.cli.text.stdout import say, write_out
from launcher.cli.training.resume import checkpoints_meant
from launcher.cli.training.trainer_process import check_installed, started
from launcher.core.codec import decode, encode
from launcher.core.errors import EXIT_OK, TlaunchError, UnreadableError, UsageError, exit_code_of
from launcher.core.records import Layout
from launcher.core.run_dir import LATEST
from launcher.core.text import printable
from launcher.mesh.layouts import resolve_layout
from launcher.recipes.catalog import RECIPES
from launcher.recipes.load import recorded_settings

EPILOG = """\b
Examples:
  tlaunch ckpt reshard --dp 2 --output step-500-dp2  # the latest run's newest checkpoint, for two ranks
  tlaunch ckpt reshard runs/latest/checkpoints/step-500 --mp 2 --pp 2 --output resharded
  tlaunch ckpt reshard --output one --set "strategies.matmul=[[1,1],[1,1]]"  # of a program whose operators are cut

The state is the same, bit by bit; each file holds what its rank would own. `tlaunch run --resume` reads a checkpoint of any
layout, so that none has to be resharded for that.

CHECKPOINT is its directory, or a directory of some or a run, of which the newest is meant. All of its files are compared
with their digests first.

Exit codes: 0; 1 DIR cannot be written; 2 wrong usage, DIR exists, no such checkpoint, or one that is damaged, or strategies that
do not fit the layout; 3 a layout that does not fit the model.
"""
PLACING = ("parallel.", "strategies.", "checkpoint.files")  # beginnings of settings
OWNERS = "launcher.trainer.checkpoint.owners"
DEGREE = IntRange(max=MAX_DEGREE)


@click.command(epilog=EPILOG)
@click.argument("checkpoint", default=LATEST, metavar="[CHECKPOINT]", shell_complete=complete_runs_or_files)
@click.option("--dp", type=DEGREE, default=1, metavar="N", help="Data-parallel degree.  [default: 1]")
@click.option(
    "--mp", type=DEGREE, default=1, metavar="N", help="Model-parallel (tensor-parallel) degree.  [default: 1]"
)
@click.option("--pp", type=DEGREE, default=1, metavar="N", help="Number of pipeline stages.  [default: 1]")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help=f"Change a setting of the training that decides what a rank holds: {', '.join(PLACING)}. Repeatable.",
)
@checkpoint_output_option
@runs_dir_option
def reshard(
    *, checkpoint: str, dp: int, mp: int, pp: int, changes: tuple[str, ...], output: Path, runs_dir: Path
) -> int:
    """Write a checkpoint as another layout would have written it."""
    _check_placing(changes)
    path = checkpoints_meant(runs_dir, checkpoint)[0]
    check_new(output, path)
    index = read_index(path)
    if step_named(output.name) not in {None, index.step}:
        raise UsageError(
            f"{output}: {path} is of step {index.step}", hint=f"--output {output.with_name(name_of(index.step))}"
        )
    layout = resolve_layout(dp * mp * pp, dp=dp, mp=mp, pp=pp, micro_batches=index.layout.micro_batches)
    settings, layout = _fitting(path, index, layout, changes)
    with opened_with_bar("reshard", path, index, state_bytes(index)) as stored:
        files.reshard(
            stored, _plan(index.program, settings, layout), layout, output, encode(settings) if changes else None
        )
    write_out(f"{printable(str(output))}\n")
    return EXIT_OK


def _check_placing(changes: Sequence[str]) -> None:
    """Refuse a change of a setting that does not decide which rank holds what.

    Raises:
        UsageError: there is one.
    """
    for change in changes:
        if not change.strip().startswith(PLACING):
            raise UsageError(
                f"--set {change}: the state of a training is kept as it is", hint=f"--set of {', '.join(PLACING)}"
            )


def _fitting(path: Path, index: Index, layout: Layout, changes: Sequence[str]) -> tuple[Any, Layout]:
    """Return the changed settings of the training, which could be started on this layout here, and the program's own layout.

    Raises:
        UsageError: a change is of no setting or no value of one, or a strategy does not fit.
        UnreadableError: it is of a program that this version does not have, or the trainer's packages are not installed.
        RefusedLayoutError: the model does not fit the layout.
    """
    if (recipe := RECIPES.get(index.program)) is None:
        raise UnreadableError(f"{path} is of the program {index.program}, which this version of tlaunch does not have")
    settings = recorded_settings(recipe.settings, index.settings, str(path / INDEX), changes)
    layout = recipe.own_layout(settings, layout)
    try:
        recipe.check_layout(settings, layout)
    except UsageError as error:  # of a strategy, which this command takes by other words than a run
        raise UsageError(error.message, hint=f"{error.hint}: --mp N, or --set strategies.NAME=[[...], ...]") from None
    check_installed()
    return settings, layout


def _plan(program: str, settings: Any, layout: Layout) -> files.Plan:
    """Ask the trainer, in a process of its own, which box each rank would own.

    Raises:
        TlaunchError: it has no answer, and has said why.
    """
    question = json.dumps({"program": program, "settings": encode(settings), "layout": encode(layout)})
    with started(OWNERS, stdin=subprocess.PIPE) as child:
        answer, _ = child.communicate(question)
    if child.returncode:
        raise TlaunchError(f"python -m {OWNERS} ended with {exit_code_of(child.returncode)}, so nothing is written")
    plan = None
    for line in answer.splitlines():
        if line.startswith(files.PLAN_MARK):
            plan = decode(files.Plan, json.loads(line.removeprefix(files.PLAN_MARK)))
        elif line:  # a package that it imports, or sitecustomize, has written it
            say(printable(line))
    if plan is None:
        raise TlaunchError(f"python -m {OWNERS} gave no answer, so nothing is written")
    return plan
