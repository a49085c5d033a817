"""`tlaunch run`: check the program and its cluster, then start one process per device and supervise them."""

from __future__ import annotations

from typing import Any

import click

from launcher.cli.launch import start
from launcher.cli.options.command_types import TakesCommand
from launcher.cli.options.precedence import given_last, project_file_notes
from launcher.cli.options.run import RARE, RUN_GROUPS, RUN_PARAMETERS
from launcher.cli.run_options import RunOptions
from launcher.cli.text.stdout import say

EPILOG = """\b
Examples:
  tlaunch run --rank-table rank_tables/rank_table_8pcs.json --mp 2 --pp 2
  tlaunch run --devices 4 -- python train.py --epochs 3
  tlaunch run --devices 2 --source train.de --target train.en \\
      --set train.epochs=5
  tlaunch run --devices 8 --mp 2 --dry-run
  tlaunch run --devices 8 --max-restarts 3 --hang-timeout 600 --detach \\
      -- python train.py
  tlaunch run --devices 8 --recipe quickstart --save-strategy \\
      --set "strategies.matmul=[[2,4],[4,1]]"
  tlaunch run --engine mpi --rank-table rank_tables/rank_table_16pcs.json \\
      -- python train.py

Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT for torch's
env://; RANK_ID, RANK_SIZE, DEVICE_ID and, with --rank-table, RANK_TABLE_FILE for MindSpore; and TLAUNCH_RUN_DIR,
TLAUNCH_DP, _MP, _PP and _MICRO_BATCHES. The output of a rank goes to <runs-dir>/<time>-<name>/device<rank>/train.log.

TIME is in seconds unless it has units: 90s, 10m, 1h30m.

When a rank fails, tlaunch collects the stacks of all ranks, sends them SIGTERM, and after --grace sends SIGKILL.
Ctrl-C sends the same signals without collecting stacks: to see where a run hangs, use `tlaunch stacks` in another
terminal first. A second Ctrl-C sends SIGKILL at once. Ctrl-Z pauses the ranks until `fg`. The bundled trainer saves a
checkpoint and exits at SIGTERM, and saves one and continues at SIGUSR1.

Exit codes: 0 all ranks succeeded; the exit code of the rank that failed first, or 128 + its signal; 1 any other
failure, for example a lost server; 2 wrong usage, or a file or program is missing or unreadable; 3 invalid rank table
or layout; 124 a rank hung (--hang-timeout), or the time limit was reached (--timeout); 126 a rank's program could not
start, 127 its interpreter was not found; 129, 130, 131, 143 ended by SIGHUP, Ctrl-C, SIGQUIT, SIGTERM; 137 a rank or its
agent was killed.
"""


@click.command(cls=TakesCommand, context_settings={"allow_interspersed_args": False}, epilog=EPILOG)
@click.pass_context
def run(context: click.Context, /, **options: Any) -> int:
    """Start one process per device and supervise them.

    COMMAND can be any program. Without it, tlaunch trains a bundled program: the Transformer, or the one that --recipe
    names. Without --rank-table and --devices, one process starts.
    """
    chosen = RunOptions(**(given_last(context, options) if context.default_map else options))
    if (chosen.dry_run or chosen.verbose) and not chosen.quiet:
        for line in project_file_notes(context, chosen):
            say(line)
    return start.run(chosen).exit_code


run.params += RUN_PARAMETERS
run.groups, run.rare, run.is_like_run = RUN_GROUPS, RARE, True
