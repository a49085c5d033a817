"""`tlaunch table`: commands for rank tables, one file each."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "show": ("launcher.cli.commands.table.show:show", "Show servers and devices with their ranks, as a tree."),
    "explain": ("launcher.cli.commands.table.explain:explain", "Explain what a code of `tlaunch validate` means."),
    "diff": ("launcher.cli.commands.table.diff:diff", "Check whether HCCL accepts two files as the same table."),
    "generate": ("launcher.cli.commands.table.generate:generate", "Write the table of servers and their devices."),
    "merge": ("launcher.cli.commands.table.convert:merge", "Merge the tables of several servers."),
    "convert": ("launcher.cli.commands.table.convert:convert", "Write the table FILE in another format."),
    "fix": ("launcher.cli.commands.table.fix:fix", "Repair faults that have only one possible repair."),
}
EXAMPLES = """\b
Examples:
  tlaunch table show rank_tables/rank_table_8pcs.json --mp 2 --pp 2
  tlaunch table explain RT301
"""


@click.command(cls=LazyGroup, sections={"Commands": COMMANDS}, epilog=EXAMPLES)
def table() -> None:
    """Show, compare, make and repair rank tables."""
