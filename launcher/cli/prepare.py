"""Every check before the first process or directory, in order; what is left is ready to run."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.cli.options import RunOptions, check_options, preloaded_modules, signal_numbers, user_environment
from launcher.core.errors import RefusedTableError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Layout, Supervision
from launcher.core.resources import stand_in_note
from launcher.core.system import DEVICE_FILES, davinci_ids, nvidia_ids
from launcher.engines.assemble import OWN_TABLE, Request, used_cluster, wants_own_table
from launcher.engines.placement import read_machine
from launcher.engines.stale_env import VISIBLE_DEVICES
from launcher.logs.terminal import escaped
from launcher.mesh.layouts import resolve_layout

if TYPE_CHECKING:
    from launcher.program.command import PythonCommand

Elsewhere = Literal["servers", "image"]
TRAINER = "launcher.trainer"
TRAINER_NEEDS = ("torch", "numpy", "sentencepiece", "safetensors")
TRAINER_RUN_NAME = "transformer"


@frozen
class Prepared:
    request: Request
    name: str  # of the run, without its time
    notes: tuple[str, ...]  # said before the run starts
    files: Mapping[str, str]  # name: text, to be kept in the run directory
    table_text: str | None = None  # of the rank table, read once: it may come from a pipe

    @property
    def used(self) -> Cluster:
        """The servers and devices that ranks are on."""
        return used_cluster(self.request.cluster, self.request.layout.world_size)


@frozen
class _Table:
    """As it was read; nothing where there is none."""

    text: str | None = None
    format: str = ""


NO_TABLE = _Table()


@frozen
class _Program:
    argv: tuple[str, ...]
    layout: Layout
    name: str
    notes: tuple[str, ...] = ()


def prepare(
    options: RunOptions,
    inherited: Mapping[str, str],
    *,
    engine: str | None = None,
    elsewhere: Elsewhere | None = None,
    unnamed: Cluster | None = None,
) -> Prepared:
    """Check options, table, layout, recipe and command, in this order. Starts and creates nothing.

    `engine` has started the ranks already, on every server; None where tlaunch shall start them. `elsewhere`: nothing
    will be started from here. Several servers are fine then, and a program that is missing here is a note where it is
    other servers, or an image, that need it. `unnamed`: servers that are known by their number only, in place of what
    `options` say of devices.

    Raises:
        UsageError, UnreadableError, RefusedTableError, RefusedLayoutError: with a hint, and an exit code of its own.
    """
    check_options(options)
    variables = user_environment(options.env)
    cluster, notes, table = _cluster(options) if unnamed is None else (unnamed, (), NO_TABLE)
    layout = _layout(options, cluster)
    used = used_cluster(cluster, layout.world_size)
    environment = {**inherited, **variables}
    python = _python(options.command, environment)
    program = _command(options.command, python, layout) if options.command else _trainer(options, layout)
    may_be_elsewhere = elsewhere is not None and (elsewhere != "servers" or len(used.servers) > 1)
    missing = _missing_note(options, python, environment, may_be_elsewhere=may_be_elsewhere)
    mpi_ranks, unread = _mpi_ranks(options, python, environment)
    request = Request(
        cluster=cluster,
        layout=program.layout,
        argv=program.argv,
        cwd=_working_directory(),
        runs_dir=options.runs_dir.absolute(),
        supervision=_supervision(options, program.argv, environment, mpi_ranks=mpi_ranks),
        console=options.console,
        user_env=variables,
        inherited_env=inherited,
        machine=read_machine(),
        bind=options.bind,
        engine=engine,
        mpi_ranks=mpi_ranks,
    )
    if engine is None and elsewhere is None and layout.world_size > 1:
        unread += (*_alone_note(options, python, environment), *_cpus_note(options, inherited, used))
    notes = (*notes, *program.notes, *missing, *_idle_note(cluster, layout.world_size), *unread)
    files = _files(cluster, used, table, engine)
    return Prepared(request, options.name or program.name, notes, files, table.text)


def _layout(options: RunOptions, cluster: Cluster) -> Layout:
    return resolve_layout(
        cluster.device_count,
        dp=options.dp,
        mp=options.mp,
        pp=options.pp,
        micro_batches=1 if options.micro_batches is None else options.micro_batches,
        allow_idle_devices=options.allow_idle_devices,
    )


def _missing_note(
    options: RunOptions, python: PythonCommand | None, environment: Mapping[str, str], *, may_be_elsewhere: bool
) -> tuple[str, ...]:
    """Of a program that is not here, where that is no error.

    Raises:
        UnreadableError: it is one.
    """
    missing = _missing(options, python, environment)
    if missing is None:
        return ()
    if not may_be_elsewhere:
        raise missing
    return (f"warning: {missing.message}; it is looked for where ranks start",)


def _mpi_ranks(
    options: RunOptions, python: PythonCommand | None, environment: Mapping[str, str]
) -> tuple[bool, tuple[str, ...]]:
    """Whether mpirun or srun has to start a process for each rank, and what to say where nobody can tell.

    A program that calls MPI_Init asks them who it is. A shell's script, a program of another language and an installed
    package may do so unseen.
    """
    if not options.by_engine or options.mpi_ranks is not None:
        return bool(options.mpi_ranks), ()
    if options.preload is not None or not options.command:
        return False, ()
    uses: bool | None  # None: nobody can tell
    if python is None:
        from launcher.engines.mpi_match import compiled_for  # other runs need none of it

        uses = compiled_for(options.command, environment.get("PATH"), _working_directory()) is not None or None
    else:
        from launcher.program.import_scan import uses_mpi  # the same

        uses = uses_mpi(python, _working_directory(), environment)
    if uses is not None:
        return uses, ()
    name = escaped(Path(options.command[0]).name if python is None else python.target)
    return False, (f"{name} is started without MPI ranks; --mpi-ranks gives each its place in MPI_COMM_WORLD",)


def _alone_note(options: RunOptions, python: PythonCommand | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Of a program that wants to be one job of MPI, where nothing makes its ranks one.

    Only a program that has the word in its own file is read: others start no later for it.
    """
    if options.by_engine or python is None:
        return ()
    from launcher.program.files import is_of_mpi4py, mentions_mpi  # see above
    from launcher.program.import_scan import uses_mpi

    cwd = _working_directory()
    if not (mentions_mpi(python, cwd, environment) and uses_mpi(python, cwd, environment)):
        return ()
    name = "the program" if python.kind == "code" or is_of_mpi4py(python) else escaped(python.target)
    remedy = "--engine mpi" if options.rank_table is not None else "--engine mpi with a --rank-table"
    return (f"{name} imports mpi4py: every rank is alone in its MPI_COMM_WORLD; {remedy} makes them one job",)


