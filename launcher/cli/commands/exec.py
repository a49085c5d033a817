"""`tlaunch exec`: become one rank of a job that mpirun or srun started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import click

from launcher.cli.launch.once_per_host import reported_once
from launcher.cli.launch.prepare import Prepared, prepare
from launcher.cli.launch.program import Program
from launcher.cli.launch.rank_network import note_of_interface, note_of_mpi
from launcher.cli.launch.rank_tables import is_sample
from launcher.cli.options import run as of_run
from launcher.cli.options.command_types import TakesCommand
from launcher.cli.options.types import complete_files
from launcher.cli.run_options import UNSUPERVISED, RunOptions
from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import as_people_call_it, say
from launcher.core.env import MASTER_PORT, TLAUNCH_SERVER
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.engine_rank import EngineRank, read_engine_rank
from launcher.core.machine.interfaces import names_of
from launcher.core.machine.proc import identify
from launcher.core.records import Cluster, RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import assemble
from launcher.engines.external_run import check_size, master_port, run_name, unused
from launcher.engines.host_match import check_server, own_interface, read_host
from launcher.engines.leftover_variables import conflicts, notes
from launcher.engines.mpi_match import check_library
from launcher.runs.engine_ranks import announcement, join_run, note_process
from launcher.supervise.fork_server import bootstrap_argv
from launcher.supervise.port import check_port
from launcher.supervise.scheduler import meeting_place, start_scheduler
from launcher.supervise.spawn import become, overlaid, write_environment

EPILOG = """\b
Examples:
  mpirun -x PATH -n 16 --hostfile hosts --map-by slot --bind-to none \\
      tlaunch exec --rank-table rank_table_16pcs.json --mp 2 --pp 2 -- python train.py
  srun -K -N2 --ntasks-per-node=8 tlaunch exec --rank-table table.json -- python train.py
  TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S) mpiexec -n 8 \\
      tlaunch exec -- python train.py

Rank and size come from OMPI_COMM_WORLD_*, PMI_*, PMIX_RANK or, in a Slurm step, SLURM_PROCID. Everything else comes
from the rank table, as with `tlaunch run`. The engine's variables are kept for MPI_Init. A rank must run on the server
that the table assigns to it: tlaunch compares this machine's addresses and names with server_id, unless --server names
the server.

The run directory is <runs-dir>/<TLAUNCH_RUN_ID> or <runs-dir>/<name>-<job ID>, the same on every server.
TLAUNCH_RUN_ID takes precedence over --name. MASTER_PORT is derived from the job ID (20000 to 29999), unless
--master-port sets it; the environment's MASTER_PORT is ignored, because some ranks may not have it. On a shared file
system, a rank is refused if its port, layout or table differs from the first rank's.

Exit codes: COMMAND's exit code; 2 wrong usage, no engine, or a file or program is missing or unreadable; 3 invalid rank
table, layout, host order or MPI library; 126 COMMAND could not be started, 127 its interpreter was not found.
"""


class _Exec(TakesCommand):
    """A click command that reports a usage error only once, although each rank's process runs the command."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        words = [info_name or "exec", *args]
        rank = read_engine_rank(os.environ, os.getpid())
        with nullcontext() if rank is None else reported_once(rank):
            try:
                return super().make_context(info_name, args, parent, **extra)
            except click.UsageError as error:
                from launcher.cli.options.refusals import as_usage_error  # only needed for errors

                raise as_usage_error(error, words) from None


@click.command("exec", cls=_Exec, context_settings={"allow_interspersed_args": False}, epilog=EPILOG)
@of_run.rank_table_option
@of_run.devices_option(", all on one machine.  [default: the engine's number of ranks]")
@of_run.layout_options
@of_run.chip_option
@of_run.allow_idle_devices_option
@of_run.runs_dir_option
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the run; the job ID is appended. TLAUNCH_RUN_ID takes precedence.  [default: the program's name]",
)
@of_run.env_option
@of_run.server_option
@of_run.mindspore_option
@of_run.master_port_option("derived from the job ID")
@click.option("--no-log", is_flag=True, help="Do not write train.log. Pass stdout and stderr to mpirun or srun.")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND [ARG]...", shell_complete=complete_files)
def exec_rank(*, server: str | None, no_log: bool, **options: Any) -> int:
    """Become one rank of a job that mpirun or srun started.

    The engine starts this command once per device. It checks the program, layout and server, then replaces itself with
    COMMAND. The output of COMMAND goes to <run directory>/device<rank>/train.log.
    """
    rank = read_engine_rank(os.environ, os.getpid())
    if rank is None:
        raise UsageError(
            "mpirun or srun did not start this process: expected OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK or a Slurm step, "
            "but found none",
            hint="use `mpirun -n N tlaunch exec ...` or `srun -n N tlaunch exec ...`; without mpirun and srun, use `tlaunch run`",
        )
    with reported_once(rank):
        joined = _join(rank, _run_options(options, rank), server or os.environ.get(TLAUNCH_SERVER) or None)
    run_dir, global_rank = joined.run_dir, joined.rank.global_rank
    if global_rank == 0 and joined.spec.supervision.scheduler is not None:
        start_scheduler(joined.spec, joined.environment)
    argv = joined.rank.argv
    if joined.program.python is not None:
        stderr = None
        if not no_log:  # with --no-log the engine has it already; duplicated last, so that no other process inherits it
            os.set_inheritable(stderr := os.dup(2), True)
        argv = bootstrap_argv(joined.program.python, run_dir.device(global_rank), stderr)
    return become(argv, joined.environment, None if no_log else run_dir.train_log(global_rank))


