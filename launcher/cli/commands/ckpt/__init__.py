"""`tlaunch ckpt`: commands for the checkpoints of the bundled trainer."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "ls": (
        "launcher.cli.commands.ckpt.listing:ls",
        "List the checkpoints of a run, of a directory, or of all runs, newest first.",
    ),
    "show": ("launcher.cli.commands.ckpt.listing:show", "Show the contents of a checkpoint."),
    "verify": ("launcher.cli.commands.ckpt.listing:verify", "Compare every file with its digest."),
    "diff": (
        "launcher.cli.commands.ckpt.diff:diff",
        "Check whether two checkpoints of any layouts have the same state.",
    ),
    "merge": ("launcher.cli.commands.ckpt.ckpt_merge:merge", "Write a checkpoint of any layout as one model."),
    "prune": (
        "launcher.cli.commands.ckpt.prune:prune",
        "Remove all but the newest intact checkpoints of a run or directory.",
    ),
    "export": (
        "launcher.cli.commands.ckpt.conversion:export",
        "Convert a checkpoint to torch.distributed.checkpoint or MindSpore.",
    ),
    "import": (
        "launcher.cli.commands.ckpt.conversion:import_",
        "Convert a checkpoint from torch.distributed.checkpoint or MindSpore.",
    ),
}


@click.command(cls=LazyGroup, sections={"Commands": COMMANDS})
def ckpt() -> None:
    """List, verify, compare, merge and convert checkpoints."""
