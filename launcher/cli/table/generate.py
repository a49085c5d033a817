"""`tlaunch table generate`: write the table of servers and their devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from launcher.core.atomic import write_text
from launcher.core.errors import RefusedTableError, UnreadableError, UsageError

FILE = click.Path(path_type=Path)
TABLE_MODE = 0o640  # what MindIE asks for: addresses are nobody else's business
SAID_ALREADY = ("RT333", "RT402")  # several servers without addresses, the order of ranks: with what to do, by a note
EXAMPLES = """\b
Examples:
  tlaunch table generate --hccn-conf /etc/hccn.conf --output rank_table.json
  tlaunch table generate --device-ids 4-7 --server-id 10.0.0.1 > rank_table.json
  tlaunch table generate --servers 10.0.0.1,10.0.0.2 --devices 8,4
  ssh node1 cat /etc/hccn.conf | tlaunch table generate --hccn-conf - --server-id node1

\b
Devices that a variable lets be seen are the only ones in the table, under their physical ids:
ASCEND_RT_VISIBLE_DEVICES, else ASCEND_VISIBLE_DEVICES; with --nvidia-smi CUDA_VISIBLE_DEVICES.
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--hccn-conf", type=FILE, metavar="FILE", help="Devices and addresses from a copy of /etc/hccn.conf, - for stdin."
)
@click.option("--hccn-tool", is_flag=True, help="Devices from /dev/davinci*, addresses from hccn_tool.")
@click.option("--nvidia-smi", is_flag=True, help="Devices from nvidia-smi, without addresses.")
@click.option("--devices", metavar="N[,N]...", help="This many devices on each server, or one number for each server.")
@click.option("--servers", metavar="NAME[,NAME]...", help="Several servers, in the order of their ranks.")
@click.option("--device-ids", metavar="IDS", help='These devices only, such as "4-7" or "0,2", in this order.')
@click.option("--server-id", metavar="NAME", help="This server's name.  [default: its address, else its host name]")
@click.option("--host-ip", metavar="ADDRESS", help="Where HCCL reaches this server over its own network card.")
@click.option("--sort", is_flag=True, help="Ranks in the dictionary order of the servers' names.")
@click.option("--output", "-o", type=FILE, metavar="FILE", help="Write here, with mode 640.  [default: stdout]")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def generate(*, sort: bool, output: Path | None, force: bool, **options: Any) -> None:
    """Write the table of servers and their devices.

    The devices come from one of --hccn-conf, --hccn-tool, --nvidia-smi and --devices; without any, from the first of
    hccn_tool, /etc/hccn.conf and nvidia-smi that this machine has. An address that is set nowhere is left out, never
    invented. One server's table is made on that server; `tlaunch table merge` joins several.
    """
    from launcher.cli.table.sources import Wanted, gather  # `--help` needs none of it
    from launcher.rank_table.generate import build_cluster
    from launcher.rank_table.render import render_table

    if output is not None and not force and os.path.lexists(output):
        raise UsageError(f"{output} exists already", hint="--force replaces it")
    gathered = gather(Wanted(**options), os.environ)
    generated = build_cluster(gathered.machines, hardware=gathered.hardware, sort=sort)
    text = render_table(generated.cluster)
    for note in (*gathered.notes, *generated.notes):
        click.echo(note, err=True)
    _check(text, output)
    _write(text, output)


def _check(text: str, output: Path | None) -> None:
    """What is written passes the reader that everybody's tables pass."""
    from launcher.rank_table import parse_rank_table

    report = parse_rank_table(text.encode(), output or Path("rank_table.json"))
    if report.cluster is None:
        raise RefusedTableError(report.render())
    for problem in report.warnings:
        if problem.code not in SAID_ALREADY:
            click.echo(f"warning[{problem.code}]: {problem.message}", err=True)


def _write(text: str, output: Path | None) -> None:
    from launcher.cli.console import write_out

    if output is None:
        write_out(text)
        return
    try:
        write_text(output, text, mode=TABLE_MODE)
    except OSError as error:
        raise UnreadableError(f"{output} cannot be written: {error.strerror}", hint="--output names another") from None
    click.echo(output)
