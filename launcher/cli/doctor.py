"""`tlaunch doctor`: examine all servers of a run that is to be, and tell what would break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from launcher.cli.chosen_run import json_option, runs_dir_option
from launcher.cli.options import DEFAULT_COORDINATOR_PORT, ENGINES
from launcher.cli.profile_options import CHIP_NAMES
from launcher.cli.seconds import Seconds
from launcher.cli.whole import Whole
from launcher.core.env import TLAUNCH_SERVER

EPILOG = """\b
Examples:
  tlaunch doctor --devices 4
  tlaunch doctor --rank-table rank_table.json --engine mpi
  tlaunch doctor --rank-table rank_table.json      # on each server by hand
  tlaunch doctor --rank-table rank_table.json --engine mpi --json | jq .sound

One agent per server is started as `tlaunch run` would start it. Each tells what it is like (names, addresses,
interfaces, clock, versions, rank table, disks, limits, devices), then tries to reach all others. If nothing stands in
the way, a short run measures how fast they reach each other, and leaves nothing behind.

What was found is `breaks` where a run would fail of it, `risky` where it may, and `note` where nothing is wrong.
A server on which nothing can be started is a finding, too; the others are examined nevertheless.

Exit codes: 0 nothing would break a run; 1 something would; 2 wrong usage, unreadable files, no mpirun or srun;
3 a refused rank table.
"""
DEFAULT_JOIN_S = 60.0
LONGEST_JOIN_S = 24 * 3600
MOST_DEVICES = 65536
LAYOUT = ("--dp", "--mp", "--pp", "--micro-batches")
FILE = click.Path(path_type=Path)


class _LayoutFree(click.Command):
    """Who repeats the words of a run is told that its layout is not wanted, rather than that no such option exists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in LAYOUT:
                raise click.UsageError(
                    f"doctor takes no layout: leave {error.option_name} out, all devices of the table are examined", ctx
                ) from error
            raise


@click.command(cls=_LayoutFree, epilog=EPILOG)
@click.option("--rank-table", type=FILE, metavar="FILE", help="The devices, as an HCCL rank table.")
@click.option("--devices", type=Whole(1, MOST_DEVICES), metavar="N", help="This many devices, all on this machine.")
@click.option(
    "--engine", type=click.Choice(ENGINES), metavar="HOW",
    help="How agents get onto other servers: mpi (mpirun), slurm (srun, inside an allocation), hand (the same command "
    "on each server).  [default: hand]",
)  # fmt: skip
@click.option("--engine-option", "engine_options", multiple=True, metavar="WORD", help="A word for mpirun or srun.")
@click.option(
    "--server", envvar=TLAUNCH_SERVER, metavar="ID",
    help="Which server of the table this machine is.  [default: found by its addresses and names]",
)  # fmt: skip
@click.option(
    "--join-timeout", type=Seconds(min=1, max=LONGEST_JOIN_S), default=DEFAULT_JOIN_S, metavar="SECONDS",
    help=f"Servers that have not come by then are told of as missing.  [default: {DEFAULT_JOIN_S:g}]",
)  # fmt: skip
@click.option(
    "--coordinator-port", type=Whole(1, 65535), default=DEFAULT_COORDINATOR_PORT, metavar="N",
    help=f"On the server of rank 0, where servers are started by hand.  [default: {DEFAULT_COORDINATOR_PORT}]",
)  # fmt: skip
@click.option(
    "--chip", type=click.Choice(CHIP_NAMES), metavar="NAME",
    help=f"The hardware that the table is checked for: {', '.join(CHIP_NAMES)}.  [default: none without Ascend devices]",
)  # fmt: skip
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="A variable that every rank would get.")
@click.option("--master-port", type=Whole(1, 65535), metavar="N", help="The rendezvous port that the run would use.")
@click.option("--no-links", is_flag=True, help="Do not measure how fast servers reach each other.")
@runs_dir_option
@json_option
@click.pass_context
def doctor(context: click.Context, /, *, no_links: bool, as_json: bool, **options: Any) -> None:
    """Examine all servers, and tell what would break a run."""
    from launcher.cli.consult import consult  # `--help` needs none of it

    context.exit(consult(options, measures=not no_links, as_json=as_json))
