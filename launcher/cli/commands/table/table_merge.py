"""`tlaunch table merge`: merge the tables of several servers."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.commands.table.table_files import check_output, deliver, note, read_table, shown
from launcher.cli.options.run import max_table_size_option, table_chip_option
from launcher.cli.options.types import A_PATH, complete_files
from launcher.core.errors import EXIT_FAILURE, EXIT_OK
from launcher.rank_table import Profile
from launcher.rank_table.table_merge import merge_tables
from launcher.rank_table.table_reader import unread_note

EXAMPLES = """\b
Examples:
  tlaunch table merge host1.json host2.json --output rank_table_16pcs.json
  tlaunch table merge --chip none gpu1.json gpu2.json

Exit codes: 0 success; 1 a FILE has errors; 2 wrong usage, or a file that cannot be read or written; 3 the tables cannot
be merged.
"""


@click.command(epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_files)
@click.option("--output", "-o", type=A_PATH, metavar="F", help="Write to F.  [default: stdout]")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@table_chip_option
@max_table_size_option
def merge(*, files: tuple[str, ...], output: Path | None, force: bool, chip: str) -> int:
    """Merge the tables of several servers.

    Ranks are renumbered in the order of the files, and by rank within a file. The same files in the same order give the
    same text on every server. Note that a shell expands * with host10 before host2.
    """
    check_output(output, force=force)
    profile = Profile(chip=chip)
    reports = [read_table(file, profile) for file in files]
    clusters = [shown(report) for report in reports]
    if any(cluster is None for cluster in clusters):
        return EXIT_FAILURE
    merged = merge_tables(reports, profile)
    unread = unread_note(reports)
    for text in (*merged.notes, *([unread] if unread else [])):
        note(text)
    format_name = str(reports[0].format.value) if reports[0].format else "v1.0"
    deliver(merged.text, merged.cluster, format_name, output, chip, force=force)
    return EXIT_OK
