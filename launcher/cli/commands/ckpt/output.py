"""Common code of the commands that read checkpoints and write new directories."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import click

from launcher.checkpoint.index import Index, checkpoints_in
from launcher.checkpoint.tensors import StoredBoxes, all_bytes, opened
from launcher.cli.options.chosen_run import chosen_saved
from launcher.cli.options.command_types import Command
from launcher.cli.options.types import A_PATH
from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.stdout import say
from launcher.cli.training.resume import resolve_checkpoints
from launcher.core.errors import UnreadableError, UsageError


def chosen_checkpoints(runs_dir: Path, reference: str | None) -> list[Path]:
    """Return the checkpoints that `reference` names, or else those of the newest run that has some, newest first.

    Raises UnreadableError if there are none.
    """
    chosen = chosen_saved(runs_dir, reference, lambda run: bool(checkpoints_in(run.checkpoints)), "checkpoint")
    return resolve_checkpoints(runs_dir, chosen)


def output_option(about: str, *, metavar: str = "DIR") -> Callable[[Command], Command]:
    return click.option("-o", "--output", required=True, type=A_PATH, metavar=metavar, help=about)


def check_new(output: Path, checkpoint: Path | None = None) -> None:
    """Raise UsageError if the output path already exists or is inside the input checkpoint."""
    if os.path.lexists(output):
        raise UsageError(f"{output} already exists", hint="use another name for --output")
    if checkpoint is not None and checkpoint.resolve() in output.absolute().resolve().parents:
        raise UsageError(f"{output} is inside the checkpoint {checkpoint}", hint="use another directory for --output")


def check_numpy() -> None:
    """Raise UnreadableError if numpy is not installed. Call this before loading a module that imports numpy."""
    if find_spec("numpy") is None:
        raise UnreadableError(f"numpy is not installed for {sys.executable}", hint="run `pip install numpy`")


@contextmanager
def opened_with_bar(what: str, path: Path, index: Index, written_bytes: int) -> Iterator[StoredBoxes]:
    """Open a checkpoint, with a progress bar for verifying it and then writing `written_bytes` bytes."""
    with progress_bar(what, all_bytes(index) + written_bytes) as advance, opened(path, index, advance, say) as stored:
        yield stored