@frozen
class _Joined:
    program: Program
    spec: RunSpec
    rank: RankSpec
    run_dir: RunDir
    environment: Mapping[str, str]


def _run_options(options: dict[str, Any], rank: EngineRank) -> RunOptions:
    chosen = RunOptions(**options, **UNSUPERVISED)
    if not chosen.command[0]:
        raise UsageError("COMMAND is empty", hint="give the program to start")
    if chosen.rank_table is not None or chosen.devices is not None:
        return chosen
    if rank.world_size is None:
        raise UsageError(f"{rank.engine} did not report the number of ranks", hint="give --rank-table or --devices")
    return replace(chosen, devices=rank.world_size)


def _join(engine: EngineRank, options: RunOptions, server: str | None) -> _Joined:
    """Run all checks, then create this rank's part of the run directory."""
    prepared = prepare(options, os.environ, engine=engine.engine)
    check_size(engine, prepared.request.layout)
    used = prepared.used
    here = next(
        index
        for index, server in enumerate(used.servers)
        if engine.global_rank in {device.global_rank for device in server.devices}
    )
    interface = own_interface(used.servers, here)
    request = replace(prepared.request, interfaces={here: interface} if interface else {})
    name = run_name(engine, prepared.name, options.name, os.environ)
    port = master_port(engine, name, options.master_port)
    spec = assemble(request, name=name, master_port=port)
    rank = spec.ranks[engine.global_rank]
    warning = _doubt_of_place(engine, rank, used, server)
    if rank.global_rank == 0:
        try:
            check_port(port)
        except UsageError as error:
            error.hint = "choose another port with --master-port N, the same for all ranks"
            raise
    environment, needed = overlaid(os.environ, rank.env), dict[str, str]()
    if engine.world_size != 1:
        # The engine may know the servers by name, even if the table has addresses.
        by_names = len(used.servers) > 1
        needed.update(check_library(rank.argv, environment, spec.cwd, by_names=by_names, mentioned=True))
    if needed:
        spec = assemble(replace(request, mpi_variables=needed), name=name, master_port=port)
        rank = spec.ranks[engine.global_rank]
        environment = overlaid(os.environ, rank.env)
    if spec.supervision.scheduler is not None:
        environment |= meeting_place(spec.master_addr, port)
    run_dir = join_run(spec, rank, prepared.files)
    write_environment(run_dir.env_log(rank.global_rank), environment)
    if process := identify(os.getpid()):  # `tlaunch status` needs it to see whether this rank has ended
        with suppress(OSError):  # a full disk does not harm the rank
            note_process(run_dir, rank.global_rank, process)
    if rank.server_index == spec.ranks[0].server_index:
        with announcement(run_dir, without_mark=rank.global_rank == 0) as is_first:
            if is_first:
                chosen = {**os.environ, **request.user_env}
                forgotten = unused(name, port, options.name, options.master_port, os.environ)
                network = note_of_interface(used.servers, interface, chosen) if interface else ()
                doubts = (f"warning: {warning}",) if warning else ()
                _say(prepared, spec, rank, (*forgotten, *network, *note_of_mpi(needed, chosen), *doubts))
    return _Joined(prepared.program, spec, rank, run_dir, environment)


def _doubt_of_place(engine: EngineRank, rank: RankSpec, used: Cluster, said: str | None) -> str | None:
    """Raise an error if the rank runs on the wrong server. Return a warning if this cannot be determined."""
    other_names = () if engine.node is None else (engine.node,)
    host = read_host(names_of(used.servers[rank.server_index]), other_names=other_names)
    warning = check_server(rank, used, host, said, engine.local_world_size)
    return None if used.source is not None and is_sample(used.source) else warning


def _say(prepared: Prepared, spec: RunSpec, rank: RankSpec, more: Iterable[str]) -> None:
    """Print the notes and the run directory to stderr. Only one rank of the job calls this."""
    # MASTER_PORT has a separate note
    environment = {name: value for name, value in prepared.request.inherited_env.items() if name != MASTER_PORT}
    inherited = notes(conflicts(environment, rank.env, within_engine=True))
    for note in (*prepared.notes, *more, *inherited):
        say(note)
    say(f"{counted(len(spec.ranks), 'rank')} of {spec.engine} in {as_people_call_it(spec.run_dir)}")
