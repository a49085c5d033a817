"""`tlaunch table convert` and `merge`: convert a table to another format or a hostfile, and merge several tables."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from launcher.cli.commands.table.table_files import check_output, hand_over, note, read_named, read_table
from launcher.cli.launch.rank_tables import found_table
from launcher.cli.options.command_types import together
from launcher.cli.options.completion import one_of
from launcher.cli.options.run import max_table_size_option, table_chip_option
from launcher.cli.options.types import A_PATH, IntRange, complete_files
from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import say
from launcher.cli.text.style import screen_of
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, UsageError
from launcher.core.records import Cluster
from launcher.core.text import printable
from launcher.rank_table import Profile, TableReport, parse_rank_table
from launcher.rank_table.convert import SOURCES, TARGETS, convert_cluster, format_named, marked_without_ascend
from launcher.rank_table.detect import read_plain, recognise_plain
from launcher.rank_table.formats.writing import PLAIN
from launcher.rank_table.profile import CHIPS
from launcher.rank_table.table_merge import merge_tables
from launcher.rank_table.table_reader import unread_note

CONVERT_EPILOG = """\b
Examples:
  tlaunch table convert rank_table.json --to v1.2 --output rank_table_a3.json
  tlaunch table convert rank_table.json --to hostfile > hosts
  scontrol show hostnames |
      tlaunch table convert - --from nodelist --devices 8 --to v1.0

Exit codes: 0 success; 1 FILE has errors; 2 wrong usage, or a file that cannot be read or written; 3 FORMAT cannot
express the table.
"""
MERGE_EPILOG = """\b
Examples:
  tlaunch table merge host1.json host2.json --output rank_table_16pcs.json
  tlaunch table merge --chip none gpu1.json gpu2.json

Exit codes: 0 success; 1 a FILE has errors; 2 wrong usage, or a file that cannot be read or written; 3 the tables cannot
be merged.
"""
output_options = together(
    click.option("--output", "-o", type=A_PATH, metavar="F", help="Write to F.  [default: stdout]"),
    click.option("--force", is_flag=True, help="Replace a file that exists."),
)


@click.command(epilog=CONVERT_EPILOG)
@max_table_size_option
@click.argument("file", metavar="FILE", shell_complete=complete_files)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FORMAT",
    shell_complete=one_of(lambda: TARGETS),
    help="Output format: v1.0, v1.2, v2.0, hostfile (Open MPI), mpich-hostfile, rankfile or nodelist.",
)
@click.option(
    "--from",
    "origin",
    metavar="FORMAT",
    shell_complete=one_of(lambda: SOURCES),
    help="Format of FILE.  [default: detected]",
)
@output_options
@click.option(
    "--devices",
    type=IntRange(1, 4096),
    metavar="N",
    help="Number of devices per host. Used only for hosts without a device count in FILE.",
)
@click.option("--drop", multiple=True, metavar="KEY", help="Omit KEY (such as super_pod) from the output. Repeatable.")
def convert(
    *,
    file: str,
    target: str,
    origin: str | None,
    output: Path | None,
    force: bool,
    devices: int | None,
    drop: tuple[str, ...],
) -> int:
    """Write the table FILE in another format.

    FILE is a rank table in any format that HCCL reads, a hostfile, an Open MPI rankfile or a Slurm node list; "-" is
    stdin. If the new format cannot express the table, the command fails and reports the reason. Values that HCCL never
    reads are dropped and listed on stderr. Ranks and addresses are never invented.

    In a rankfile the slot is the device's id. Open MPI reads slots as core numbers, so each rank runs on the server of
    its device, bound to the core with the device's id. A hostfile or node list can express only tables whose ranks and
    devices are numbered host by host.
    """
    target = format_named(target, TARGETS)
    check_output(output, force=force)
    file = str(found_table(Path(file)))
    origin = None if origin is None else format_named(origin, SOURCES)
    data = read_named(file)
    found = recognise_plain(data) if origin is None and not file.endswith(".json") else origin
    cluster: Cluster | None
    if found in PLAIN:
        if origin is None:
            note(f"reading {printable(file)} as a {found}; use --from for another format")
        cluster, notes = read_plain(data, found, printable(file), devices)
        # The text has no addresses, so the new table is marked as not for Ascend devices.
        cluster, marks = marked_without_ascend(cluster, target)
        for text in (*notes, *marks):
            note(text)
    else:
        cluster = _of_table(data, file, origin, devices)
    if cluster is None:
        return EXIT_FAILURE
    converted = convert_cluster(cluster, target, drop, called=printable(file))
    for text in converted.notes:
        note(text)
    _deliver(converted.text, converted.cluster, target, output, force=force)
    return EXIT_OK


@click.command(epilog=MERGE_EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_files)
@output_options
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
    clusters = [_shown(report) for report in reports]
    if any(cluster is None for cluster in clusters):
        return EXIT_FAILURE
    merged = merge_tables(reports, profile)
    for text in filter(None, (*merged.notes, unread_note(reports))):
        note(text)
    format_name = str(reports[0].format.value) if reports[0].format else "v1.0"
    _deliver(merged.text, merged.cluster, format_name, output, chip, force=force)
    return EXIT_OK


def _of_table(data: bytes, file: str, origin: str | None, devices: int | None) -> Cluster | None:
    """Parse a rank table. If it has errors, print them and return None."""
    if devices is not None:
        raise UsageError(f"--devices {devices} does not apply: a rank table lists its devices", hint="remove --devices")
    report = parse_rank_table(data, Path(file), Profile(chip="none"))
    if origin is not None and (report.format is None or report.format.value != origin):
        looks = "in an unknown format" if report.format is None else report.format.value
        raise UsageError(f"--from {origin}: {file} is {looks}", hint="remove --from")
    cluster = _shown(report)
    if cluster is not None and (unread := unread_note([report])):
        note(unread)
    if cluster is None and b"{" not in data:
        note("if it lists hosts, use --from hostfile, rankfile or nodelist")
    return cluster


def _shown(report: TableReport) -> Cluster | None:
    """Return the cluster of a checked rank table. If the table has errors, print them and return None."""
    if report.cluster is None:
        say(report.render(screen_of(sys.stderr).columns))
    elif report.warnings:
        codes = ", ".join(dict.fromkeys(warning.code for warning in report.warnings))
        name = printable(str(report.path))
        note(f"{name}: {counted(len(report.warnings), 'warning')}, shown by `tlaunch validate`: {codes}")
    return report.cluster


def _deliver(
    text: str, cluster: Cluster, format_name: str, output: Path | None, chip: str = "auto", *, force: bool
) -> None:
    """Print a note for each reason why HCCL would refuse the table. Then write the table to a file or stdout.

    The reasons include a file name that HCCL refuses, which is only a warning in other commands.
    """
    if TARGETS[format_name].is_table and CHIPS[chip].is_ascend:
        report = parse_rank_table(text.encode(), output or Path("-"), Profile(chip=chip))
        refused = [*report.errors, *(warning for warning in report.warnings if warning.code == "RT406")]
        counts = Counter(problem.code for problem in refused)
        for problem in {problem.code: problem for problem in reversed(refused)}.values():
            times = "" if counts[problem.code] == 1 else f" ({counts[problem.code]:,} times)"
            note(f"HCCL would refuse the result: {problem.code}{times}: {problem.message}")
            if problem.hint:
                say(f"      hint: {problem.hint}")
    hand_over(text, cluster, format_name, output, force=force)
