"""The common parts of the commands that read checkpoints and write new directories."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import click

from launcher.checkpoint.index import Index
from launcher.checkpoint.tensors import StoredBoxes, all_bytes, opened
from launcher.cli.options.command_types import Command
from launcher.cli.options.types import A_PATH
from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.stdout import say
from launcher.core.errors import UnreadableError, UsageError


def output_option(what: str, rule: str = "") -> Callable[[Command], Command]:
    """Return the option of a directory that is made. `rule`: a sentence about its name."""
    return click.option(
        "-o",
        "--output",
        required=True,
        type=A_PATH,
        metavar="DIR",
        help=f"Directory of {what}, a new one.{rule and f' {rule}'}",
    )


checkpoint_output_option = output_option(
    "the checkpoint", "The name step-N is for one of step N alone; others are free."
)


def check_new(output: Path, checkpoint: Path | None = None) -> None:
    """Refuse a path that exists, or lies in the checkpoint that is read, before anything is read.

    Raises:
        UsageError: it does.
    """
    if os.path.lexists(output):
        raise UsageError(f"{output} exists already, and nothing is ever overwritten", hint="--output with another name")
    if checkpoint is not None and checkpoint.resolve() in output.absolute().resolve().parents:
        raise UsageError(f"{output} is inside of the checkpoint {checkpoint}", hint="--output in another directory")


def check_numpy() -> None:
    """Check that numpy is installed before a module that imports it is loaded.

    Raises:
        UnreadableError: it is not.
    """
    if find_spec("numpy") is None:
        raise UnreadableError(f"numpy is not installed for {sys.executable}", hint='pip install "tlaunch[train]"')


@contextmanager
def opened_with_bar(what: str, path: Path, index: Index, written_bytes: int) -> Iterator[StoredBoxes]:
    """Give a checkpoint as `opened` does, and show how far its files are compared, and so much of it is written.

    Raises:
        DamagedError: what a damaged file holds is in no other.
    """
    with (
        progress_bar(what, all_bytes(index) + written_bytes) as advance,
        opened(path, index, advance, say) as stored,
    ):
        yield stored
