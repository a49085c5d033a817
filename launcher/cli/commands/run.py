"""`tlaunch run`: check everything, then start one process per device and watch over them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.launch.options import DEFAULT_JOIN_S, DEFAULT_LOST_S
from launcher.cli.options.chosen_run import runs_dir_option
from launcher.cli.options.run import (
    FILE,
    LONGEST_S,
    allow_idle_devices_option,
    chip_option,
    coordinator_port_option,
    devices_option,
    engine_option,
    engine_words_option,
    env_option,
    join_timeout_option,
    layout_options,
    master_port_option,
    rank_table_option,
    server_option,
)
from launcher.cli.options.seconds import Seconds
from launcher.cli.options.size import Size
from launcher.cli.options.takes_command import TakesCommand
from launcher.cli.options.types import Whole
from launcher.core.records import CONSOLES, DEFAULT_GRACE_S
from launcher.engines.placement import BINDS

if TYPE_CHECKING:
    from launcher.cli.launch.options import RunOptions
    from launcher.cli.launch.prepare import Prepared

EPILOG = """\b
Examples:
  tlaunch run --rank-table rank_tables/rank_table_8pcs.json --mp 2 --pp 2
  tlaunch run --devices 4 -- python train.py --epochs 3
  tlaunch run --devices 8 --mp 2 --dry-run
  tlaunch run --devices 8 --max-restarts 3 --hang-timeout 600 --detach \\
      -- python train.py
  tlaunch run --engine mpi --rank-table rank_tables/rank_table_16pcs.json \\
      -- python train.py

What a rank gets: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT as torch's
env:// reads them; RANK_ID, RANK_SIZE, DEVICE_ID and, with --rank-table, RANK_TABLE_FILE as MindSpore does;
TLAUNCH_RUN_DIR, TLAUNCH_DP, _MP, _PP, _MICRO_BATCHES. Its output goes to <runs-dir>/<time>-<name>/device<rank>/train.log.

The first rank that fails ends the run: where every rank was is noted first, then all get SIGTERM, and SIGKILL after
--grace seconds. Ctrl-C ends the run in the same way, a second Ctrl-C kills at once; Ctrl-Z stops the ranks until `fg`.