def _cpus_note(options: RunOptions, inherited: Mapping[str, str], used: Cluster) -> tuple[str, ...]:
    """Of a job of Slurm that has fewer CPUs here than ranks."""
    if options.engine is not None or len(used.servers) > 1 or "SLURM_JOB_ID" not in inherited:
        return ()
    from launcher.engines.slurm_cpus import short_here  # others need none of it

    return short_here(inherited, used.device_count)


def _supervision(
    options: RunOptions, argv: tuple[str, ...], environment: Mapping[str, str], *, mpi_ranks: bool
) -> Supervision:
    return Supervision(
        grace_s=options.grace,
        max_restarts=options.max_restarts,
        hang_timeout_s=options.hang_timeout,
        forward_signals=signal_numbers(options.forward_signals),
        preload=None if mpi_ranks else _preload(options, argv, environment),
    )


def _cluster(options: RunOptions) -> tuple[Cluster, tuple[str, ...], _Table]:
    """The devices, what to say about them, and the table that names them."""
    if options.rank_table is None and options.engine == "slurm":
        from launcher.engines.slurm import cluster_of, read_allocation  # others need none of it

        return cluster_of(read_allocation(os.environ), options.devices), (), NO_TABLE
    if options.rank_table is None:
        notes = (one_rank_note(os.environ),) if options.devices is None else ()
        return Cluster.local(options.devices or 1), notes, NO_TABLE
    from launcher.cli.reports import found_table, sample_hinted  # --devices needs none of it
    from launcher.cli.table_size import max_table_bytes
    from launcher.rank_table import Profile, read_rank_table
    from launcher.rank_table.diagnostics import headline

    said: list[str] = []
    with sample_hinted(options.rank_table):
        path = found_table(options.rank_table, said.append)
        report = read_rank_table(path, Profile(options.chip or _chip_here()), max_bytes=max_table_bytes())
    if report.cluster is None:
        refused = RefusedTableError(report.render())
        refused.problems = report.problems
        raise refused
    said += [headline(problem, str(options.rank_table)) for problem in report.warnings]
    return report.cluster, tuple(said), _Table(report.document.text, report.format.value if report.format else "")


def one_rank_note(environment: Mapping[str, str], device_files: Path = DEVICE_FILES) -> str:
    """What is said where nobody says how many ranks there shall be, with the number of devices that would lie idle.

    Who limits the devices that can be seen knows how many there are.
    """
    note = "note: neither --devices nor --rank-table is given: there is one rank"
    count = len(davinci_ids(device_files)) or len(nvidia_ids(device_files))
    if count < 2 or any(environment.get(name) for name in VISIBLE_DEVICES):
        return note
    return f"{note}, though this machine has {count} devices; --devices {count} makes one for each"


def _chip_here() -> str:
    """On a machine without Ascend devices no process will use HCCL, and what only HCCL asks for is a warning."""
    return "auto" if davinci_ids() else "none"


