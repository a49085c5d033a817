"""`tlaunch ckpt`: the commands around checkpoints of the bundled trainer."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "ls": ("launcher.cli.commands.ckpt.listing:ls", "List the checkpoints of a run, in a directory, or of all runs."),
    "show": ("launcher.cli.commands.ckpt.listing:show", "Show what a checkpoint holds."),
    "verify": ("launcher.cli.commands.ckpt.listing:verify", "Compare every file with its digest."),
}


@click.command(cls=LazyGroup, lookup=COMMANDS)
def ckpt() -> None:
    """List, show and verify checkpoints of the bundled trainer."""
