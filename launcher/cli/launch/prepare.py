"""All checks of a run before any process or directory is created."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.cli.launch.elastic import elastic_of, first_allotment, notes_of_first, table_of_part
from launcher.cli.launch.misplaced_words import misplaced
from launcher.cli.launch.program import Program
from launcher.cli.launch.program_faults import fault_of, stdin_notes
from launcher.cli.launch.rank_tables import Table, is_sample, read_table
from launcher.cli.run_options import MindSporeWay, RunOptions, check_options, signal_numbers, user_environment
from launcher.core import env
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.interfaces import names_of
from launcher.core.machine.proc import davinci_ids, in_background
from launcher.core.records import CONSOLES, Cluster, Elastic, Layout, Supervision
from launcher.core.text import ranges
from launcher.engines.assemble import OWN_TABLE, Request, servers_with_agents, used_cluster, wants_own_table
from launcher.engines.placement import read_machine
from launcher.logs.terminal import escaped
from launcher.mesh.layouts import resolve_layout
from launcher.program.stdin_program import STDIN_FILES
from launcher.runs.rank_figures import pattern_of

if TYPE_CHECKING:
    from launcher.engines.host_match import Host

Elsewhere = Literal["servers", "image"]
# The current directory is removed from sys.path: modules in it may shadow those that MindSpore imports.
INIT = "import sys; sys.path[:1] = []; from mindspore.communication import init; init()"
_DECIDED = (env.MS_ROLE, env.MS_WORKER_NUM, env.MS_SCHED_HOST, env.MS_SCHED_PORT, env.MS_NODE_ID)


@frozen
class Prepared:
    options: RunOptions
    table: Table
    program: Program
    request: Request
    files: Mapping[str, str]  # name: text, for the run directory
    notes: tuple[str, ...] = ()  # printed before the run starts
    on_begin: Callable[[Path], None] | None = None  # called with the run directory, before any rank starts

    @property
    def used(self) -> Cluster:
        """The servers and devices that run ranks, or that may run ranks in a later attempt of an elastic run."""
        return servers_with_agents(self.request.cluster, self.request.layout, self.request.supervision)

    @property
    def name(self) -> str:
        """The name of the run, without its start time."""
        return self.options.name or self.program.run_name

    @property
    def timed_name(self) -> str:
        """The name of the run's directory: the current time, then the name of the run."""
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
    """Check options, rank table, layout, recipe and command, in this order, without starting or creating anything.

    Raises UsageError, UnreadableError, RefusedTableError or RefusedLayoutError if a check fails.

    Args:
        options: The options of the run.
        inherited: The environment of this process.
        engine: The engine that has already started the ranks on every server; None if tlaunch starts them.
        elsewhere: The ranks start on other servers or in an image; a program that is missing here is only a warning.
        unnamed: Servers without names, used instead of the devices in `options`.
        needs_data: As in `trainer_command`.
    """
    if (error := misplaced(options)) is not None:
        raise error
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
        fits=_fits(options),
    )
    used = used_cluster(cluster, layout.world_size)
    program, layout = _program(options, layout, {**inherited, **variables}, needs_data=needs_data)
    options = replace(options, init_from=program.init_from)  # recorded, because `latest` and names change their meaning
    has_stdin = engine is not None or (options.stdin is not None and layout.world_size == 1)
    fault = None if program.recipe and options.dry_run else fault_of(program, has_stdin=has_stdin)
    if fault is not None and (elsewhere is None or (elsewhere == "servers" and len(used.servers) == 1)):
        raise fault
    request = _request(options, cluster, layout, program, variables=variables, inherited=inherited, engine=engine)
    files: Mapping[str, str] = {}
    if cluster.source is not None and wants_own_table(cluster, used, engine):
        is_whole = used.device_count == cluster.device_count
        files = {OWN_TABLE: (table.text or "") if is_whole else table_of_part(used, table.format)}
    prepared = Prepared(options, table, program, request, files)
    return replace(prepared, notes=tuple(_notes(prepared, used, fault, starts_here=not (engine or elsewhere))))


def _fits(options: RunOptions) -> Callable[[Layout], bool]:
    """Return a function that checks whether the program supports a layout."""
    if options.command:
        return lambda _layout: True
    from launcher.cli.training.trainer_program import fits_recipe  # only for the bundled trainer

    return fits_recipe(options)


