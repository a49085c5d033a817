"""The options of `tlaunch run` as one record, and checks of which can be combined."""

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
from launcher.core.records import DEFAULT_GRACE_S
from launcher.core.run_dir import DEFAULT_RUNS_DIR, can_be_in_name
from launcher.engines.placement import Bind
from launcher.logs.terminal import escaped
from launcher.preload.masking import MASK

EngineName = Literal["mpi", "slurm", "hand"]
MindSporeWay = Literal["auto", "rank-table", "cluster", "off"]
MINDSPORE_WAYS: tuple[MindSporeWay, ...] = ("auto", "rank-table", "cluster", "off")
ENGINES: tuple[EngineName, ...] = ("mpi", "slurm", "hand")
BRING_ALL = frozenset(("mpi", "slurm"))  # engines that start the agents of all servers
DEFAULT_JOIN_S = 300.0
DEFAULT_LOST_S = 15.0
DEFAULT_COORDINATOR_PORT = 29450
AUTO = "auto"  # value of --resume
MAX_NAME_BYTES = 200  # file systems allow 255
FORWARDABLE = ("USR1", "USR2", "HUP", "WINCH", "URG")
_FLAGS = {"engine_options": "--engine-option", "settings": "--set"}  # options with another name than their field
OF_TRAINER = (
    "recipe",
    "config",
    "settings",
    "data",
    "source",
    "target",
    "resume",
    "init_from",
    "save_strategy",
    "profile",
    "device_memory",
)  # only for the bundled trainer
# Variables that --env cannot set, each with the hint of the error.
DECIDED_BY_TLAUNCH = {
    **dict.fromkeys(
        (
            env.DEVICE_ID, env.RANK_ID, env.RANK_SIZE, env.RANK_TABLE_FILE, env.RANK, env.LOCAL_RANK, env.WORLD_SIZE,
            env.LOCAL_WORLD_SIZE, env.GROUP_RANK, env.GROUP_WORLD_SIZE, env.MASTER_ADDR, env.TLAUNCH_RUN_ID,
            env.TLAUNCH_ATTEMPT, env.TORCHELASTIC_RESTART_COUNT, env.TLAUNCH_HEARTBEAT_FILE,
        ),
        "remove it; tlaunch derives it from the rank table and the layout",
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


# Options for ranks that tlaunch does not supervise (`exec`, `render`).
UNSUPERVISED: Mapping[str, Any] = {"no_preload": True, "forward_signals": "none", "bind": "none", "console": "none"}


@frozen
class RunOptions:
    """The options of a run, named as in `tlaunch run` and `launcher.launch`."""

    command: tuple[str, ...] = ()  # empty: the bundled trainer
    # devices and layout
    rank_table: Path | None = None
    devices: int | None = None
    chip: str | None = None  # None: the chip of this machine
    dp: int | None = None
    mp: int = 1
    pp: int = 1
    micro_batches: int | None = None
    allow_idle_devices: bool = False
    elastic: bool = False
    exclude: tuple[str, ...] = ()
    # the bundled trainer
    recipe: str | None = None  # None: the default recipe
    config: str | None = None
    settings: tuple[str, ...] = ()
    data: Path | None = None
    source: Path | None = None  # with `target`, instead of `data`
    target: Path | None = None
    resume: str | None = None
    init_from: str | None = None
    save_strategy: bool = False
    profile: bool = False
    device_memory: int | None = None  # bytes for the tensors of a rank
    # the run
    runs_dir: Path = DEFAULT_RUNS_DIR
    name: str | None = None
    env: tuple[str, ...] = ()
    master_port: int | None = None
    # starting and supervising ranks
    grace: float = DEFAULT_GRACE_S
    max_restarts: int = 0
    hang_timeout: float | None = None
    timeout: float | None = None  # of the run, including restarts
    preload: str | None = None  # None: the modules that the program imports
    no_preload: bool = False
    mindspore: MindSporeWay = "auto"
    forward_signals: str = "USR1,USR2"
    bind: Bind = "auto"
    # several servers
    engine: EngineName | None = None  # None: only this machine, or "hand" if the table has several servers
    engine_options: tuple[str, ...] = ()
    mpi_ranks: bool | None = None  # whether the engine starts the ranks itself; None: if COMMAND uses MPI
    server: str | None = None  # this machine's server_id; None: found by its addresses and host names
    join_timeout: float = DEFAULT_JOIN_S
    lost_after: float = DEFAULT_LOST_S
    allow_different_program: bool = False
    coordinator_port: int | None = None  # None: the default, or a free port with an engine
    # output
    console: str = "rank0"  # a Console, or ranks such as "0,3-5"
    stdin: int | None = None  # the rank that reads this process's stdin
    progress_regex: str | None = None  # None: the built-in patterns
    quiet: bool = False  # print only errors and the verdict
    verbose: bool = False
    detach: bool = False
    dry_run: bool = False
    json: bool = False

    @property
    def by_engine(self) -> bool:
        """True if mpirun or srun starts the agents of all servers."""
        return self.engine in BRING_ALL

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The path of --data, or the paths of --source and --target. Empty if none is given."""
        return tuple(path for path in (self.data, self.source, self.target) if path is not None)

    @property
    def port_by_hand(self) -> int:
        """The coordinator's port if servers are started by hand: --coordinator-port or its default."""
        return self.coordinator_port or DEFAULT_COORDINATOR_PORT


def check_options(options: RunOptions) -> None:
    """Raise UsageError if options conflict, or if an option is set without another option that it needs."""
    contradictory = {
        "--rank-table and --devices": options.rank_table is not None and options.devices is not None,
        "--preload and --no-preload": options.preload is not None and options.no_preload,
        "--quiet and --verbose": options.quiet and options.verbose,
        "--detach and --dry-run": options.detach and options.dry_run,
        "--data and --source": options.data is not None and options.source is not None,
        "--data and --target": options.data is not None and options.target is not None,
        "--detach and --stdin": options.detach and options.stdin is not None,
        "--elastic and --stdin": options.elastic and options.stdin is not None,
        "--engine and --stdin": options.engine is not None and options.stdin is not None,
        "--console and --stdin, which shows the output of its rank,": options.console != RunOptions.console
        and options.stdin is not None,
    }
    for both in filter(contradictory.get, contradictory):
        raise UsageError(f"{both} cannot be combined", hint="give one of them")
    if (options.source is None) != (options.target is None):
        one, other = ("--target", "--source") if options.source is None else ("--source", "--target")
        raise UsageError(
            f"{one} needs {other}", hint=f"add {other} FILE; line N of one file must translate line N of the other"
        )
    if options.json and not options.dry_run:
        raise UsageError("--json needs --dry-run", hint="add --dry-run")
    if options.command and (given := [flag(name) for name in OF_TRAINER if getattr(options, name)]):
        them = "it" if len(given) == 1 else "them"
        raise UsageError(
            f"options of the bundled trainer cannot be combined with COMMAND ({options.command[0]}): {' and '.join(given)}",
            hint=f"put {them} after COMMAND to pass {them} to that program",
        )
    if options.command and not options.command[0]:
        raise UsageError("COMMAND is empty", hint="leave COMMAND out to start the bundled trainer")
    if options.exclude and not options.elastic:
        raise UsageError("--exclude needs --elastic", hint="add --elastic")
    _check_engine_options(options)
    if options.name is not None:
        if not can_be_in_name(options.name):
            message = f"--name {options.name!r} cannot be part of a directory's name"
            raise UsageError(message, hint="use letters, digits, `.` and `-`")
        check_name_length(options.name, MAX_NAME_BYTES, "the run's start time")


def _check_engine_options(options: RunOptions) -> None:
    if options.elastic and options.by_engine:
        raise UsageError(
            f"--elastic cannot be combined with --engine {options.engine}: with mpirun or srun, a run ends if one agent is lost",
            hint="run the same command on each server without --engine, or use --max-restarts instead of --elastic",
        )
    if options.engine == "mpi" and options.rank_table is None and options.devices is None:
        raise UsageError(
            "--engine mpi needs --rank-table or --devices",
            hint="use `--rank-table FILE` for several servers, or `--devices N` for this machine",
        )
    given = ["--engine-option"] if options.engine_options else []
    given += [] if options.mpi_ranks is None else [f"--{'' if options.mpi_ranks else 'no-'}mpi-ranks"]
    if given and not options.by_engine:
        raise UsageError(f"{given[0]} is only for mpirun and srun", hint="add --engine mpi or --engine slurm")
    if options.mpi_ranks and options.preload is not None:
        raise UsageError(
            "--preload cannot be combined with --mpi-ranks: mpirun or srun starts each rank as a new process",
            hint="leave out --preload or --mpi-ranks",
        )


def flag(name: str) -> str:
    """Return the command-line option for a field of RunOptions."""
    return _FLAGS.get(name) or f"--{name.replace('_', '-')}"


def words_of_option(name: str, value: Any) -> Iterator[str]:
    """Yield the command-line words that set a field of RunOptions to `value`.

    A tuple gives one word for each part; None gives no words.

    >>> list(words_of_option("engine_options", ("--mca", "a"))), list(words_of_option("lost_after", None))
    (['--engine-option=--mca', '--engine-option=a'], [])
    """
    parts = value if isinstance(value, tuple) else (value,)
    return (f"{flag(name)}={part}" for part in parts if part is not None)


def user_environment(pairs: tuple[str, ...], option: str = "--env") -> Mapping[str, str]:
    """Parse the values of --env: KEY=VALUE sets a variable, and KEY copies it from the environment.

    Raises UsageError if a value has another form, or if tlaunch sets the variable itself.
    """
    variables: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name or (not separator and name not in os.environ):
            # The text is not shown: it may be a secret whose = was forgotten.
            raise UsageError(
                f"{option} expects KEY=VALUE, or the name of a variable that is set in this shell",
                hint="for example, write NCCL_DEBUG=INFO, or only HF_TOKEN to copy the variable from this shell",
            )
        if not name.isprintable():
            raise UsageError(f"{option} {name!r}: the name of a variable cannot contain control characters")
        if name in DECIDED_BY_TLAUNCH:
            raise UsageError(f"{option} {name}: tlaunch sets this variable itself", hint=DECIDED_BY_TLAUNCH[name])
        if value == MASK:
            masked = f"{option} {name}: {value} is the placeholder of a masked secret"
            raise UsageError(masked, hint="fill in the value")
        variables[name] = value if separator else os.environ[name]
    return variables


def signal_numbers(names: str) -> tuple[int, ...]:
    """Parse the value of --forward-signals, such as "USR1,SIGHUP". The value "none" means no signals.

    Raises UsageError if a name is unknown or the signal cannot be forwarded.
    """
    wanted = [name.strip().upper().removeprefix("SIG") for name in names.split(",")]
    if wanted in ([""], ["NONE"]):
        return ()
    refused = [name for name in wanted if name not in FORWARDABLE]
    if refused:
        raise UsageError(
            f"--forward-signals: {refused[0] or 'an empty name'} cannot be forwarded",
            hint=f"choose from {', '.join(FORWARDABLE)} and none",
        )
    return tuple(int(signal.Signals[f"SIG{name}"]) for name in dict.fromkeys(wanted))


def preloaded_modules(names: str) -> tuple[str, ...]:
    """Parse the value of --preload, such as "torch,numpy.random". Raises UsageError for an invalid module name."""
    modules = tuple(name.strip() for name in names.split(",") if name.strip())
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(
                f"--preload: {module!r} is not a valid module name",
                hint="separate names with commas, for example `--preload torch,numpy`",
            )
    return modules


def check_name_length(name: str, max_bytes: int, added: str) -> None:
    """Raise UsageError if a run name exceeds `max_bytes` and thus leaves no room for the text `added`."""
    length_bytes = len(name.encode(errors="surrogateescape"))
    if length_bytes > max_bytes:
        raise UsageError(
            f"--name is too long: its {length_bytes} bytes leave no room for {added}",
            hint=f"shorten the name to at most {max_bytes} bytes",
        )


def for_engine(options: RunOptions, environment: Mapping[str, str]) -> RunOptions:
    """Return the options. If servers are started by hand, `server` defaults to the variable TLAUNCH_SERVER.

    Raises UsageError if `server` or `coordinator_port` is given but has no effect on this run.
    """
    if options.by_engine and options.coordinator_port is not None:
        raise UsageError(
            f"--coordinator-port cannot be combined with --engine {options.engine}, which uses a free port",
            hint="leave out --coordinator-port: only --engine hand uses this option",
        )
    if not options.by_engine and options.rank_table is not None:
        said = options.server if options.server is not None else environment.get(env.TLAUNCH_SERVER) or None
        return replace(options, server=said)
    if options.server is None:
        return options
    why = (
        f"cannot be combined with --engine {options.engine}: each agent detects its own server"
        if options.by_engine
        else "needs --rank-table: without a table, this machine is the only server"
    )
    hint = "leave out --server, which is only for servers of a rank table that are started by hand"
    raise UsageError(f"--server {why}", hint=hint)


def check_server_id(said: str, server_ids: Sequence[str]) -> None:
    """Raise UsageError if the rank table has no server with the ID `said`."""
    if said not in server_ids:
        raise UsageError(
            f"--server {escaped(said)} is not a server in the rank table",
            hint=f"choose from {', '.join(map(escaped, server_ids))}",
        )
