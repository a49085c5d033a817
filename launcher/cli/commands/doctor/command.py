"""`tlaunch doctor`: examine all servers of a planned run, and report what would break it."""

from __future__ import annotations

from typing import Any

import click

from launcher.cli.commands.doctor.consult import run_doctor
from launcher.cli.options.chosen_run import json_option
from launcher.cli.options.command_types import TakesCommand
from launcher.cli.options.run import (
    chip_option,
    coordinator_port_option,
    devices_option,
    engine_option,
    engine_words_option,
    env_option,
    join_timeout_option,
    master_port_option,
    rank_table_option,
    runs_dir_option,
    server_option,
)
from launcher.core.errors import UsageError

EPILOG = """\b
Examples:
  tlaunch doctor --devices 4
  tlaunch doctor --rank-table rank_table.json --engine mpi
  tlaunch doctor --rank-table rank_table.json      # on each server by hand
  tlaunch doctor --rank-table rank_table.json --engine mpi --json | jq .sound
  tlaunch doctor --rank-table rank_table.json --engine mpi -- python train.py

Starts one agent per server as `tlaunch run` would. Each reports its names, addresses, interfaces, clock, versions, rank
table, disks, limits and devices, then tries to reach all others. If nothing would break a run, a short run measures how
fast they reach each other, and leaves nothing behind unless it fails.

With COMMAND, the program's files are compared too: a stale copy on one server would train something else.

A finding is `breaks` if it makes a run fail, `risky` if it may, and `note` if nothing is wrong. A server on which nothing
can be started is a finding too; the other servers are examined nevertheless.

Exit codes: 0 nothing would break a run; 1 something would; 2 wrong usage, unreadable files, or mpirun or srun is missing;
3 a refused rank table.
"""
DEFAULT_JOIN_S = 60.0
LAYOUT = ("--dp", "--mp", "--pp", "--micro-batches")


class _LayoutFree(TakesCommand):
    """Explains that a run's layout options are not wanted, rather than that no such option exists."""

    without = "compare no program's files"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ends_options = "--" in args
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in LAYOUT:
                raise UsageError(
                    f"{error.option_name}: doctor takes no layout, all devices of the table are examined",
                    hint="leave it out",
                ) from error
            raise
        if ctx.params["command"] and not ends_options:  # more likely a typing error than a program
            raise UsageError(
                f"{ctx.command_path} takes nothing more: {ctx.params['command'][0]}",
                hint="a COMMAND, whose files are to be compared, stands after --",
            )
        return rest


@click.command(cls=_LayoutFree, epilog=EPILOG)
@rank_table_option
@devices_option()
@engine_option
@engine_words_option
@server_option
@join_timeout_option(DEFAULT_JOIN_S, "Servers that have not joined by then are reported as missing.")
@coordinator_port_option
@chip_option
@env_option
@master_port_option("free")
@click.option("--no-links", is_flag=True, help="Skip the measurement of the links between servers.")
@runs_dir_option
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
@click.pass_context
def doctor(
    context: click.Context, /, *, no_links: bool, as_json: bool, command: tuple[str, ...], **options: Any
) -> None:
    """Examine all servers, and report what would break a run."""
    context.exit(run_doctor(options, command, measures=not no_links, as_json=as_json))