def _trainer(options: RunOptions, layout: Layout) -> _Program:
    """The bundled trainer, once its recipe, the layout and the data are known to fit each other."""
    from launcher.corpus.dataset import find_splits  # other commands need none of this
    from launcher.recipes.load import load_transformer, packaged_config
    from launcher.recipes.transformer.checks import check_layout

    recipe = load_transformer(options.config, options.settings)
    if options.micro_batches is None:
        layout = replace(layout, micro_batches=recipe.train.micro_batches)
    check_layout(recipe, layout)
    arguments = [sys.executable, "-m", TRAINER]
    notes: tuple[str, ...] = ()
    if options.config is not None:
        config, packaged = Path(options.config), packaged_config(options.config)
        if packaged is not None:
            notes = (stand_in_note(options.config, "recipe", packaged),)
        arguments += ["--config", str(config.absolute()) if config.is_file() else options.config]
    for setting in options.settings:
        arguments += ["--set", setting]
    if options.data is not None:
        find_splits(options.data, recipe.data.direction)
        arguments += ["--data", str(options.data.absolute())]
    return _Program(tuple(arguments), layout, TRAINER_RUN_NAME, notes)


def _preload(options: RunOptions, argv: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """What is imported once for all ranks; None where each starts by itself."""
    if options.no_preload:
        return None
    from launcher.program.command import parse_python  # see above
    from launcher.program.import_scan import modules_to_preload

    program = parse_python(argv, environment.get("PATH"), _working_directory())
    if program is None:
        if options.preload is not None:
            raise UsageError(
                f"--preload: {argv[0]} is not started as a Python program whose ranks could be forked",
                hint="start it as `python script.py` or `python -m module`, or leave --preload out",
            )
        return None
    if options.preload is not None:
        return preloaded_modules(options.preload)
    return modules_to_preload(program, _working_directory(), environment)


def _missing(
    options: RunOptions, python: PythonCommand | None, environment: Mapping[str, str]
) -> UnreadableError | None:
    """What ranks need to start and this machine has not."""
    try:
        if options.command:
            _check_command(options.command[0], environment)
            _check_script(python)
        elif not options.dry_run:
            _check_installed()
    except UnreadableError as error:
        return error
    return None


def _check_installed() -> None:
    """One message instead of a traceback per rank. Looks, and imports nothing."""
    missing = [name for name in TRAINER_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UnreadableError(
            f"the bundled trainer needs {', '.join(missing)}, not installed for {sys.executable}",
            hint="pip install 'tlaunch[train]', or give a COMMAND of your own after --",
        )


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UnreadableError("the current directory has been removed, and ranks would start in it") from None


def _python(command: tuple[str, ...], environment: Mapping[str, str]) -> PythonCommand | None:
    """What COMMAND runs, where that is a Python program."""
    from launcher.program.command import parse_python  # the trainer needs it later

    return parse_python(command, environment.get("PATH"), _working_directory()) if command else None


def _command(command: tuple[str, ...], python: PythonCommand | None, layout: Layout) -> _Program:
    words = re.findall(r"[A-Za-z0-9_.+]+", _program_name(command, python))
    return _Program(command, layout, "-".join(words).strip(".")[:50] or "command")


def _program_name(command: tuple[str, ...], python: PythonCommand | None) -> str:
    """What tells a person's runs apart: the script or the module, not the interpreter of them all."""
    if python is None or python.kind == "code":
        return Path(command[0]).name
    return python.target if python.kind == "module" else (_working_directory() / python.target).resolve().stem


def _check_command(name: str, environment: Mapping[str, str]) -> None:
    """Look where the ranks will look."""
    search = environment.get("PATH", os.defpath)
    if shutil.which(name, path=search) is not None:
        return
    if "/" in name:
        reason = "is not executable" if Path(name).exists() else "does not exist"
        hint = "a script is started by its interpreter: -- python script.py" if Path(name).is_file() else None
        raise UnreadableError(f"{name} {reason}, so no rank could start it", hint=hint)
    local = f"; ./{name} is a file here" if Path(name).is_file() else ""
    raise UnreadableError(f"{name}: there is no such program on the ranks' PATH{local}", hint=f"PATH is {search}")


def _check_script(python: PythonCommand | None) -> None:
    """Each rank would find it out by itself, once all of them have been started."""
    if python is None or python.kind != "script":
        return
    try:
        (_working_directory() / python.target).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableError(
            f"{python.target} does not exist, so no rank could run it", hint="ranks start in the directory you are in"
        ) from None
    except OSError:  # Python will say it better
        return


def _files(cluster: Cluster, used: Cluster, table: _Table, engine: str | None) -> dict[str, str]:
    if cluster.source is None or not wants_own_table(cluster, used, engine):
        return {}
    if used.device_count == cluster.device_count:
        return {OWN_TABLE: table.text or ""}
    from launcher.rank_table import render_table  # see above
    from launcher.rank_table.convert import convert_cluster

    try:
        text = convert_cluster(used, table.format).text
    except RefusedTableError:  # a format for whole servers only, and some devices of one stay idle
        text = render_table(used)
    return {OWN_TABLE: text}


def _idle_note(cluster: Cluster, world_size: int) -> tuple[str, ...]:
    idle = cluster.device_count - world_size
    if not idle:
        return ()
    last = cluster.device_count - 1
    which = f"rank {last}" if idle == 1 else f"ranks {world_size} to {last}"
    return (f"{idle} of {cluster.device_count} devices {'stays' if idle == 1 else 'stay'} idle: {which}",)
