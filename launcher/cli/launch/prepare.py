"""Every check before the first process or directory, in order; what is left is ready to run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from launcher.cli.launch.attempt_specs import table_of_part
from launcher.cli.launch.mindspore import note_of, scheduler_of
from launcher.cli.launch.options import RunOptions, check_options, signal_numbers, user_environment
from launcher.cli.launch.program import Program
from launcher.cli.launch.program_faults import fault_of, stdin_notes
from launcher.cli.launch.samples import found_table, max_table_bytes, sample_hinted
from launcher.cli.launch.trainer_program import trainer_program
from launcher.cli.text.style import screen_of
from launcher.core.errors import RefusedTableError, UnreadableError
from launcher.core.frozen import frozen
from launcher.core.machine.proc import DEVICE_FILES, davinci_ids, nvidia_ids
from launcher.core.records import Cluster, Elastic, Layout, Supervision
from launcher.engines.assemble import OWN_TABLE, Request, servers_with_agents, used_cluster, wants_own_table
from launcher.engines.placement import read_machine
from launcher.engines.variables import VISIBLE_DEVICES
from launcher.logs.terminal import escaped
from launcher.mesh.layouts import resolve_layout
from launcher.program.stdin_program import STDIN_FILES
from launcher.runs.rank_figures import pattern_of

Elsewhere = Literal["servers", "image"]


@frozen
class Prepared:
    """A run that can start."""

    request: Request
    program: Program
    name: str  # of the run, without its time
    options: RunOptions
    notes: tuple[str, ...]  # said before the run starts
    files: Mapping[str, str]  # name: text, to be kept in the run directory
    table_text: str | None = None  # of the rank table, read once: it may come from a pipe
    table_format: str = ""

    @property
    def used(self) -> Cluster:
        """The servers and devices that ranks are on; all that an elastic run may use."""
        return servers_with_agents(self.request.cluster, self.request.layout, self.request.supervision)

    @property
    def timed_name(self) -> str:
        """The name of a run that starts now."""
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{self.name}"


@frozen
class _Table:
    """A rank table as it was read; nothing where there is none."""

    text: str | None = None
    format: str = ""


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
    `options` say of devices. `needs_data`: as `trainer_program`.

    Raises:
        UsageError, UnreadableError, RefusedTableError, RefusedLayoutError: with a hint, and an exit code of its own.
    """
    check_options(options)
    variables = user_environment(options.env)
    notes: list[str] = []
    cluster, table = _cluster(options, notes) if unnamed is None else (unnamed, _Table())
    layout = _layout(options, cluster)
    used = used_cluster(cluster, layout.world_size)
    program, layout = _program(options, layout, {**inherited, **variables}, notes, needs_data=needs_data)
    if program.recipe is None or not options.dry_run:
        notes += _check_program(program, elsewhere, used, has_stdin=engine is not None)
    notes += _idle_devices(options, cluster, used)
    request = _request(options, program, cluster, layout, inherited=inherited, engine=engine, notes=notes)
    starts_here = engine is None and elsewhere is None
    if starts_here and str(options.rank_table) not in STDIN_FILES:
        notes += stdin_notes()
    if layout.world_size > 1:
        notes += _doubts(options, program, inherited, used, starts_here=starts_here)
    elif options.devices is None and options.rank_table is None:  # one rank that nobody has asked for
        notes += _launcher_within(program)
    return Prepared(
        request=request,
        program=program,
        name=options.name or program.run_name,
        options=options,
        notes=tuple(notes),
        files=_files(cluster, used, table, engine),
        table_text=table.text,
        table_format=table.format,
    )


def _layout(options: RunOptions, cluster: Cluster) -> Layout:
    return resolve_layout(
        cluster.device_count,
        dp=options.dp,
        mp=options.mp,
        pp=options.pp,
        micro_batches=1 if options.micro_batches is None else options.micro_batches,
        allow_idle_devices=options.allow_idle_devices or options.elastic,
    )


def _program(
    options: RunOptions, layout: Layout, environment: Mapping[str, str], notes: list[str], *, needs_data: bool
) -> tuple[Program, Layout]:
    """Return what ranks run, and its layout, which the bundled trainer may change; add its notes."""
    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        raise UnreadableError("the current directory has been removed, and ranks would start in it") from None
    if options.command:
        return Program(options.command, cwd, environment), layout
    program, layout, more = trainer_program(options, layout, cwd, environment, needs_data=needs_data)
    notes += more
    return program, layout


def _request(
    options: RunOptions,
    program: Program,
    cluster: Cluster,
    layout: Layout,
    *,
    inherited: Mapping[str, str],
    engine: str | None,
    notes: list[str],
) -> Request:
    """Return what is asked of agents; add notes of what is decided here from the program and the options."""
    variables = user_environment(options.env)
    mpi_ranks = _mpi_ranks(options, program, notes)
    scheduler = scheduler_of(options, program, variables)
    notes += note_of(options, program, scheduler)
    elastic = _elastic(options, cluster, layout, program, notes)
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
            preload=None if mpi_ranks else program.preload(options),
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


def _check_program(program: Program, elsewhere: Elsewhere | None, used: Cluster, *, has_stdin: bool) -> Iterator[str]:
    """Yield a note where the program is missing or wrong here, and may be whole where its ranks start.

    Raises:
        UnreadableError, UsageError: it has to be here.
    """
    if (fault := fault_of(program, has_stdin=has_stdin)) is None:
        return
    if elsewhere is None or (elsewhere == "servers" and len(used.servers) == 1):
        raise fault
    said = fault.message.partition("\n")[0]
    yield f"warning: {said}; the program is looked for where ranks start"


