"""The options of `tlaunch run` as one record, and the combinations that are refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from launcher.core import env
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import DEFAULT_GRACE_S, Console
from launcher.core.run_dir import DEFAULT_RUNS_DIR, can_be_in_name
from launcher.engines.placement import Bind
from launcher.logs.terminal import escaped
from launcher.preload.masking import MASK

EngineName = Literal["mpi", "slurm", "hand"]
MindSporeWay = Literal["auto", "rank-table", "cluster", "off"]
MINDSPORE_WAYS: tuple[MindSporeWay, ...] = ("auto", "rank-table", "cluster", "off")
ENGINES: tuple[EngineName, ...] = ("mpi", "slurm", "hand")
BRING_ALL = frozenset(("mpi", "slurm"))  # engines that start the agents of all servers; else people do, by hand
DEFAULT_JOIN_S = 300.0
DEFAULT_LOST_S = 15.0
DEFAULT_COORDINATOR_PORT = 29450
AUTO = "auto"  # as the checkpoint to resume
MAX_NAME_BYTES = 200  # of the 255 that a file system takes
FORWARDABLE = ("USR1", "USR2", "HUP", "WINCH", "URG")
_FLAGS = {"engine_options": "--engine-option", "settings": "--set"}  # those that are called otherwise
# What identifies a rank comes from the table and the layout alone.
DECIDED_BY_TLAUNCH = {
    **dict.fromkeys(
        (
            env.DEVICE_ID, env.RANK_ID, env.RANK_SIZE, env.RANK_TABLE_FILE, env.RANK, env.LOCAL_RANK, env.WORLD_SIZE,
            env.LOCAL_WORLD_SIZE, env.GROUP_RANK, env.GROUP_WORLD_SIZE, env.MASTER_ADDR, env.TLAUNCH_RUN_ID,
            env.TLAUNCH_ATTEMPT, env.TORCHELASTIC_RESTART_COUNT, env.TLAUNCH_HEARTBEAT_FILE,
        ),
        "it follows from the rank table and the layout",
    ),
    env.MASTER_PORT: "use --master-port",
    env.TLAUNCH_RUN_DIR: "use --runs-dir and --name",
    env.TLAUNCH_MAX_RESTARTS: "use --max-restarts",
    env.TORCHELASTIC_MAX_RESTARTS: "use --max-restarts",
    env.TLAUNCH_DP: "use --dp",
    env.TLAUNCH_MP: "use --mp",
    env.TLAUNCH_PP: "use --pp",
    env.TLAUNCH_MICRO_BATCHES: "use --micro-batches",
}  # fmt: skip


# For commands whose ranks others start: what tlaunch's own agents would see to.
UNSUPERVISED: Mapping[str, Any] = {"no_preload": True, "forward_signals": "none", "bind": "none", "console": "none"}


@frozen
class RunOptions:
    """Everything about a run, field by field as `tlaunch run` and `launcher.launch` call it."""

    command: tuple[str, ...] = ()  # empty: the bundled trainer
    # which devices, and how they are divided
    rank_table: Path | None = None
    devices: int | None = None
    chip: str | None = None  # None: what this machine has
    dp: int | None = None
    mp: int = 1
    pp: int = 1
    micro_batches: int | None = None
    allow_idle_devices: bool = False
    elastic: bool = False
    exclude: tuple[str, ...] = ()
    # the bundled trainer's
    recipe: str | None = None  # the default of the catalog
    config: str | None = None
    settings: tuple[str, ...] = ()
    data: Path | None = None
    resume: str | None = None
    save_strategy: bool = False
    profile: bool = False
    # the run
    runs_dir: Path = DEFAULT_RUNS_DIR
    name: str | None = None
    env: tuple[str, ...] = ()
    master_port: int | None = None
    # how ranks are started and watched
    grace: float = DEFAULT_GRACE_S
    max_restarts: int = 0
    hang_timeout: float | None = None
    preload: str | None = None  # None: found in the program
    no_preload: bool = False
    mindspore: MindSporeWay = "auto"
    forward_signals: str = "USR1,USR2"
    bind: Bind = "auto"
    # several servers
    engine: EngineName | None = None  # None: this machine alone, or by hand where the table has several servers
    engine_options: tuple[str, ...] = ()
    mpi_ranks: bool | None = None  # whether ranks are to be the engine's own; None: where COMMAND uses mpi4py
    server: str | None = None  # the id of the server that this machine is; None: found by its addresses and names
    join_timeout: float = DEFAULT_JOIN_S
    lost_after: float = DEFAULT_LOST_S
    allow_different_program: bool = False
    coordinator_port: int | None = None  # None: the default, or with an engine a free one
    # what becomes of it
    console: Console = "rank0"
    progress_regex: str | None = None  # None: the forms of lines that are known
    quiet: bool = False  # only errors and the verdict
    verbose: bool = False
    detach: bool = False
    dry_run: bool = False
    json: bool = False

    @property
    def by_engine(self) -> bool:
        """True where mpirun or srun starts the agents of all servers."""
        return self.engine in BRING_ALL

    @property
    def port_by_hand(self) -> int:
        """The port on which the server of rank 0 coordinates servers that are started by hand."""
        return self.coordinator_port or DEFAULT_COORDINATOR_PORT


def check_options(options: RunOptions) -> None:
    """Refuse combinations that cannot be meant.

    Raises:
        UsageError: names the options and what to do.
    """
    if options.rank_table is not None and options.devices is not None:
        raise UsageError("--rank-table and --devices both say which devices there are", hint="give one of them")
    if options.json and not options.dry_run:
        raise UsageError("--json shows what --dry-run found", hint="add --dry-run")
    contradictory = {"--preload and --no-preload": options.preload is not None and options.no_preload}
    contradictory["--quiet and --verbose"] = options.quiet and options.verbose
    for both in filter(contradictory.get, contradictory):
        raise UsageError(f"{both} contradict each other", hint="give one of them")
    if options.detach and options.dry_run:
        raise UsageError("--detach starts a run, --dry-run does not", hint="give one of them")
    trainers = {
        "--recipe": options.recipe,
        "--config": options.config,
        "--set": options.settings,
        "--data": options.data,
        "--resume": options.resume,
        "--save-strategy": options.save_strategy,
        "--profile": options.profile,
    }
    if options.command and (given := [option for option, value in trainers.items() if value]):
        raise UsageError(
            f"{' and '.join(given)} would reach the bundled trainer, but COMMAND ({options.command[0]}) is started",
            hint=f"pass {'it' if len(given) == 1 else 'them'} to COMMAND itself, after its name",
        )
    if options.command and not options.command[0]:
        raise UsageError("COMMAND is empty", hint="leave it out to start the bundled trainer")
    if options.exclude and not options.elastic:
        raise UsageError("--exclude is for runs that go on with other devices", hint="add --elastic")
    _check_engine_options(options)
    if options.name is not None:
        if not can_be_in_name(options.name):
            raise UsageError(
                f"--name {options.name!r} cannot be part of a directory's name",
                hint="letters, digits, dots and dashes do",
            )
        check_name_length(options.name, MAX_NAME_BYTES, "the run's time")


def _check_engine_options(options: RunOptions) -> None:
    if options.elastic and options.by_engine:
        raise UsageError(
            f"--elastic: agents that --engine {options.engine} starts cannot go on without one of them",
            hint="the same command on each server, or --max-restarts without --elastic",
        )
    if options.engine == "mpi" and options.rank_table is None and options.devices is None:
        raise UsageError(
            "--engine mpi: which servers?",
            hint="give a --rank-table that names them, or --devices N for ranks on this machine",
        )
    if options.engine_options and not options.by_engine:
        raise UsageError("--engine-option is for mpirun or srun", hint="add --engine mpi, or --engine slurm")
    if options.mpi_ranks is not None and not options.by_engine:
        raise UsageError(
            f"--{'' if options.mpi_ranks else 'no-'}mpi-ranks: no mpirun or srun starts ranks here",
            hint="add --engine mpi, or --engine slurm",
        )
    if options.mpi_ranks and options.preload is not None:
        raise UsageError("--preload: ranks of MPI start one by one", hint="leave --preload or --mpi-ranks out")


def flag(name: str) -> str:
    """Return the option of a field of RunOptions that is no truth value."""
    return _FLAGS.get(name) or f"--{name.replace('_', '-')}"


def words_of_option(name: str, value: Any) -> Iterator[str]:
    """Yield the words that give a field of RunOptions this value: none for None, one for each part of a tuple.

    >>> list(words_of_option("engine_options", ("--mca", "a"))), list(words_of_option("lost_after", None))
    (['--engine-option=--mca', '--engine-option=a'], [])
    """
    parts = value if isinstance(value, tuple) else (value,)
    return (f"{flag(name)}={part}" for part in parts if part is not None)


def user_environment(pairs: tuple[str, ...], option: str = "--env") -> Mapping[str, str]:
    """Return the variables given by `option` as KEY=VALUE, or as KEY to pass on its value; the last one of a name counts.

    Raises:
        UsageError: neither of these, or a name that tlaunch itself decides.
    """
    variables: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name or (not separator and name not in os.environ):
            # What was forgotten may be the = after a secret's name: the text itself is not shown.
            raise UsageError(
                f"{option}: this is neither KEY=VALUE nor the name of a variable that is set here",
                hint=f"write {option} NCCL_DEBUG=INFO, or {option} HF_TOKEN to pass on the value of this shell",
            )
        if not name.isprintable():
            raise UsageError(f"{option} {name!r}: a variable's name cannot hold control characters")
        if name in DECIDED_BY_TLAUNCH:
            raise UsageError(f"{option} {name}: tlaunch decides this variable", hint=DECIDED_BY_TLAUNCH[name])
        if value == MASK:
            raise UsageError(f"{option} {name}: {value} stands for a secret that was not shown", hint="fill it in")
        variables[name] = value if separator else os.environ[name]
    return variables


def signal_numbers(names: str) -> tuple[int, ...]:
    """Return the signals of --forward-signals: "USR1,SIGHUP"; none for "" or "none".

    Raises:
        UsageError: no signal of that name, or one that cannot be handed on.
    """
    wanted = [name.strip().upper().removeprefix("SIG") for name in names.split(",")]
    if wanted in ([""], ["NONE"]):
        return ()
    refused = [name for name in wanted if name not in FORWARDABLE]
    if refused:
        raise UsageError(
            f"--forward-signals: {refused[0] or 'an empty name'} cannot be forwarded",
            hint=f"these can: {', '.join(FORWARDABLE)}, or none",
        )
    return tuple(int(signal.Signals[f"SIG{name}"]) for name in dict.fromkeys(wanted))


def preloaded_modules(names: str) -> tuple[str, ...]:
    """Return the modules of --preload: "torch,numpy.random".

    Raises:
        UsageError: one of them is no module's name.
    """
    modules = tuple(name.strip() for name in names.split(",") if name.strip())
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"--preload: {module!r} is no module's name", hint="for instance --preload torch,numpy")
    return modules


def check_name_length(name: str, max_bytes: int, added: str) -> None:
    """Check that a name leaves room in a directory's own for what is `added` to it.

    Raises:
        UsageError: it does not.
    """
    length_bytes = len(name.encode(errors="surrogateescape"))
    if length_bytes > max_bytes:
        raise UsageError(
            f"--name is too long: {length_bytes} bytes, and {max_bytes} leave room for {added}", hint="a shorter --name"
        )


def for_engine(options: RunOptions, environment: Mapping[str, str]) -> RunOptions:
    """Return the options with the server that the environment names, where this run has use for one.

    Raises:
        UsageError: the run has no use for an option that was given.
    """
    if options.by_engine and options.coordinator_port is not None:
        raise UsageError(
            f"--coordinator-port: with --engine {options.engine} a free port is chosen, and passed to the agents",
            hint="leave it out; it is for servers that are started by hand",
        )
    if not options.by_engine and options.rank_table is not None:
        said = options.server if options.server is not None else environment.get(env.TLAUNCH_SERVER) or None
        return replace(options, server=said)
    if options.server is None:
        return options
    why = (
        f"with --engine {options.engine} each agent finds out which server it is on"
        if options.by_engine
        else "without a --rank-table this machine is the only server"
    )
    raise UsageError(
        f"--server: {why}",
        hint="leave it out; it is for servers that are started by hand, with a --rank-table that names them",
    )


def check_server_id(said: str, server_ids: Sequence[str]) -> None:
    """Raise UsageError where no server is called `said`."""
    if said not in server_ids:
        raise UsageError(
            f"--server {escaped(said)}: the rank table has no such server",
            hint=f"its servers are {', '.join(map(escaped, server_ids))}",
        )
