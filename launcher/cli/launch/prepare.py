"""Every check before the first process or directory, in order; what is left is ready to run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.cli.launch.elastic import elastic_of, notes_of_first, table_of_part
from launcher.cli.launch.program import Program
from launcher.cli.launch.program_faults import fault_of, stdin_notes
from launcher.cli.launch.rank_tables import Table, is_sample, read_table
from launcher.cli.run_options import MindSporeWay, RunOptions, check_options, signal_numbers, user_environment
from launcher.core import env
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.interfaces import names_of
from launcher.core.machine.proc import davinci_ids
from launcher.core.records import Cluster, Elastic, Layout, Supervision
from launcher.engines.assemble import OWN_TABLE, Request, servers_with_agents, used_cluster, wants_own_table
from launcher.engines.placement import read_machine
from launcher.logs.terminal import escaped
from launcher.mesh.layouts import resolve_layout
from launcher.program.stdin_program import STDIN_FILES
from launcher.runs.rank_figures import pattern_of

if TYPE_CHECKING:
    from launcher.engines.host_match import Host

Elsewhere = Literal["servers", "image"]
# Without the current directory, in which a program's own modules may have names of the library's.
INIT = "import sys; sys.path[:1] = []; from mindspore.communication import init; init()"
_DECIDED = (env.MS_ROLE, env.MS_WORKER_NUM, env.MS_SCHED_HOST, env.MS_SCHED_PORT, env.MS_NODE_ID)


@frozen
class Prepared:
    """A run that can start. Each field follows from those before it."""

    options: RunOptions
    table: Table
    program: Program
    request: Request
    files: Mapping[str, str]  # name: text, to be kept in the run directory
    notes: tuple[str, ...] = ()  # said before the run starts

    @property
    def used(self) -> Cluster:
        """The servers and devices that ranks are on; all that an elastic run may use."""
        return servers_with_agents(self.request.cluster, self.request.layout, self.request.supervision)

    @property
    def name(self) -> str:
        """The name of the run, without its time."""
        return self.options.name or self.program.run_name

    @property
    def timed_name(self) -> str:
        """The name of a run that starts now."""
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{self.name}"


def prepare(
    options: RunOptions,
    inherited: Mapping[str, str],
    *,
    engine: str | None = None,
    elsewhere: Elsewhere | None = None,
    unnamed: Cluster | None = None,
    needs_data: bool = True,
) -> Prepared:
    """Check options, table, layout, recipe and command, in this order. Starts and creates nothing.

    `engine` has started the ranks already, on every server; None where tlaunch shall start them. `elsewhere`: nothing
    will be started from here. Several servers are fine then, and a program that is missing here is a note where it is
    other servers, or an image, that need it. `unnamed`: servers that are known by their number only, in place of what
    `options` say of devices. `needs_data`: as `trainer_command`.

    Raises:
        UsageError, UnreadableError, RefusedTableError, RefusedLayoutError: with a hint, and an exit code of its own.
    """
    check_options(options)
    variables = user_environment(options.env)
    table = read_table(options) if unnamed is None else Table(unnamed)
    cluster = table.cluster
    layout = resolve_layout(
        cluster.device_count,
        dp=options.dp,
        mp=options.mp,
        pp=options.pp,
        micro_batches=1 if options.micro_batches is None else options.micro_batches,
        allow_idle_devices=options.allow_idle_devices or options.elastic,
    )
    used = used_cluster(cluster, layout.world_size)
    program, layout = _program(options, layout, {**inherited, **variables}, needs_data=needs_data)
    fault = None if program.recipe and options.dry_run else fault_of(program, has_stdin=engine is not None)
    if fault is not None and (elsewhere is None or (elsewhere == "servers" and len(used.servers) == 1)):
        raise fault
    request = _request(options, cluster, layout, program, variables=variables, inherited=inherited, engine=engine)
    prepared = Prepared(options, table, program, request, _files(table, used, engine))
    return replace(prepared, notes=tuple(_notes(prepared, used, fault, starts_here=not (engine or elsewhere))))


def _program(
    options: RunOptions, layout: Layout, environment: Mapping[str, str], *, needs_data: bool
) -> tuple[Program, Layout]:
    """Return what ranks run, and its layout, which the bundled trainer may change."""
    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        raise UnreadableError("the current directory has been removed, and ranks would start in it") from None
    if options.command:
        return Program(options.command, cwd, environment), layout
    from launcher.cli.training.trainer_program import trainer_command  # other programs need none of it

    trainer = trainer_command(options, layout, needs_data=needs_data)
    return Program(trainer.argv, cwd, environment, trainer.recipe, trainer.continues, trainer.notes), trainer.layout


def _request(
    options: RunOptions,
    cluster: Cluster,
    layout: Layout,
    program: Program,
    *,
    variables: Mapping[str, str],
    inherited: Mapping[str, str],
    engine: str | None,
) -> Request:
    """Return what is asked of agents."""
    mpi_ranks = bool(_mpi_ranks(options, program))
    scheduler = _scheduler(options.mindspore, program, variables, has_table=options.rank_table is not None)
    elastic: Elastic | None = None
    if options.elastic:
        from launcher.cli.training.trainer_program import fits_recipe  # other runs need none of it

        fits = fits_recipe(options) if program.recipe else lambda _layout: True
        elastic = elastic_of(options.exclude, cluster, layout, fits)
    pattern_of(options.progress_regex)  # refuses one that finds nothing
    return Request(
        cluster=cluster,
        layout=layout,
        argv=program.argv,
        cwd=program.cwd,
        runs_dir=options.runs_dir.absolute(),
        supervision=Supervision(
            grace_s=options.grace,
            max_restarts=options.max_restarts,
            hang_timeout_s=options.hang_timeout,
            forward_signals=signal_numbers(options.forward_signals),
            preload=None if mpi_ranks or options.no_preload else program.preload(options.preload),
            elastic=elastic,
            scheduler=scheduler,
        ),
        console="none" if options.quiet and options.console == "rank0" else options.console,
        user_env=variables,
        inherited_env=inherited,
        machine=read_machine(),
        bind=options.bind,
        engine=engine,
        mpi_ranks=mpi_ranks,
        continues=program.continues,
        progress_regex=options.progress_regex,
    )


def _mpi_ranks(options: RunOptions, program: Program) -> bool | None:
    """Return whether mpirun or srun has to start a process for each rank; None where that cannot be seen."""
    if not options.by_engine or options.mpi_ranks is not None:
        return bool(options.mpi_ranks)
    return False if options.preload is not None else program.uses_mpi


def _scheduler(
    way: MindSporeWay, program: Program, user_env: Mapping[str, str], *, has_table: bool
) -> tuple[str, ...] | None:
    """Return the command of the scheduler that the ranks need; None where they need none.

    `auto`: a program that imports MindSpore and calls `init` meets at a scheduler, on any device, as under msrun; with a rank table and
    Ascend devices it reads the table, as `run.sh` has it. A program that is no Python here is started once more as its own
    scheduler, as msrun does, since only it knows which Python it runs.

    Raises:
        UsageError: what is asked for contradicts something else.
    """
    given = [name for name in _DECIDED if name in user_env]
    if way == "cluster" and given:
        raise UsageError(
            f"--env {given[0]}: with --mindspore cluster tlaunch decides this variable",
            hint="leave it out, or start a scheduler of your own with --mindspore off",
        )
    if way == "cluster" and program.recipe is not None:
        raise UsageError("--mindspore cluster: the bundled trainer uses torch", hint="give a COMMAND after --")
    if way == "rank-table" and not has_table:
        raise UsageError(
            "--mindspore rank-table: there is no rank table", hint="give --rank-table FILE, or --mindspore cluster"
        )
    if way == "auto":
        by_table = has_table and bool(davinci_ids())
        way = "cluster" if program.uses_mindspore and not (by_table or given) else "off"
    if way != "cluster":
        return None
    python = program.python
    # By the name that was typed, which each server finds on its own ranks' PATH.
    return program.argv if python is None else (python.name or python.interpreter, *python.options, "-c", INIT)


def _files(table: Table, used: Cluster, engine: str | None) -> dict[str, str]:
    cluster = table.cluster
    if cluster.source is None or not wants_own_table(cluster, used, engine):
        return {}
    if used.device_count == cluster.device_count:
        return {OWN_TABLE: table.text or ""}
    return {OWN_TABLE: table_of_part(used, table.format)}


# --- what a person should know before the run starts ---


def _notes(prepared: Prepared, used: Cluster, fault: TlaunchError | None, *, starts_here: bool) -> Iterator[str]:
    """Yield the notes on a run. `fault`: what is wrong with the program here; it may be sound where its ranks start."""
    options, program, request = prepared.options, prepared.program, prepared.request
    layout, elastic = request.layout, request.supervision.elastic
    yield from prepared.table.notes
    yield from program.notes
    if fault is not None:
        said = fault.message.partition("\n")[0]
        yield f"warning: {said}; the program is looked for where ranks start"
    count = request.cluster.device_count
    if used.device_count < count and not options.exclude:
        what = "spare" if options.elastic else "idle"
        first, last = used.device_count, count - 1
        stay, which = ("stays", f"rank {last}") if first == last else ("stay", f"ranks {first} to {last}")
        yield f"{count - first} of {count} devices {stay} {what}: {which}"
    if _mpi_ranks(options, program) is None:
        yield f"{escaped(program.target)} is started without MPI ranks; --mpi-ranks gives each its place in MPI_COMM_WORLD"
    if options.mindspore == "auto":
        yield from _notes_of_mindspore(prepared)
    if elastic is not None and elastic.excluded:
        yield from notes_of_first(elastic, layout, request.cluster.servers)
    if starts_here and str(options.rank_table) not in STDIN_FILES:
        yield from stdin_notes()
    unasked = options.devices is None and options.rank_table is None  # one rank that nobody has asked for
    if (layout.world_size > 1 or unasked) and (within := program.launcher_within) is not None:
        yield f"warning: {within}"
    if layout.world_size > 1 and starts_here:
        yield from _doubts(prepared, used)


def _notes_of_mindspore(prepared: Prepared) -> Iterator[str]:
    """Yield a note on how ranks of MindSpore find each other."""
    meet = "note: the program calls MindSpore's init(): its ranks meet"
    if prepared.request.supervision.scheduler is not None:
        yield f"{meet} at a scheduler beside rank 0 (--mindspore cluster; --mindspore off starts none)"
    elif prepared.options.rank_table is not None and davinci_ids() and prepared.program.uses_mindspore:
        yield f"{meet} by the rank table (--mindspore rank-table)"


def _doubts(prepared: Prepared, used: Cluster) -> Iterator[str]:
    """Yield warnings about several ranks that are started from here."""
    options, inherited = prepared.options, prepared.request.inherited_env
    if not options.by_engine and (name := prepared.program.alone_in_mpi) is not None:
        yield f"{name} imports mpi4py: every rank is alone in its MPI_COMM_WORLD; --engine mpi makes them one job"
    if options.engine is None and len(used.servers) == 1 and "SLURM_JOB_ID" in inherited:
        from launcher.engines.slurm_allocation import shortage_warnings  # others need none of it

        yield from shortage_warnings(inherited, used.device_count)  # of a job that has fewer CPUs here than ranks


def doubt_of_table(prepared: Prepared, host: Host | None = None) -> str | None:
    """Return a warning where the table's only server may be another machine; None where an engine finds it, or for a sample.

    Blocks while a name of the server is looked up. `host`: this machine, where it has been asked already.
    """
    table, servers = prepared.request.cluster.source, prepared.used.servers
    if table is None or prepared.options.by_engine or len(servers) > 1:
        return None
    from launcher.engines.host_match import doubt, is_everywhere, read_host  # runs without a table need none of it

    (server,) = servers
    if prepared.options.server == server.server_id or is_everywhere(server) or is_sample(table):
        return None
    return doubt(server, host or read_host(names_of(server)))