def _idle_devices(options: RunOptions, cluster: Cluster, used: Cluster) -> Iterator[str]:
    """Yield a note of the devices that no rank is on, unless a person has left some out."""
    idle = cluster.device_count - used.device_count
    if idle and not options.exclude:
        first, last = used.device_count, cluster.device_count - 1
        stay, which = ("stays", f"rank {last}") if idle == 1 else ("stay", f"ranks {first} to {last}")
        what = "spare" if options.elastic else "idle"
        yield f"{idle} of {cluster.device_count} devices {stay} {what}: {which}"


def _doubts(
    options: RunOptions, program: Program, inherited: Mapping[str, str], used: Cluster, *, starts_here: bool
) -> Iterator[str]:
    """Yield what a person may not mean who has several ranks started."""
    yield from _launcher_within(program)
    if not starts_here:
        return
    if not options.by_engine and (name := program.alone_in_mpi) is not None:
        yield f"{name} imports mpi4py: every rank is alone in its MPI_COMM_WORLD; --engine mpi makes them one job"
    if options.engine is None and len(used.servers) == 1 and "SLURM_JOB_ID" in inherited:
        from launcher.engines.slurm_allocation import short_here  # others need none of it

        yield from short_here(inherited, used.device_count)  # of a job that has fewer CPUs here than ranks


def _launcher_within(program: Program) -> Iterator[str]:
    if (within := program.launcher_within) is not None:
        yield f"warning: {within}"


def _cluster(options: RunOptions, notes: list[str]) -> tuple[Cluster, _Table]:
    """Return the devices and the table that names them; add to `notes` what a person should know of them."""
    if options.rank_table is None and options.engine == "slurm":
        from launcher.engines.slurm_allocation import cluster_of, read_allocation  # others need none of it

        return cluster_of(read_allocation(os.environ), options.devices), _Table()
    if options.rank_table is None:
        if options.devices is None:
            behind = next(filter(_says_devices, options.command), None)
            theirs = f"; {escaped(behind)} stands behind COMMAND, so it is the program's" if behind else ""
            notes.append(f"{one_rank_note(os.environ)}{theirs}")
        return Cluster.local(options.devices or 1), _Table()
    from launcher.rank_table import Profile, read_rank_table  # --devices needs none of it
    from launcher.rank_table.diagnostics import headline

    # On a machine without Ascend devices no process will use HCCL, and what only HCCL asks for is a warning.
    chip = options.chip or ("auto" if davinci_ids() else "none")
    with sample_hinted(options.rank_table):
        path = found_table(options.rank_table, notes.append)
        report = read_rank_table(path, Profile(chip), max_bytes=max_table_bytes())
    if report.cluster is None:
        refused = RefusedTableError(report.render(screen_of(sys.stderr).columns))
        refused.problems = report.problems
        raise refused
    notes += [headline(problem, str(options.rank_table)) for problem in report.warnings]
    return report.cluster, _Table(report.document.text, report.format.value if report.format else "")


def _says_devices(word: str) -> bool:
    """Return whether a word of COMMAND would say how many ranks there are, if it stood before that."""
    from launcher.cli.launch.foreign.options import counterpart  # runs whose devices are given need none of it

    found = counterpart(word.partition("=")[0]) if word.startswith("--") else None
    of_table = word.partition("=")[0] == "--rank-table" or (found is not None and found.here == "--rank-table")
    return of_table or (found is not None and found.subject in {"devices", "ranks", "server count"})


def one_rank_note(environment: Mapping[str, str], device_files: Path = DEVICE_FILES) -> str:
    """Return the note for a run without a number of ranks, with the number of devices left idle.

    A user who limits the devices that can be seen knows how many there are.
    """
    note = "note: neither --devices nor --rank-table is given: there is one rank"
    count = len(davinci_ids(device_files)) or len(nvidia_ids(device_files))
    if count < 2 or any(environment.get(name) for name in VISIBLE_DEVICES):
        return note
    return f"{note}, though this machine has {count} devices; --devices {count} makes one for each"


def _mpi_ranks(options: RunOptions, program: Program, notes: list[str]) -> bool:
    """Return whether mpirun or srun has to start a process for each rank; add a note where that cannot be seen."""
    if not options.by_engine or options.mpi_ranks is not None:
        return bool(options.mpi_ranks)
    if options.preload is not None or program.uses_mpi is not None:
        return options.preload is None and bool(program.uses_mpi)
    name = escaped(program.target)
    notes.append(f"{name} is started without MPI ranks; --mpi-ranks gives each its place in MPI_COMM_WORLD")
    return False


def _elastic(
    options: RunOptions, cluster: Cluster, layout: Layout, program: Program, notes: list[str]
) -> Elastic | None:
    if not options.elastic:
        return None
    from launcher.cli.launch.elastic import elastic_of, notes_of_first  # other runs need none of it

    elastic = elastic_of(options, cluster, layout, program.recipe)
    if elastic.excluded:
        notes += notes_of_first(elastic, layout, cluster.servers)
    return elastic


def _files(cluster: Cluster, used: Cluster, table: _Table, engine: str | None) -> dict[str, str]:
    if cluster.source is None or not wants_own_table(cluster, used, engine):
        return {}
    if used.device_count == cluster.device_count:
        return {OWN_TABLE: table.text or ""}
    return {OWN_TABLE: table_of_part(used, table.format)}
