"""`tlaunch ckpt`: commands for the checkpoints of the bundled trainer."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "ls": (f"{__name__}.listing:ls", "List the checkpoints of a run, of a directory, or of all runs, newest first."),
    "show": (f"{__name__}.listing:show", "Show the contents of a checkpoint."),
    "verify": (f"{__name__}.listing:verify", "Compare every file of a checkpoint with its digest."),
    "diff": (f"{__name__}.diff:diff", "Check whether two checkpoints have the same state."),
    "merge": (f"{__name__}.ckpt_merge:merge", "Merge the shards of a checkpoint into one model."),
    "prune": (f"{__name__}.prune:prune", "Remove all but the newest intact checkpoints of a run or directory."),
    "export": (f"{__name__}.conversion:export", "Convert a checkpoint to the format of another tool."),
    "import": (f"{__name__}.conversion:import_", "Convert a checkpoint from the format of another tool."),
}


@click.command(cls=LazyGroup, sections={"Commands": COMMANDS})
def ckpt() -> None:
    """List, verify, compare, merge and convert checkpoints."""
