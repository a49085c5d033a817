"""`tlaunch table`: commands for rank tables, each in a separate file."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "show": (f"{__name__}.show:show", "Show servers and devices with their ranks, as a tree."),
    "explain": (f"{__name__}.explain:explain", "Explain what a code of `tlaunch validate` means."),
    "diff": (f"{__name__}.diff:diff", "Check whether HCCL accepts two files as the same table."),
    "generate": (f"{__name__}.generate:generate", "Write a rank table for servers and their devices."),
    "merge": (f"{__name__}.convert:merge", "Merge the tables of several servers."),
    "convert": (f"{__name__}.convert:convert", "Write the table FILE in another format."),
    "fix": (f"{__name__}.fix:fix", "Repair faults that have only one possible repair."),
}
EXAMPLES = """\b
Examples:
  tlaunch table show rank_tables/rank_table_8pcs.json --mp 2 --pp 2
  tlaunch table explain RT301
"""


@click.command(cls=LazyGroup, sections={"Commands": COMMANDS}, epilog=EXAMPLES)
def table() -> None:
    """Show, compare, make and repair rank tables."""
