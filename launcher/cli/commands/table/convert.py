"""`tlaunch table convert`: write a table in another format, or as a hostfile."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.commands.table.table_files import check_output, deliver, note, read_named, shown
from launcher.cli.launch.rank_tables import found_table
from launcher.cli.options.completion import one_of
from launcher.cli.options.run import max_table_size_option
from launcher.cli.options.types import A_PATH, IntRange, complete_files
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, UsageError
from launcher.core.records import Cluster
from launcher.core.text import printable
from launcher.rank_table import Profile, parse_rank_table
from launcher.rank_table.convert import SOURCES, TARGETS, convert_cluster, format_named, marked_without_ascend
from launcher.rank_table.detect import read_plain, recognise_plain
from launcher.rank_table.formats.writing import PLAIN
from launcher.rank_table.table_reader import unread_note

EXAMPLES = """\b
Examples:
  tlaunch table convert rank_table.json --to v1.2 --output rank_table_a3.json
  tlaunch table convert rank_table.json --to hostfile > hosts
  scontrol show hostnames |
      tlaunch table convert - --from nodelist --devices 8 --to v1.0

Exit codes: 0 success; 1 FILE has errors; 2 wrong usage, or a file that cannot be read or written; 3 FORMAT cannot
express the table.
"""


@click.command(epilog=EXAMPLES)
@max_table_size_option
@click.argument("file", metavar="FILE", shell_complete=complete_files)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FORMAT",
    shell_complete=one_of(lambda: TARGETS),
    help="v1.0, v1.2, v2.0, hostfile (Open MPI), mpich-hostfile, rankfile or nodelist.",
)
@click.option(
    "--from",
    "origin",
    metavar="FORMAT",
    shell_complete=one_of(lambda: SOURCES),
    help="Format of FILE.  [default: detected]",
)
@click.option("--output", "-o", type=A_PATH, metavar="F", help="Write to F.  [default: stdout]")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@click.option(
    "--devices",
    type=IntRange(1, 4096),
    metavar="N",
    help="Devices per host, for hosts without a count in a hostfile or node list.",
)
@click.option("--drop", multiple=True, metavar="KEY", help="Leave KEY out, e.g. super_pod. May be given several times.")
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
    deliver(converted.text, converted.cluster, target, output, force=force)
    return EXIT_OK


def _of_table(data: bytes, file: str, origin: str | None, devices: int | None) -> Cluster | None:
    """Return the table's cluster; None if it has errors, which are shown. Rules of Ascend hardware are warnings."""
    if devices is not None:
        raise UsageError(f"--devices {devices}: a rank table already lists its devices", hint="remove --devices")
    report = parse_rank_table(data, Path(file), Profile(chip="none"))
    if origin is not None and (report.format is None or report.format.value != origin):
        looks = "in an unknown format" if report.format is None else report.format.value
        raise UsageError(f"--from {origin}: {file} is {looks}", hint="remove --from")
    cluster = shown(report)
    if cluster is not None and (unread := unread_note([report])):
        note(unread)
    if cluster is None and b"{" not in data:
        note("if it lists hosts, use --from hostfile, rankfile or nodelist")
    return cluster
