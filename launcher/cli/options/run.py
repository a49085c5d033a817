"""The options that say of a run which devices it has, how they are divided and where its agents meet, each said once.

`tlaunch run` has all of them, `exec` and `doctor` some; `render` takes those of `run` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from launcher.cli.launch.options import DEFAULT_COORDINATOR_PORT, ENGINES
from launcher.cli.options.seconds import Seconds
from launcher.cli.options.table import CHIP_NAMES
from launcher.cli.options.table_size import max_table_size_option
from launcher.cli.options.types import Whole
from launcher.cli.options.usage import BadValue
from launcher.core.env import TLAUNCH_SERVER

Command = TypeVar("Command", bound=Callable[..., Any])

LONGEST_S = 7 * 24 * 3600
MOST_DEVICES = 65536  # of --devices: a slip of the finger must not eat the machine
MOST_WAYS = 10**6  # of one axis


class _File(click.Path):
    """A path that is not empty: one of pathlib would be that of this directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            raise BadValue("the name is empty", param, ctx, "name the file (an empty variable?)")
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path)

_rank_table_option = click.option("--rank-table", type=FILE, metavar="FILE", help="The devices, as an HCCL rank table.")


def rank_table_option(command: Command) -> Command:
    """The table, and how large it may be."""
    return _rank_table_option(max_table_size_option(command))


engine_option = click.option(
    "--engine", type=click.Choice(ENGINES), metavar="HOW",
    help="How agents get onto other servers: mpi (mpirun), slurm (srun, inside an allocation), hand (the same command "
    "on each server).  [default: hand]",
)  # fmt: skip
engine_words_option = click.option(
    "--engine-option", "engine_options", multiple=True, metavar="WORD", help="A word for mpirun or srun."
)
server_option = click.option(
    "--server", envvar=TLAUNCH_SERVER, metavar="ID",
    help=f"Which server of the table this machine is.  [default: ${TLAUNCH_SERVER}, or found by its addresses and names]",
)  # fmt: skip
coordinator_port_option = click.option(
    "--coordinator-port", type=Whole(1, 65535), default=DEFAULT_COORDINATOR_PORT, metavar="N",
    help=f"On the server of rank 0, where servers are started by hand.  [default: {DEFAULT_COORDINATOR_PORT}]",
)  # fmt: skip
chip_option = click.option(
    "--chip", type=click.Choice(CHIP_NAMES), metavar="NAME",
    help=f"The hardware that the table is checked for: {', '.join(CHIP_NAMES)}.  [default: none without Ascend devices]",
)  # fmt: skip
env_option = click.option("--env", multiple=True, metavar="KEY=VALUE", help="A variable for every rank.")


def devices_option(where: str = " on this machine; with --engine slurm: on each node.") -> Callable[[Command], Command]:
    return click.option("--devices", type=Whole(1, MOST_DEVICES), metavar="N", help=f"This many devices{where}")


def join_timeout_option(default_s: float, what: str) -> Callable[[Command], Command]:
    return click.option(
        "--join-timeout", type=Seconds(min=1, max=LONGEST_S), default=default_s, metavar="SECONDS",
        help=f"{what}  [default: {default_s:g}]",
    )  # fmt: skip


def master_port_option(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--master-port", type=Whole(1, 65535), metavar="N", help=f"The rendezvous port.  [default: {default}]"
    )


def layout_options(command: Command) -> Command:
    """How devices are divided among the axes."""
    for option in reversed((
        click.option(
            "--dp", type=Whole(max=MOST_WAYS), metavar="N", help="Data parallel ways.  [default: devices / (mp * pp)]"
        ),
        click.option("--mp", type=Whole(max=MOST_WAYS), default=1, metavar="N", help="Model parallel ways.  [default: 1]"),
        click.option("--pp", type=Whole(max=MOST_WAYS), default=1, metavar="N", help="Pipeline stages.  [default: 1]"),
        click.option("--micro-batches", type=Whole(), metavar="N", help="Parts of each data parallel rank's batch."),
    )):  # fmt: skip
        command = option(command)
    return command


allow_idle_devices_option = click.option(
    "--allow-idle-devices", is_flag=True, help="Accept a layout that leaves devices unused."
)