Exit codes: 0 when all ranks ended well; the code of the rank that failed first, or 128 + its signal; 1 a server was
lost, or did not come; 2 wrong usage or unreadable files, a program that is not there too; 3 a refused table or layout;
124 hung (--hang-timeout); 126 a rank's program could not be started, 127 its interpreter was not found; 129, 130, 131,
143 stopped by SIGHUP, Ctrl-C, SIGQUIT, SIGTERM; 137 also: what watches over the ranks was killed.
"""

MOST_RESTARTS = 10**6
SMALLEST_LOG_BYTES = 64 << 10  # whole blocks of a file system are moved, and half of it stays


@click.command(cls=TakesCommand, context_settings={"allow_interspersed_args": False}, epilog=EPILOG)
@rank_table_option
@devices_option()
@engine_option
@engine_words_option
@click.option(
    "--mpi-ranks/--no-mpi-ranks",
    default=None,
    help="Whether ranks are those of mpirun's or srun's own world.  [default: where COMMAND imports mpi4py, "
    "or was compiled for an MPI]",
)
@server_option
@join_timeout_option(DEFAULT_JOIN_S, "All servers have to come within so long.")
@click.option(
    "--lost-after", type=Seconds(min=1, max=LONGEST_S), default=DEFAULT_LOST_S, metavar="SECONDS",
    help=f"A server that is not heard for so long is lost.  [default: {DEFAULT_LOST_S:g}]",
)  # fmt: skip
@coordinator_port_option
@click.option("--allow-different-program", is_flag=True, help="Servers need not have the same files of COMMAND.")
@layout_options
@chip_option
@allow_idle_devices_option
@click.option("--config", metavar="FILE", help="The bundled trainer's settings, TOML.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="One setting of the bundled trainer.")
@click.option("--data", type=FILE, metavar="PATH", help="Sentence pairs for the bundled trainer (`tlaunch data`).")
@runs_dir_option
@click.option("--name", metavar="NAME", help="The run's name, after its time.")
@env_option
@click.option(
    "--grace", type=Seconds(min=0, max=LONGEST_S), default=DEFAULT_GRACE_S, metavar="SECONDS",
    help=f"Between SIGTERM and SIGKILL.  [default: {DEFAULT_GRACE_S:g}]",
)  # fmt: skip
@click.option(
    "--max-restarts", type=Whole(0, MOST_RESTARTS), default=0, metavar="N",
    help="Start all ranks again after a failure, up to N times.  [default: 0]",
)  # fmt: skip
@click.option(
    "--hang-timeout", type=Seconds(min=0.1, max=LONGEST_S), metavar="SECONDS",
    help="A rank without progress for so long hangs: stacks, then a restart or exit code 124.",
)  # fmt: skip
@click.option(
    "--preload", metavar="MODULE,...", help="Import these once, and fork ranks from there.  [default: found in COMMAND]"
)
@click.option("--no-preload", is_flag=True, help="Every rank starts a Python of its own.")
@click.option(
    "--forward-signals", metavar="NAME,...", default="USR1,USR2",
    help="Handed to every rank instead of ending the run.  [default: USR1,USR2]",
)  # fmt: skip
@click.option(
    "--bind", type=click.Choice(BINDS), default="auto", metavar="HOW",
    help=f"Which cores a rank may use: {', '.join(BINDS)}.  [default: auto]",
)  # fmt: skip
@click.option(
    "--console", type=click.Choice(CONSOLES), default="rank0", metavar="WHAT",
    help=f"What to show of the ranks' lines: {', '.join(CONSOLES)}.  [default: rank0]",
)  # fmt: skip
@click.option(
    "--log-max-size", type=Size(SMALLEST_LOG_BYTES), metavar="SIZE",
    help="Compress what a rank's log grows beyond, beside it: 64M, 1G.  [default: never]",
)  # fmt: skip
@master_port_option("free")
@click.option("--detach", is_flag=True, help="Go on in the background; print the run's name.")
@click.option("--dry-run", is_flag=True, help="Print each rank's command and environment; start nothing.")
@click.option("--json", is_flag=True, help="With --dry-run: everything as JSON.")
@click.argument("command", nargs=-1, metavar="[-- COMMAND [ARG]...]")
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Start one process per device and watch over them.

    Without COMMAND the bundled Transformer is trained; with it, any program is started, Python or not. Without
    --rank-table and --devices there is one process.
    """
    from launcher.cli.launch.engine_options import check_server_id, for_engine, is_typed  # `--help` needs none of it
    from launcher.cli.launch.options import RunOptions
    from launcher.cli.launch.prepare import prepare
    from launcher.cli.launch.start import carry_out, show

    chosen = for_engine(context, RunOptions(**options))
    prepared = prepare(chosen, os.environ)
    if is_typed(context, "server"):
        check_server_id(chosen.server or "", [server.server_id for server in prepared.used.servers])
    if prepared.request.cluster.source is not None:
        prepared = _with_doubt(prepared, chosen)
    wanted_name = f"{time.strftime('%Y%m%d-%H%M%S')}-{prepared.name}"
    if chosen.dry_run:
        show(prepared, wanted_name, chosen)
    elif chosen.engine is not None or len(prepared.used.servers) > 1:
        from launcher.cli.launch.servers import carry_out_on_servers  # others need none of it

        context.exit(carry_out_on_servers(prepared, wanted_name, chosen))
    else:
        context.exit(carry_out(prepared, wanted_name, chosen))


def _with_doubt(prepared: Prepared, chosen: RunOptions) -> Prepared:
    from launcher.cli.launch.table_here import doubt_of_table  # runs without a table need none of it

    doubt = doubt_of_table(prepared, chosen)
    return replace(prepared, notes=(*prepared.notes, f"warning: {doubt}")) if doubt else prepared
