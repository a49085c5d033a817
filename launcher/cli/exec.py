"""`tlaunch exec`: under somebody else's mpirun or srun, check this process's place, give it all that a rank gets, become it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.chosen_run import runs_dir_option
from launcher.cli.run_options import (
    allow_idle_devices_option,
    chip_option,
    devices_option,
    env_option,
    layout_options,
    master_port_option,
    rank_table_option,
    server_option,
)
from launcher.core.env import MASTER_PORT
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import DEFAULT_GRACE_S

if TYPE_CHECKING:
    from launcher.cli.options import RunOptions
    from launcher.cli.prepare import Prepared
    from launcher.core.engine_rank import EngineRank
    from launcher.core.records import Cluster, RankSpec, RunSpec
    from launcher.core.run_dir import RunDir

EPILOG = """\b
Examples:
  mpirun -x PATH -n 16 --hostfile hosts --map-by slot --bind-to none \\
      tlaunch exec --rank-table rank_table_16pcs.json --mp 2 --pp 2 -- python train.py
  srun -K -N2 --ntasks-per-node=8 tlaunch exec --rank-table table.json -- python train.py
  TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S) mpiexec -n 8 \\
      tlaunch exec -- python train.py

Rank and size come from OMPI_COMM_WORLD_*, PMI_*, PMIX_RANK or, in a step of Slurm, SLURM_PROCID; everything else from the
table, as `tlaunch run` gives it. The variables of the engine stay, for MPI_Init. A rank must be on the server that the
table has it on: this machine's addresses and names are compared with server_id, unless --server says which one it is.

The run directory is <runs-dir>/<TLAUNCH_RUN_ID>, or <runs-dir>/<name>-<the engine's name of its job>, on every server the
same: TLAUNCH_RUN_ID counts more than --name. MASTER_PORT is 20000 to 29999, by the engine's name of the job, unless
--master-port says it; that of the environment is not used, which not every rank may have. Where all see one file system,
ranks with another port, layout or table than the first are refused.

Exit codes: those of COMMAND; 2 wrong usage, no engine, unreadable files or a program that is not there; 3 a refused table,
layout, order of hosts or MPI; 126 COMMAND could not be started, 127 its interpreter was not found.
"""
# Of the bundled trainer, which `tlaunch run` starts where no COMMAND is given; and the engine gives its own grace.
NOT_ASKED: Mapping[str, Any] = {"config": None, "settings": (), "data": None, "grace": DEFAULT_GRACE_S}


@click.command("exec", context_settings={"allow_interspersed_args": False}, epilog=EPILOG)
@rank_table_option
@devices_option(", all on one machine.  [default: the engine's ranks]")
@layout_options
@chip_option
@allow_idle_devices_option
@runs_dir_option
@click.option(
    "--name",
    metavar="NAME",
    help="The run's name, before the job's; TLAUNCH_RUN_ID counts more.  [default: the program's]",
)
@env_option
@server_option
@master_port_option("by the job")
@click.option("--no-log", is_flag=True, help="Leave stdout and stderr to the engine; no train.log.")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND [ARG]...")
@click.pass_context
def exec_rank(context: click.Context, /, *, server: str | None, no_log: bool, **options: Any) -> None:
    """Become one rank of a job that mpirun or srun has started.

    Started by the engine once per device. Everything is checked first; then COMMAND replaces this process, with its
    output in <run directory>/device<rank>/train.log.
    """
    from launcher.cli.once_per_server import told_once  # `--help` needs none of it
    from launcher.core.engine_rank import read_engine_rank

    rank = read_engine_rank(os.environ, os.getpid())
    if rank is None:
        raise UsageError(
            "no engine has started this process: neither OMPI_COMM_WORLD_RANK, PMI_RANK nor PMIX_RANK is set, and this is "
            "no step of Slurm",
            hint="mpirun -n N tlaunch exec ..., or srun -n N; `tlaunch run` starts ranks by itself",
        )
    with told_once(rank):
        joined = _join(rank, _run_options(options, rank), server)
    context.exit(_become(joined, log=not no_log))


@frozen
class _Joined:
    """This process's part of a run, and where it writes."""

    spec: RunSpec
    rank: RankSpec
    run_dir: RunDir
    environment: Mapping[str, str]


def _run_options(options: dict[str, Any], rank: EngineRank) -> RunOptions:
    from launcher.cli.options import UNSUPERVISED, RunOptions  # see above

    chosen = RunOptions(**options, **NOT_ASKED, **UNSUPERVISED)
    if not chosen.command[0]:
        raise UsageError("COMMAND is empty", hint="name the program that is to be started")
    if chosen.rank_table is not None or chosen.devices is not None:
        return chosen
    if rank.world_size is None:
        raise UsageError(
            f"{rank.engine} does not tell how many ranks it has started", hint="give --rank-table, or --devices"
        )
    return replace(chosen, devices=rank.world_size)


