"""`tlaunch table generate`: write the table of servers and their devices."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from launcher.cli.commands.table.sources import Wanted, gather
from launcher.cli.commands.table.table_files import check_output, hand_over, note, warn
from launcher.cli.options.types import A_PATH
from launcher.cli.text.stdout import say
from launcher.cli.text.style import screen_of
from launcher.core.errors import RefusedTableError
from launcher.rank_table import parse_rank_table, render_table
from launcher.rank_table.generate import build_cluster

SAID_ALREADY = ("RT333", "RT402")  # several servers without addresses, the order of ranks: a note covers them
EXAMPLES = """\b
Examples:
  tlaunch table generate --hccn-conf /etc/hccn.conf --output rank_table.json
  tlaunch table generate --device-ids 4-7 --server-id 10.0.0.1 > table.json
  tlaunch table generate --servers 10.0.0.1,10.0.0.2 --devices 8,8
  tlaunch table generate --servers 'node[1-4]' --devices 8 --sort
  ssh node1 cat /etc/hccn.conf |
      tlaunch table generate --hccn-conf - --server-id node1

If one of these variables is set, only its devices are in the table, under their physical ids:

\b
  ASCEND_RT_VISIBLE_DEVICES, else ASCEND_VISIBLE_DEVICES
      with --hccn-tool, --devices, and /etc/hccn.conf itself
  CUDA_VISIBLE_DEVICES (numbers or UUIDs)
      with --nvidia-smi

The variables are ignored with --device-ids, with --servers, and with --hccn-conf of stdin or another file.

Exit codes: 0 the table is written; 1 hccn_tool or nvidia-smi fails or hangs; 2 wrong usage, or a file or program that
is missing, unreadable or unwritable; 3 the devices found do not give a table that HCCL accepts.
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--hccn-conf",
    type=A_PATH,
    metavar="FILE",
    help="Read devices and addresses from FILE, a copy of /etc/hccn.conf. Use - for stdin.",
)
@click.option("--hccn-tool", is_flag=True, help="Read devices from /dev/davinci*, and addresses from hccn_tool.")
@click.option("--nvidia-smi", is_flag=True, help="Read devices from nvidia-smi, which does not report addresses.")
@click.option("--devices", metavar="N[,N]...", help="Devices per server: one number for all servers or one per server.")
@click.option("--servers", metavar="NAME[,NAME]...", help="Server names in rank order, for example 'node[1-4]'.")
@click.option("--device-ids", metavar="IDS", help='Use only these devices, in this order, for example "4-7" or "0,2".')
@click.option(
    "--server-id", metavar="NAME", help="Set this server's server_id.  [default: its address, otherwise its host name]"
)
@click.option("--host-ip", metavar="ADDRESS", help="Set host_ip, the address of the network card that HCCL uses.")
@click.option("--container-ip", metavar="ADDRESS|same", help="Set MindIE's container_ip. `same` is the server address.")
@click.option("--pod-ip", metavar="ADDRESS|same", help="Set msrun's pod_ip. `same` is the server address.")
@click.option("--sort", is_flag=True, help="Assign ranks in the lexical order of server names.")
@click.option("--output", "-o", type=A_PATH, metavar="FILE", help="Write to FILE, with mode 640.  [default: stdout]")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def generate(*, sort: bool, output: Path | None, force: bool, **options: Any) -> None:
    """Write a rank table for servers and their devices.

    The devices come from one of --hccn-conf, --hccn-tool, --nvidia-smi and --devices; by default, from the first of
    hccn_tool, /etc/hccn.conf and nvidia-smi that this machine has. Missing addresses are left out, never invented.
    Generate each server's table on that server, and merge the tables with `tlaunch table merge`.

    The table is written in v1.0. Use `tlaunch table convert` for other formats.
    """
    check_output(output, force=force)
    gathered = gather(Wanted(**options), os.environ)
    generated = build_cluster(gathered.machines, hardware=gathered.hardware, sort=sort)
    text = render_table(generated.cluster)
    for one in (*gathered.notes, *generated.notes):
        (warn if one.is_warning else note)(one.text)
    # Check the new table like any other.
    report = parse_rank_table(text.encode(), output or Path("rank_table.json"))
    if report.cluster is None:
        raise RefusedTableError(report.render(screen_of(sys.stderr).columns))
    for problem in report.warnings:
        if problem.code not in SAID_ALREADY:
            say(f"warning[{problem.code}]: {problem.message}")
    hand_over(text, generated.cluster, "v1.0", output, force=force)
