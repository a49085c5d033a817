"""The options of `tlaunch run`, some of which other commands share."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from launcher.cli.options.command_types import Command, help_all_option, parameters_of, together
from launcher.cli.options.completion import complete_runs_or_files, one_of, recipe_names
from launcher.cli.options.types import A_PATH, FILE, NAME_OR_PATH, IntRange, Seconds, ShownOutput, Size, complete_files
from launcher.cli.run_options import DEFAULT_COORDINATOR_PORT, DEFAULT_JOIN_S, DEFAULT_LOST_S, ENGINES, MINDSPORE_WAYS
from launcher.core.env import TLAUNCH_MAX_TABLE_SIZE, TLAUNCH_RUNS_DIR, TLAUNCH_SERVER
from launcher.core.records import CONSOLES, DEFAULT_GRACE_S
from launcher.core.run_dir import DEFAULT_RUNS_DIR
from launcher.engines.placement import BINDS

MAX_RESTARTS = 10**6
MAX_S = 7 * 24 * 3600
MAX_DEVICES = 65536  # of --devices, so that a typo does not exhaust the machine
MAX_DEGREE = 10**6  # of --dp, --mp and --pp
MIN_TABLE_BYTES = 1 << 10
MIN_DEVICE_BYTES = 1 << 20  # of --device-memory, so that a number without its unit is noticed
CHIP_NAMES = ("auto", "910", "a2", "a3", "a5", "300i", "none")
CONSUMER_NAMES = ("hccl", "mindspore", "msrun")


# --- rank tables ---

table_chip_option = click.option(
    "--chip", type=click.Choice(CHIP_NAMES), default="auto", show_default=True,
    help="Check the rank table for this hardware. Use `none` for CPUs and GPUs: violations of Ascend rules become warnings.",
)  # fmt: skip
consumer_option = click.option(
    "--for", "consumer", type=click.Choice(CONSUMER_NAMES), default="hccl", show_default=True,
    help="Also check the requirements of the program that will read the rank table.",
)  # fmt: skip


def _keep(_context: click.Context, _option: click.Parameter, size_bytes: int | None) -> None:
    """Store the size limit in the environment, where this process and its child processes read it."""
    if size_bytes is not None:
        os.environ[TLAUNCH_MAX_TABLE_SIZE] = str(size_bytes)


max_table_size_option = click.option(
    "--max-table-size", type=Size(MIN_TABLE_BYTES), metavar="SIZE", envvar=TLAUNCH_MAX_TABLE_SIZE,
    expose_value=False, callback=_keep,
    help=f"Maximum size of a rank table.  [default: ${TLAUNCH_MAX_TABLE_SIZE} or 40M]",
)  # fmt: skip


def keep_max_table_size() -> None:
    """Convert TLAUNCH_MAX_TABLE_SIZE, for example 64K, to bytes. Raises click.BadParameter if it is invalid."""
    if text := os.environ.get(TLAUNCH_MAX_TABLE_SIZE):
        os.environ[TLAUNCH_MAX_TABLE_SIZE] = str(Size(MIN_TABLE_BYTES).convert(text, None, None))


# --- runs ---

rank_table_option = together(
    click.option(
        "-t", "--rank-table", type=FILE, metavar="FILE",
        help="Rank table in HCCL's JSON format: servers, devices and ranks.",
    ),
    max_table_size_option,
)  # fmt: skip
engine_option = click.option(
    "--engine", type=click.Choice(ENGINES), metavar="HOW",
    help="Start the agents with mpirun (mpi), with srun in a Slurm allocation (slurm), or by running the same command "
    "on each server (hand).  [default: hand]",
)  # fmt: skip
engine_words_option = click.option(
    "--engine-option", "engine_options", multiple=True, metavar="ARG", help="Pass ARG to mpirun or srun. Repeatable."
)
server_option = click.option(
    "--server", metavar="ID",
    help=f"This machine's server_id in the rank table.  [default: ${TLAUNCH_SERVER}, or detected from addresses and host name]",
)  # fmt: skip
coordinator_port_option = click.option(
    "--coordinator-port", type=IntRange(1, 65535), metavar="N",
    help=f"Port of the coordinator on the server of rank 0. Only for --engine hand.  [default: {DEFAULT_COORDINATOR_PORT}]",
)  # fmt: skip
chip_option = click.option(
    "--chip", type=click.Choice(CHIP_NAMES), metavar="NAME",
    help=f"Check the rank table for this hardware: {', '.join(CHIP_NAMES)}.  [default: none without Ascend devices]",
)  # fmt: skip
env_option = click.option(
    "-e", "--env", multiple=True, metavar="KEY[=VALUE]",
    help="Set an environment variable in every rank. Without VALUE, copy the value from this shell. Repeatable.",
)  # fmt: skip
runs_dir_option = click.option(
    "--runs-dir", type=A_PATH, metavar="DIR", envvar=TLAUNCH_RUNS_DIR, default=DEFAULT_RUNS_DIR,
    help=f"Directory that holds the run directories.  [default: ${TLAUNCH_RUNS_DIR} or {DEFAULT_RUNS_DIR}]",
)  # fmt: skip


def devices_option(where: str = " on this machine; with --engine slurm, on each node.") -> Callable[[Command], Command]:
    return click.option(
        "-n", "-np", "--devices", type=IntRange(1, MAX_DEVICES), metavar="N", help=f"Use N devices{where}"
    )


def join_timeout_option(default_s: float, what: str) -> Callable[[Command], Command]:
    return click.option(
        "--join-timeout", type=Seconds(min=1, max=MAX_S), default=default_s, metavar="TIME",
        help=f"{what}  [default: {default_s:g}s]",
    )  # fmt: skip


def master_port_option(default: str) -> Callable[[Command], Command]:
    what = f"Port of the ranks' rendezvous (MASTER_PORT).  [default: {default}]"
    return click.option("--master-port", type=IntRange(1, 65535), metavar="N", help=what)


mindspore_option = click.option(
    "--mindspore", type=click.Choice(MINDSPORE_WAYS), default="auto", metavar="HOW",
    help="How MindSpore ranks find each other: through a scheduler (cluster), through the rank table (rank-table, only on "
    "Ascend), or not at all (off). If COMMAND imports mindspore, auto selects rank-table on Ascend machines with "
    "--rank-table, and cluster otherwise.  [default: auto]",
)  # fmt: skip
layout_options = together(
    click.option(
        "--dp", type=IntRange(max=MAX_DEGREE), metavar="N", help="Data-parallel degree.  [default: devices / (mp * pp)]"
    ),
    click.option("--mp", type=IntRange(max=MAX_DEGREE), default=1, metavar="N", help="Model-parallel (tensor-parallel) degree.  [default: 1]"),
    click.option("--pp", type=IntRange(max=MAX_DEGREE), default=1, metavar="N", help="Number of pipeline stages.  [default: 1]"),
    click.option("--micro-batches", type=IntRange(max=MAX_DEGREE), metavar="N", help="Split each data-parallel rank's batch into N micro batches."),
)  # fmt: skip
allow_idle_devices_option = click.option(
    "--allow-idle-devices", is_flag=True, help="Accept a layout that leaves devices unused."
)

recipe_option = click.option(
    "--recipe", metavar="NAME", shell_complete=one_of(recipe_names),
    help="Bundled program to train: transformer, quickstart, resnet50.  [default: transformer]",
)  # fmt: skip
config_option = click.option(
    "--config", type=NAME_OR_PATH, metavar="FILE", shell_complete=complete_files,
    help="TOML file with settings of the bundled trainer.",
)  # fmt: skip
settings_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Override one setting of the bundled trainer. `tlaunch explain train` lists the settings of the section train. Repeatable.",
)  # fmt: skip

# Rarely needed parameters of `tlaunch run`; only --help-all shows them.
RARE = frozenset(
    (
        "max_table_size", "chip", "allow_idle_devices", "engine_options", "mpi_ranks", "server", "join_timeout", "lost_after",
        "coordinator_port", "allow_different_program", "preload", "no_preload", "mindspore", "bind",
        "forward_signals", "exclude", "progress_regex", "save_strategy", "profile", "device_memory",
    )
)  # fmt: skip
# The options of `tlaunch run`, as its help groups them. `rerun`, `explain` and `render` share them.
RUN_GROUPS = {
    "Devices and layout": parameters_of(
        rank_table_option, devices_option(), layout_options, chip_option, allow_idle_devices_option
    ),
    "Servers": parameters_of(
        engine_option,
        engine_words_option,
        click.option(
            "--mpi-ranks/--no-mpi-ranks", default=None,
            help="Start all ranks in one MPI_COMM_WORLD.  [default: yes if COMMAND imports mpi4py or is linked to an MPI library]",
        ),
        server_option,
        join_timeout_option(DEFAULT_JOIN_S, "Fail if a server has not joined within this time."),
        click.option(
            "--lost-after", type=Seconds(min=1, max=MAX_S), default=DEFAULT_LOST_S, metavar="TIME",
            help=f"Treat a server as lost if it sends no message within this time.  [default: {DEFAULT_LOST_S:g}s]",
        ),
        coordinator_port_option,
        click.option("--allow-different-program", is_flag=True, help="Allow COMMAND's files to differ between servers."),
    ),
    "Bundled programs": parameters_of(
        recipe_option,
        config_option,
        settings_option,
        click.option("--data", type=FILE, metavar="PATH", help="Training data: a file of sentence pairs (source, tab, target), or a directory that `tlaunch data` wrote."),
        click.option("--source", type=FILE, metavar="FILE", help="With --target, instead of --data: train on two text files that are aligned by line."),
        click.option("--target", type=FILE, metavar="FILE", help="Translation of each line of --source."),
        click.option(
            "--resume", type=NAME_OR_PATH, metavar="auto|RUN|PATH", shell_complete=complete_runs_or_files,
            help="Resume from a checkpoint, or from the newest complete checkpoint of a run or directory. With auto, use the newest checkpoint of any run with the same settings.",
        ),
        click.option(
            "--init-from", type=NAME_OR_PATH, metavar="MODEL|RUN|CHECKPOINT", shell_complete=complete_runs_or_files,
            help="Start a new training from the weights and the tokenizer of a trained model. For a run, this is its final model, or else its newest checkpoint.",
        ),
        click.option(
            "--save-strategy", is_flag=True,
            help="Record the operators, layouts and collectives of every rank in one training step. `tlaunch plan operators` shows the record.",
        ),
        click.option("--profile", is_flag=True, help="Write a trace of five training steps to device*/profile.json."),
        click.option(
            "--device-memory", type=Size(MIN_DEVICE_BYTES), metavar="SIZE",
            help="Refuse a layout whose ranks need more than SIZE for tensors, before any rank starts. `tlaunch plan simulate` shows the need.",
        ),
    ),
    "Ranks": parameters_of(
        env_option,
        click.option("--preload", metavar="MODULE,...", help="Import these modules once, and then fork the ranks.  [default: detected from COMMAND]"),
        click.option("--no-preload", is_flag=True, help="Start a new Python process for every rank."),
        mindspore_option,
        click.option(
            "--bind", type=click.Choice(BINDS), default="auto", metavar="HOW",
            help="Bind each rank to a NUMA node (numa), to separate CPU cores (core), or not at all (none).  [default: auto]",
        ),
        master_port_option("free"),
        click.option(
            "--forward-signals", metavar="NAME,...", default="USR1,USR2",
            help="Forward these signals to every rank instead of ending the run.  [default: USR1,USR2]",
        ),
    ),
    "Failures": parameters_of(
        click.option(
            "--grace", type=Seconds(min=0, max=MAX_S), default=DEFAULT_GRACE_S, metavar="TIME",
            help=f"Time between SIGTERM and SIGKILL.  [default: {DEFAULT_GRACE_S:g}s]",
        ),
        click.option(
            "--max-restarts", type=IntRange(0, MAX_RESTARTS), default=0, metavar="N",
            help="Restart all ranks after a failure, at most N times.  [default: 0]",
        ),
        click.option(
            "--hang-timeout", type=Seconds(min=0.1, max=MAX_S), metavar="TIME",
            help="Treat a rank as hung after this time without progress. tlaunch then prints all stacks, and restarts the ranks or exits with code 124.",
        ),
        click.option(
            "--timeout", type=Seconds(min=0.1, max=MAX_S), metavar="TIME",
            help="End the run after this time, including restarts, in the same way as Ctrl-C, and exit with 124.",
        ),
        click.option(
            "--elastic", is_flag=True,
            help="Continue with the remaining devices when some are lost or excluded. Add devices back when they return.",
        ),
        click.option(
            "--exclude", multiple=True, metavar="SERVER[/DEVICE]",
            help="With --elastic, do not use this server or device. To change the list during the run, edit the file `excluded` in the run directory. Repeatable.",
        ),
    ),
    "Run directory and output": parameters_of(
        runs_dir_option,
        click.option("--name", metavar="NAME", help="Name of the run. tlaunch adds the start time as a prefix."),
        click.option(
            "--console", type=ShownOutput(), default="rank0", metavar="WHAT", shell_complete=one_of(lambda: CONSOLES),
            help="Output to show: rank0, ranks such as 0,3-5, all, collapse (all ranks, with identical lines merged), status (a status line) or none.  [default: rank0]",
        ),
        click.option(
            "--stdin", type=IntRange(0, MAX_DEVICES), metavar="RANK",
            help="Let RANK read the standard input of this command, for example for a debugger, and show its output.",
        ),
        click.option(
            "--progress-regex", metavar="REGEX",
            help="Read progress from output lines that match REGEX. Named groups: step, last_step, epoch, loss and tokens_per_s.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="Print only errors and, if the run fails, why it failed."),
        click.option("-v", "--verbose", is_flag=True, help="Also explain the choices that tlaunch makes."),
        click.option("-d", "--detach", is_flag=True, help="Run in the background and print the run's name."),
        click.option("--dry-run/--no-dry-run", help="Print each rank's command and environment, but do not start the ranks."),
        click.option("--json", is_flag=True, help="With --dry-run, print JSON."),
        help_all_option,
    ),
}  # fmt: skip
RUN_PARAMETERS = [
    *(option for options in RUN_GROUPS.values() for option in options),
    *parameters_of(click.argument("command", nargs=-1, metavar="[-- COMMAND [ARG]...]", shell_complete=complete_files)),
]