def _program(
    options: RunOptions, layout: Layout, environment: Mapping[str, str], *, needs_data: bool
) -> tuple[Program, Layout]:
    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        why = "the current directory has been removed, so ranks cannot start in it"
        raise UnreadableError(why, hint="change to a directory that exists") from None
    if options.command:
        return Program(options.command, cwd, environment), layout
    from launcher.cli.training.trainer_program import trainer_command  # only for the bundled trainer

    trainer = trainer_command(options, layout, needs_data=needs_data)
    if options.device_memory is not None:
        from launcher.cli.training.simulated import check_device_memory  # only for --device-memory

        check_device_memory(options, trainer.layout)
    found = trainer.recipe, trainer.continues, trainer.init_from, trainer.notes
    return Program(trainer.argv, cwd, environment, *found), trainer.layout


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
    mpi_ranks = bool(_mpi_ranks(options, program))
    scheduler = _scheduler(options.mindspore, program, variables, has_table=options.rank_table is not None)
    elastic: Elastic | None = None
    if options.elastic:
        elastic = elastic_of(options.exclude, cluster, layout, _fits(options))
    pattern_of(options.progress_regex)  # raises for an invalid pattern
    has_no_input = sys.stdin is None or os.path.samestat(os.fstat(0), os.stat(os.devnull))  # noqa: PTH116 - as for `launch`
    request = Request(
        cluster=cluster,
        layout=layout,
        argv=program.argv,
        cwd=program.cwd,
        runs_dir=options.runs_dir.absolute(),
        supervision=Supervision(
            grace_s=options.grace,
            max_restarts=options.max_restarts,
            hang_timeout_s=options.hang_timeout,
            time_limit_s=options.timeout,
            forward_signals=signal_numbers(options.forward_signals),
            preload=None if mpi_ranks or options.no_preload else program.preload(options.preload),
            elastic=elastic,
            scheduler=scheduler,
        ),
        user_env=variables,
        inherited_env=inherited,
        machine=read_machine(),
        bind=options.bind,
        engine=engine,
        mpi_ranks=mpi_ranks,
        continues=program.continues,
        progress_regex=options.progress_regex,
        stdin=options.stdin,
        offers_stdin=not (engine or options.engine or options.detach or has_no_input) and len(cluster.servers) == 1,
    )
    first = None if elastic is None else first_allotment(request)
    return replace(request, console=_console(options, (layout if first is None else first.layout).world_size))


def _console(options: RunOptions, rank_count: int) -> str:
    """Return the output that the console shows. Raises UsageError if the run lacks a rank of --stdin or --console."""
    ranks = range(rank_count)
    if options.stdin is not None:
        if options.stdin not in ranks:
            raise UsageError(f"--stdin {options.stdin}: the run has no such rank", hint=f"choose from {ranges(ranks)}")
        return str(options.stdin)
    if options.quiet and options.console == "rank0":
        return "none"
    if options.console not in CONSOLES:
        from launcher.logs.select import ranks_of  # rarely needed

        try:
            ranks_of(options.console, ranks)
        except UsageError as error:
            raise UsageError(f"--console: {error.message}", hint=error.hint) from None
    return options.console


def check_stdin(prepared: Prepared) -> None:
    """Raise UsageError if no rank on this machine could read standard input as --stdin requires."""
    count = len(prepared.used.servers)
    if count > 1:
        raise UsageError(
            f"--stdin cannot be combined with several servers, but this run uses {count}",
            hint=f"use --devices {prepared.request.layout.world_size} to run all ranks on this machine",
        )
    if in_background(0):
        raise UsageError("--stdin reads the terminal, but this command is in the background", hint="leave out `&`")


def _mpi_ranks(options: RunOptions, program: Program) -> bool | None:
    """Return True if mpirun or srun must start a process for each rank, or None if this is unknown."""
    if not options.by_engine or options.mpi_ranks is not None:
        return bool(options.mpi_ranks)
    return False if options.preload is not None else program.uses_mpi