def _join(engine: EngineRank, options: RunOptions, server: str | None) -> _Joined:
    """Check everything, and only then make this rank's part of the run directory.

    Raises:
        TlaunchError: with an exit code of its own.
    """
    from launcher.cli.between_servers import note_of_interface, note_of_mpi
    from launcher.cli.prepare import prepare
    from launcher.engines.assemble import assemble
    from launcher.engines.external_run import check_size, master_port, run_name, unused
    from launcher.engines.host_match import own_interface
    from launcher.engines.mpi_match import check_library
    from launcher.runs.join import join_run
    from launcher.supervise.environment import overlaid, write_environment

    prepared = prepare(options, os.environ, engine=engine.engine)
    check_size(engine, prepared.request.layout)
    used = prepared.used
    here = _server_of(engine.global_rank, used)
    interface = own_interface(used.servers, here)
    request = replace(prepared.request, interfaces={here: interface} if interface else {})
    name = run_name(engine, prepared.name, options.name, os.environ)
    port = master_port(engine, name, options.master_port)
    spec = assemble(request, name=name, master_port=port)
    rank = spec.ranks[engine.global_rank]
    warning = _doubt_of_place(engine, rank, used, server)
    if rank.global_rank == 0:
        _check_port(port)
    environment, needed = overlaid(os.environ, rank.env), dict[str, str]()
    if engine.world_size != 1:
        # Whatever the table calls them, the engine may have been told of names.
        by_names = len(used.servers) > 1
        needed.update(check_library(rank.argv, environment, spec.cwd, by_names=by_names, mentioned=True))
    if needed:
        spec = assemble(replace(request, mpi_variables=needed), name=name, master_port=port)
        rank = spec.ranks[engine.global_rank]
        environment = overlaid(os.environ, rank.env)
    run_dir = join_run(spec, rank, prepared.files)
    write_environment(run_dir.env_log(rank.global_rank), environment)
    _note_process(run_dir, rank.global_rank)
    if rank.global_rank == 0:
        forgotten = tuple(unused(name, port, options.name, options.master_port, os.environ))
        chosen = {**os.environ, **request.user_env}
        network = note_of_interface(used.servers, interface, chosen) if interface else ()
        more = (*forgotten, *network, *note_of_mpi(needed, chosen))
        _say(prepared, spec, (*more, *((f"warning: {warning}",) if warning else ())))
    return _Joined(spec, rank, run_dir, environment)


def _doubt_of_place(engine: EngineRank, rank: RankSpec, used: Cluster, said: str | None) -> str | None:
    """What is worth a warning where this is the table's only server, and no sample. Blocks while its name is looked up.

    Raises:
        TlaunchError: the rank belongs to another server.
    """
    from launcher.cli.reports import is_sample
    from launcher.core.interfaces import names_of
    from launcher.engines.host_match import check_server, read_host

    other_names = () if engine.node is None else (engine.node,)
    host = read_host(names_of(used.servers[rank.server_index]), other_names=other_names)
    warning = check_server(rank, used, host, said, engine.local_world_size)
    return None if used.source is not None and is_sample(used.source) else warning


def _note_process(run_dir: RunDir, global_rank: int) -> None:
    """For `tlaunch status` and others, which else cannot tell whether this rank has ended."""
    from launcher.core.proc import identify
    from launcher.runs.engine_ranks import note_process

    if process := identify(os.getpid()):
        with suppress(OSError):  # a full disk: the rank is none the worse for it
            note_process(run_dir, global_rank, process)


def _server_of(global_rank: int, used: Cluster) -> int:
    return next(
        index
        for index, server in enumerate(used.servers)
        if any(device.global_rank == global_rank for device in server.devices)
    )


def _check_port(port: int) -> None:
    from launcher.supervise.port import check_port

    try:
        check_port(port)
    except UsageError as error:
        raise UsageError(error.message, hint="--master-port N, the same for all ranks, names another one") from error


def _say(prepared: Prepared, spec: RunSpec, more: Iterable[str]) -> None:
    """Once for all ranks, on the engine's stderr."""
    from launcher.cli.columns import counted
    from launcher.cli.outlet import as_people_call_it
    from launcher.engines.stale_env import conflicts, notes

    # MASTER_PORT has a note of its own
    environment = {name: value for name, value in prepared.request.inherited_env.items() if name != MASTER_PORT}
    inherited = notes(conflicts(environment, spec.ranks[0].env, within_engine=True))
    with suppress(OSError):  # nobody reads stderr
        for note in (*prepared.notes, *more, *inherited):
            print(note, file=sys.stderr)
        print(
            f"{counted(len(spec.ranks), 'rank')} of {spec.engine} in {as_people_call_it(spec.run_dir)}",
            file=sys.stderr,
            flush=True,
        )


def _become(joined: _Joined, *, log: bool) -> int:
    """Returns only where the program could not be started, with the exit code for that."""
    from launcher.program.command import parse_python
    from launcher.supervise.fork_server import bootstrap_argv
    from launcher.supervise.spawn import become

    rank, run_dir = joined.rank, joined.run_dir
    python = parse_python(rank.argv, joined.environment.get("PATH"), joined.spec.cwd)
    argv = rank.argv if python is None else bootstrap_argv(python, run_dir.device(rank.global_rank))
    return become(argv, joined.environment, run_dir.train_log(rank.global_rank) if log else None)
