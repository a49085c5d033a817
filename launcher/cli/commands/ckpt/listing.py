"""`tlaunch ckpt ls`, `show` and `verify`: list checkpoints, show their contents and check their files."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from launcher.checkpoint.finish import strategy_text
from launcher.checkpoint.index import Index, best_of, checkpoints_in, read_index, readable
from launcher.checkpoint.tensors import all_bytes, findings
from launcher.cli.commands.ckpt.output import chosen_checkpoints
from launcher.cli.options.chosen_run import json_option, other_run_directories
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.columns import aligned, counted, duration, number, size
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.core.codec import encode, json_text
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, UnreadableError
from launcher.core.run_dir import RunDir
from launcher.core.text import printable
from launcher.runs.store import run_names

LS_EPILOG = "Exit codes: 0, also without checkpoints; 2 wrong usage, or no such run."
SHOW_EPILOG = """\b
Examples:
  tlaunch ckpt show
  tlaunch ckpt show runs/latest/checkpoints/step-500 --json | jq .layout
  tlaunch ckpt show --strategy | jq '.parameters["head.weight"]'

Exit codes: 0, also if a file other than the index is damaged; 2 wrong usage, no such checkpoint, or a damaged index.
"""
VERIFY_EPILOG = """\b
Examples:
  tlaunch ckpt verify                          # all of the newest run with checkpoints
  tlaunch ckpt verify runs/*/checkpoints/*

Exit codes: 0 all are intact; 1 one is damaged; 2 wrong usage, or no such checkpoint.
"""
HEADER = ("STEP", "AGE", "SIZE", "LAYOUT", "VALIDATION", "CHECKPOINT")


@click.command(epilog=LS_EPILOG)
@click.argument("run", required=False, metavar="[RUN|DIR]", shell_complete=complete_runs_or_files)
@json_option
@runs_dir_option
def ls(*, run: str | None, as_json: bool, runs_dir: Path) -> None:
    """List the checkpoints of a run, of a directory, or of all runs, newest first.

    If no run here has a checkpoint, the checkpoints of all known runs are listed.

    The best is the remaining checkpoint with the lowest validation loss or, with train.best_metric=bleu, the highest
    BLEU. Only --set checkpoint.keep_best=true keeps a better one from being removed. A checkpoint with an unreadable
    index is shown as damaged. To check its other files, use `tlaunch ckpt verify`.
    """
    if run is not None:
        paths = chosen_checkpoints(runs_dir, run)
    elif not (paths := _all_in(runs_dir)):
        paths = [path for place in other_run_directories(runs_dir) for path in _all_in(place)]
    found: list[tuple[Path, Index | str]] = []
    for path in paths:
        try:
            found.append((path, read_index(path)))
        except UnreadableError as error:  # noqa: PERF203 - few checkpoints
            found.append((path, error.message))
    best = {best_of(readable(checkpoints_in(directory))) for directory in {path.parent for path in paths}}
    if as_json:
        write_out(json_text([{**_row(path, index), "best": path in best} for path, index in found]))
    elif found:
        rows = [_columns(path, index, is_best=path in best) for path, index in found]
        lines = aligned(HEADER, rows, right=frozenset({"STEP", "AGE", "SIZE"}))
        write_lines(lines)
    else:
        say("there are no checkpoints")


@click.command(epilog=SHOW_EPILOG)
@click.argument("checkpoint", required=False, metavar="[CHECKPOINT]", shell_complete=complete_runs_or_files)
@json_option
@click.option(
    "--strategy",
    is_flag=True,
    help="Print strategy.json. It shows how each parameter is partitioned and which file holds each part.",
)
@runs_dir_option
def show(*, checkpoint: str | None, as_json: bool, strategy: bool, runs_dir: Path) -> None:
    """Show the contents of a checkpoint.

    The output has step, layout, files, and every parameter with its shape; --json adds the settings. All of it comes
    from the index. To check the other files, use `tlaunch ckpt verify`.
    """
    path = chosen_checkpoints(runs_dir, checkpoint)[0]
    index = read_index(path)
    if strategy:  # made from the index, because older checkpoints lack the file
        write_out(strategy_text(index))
        return
    if as_json:
        write_out(json_text({"path": str(path), **encode(index)}))
        return
    pieces = Counter(each.name for file in index.files.values() for each in file.boxes)
    lines = [
        f"checkpoint: {printable(str(path))}",
        f"step:       {index.step}, {_age(path)} ago",
        f"program:    {index.program}, {index.layout} micro_batches={index.layout.micro_batches}",
        f"data:       {printable(index.data) or 'built into the program'}",
        f"validation: {number(index.validation_loss, '.6f')}{_bleu(index)}",
        f"files:      {counted(len(index.files), 'file')}, {size(all_bytes(index))}",
    ]
    rows = [
        (name, " x ".join(map(str, shape)) or "-", index.dtype, str(pieces[name]))
        for name, shape in index.tensors.items()
    ]
    lines += ["", *aligned(("PARAMETER", "SHAPE", "TYPE", "BOXES"), rows, right=frozenset({"BOXES"}))]
    write_lines(lines)


@click.command(epilog=VERIFY_EPILOG)
@click.argument("checkpoints", nargs=-1, metavar="[CHECKPOINT]...", shell_complete=complete_runs_or_files)
@runs_dir_option
def verify(*, checkpoints: tuple[str, ...], runs_dir: Path) -> int:
    """Compare every file of a checkpoint with its digest.

    Checks all checkpoints of the given runs and directories. For a damaged file, reports whether a training can still
    resume from the checkpoint.
    """
    damaged = 0
    paths = (path for name in checkpoints or (None,) for path in chosen_checkpoints(runs_dir, name))
    for path in dict.fromkeys(paths):
        problems = list(map(printable, findings(path)))
        damaged += bool(problems)
        write_lines(problems or [f"{printable(str(path))}: intact"])
    return EXIT_FAILURE if damaged else EXIT_OK


def _all_in(runs_dir: Path) -> list[Path]:
    names = reversed(run_names(runs_dir))
    return [path for name in names for path in checkpoints_in(RunDir(runs_dir.absolute() / name).checkpoints)]


def _row(path: Path, index: Index | str) -> dict[str, Any]:
    if isinstance(index, str):
        return {"path": str(path), "damage": index}
    return {
        "path": str(path),
        "step": index.step,
        "bytes": all_bytes(index),
        "layout": encode(index.layout),
        "validation_loss": index.validation_loss,
        "validation_bleu": index.validation_bleu,
        "damage": None,
    }


def _columns(path: Path, index: Index | str, *, is_best: bool) -> tuple[str, ...]:
    shown = printable(str(path))
    if isinstance(index, str):
        return "-", _age(path), "-", "damaged", "-", shown
    validation = number(index.validation_loss, ".4f") + _bleu(index) + ", the best" * is_best
    return str(index.step), _age(path), size(all_bytes(index)), str(index.layout), validation, shown


def _bleu(index: Index) -> str:
    return "" if index.validation_bleu is None else f", BLEU {index.validation_bleu:.2f}"


def _age(checkpoint: Path) -> str:
    return duration(max(0.0, time.time() - checkpoint.stat().st_mtime))
