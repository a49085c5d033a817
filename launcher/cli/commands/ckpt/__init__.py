"""`tlaunch ckpt`: the commands around checkpoints of the bundled trainer."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "ls": (
        "launcher.cli.commands.ckpt.listing:ls",
        "List the checkpoints of a run, in a directory, or of all runs, the newest first.",
    ),
    "show": ("launcher.cli.commands.ckpt.listing:show", "Show what a checkpoint holds."),
    "verify": ("launcher.cli.commands.ckpt.listing:verify", "Compare every file with its digest."),
    "diff": (
        "launcher.cli.commands.ckpt.diff:diff",
        "Check whether two checkpoints, of any layouts, hold the same state.",
    ),
    "merge": ("launcher.cli.commands.ckpt.ckpt_merge:merge", "Write a checkpoint of any layout as one model."),
    "prune": (
        "launcher.cli.commands.ckpt.prune:prune",
        "Remove all but the newest whole checkpoints of a run or in a directory.",
    ),
    "export": (
        "launcher.cli.commands.ckpt.export:export",
        "Write a checkpoint as torch.distributed.checkpoint or MindSpore reads it.",
    ),
    "import": (
        "launcher.cli.commands.ckpt.import_:import_",
        "Make a checkpoint of one of torch.distributed.checkpoint or MindSpore.",
    ),
}


@click.command(cls=LazyGroup, sections={"Commands": COMMANDS})
def ckpt() -> None:
    """List, verify, compare, merge and convert checkpoints."""