def _scheduler(
    way: MindSporeWay, program: Program, user_env: Mapping[str, str], *, has_table: bool
) -> tuple[str, ...] | None:
    """Return the command of MindSpore's scheduler, or None if the ranks do not need one.

    With `auto`, a program that imports MindSpore and calls `init` gets a scheduler, as under msrun. If there are a rank
    table and Ascend devices, the program reads the table instead. For a program that is not started as Python, the
    scheduler is a copy of the program, as under msrun, because its Python interpreter is unknown. Raises UsageError if
    `way` contradicts another option.
    """
    given = [name for name in _DECIDED if name in user_env]
    if way == "cluster" and given:
        raise UsageError(
            f"--env {given[0]} cannot be combined with --mindspore cluster: tlaunch sets this variable itself",
            hint="remove the variable, or use --mindspore off and start the MindSpore scheduler yourself",
        )
    if way == "cluster" and program.recipe is not None:
        raise UsageError(
            "--mindspore cluster cannot be combined with the bundled trainer, which uses torch",
            hint="give a COMMAND after `--`",
        )
    if way == "rank-table" and not has_table:
        hint = "add --rank-table FILE, or use --mindspore cluster"
        raise UsageError("--mindspore rank-table needs --rank-table", hint=hint)
    if way == "auto":
        by_table = has_table and bool(davinci_ids())
        way = "cluster" if program.uses_mindspore and not (by_table or given) else "off"
    if way != "cluster":
        return None
    python = program.python
    # The name as typed: each server resolves it on its ranks' PATH.
    return program.argv if python is None else (python.name or python.interpreter, *python.options, "-c", INIT)


# --- notes before the run starts ---


def _notes(prepared: Prepared, used: Cluster, fault: TlaunchError | None, *, starts_here: bool) -> Iterator[str]:
    """Yield the notes on a run. A `fault` of the program on this machine becomes a warning."""
    options, program, request = prepared.options, prepared.program, prepared.request
    layout, elastic = request.layout, request.supervision.elastic
    yield from prepared.table.notes
    yield from program.notes
    if fault is not None:
        said = fault.message.partition("\n")[0]
        yield f"warning: {said}; it must exist where ranks start"
    count = request.cluster.device_count
    if used.device_count < count and not options.exclude:
        what = "spare" if options.elastic else "idle"
        first, last = used.device_count, count - 1
        others = f"the device of rank {last} is" if first == last else f"the devices of ranks {first} to {last} are"
        yield f"the layout uses {first} of {count} devices; {others} {what}"
    if _mpi_ranks(options, program) is None:
        yield f"ranks of {escaped(program.target)} are not MPI processes; add --mpi-ranks if it calls MPI_Init"
    if options.mindspore == "auto":
        yield from _notes_of_mindspore(prepared)
    if elastic is not None and elastic.excluded:
        yield from notes_of_first(elastic, layout, request.cluster.servers)
    if starts_here and options.stdin is None and str(options.rank_table) not in STDIN_FILES:
        yield from stdin_notes(offers_stdin=request.offers_stdin)
    unasked = options.devices is None and options.rank_table is None  # one rank by default
    if (layout.world_size > 1 or unasked) and (within := program.launcher_within) is not None:
        yield f"warning: {within}"
    if layout.world_size > 1 and starts_here:
        yield from _doubts(prepared, used)


def _notes_of_mindspore(prepared: Prepared) -> Iterator[str]:
    meet = "note: the program calls MindSpore's init(), so its ranks find each other"
    if prepared.request.supervision.scheduler is not None:
        yield f"{meet} through a scheduler started with rank 0 (--mindspore cluster; to start none, use --mindspore off)"
    elif prepared.options.rank_table is not None and davinci_ids() and prepared.program.uses_mindspore:
        yield f"{meet} through the rank table (--mindspore rank-table)"


def _doubts(prepared: Prepared, used: Cluster) -> Iterator[str]:
    options, inherited = prepared.options, prepared.request.inherited_env
    if not options.by_engine and (name := prepared.program.alone_in_mpi) is not None:
        yield f"{name} imports mpi4py, but each rank has its own MPI_COMM_WORLD; use --engine mpi to start one MPI job"
    if options.engine is None and len(used.servers) == 1 and "SLURM_JOB_ID" in inherited:
        from launcher.engines.slurm_allocation import shortage_warnings  # only inside Slurm jobs

        yield from shortage_warnings(inherited, used.device_count)


def doubt_of_table(prepared: Prepared, host: Host | None = None) -> str | None:
    """Return a warning if the only server in the rank table might not be this machine.

    Blocks while the server's name is resolved. `host` is this machine, if it is already known.
    """
    table, servers = prepared.request.cluster.source, prepared.used.servers
    if table is None or prepared.options.by_engine or len(servers) > 1:
        return None
    from launcher.engines.host_match import doubt, is_everywhere, read_host  # only with a rank table

    (server,) = servers
    if prepared.options.server == server.server_id or is_everywhere(server) or is_sample(table):
        return None
    return doubt(server, host or read_host(names_of(server)))
