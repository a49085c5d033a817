"""`tlaunch table fix`: make the repairs that are safe, and propose the others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from launcher.cli.commands.table.table_files import STDIN, problem_to_json, read_named
from launcher.cli.launch.rank_tables import found_table
from launcher.cli.options.run import consumer_option, max_table_size_option, table_chip_option
from launcher.cli.options.types import complete_files
from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import say, write_out
from launcher.cli.text.style import ACTIVE, ADDED, REMOVED, STRONG, Look, Screen, screen_of
from launcher.core.codec import json_text
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, UsageError
from launcher.core.text import printable
from launcher.rank_table import TableReport, parse_rank_table
from launcher.rank_table.difference import compare
from launcher.rank_table.fix import Fixed, Repair, fix_table
from launcher.rank_table.profile import Profile
from launcher.rank_table.table_reader import overwrite

EPILOG = """\b
Examples:
  tlaunch table fix rank_table.json
  tlaunch table fix rank_table.json --write
  tlaunch table fix - --write < draft.json > rank_table.json

Exit codes: 0 the table is valid, or would be with these repairs; 1 errors remain that need your decision; 2 wrong
usage, or a file that cannot be read or written.
"""
LISTED_AT_MOST = 50  # listed repairs


@click.command(epilog=EPILOG)
@click.option("--write", is_flag=True, help="Write the repaired table to FILE. If FILE is -, write it to stdout.")
@click.option(
    "--unsafe", is_flag=True, help="Also apply repairs that can hide data loss. By default, these are only proposed."
)
@click.option("--sort/--no-sort", default=True, show_default=True, help="Sort entries by rank.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@table_chip_option
@consumer_option
@max_table_size_option
@click.argument("file", metavar="FILE", shell_complete=complete_files)
def fix(file: str, *, write: bool, unsafe: bool, sort: bool, as_json: bool, chip: str, consumer: str) -> int:
    """Repair faults that have only one possible repair.

    Show the repairs as a diff, and write them only with --write. Repairs are possible for extra and missing commas,
    comments (which are removed), quotes, UTF-16, numbers with missing or extra quotes, a missing server_count, and the
    order of entries. Ranks, ids, addresses and the layout of the text stay the same. FILE may be - for stdin.

    If a count differs from the length of its list, either the count is outdated or the list has lost an entry. The new
    count is proposed, and written only with --unsafe.

    HCCL compares a checksum of the copies on all servers. If repairs change the checksum of a valid table, a note asks
    you to repair all copies in the same way.
    """
    if write and as_json and file == STDIN:
        raise UsageError("--write and --json would both write to stdout", hint="remove one of them")
    notes: list[str] = []
    found = found_table(Path(file), notes.append)
    if write and found != Path(file):
        raise UsageError(f"--write does not change {file}, a sample of tlaunch", hint="copy the file, and fix the copy")
    for line in notes:
        say(line)
    file = str(found)
    profile = Profile(chip, consumer)
    fixed = fix_table(read_named(file), Path(file), profile, sort=sort, unsafe=unsafe)
    written = write and fixed.changed and file != STDIN
    if written:
        overwrite(Path(file), fixed.original, fixed.data)
    name = printable(file)
    for line in _report_lines(fixed, file, written=written):
        say(line)
    if fixed.changed and _checksum_changes(parse_rank_table(fixed.original, Path(file), profile), fixed.report):
        say(f"{name}: HCCL's checksum of this table changes: repair the copies on all servers, too")
    if as_json:
        write_out(json_text(_to_json(fixed, file, written=written)))
    elif write and file == STDIN:
        click.echo(fixed.data, nl=False)
    else:
        diff = fixed.diff(name)
        if sys.stdout.isatty():  # the table's text must not move the cursor
            diff = "".join(f"{printable(line.rstrip(chr(13)))}\n" for line in diff.split("\n")[:-1])
        write_out(coloured(diff, screen_of(sys.stdout)))
    return EXIT_OK if fixed.report.valid else EXIT_FAILURE


def coloured(diff: str, screen: Screen) -> str:
    """Return a unified diff with added lines in green and removed lines in red."""
    looks = {"+": ADDED, "-": REMOVED, "@": ACTIVE}
    names, lines = diff.split("\n")[:2], diff.split("\n")[2:]
    shown = (screen.paint(line, looks.get(line[:1], Look())) for line in lines)
    return "\n".join([*(screen.paint(name, STRONG) for name in names), *shown])


def _checksum_changes(before: TableReport, after: TableReport) -> bool:
    """Return True if repairing a valid table changed its checksum, or if this cannot be determined."""
    try:
        return before.valid and not compare(before, after).would_match
    except RecursionError:
        return True


def _listed(what: str, repairs: tuple[Repair, ...], name: str) -> Iterator[str]:
    for repair in repairs[:LISTED_AT_MOST]:
        yield f"{name}:{repair.line}: {what}[{repair.code or 'order'}]: {repair.message}"
    if len(repairs) > LISTED_AT_MOST:
        where = ", shown in the diff" if what == "repaired" else ""
        yield f"... and {len(repairs) - LISTED_AT_MOST:,} more{where}"


def _report_lines(fixed: Fixed, file: str, *, written: bool) -> Iterator[str]:
    """Yield each repair, the remaining problems, and a summary."""
    name, state = (
        printable(file),
        "valid" if fixed.report.valid else "not valid: the remaining problems need your decision",
    )
    yield from _listed("repaired", fixed.repairs, name)
    yield from _listed("offered", fixed.offers, name)
    if fixed.report.problems:
        yield fixed.report.render(screen_of(sys.stdout).columns)
    how = f"; use --unsafe for {counted(len(fixed.offers), 'more repair')}" if fixed.offers else ""
    repairs = counted(len(fixed.repairs), "repair")
    if not fixed.changed:
        yield f"{name}: nothing to repair, {state}{how}"
    elif written:
        yield f"{name}: {repairs} written, {state}{how}"
    else:
        yield f"{name}: {repairs}, then {state}{'' if file == STDIN else ' (use --write to write it)'}{how}"


def _to_json(fixed: Fixed, file: str, *, written: bool) -> dict[str, Any]:
    report = fixed.report
    return {
        "path": file,
        "format": None if report.format is None else report.format.value,
        "valid": report.valid,
        "changed": fixed.changed,
        "written": written,
        "repairs": [repair._asdict() for repair in fixed.repairs],
        "offers": [repair._asdict() for repair in fixed.offers],
        "problems": [problem_to_json(problem) for problem in report.problems],
        "diff": fixed.diff(file),
    }
