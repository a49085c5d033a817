"""A run over several servers, from this one: coordinated here, or joined where another server's launcher coordinates it."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shlex import join as shell_words

from launcher.cli.attendance import Attendance
from launcher.cli.between_servers import with_network
from launcher.cli.columns import awaited, server_list
from launcher.cli.detach import detach
from launcher.cli.engine_options import check_server_id
from launcher.cli.once_per_server import told_once
from launcher.cli.options import RunOptions
from launcher.cli.prepare import Prepared
from launcher.cli.start import say_notes, wait_for_start
from launcher.core import env
from launcher.core.engine_rank import read_task
from launcher.core.env import masked_argv
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.interfaces import INTERFACE_VARIABLES, names_of
from launcher.core.json_text import json_text
from launcher.core.messages import Waiting
from launcher.core.records import Cluster, RunSpec, Server
from launcher.core.resources import PACKAGE
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import assemble
from launcher.engines.cluster.agent_connection import RANK_TABLE, listen
from launcher.engines.cluster.agent_setup import ANY_PORT, awaited_begin, get_ready, start
from launcher.engines.cluster.asker_endpoint import AskerEndpoint, write_endpoint
from launcher.engines.cluster.job import Job, to_text
from launcher.engines.cluster.join import AgentInfo, Endpoint, Session, join
from launcher.engines.cluster.mpi_ranks import members_text, stretches_of
from launcher.engines.cluster.plan import COMMAND, Plan
from launcher.engines.command import EngineCommand
from launcher.engines.host_match import Host, read_host, servers_here
from launcher.engines.local import signals_held_back, start_child
from launcher.logs.terminal import escaped
from launcher.runs.create import create_run

AGENT = (sys.executable, "-m", "launcher", "agent")
# On this machine tlaunch may be a checkout that is not installed. Nothing that lies where the user is is imported.
OWN_AGENT = (
    sys.executable,
    "-c",
    f"import sys; sys.path[:] = [{str(PACKAGE.parent)!r}, *filter(None, sys.path)]; from launcher.cli.main import main; main()",
    "agent",
)
HANDED_ON = (env.TLAUNCH_COORDINATOR, env.TLAUNCH_COORDINATOR_TOKEN)
# Of this shell what programs need to be found at all; engines other than Open MPI hand on everything.
HANDED_ON_IF_SET = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS",
    *INTERFACE_VARIABLES,  # else the user's choice would hold for ranks on this machine alone
)  # fmt: skip


def carry_out_on_servers(prepared: Prepared, wanted_name: str, options: RunOptions) -> int:
    """Start this machine's part, and whatever the engine starts; attend until nothing is left; the run's exit code.

    Raises:
        TlaunchError: this machine, or the engine, does not fit.
    """
    servers = prepared.used.servers
    host = read_host(server_names(servers))
    prepared = with_network(prepared, options, host)
    if options.engine in {"mpi", "slurm"}:
        return _coordinate(prepared, wanted_name, options, host, None)
    here = this_server(servers, host, options.server)
    if here == prepared.used.first_server:
        return _coordinate(prepared, wanted_name, options, host, here)
    return _take_part(prepared, options, servers, host, here)


# --- on the machine that coordinates ---


def _coordinate(prepared: Prepared, wanted_name: str, options: RunOptions, host: Host, here: int | None) -> int:
    """`here`: which server this is, where others are started by hand; None where an engine brings all."""
    from launcher.engines.cluster.coordinator import Coordinator

    servers = prepared.used.servers
    if options.engine == "slurm":
        prepared = _within_job(prepared, host)
    command = engine_for(options, servers, host, mpi_ranks=prepared.request.mpi_ranks) if here is None else None
    with signals_held_back():
        listener, door = open_door(host, None if here is None else options.coordinator_port)
        spec = _create(prepared, wanted_name, options)
        say_notes(prepared, spec)
        plan = Plan(
            listener=listener,
            token=door.token,
            shared_token=shared_token(),
            silence_s=options.lost_after,
            join_timeout_s=options.join_timeout,
            engine=with_door(command(spec.run_dir), door) if command else own_agent(servers[here or 0], door),
            brings_all=here is None,
            job=to_text(_job(prepared, options)),
            agreement=agreement(prepared),
            engine_anew=prepared.request.mpi_ranks,
            resolved=tuple((name, frozenset(map(str, found))) for name, found in host.resolved),
            same_program=not options.allow_different_program,
            key=secrets.token_hex(16),
        )
        port = listener.getsockname()[1]
        write_endpoint(
            RunDir(spec.run_dir), AskerEndpoint(tuple((address, port) for address in reachable(host)), plan.key)
        )
        detached = detach(RunDir(spec.run_dir).console_log) if options.detach else None
        if detached is not None and detached.is_parent:
            listener.close()
            return wait_for_start(detached, spec)
        child = start_child(lambda head: Coordinator(spec, plan, head).run(), RunDir(spec.run_dir))
        listener.close()
        attendance = Attendance(spec, child, detached)
    return attendance.attend()


def open_door(host: Host, chosen_port: int | None) -> tuple[socket.socket, Endpoint]:
    """A listener, and where this machine's agent finds it, or all agents where no port is chosen.

    Raises:
        UsageError: the port is taken.
    """
    try:
        listener = listen(ANY_PORT if chosen_port is None else chosen_port)
    except OSError as error:
        raise UsageError(
            f"port {chosen_port} cannot be used: {error.strerror}",
            hint="another run is coordinated here? --coordinator-port N, on every server, takes another one",
        ) from error
    port = listener.getsockname()[1]
    addresses = reachable(host) if chosen_port is None else ("127.0.0.1",)
    return listener, Endpoint(tuple((address, port) for address in addresses), secrets.token_hex(16))


def _create(prepared: Prepared, wanted_name: str, options: RunOptions) -> RunSpec:
    def specify(name: str) -> RunSpec:
        return assemble(prepared.request, name=name, master_port=options.master_port or ANY_PORT)

    return create_run(prepared.request.runs_dir, wanted_name, specify, prepared.files)


def _job(prepared: Prepared, options: RunOptions) -> Job:
    return Job(prepared.request, prepared.files, prepared.table_text, options.master_port)


def own_agent(server: Server, door: Endpoint) -> EngineCommand:
    """Starts the agent of this server alone."""
    variables = {**door_variables(door), env.TLAUNCH_SERVER: server.server_id}
    return EngineCommand("the agent of this server", OWN_AGENT, variables, {})


def engine_for(
    options: RunOptions,
    servers: tuple[Server, ...],
    host: Host,
    handed_on: tuple[str, ...] = HANDED_ON,
    *,
    mpi_ranks: bool = False,
) -> Callable[[Path], EngineCommand]:
    """Given a directory for its files: the command that starts an agent on each of `servers`. Asks for versions.

    `mpi_ranks`: it starts a process for each rank, one of which becomes the agent of its server too.

    Raises:
        TlaunchError: the engine that was asked for is not here, or cannot start agents on these servers.
    """
    make = _srun if options.engine == "slurm" else _mpirun
    if not mpi_ranks:
        command = make(options, servers, None, host, handed_on)
    else:
        stretches = stretches_of(servers)
        places = tuple(servers[stretch.server_index] for stretch in stretches)
        of_places = make(options, places, [stretch.count for stretch in stretches], host, handed_on)

        def command(directory: Path) -> EngineCommand:
            made = of_places(directory)
            return replace(made, env={**made.env, env.TLAUNCH_MEMBERS: members_text(stretches)})

    command(options.runs_dir.absolute())  # what it refuses is refused before there is a run
    return command


def _srun(
    options: RunOptions,
    servers: tuple[Server, ...],
    counts: Sequence[int] | None,
    host: Host,
    _handed_on: tuple[str, ...],
) -> Callable[[Path], EngineCommand]:
    from launcher.engines.slurm import read_allocation, slurm_command

    _refuse_several()
    allocation = read_allocation(os.environ)

    def command(directory: Path) -> EngineCommand:
        return slurm_command(
            allocation, servers, AGENT, counts=counts, options=options.engine_options, directory=directory, host=host
        )

    return command


def _refuse_several() -> None:
    """A launcher that srun starts several times would start all ranks as often, on the same devices."""
    task = read_task(os.environ, os.getpid())
    if task is None or (task.world_size or 1) == 1:
        return
    with told_once(task):
        raise UsageError(
            f"srun started this command {task.world_size} times, and each would start all servers of a run of its own",
            hint="give it to no srun: by itself it starts an agent on each node; or to `srun --ntasks=1 --overlap`; "
            "`tlaunch exec` is what srun starts for each device",
        )


def _within_job(prepared: Prepared, host: Host) -> Prepared:
    """No grace is promised that Slurm will not give, and who asked for too few CPUs is told."""
    from launcher.engines.slurm import cpus_notes, read_allocation
    from launcher.engines.slurm_time import within_job

    request = prepared.request
    allocation = read_allocation(os.environ)
    supervision = within_job(request.supervision, allocation, os.environ)
    notes = (*prepared.notes, *cpus_notes(allocation, prepared.used.servers, host))
    # What Slurm says of this process it does not say of ranks, and that is worth no note: their agents are its tasks.
    inherited = {name: value for name, value in request.inherited_env.items() if not name.startswith("SLURM_")}
    return replace(prepared, request=replace(request, supervision=supervision, inherited_env=inherited), notes=notes)


def _mpirun(
    options: RunOptions,
    servers: tuple[Server, ...],
    counts: Sequence[int] | None,
    host: Host,
    handed_on: tuple[str, ...],
) -> Callable[[Path], EngineCommand]:
    from launcher.engines.mpi import find_mpirun, mpi_command

    mpirun = find_mpirun(os.environ)

    def command(directory: Path) -> EngineCommand:
        return mpi_command(
            mpirun,
            servers,
            AGENT,
            host=host,
            environment=os.environ,
            as_root=os.geteuid() == 0,
            counts=counts,
            handed_on=(
                *handed_on,
                *(() if counts is None else (env.TLAUNCH_MEMBERS,)),
                *(name for name in HANDED_ON_IF_SET if name in os.environ),
            ),
            options=options.engine_options,
            directory=directory,
        )

    return command


def with_door(command: EngineCommand, door: Endpoint) -> EngineCommand:
    # Which server this machine is must not be what agents on others take themselves for.
    return replace(command, env={**command.env, env.TLAUNCH_SERVER: None, **door_variables(door)})


def door_variables(door: Endpoint) -> dict[str, str | None]:
    words = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in door.addresses)
    return {env.TLAUNCH_COORDINATOR: ",".join(words), env.TLAUNCH_COORDINATOR_TOKEN: door.token}


def reachable(host: Host) -> tuple[str, ...]:
    """Of this machine's addresses those that others may know it by, IPv4 first; this machine itself is always one."""
    outer = [address for address in host.addresses if not address.is_loopback and not address.is_link_local]
    return (*map(str, sorted(outer, key=lambda address: (address.version, int(address)))), "127.0.0.1")


def engine_command(prepared: Prepared, options: RunOptions, spec: RunSpec) -> EngineCommand:
    """As it would be started for `spec`; where the coordinator would be and its token are examples.

    Raises:
        TlaunchError: as `engine_for`.
    """
    servers = prepared.used.servers
    host = read_host(server_names(servers))
    door = Endpoint(tuple((address, ANY_PORT) for address in reachable(host)), "chosen for each run")
    command = engine_for(options, servers, host, mpi_ranks=prepared.request.mpi_ranks)
    return with_door(command(spec.run_dir), door)


# --- on other servers that are started by hand ---


def _take_part(prepared: Prepared, options: RunOptions, servers: tuple[Server, ...], host: Host, here: int) -> int:
    """Join the run that the first server coordinates, and attend to this server's ranks."""
    membership = join_first_server(options, servers, host, here, agreement(prepared))
    part = get_ready(membership, prepared.request, prepared.files, options.master_port)
    say_notes(prepared, part.spec)
    with signals_held_back():
        detached = detach(RunDir(part.spec.run_dir, here).console_log) if options.detach else None
        if detached is not None and detached.is_parent:
            membership.close()
            return wait_for_start(detached, part.spec)
    if detached is not None:
        detached.tell_started()  # the other servers may be started from the same shell after this one
    begin = awaited_begin(part, membership, _say_missing)
    with signals_held_back():
        agent = start(part, membership, begin)
        attendance = Attendance(part.spec, agent, detached, here)
    return attendance.attend()


def join_first_server(
    options: RunOptions, servers: tuple[Server, ...], host: Host, here: int, agreed: Mapping[str, str]
) -> Session:
    """As one of the servers on which the same command is started by hand.

    Raises:
        TlaunchError: the first server does not answer in time, or does not want this one.
    """
    first = servers[Cluster(servers).first_server].server_id
    whom = f"the launcher on server {first}"
    member = AgentInfo(
        host=host.name,
        addresses=tuple(map(str, host.addresses)),
        said=servers[here].server_id,
        agreement=agreed,
    )
    door = Endpoint(((first, options.coordinator_port),), shared_token())
    until = time.monotonic() + options.join_timeout
    return join(door, member, until, lambda why: say(awaited(f"{whom} ({why})", options.join_timeout)), whom)


def shared_token() -> str:
    """Alike on every server, if the person who starts them by hand wants strangers kept out."""
    return os.environ.get(env.TLAUNCH_COORDINATOR_TOKEN, "")


def _say_missing(waiting: Waiting) -> None:
    say(awaited(server_list(waiting.missing), waiting.limit_s))


def say(line: str) -> None:
    with suppress(OSError):  # nobody reads stderr
        print(line, file=sys.stderr, flush=True)


# --- what all servers must have alike ---


def agreement(prepared: Prepared) -> Mapping[str, str]:
    """By what it is called. Values of variables and words of the command that may be secret are not in it."""
    request = prepared.request
    servers, supervision = request.cluster.servers, request.supervision
    command = _without_place(request.argv)
    return {
        RANK_TABLE: f"{_extent(servers)} ({_digest([repr(server) for server in servers])})",
        "layout": f"{request.layout} micro_batches={request.layout.micro_batches}",
        COMMAND: f"{shell_words(masked_argv(command))} ({_digest(command)})",
        "set of --env variables": f"{' '.join(sorted(request.user_env)) or 'none'} ({_digest(sorted(request.user_env.items()))})",
        "--max-restarts": str(supervision.max_restarts),
        "--hang-timeout": str(supervision.hang_timeout_s),
    }


def _extent(servers: Sequence[Server]) -> str:
    return f"{sum(len(server.devices) for server in servers)} devices on {len(servers)} servers"


def _without_place(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Programs may be at other places on other servers, this Python first of all."""
    return ("python" if argv[0] == sys.executable else Path(argv[0]).name, *argv[1:])


def _digest(value: object) -> str:
    return sha256(json_text(value).encode()).hexdigest()[:12]


# --- which server is this? ---


def server_names(servers: tuple[Server, ...]) -> list[str]:
    return [name for server in servers for name in names_of(server)]


def this_server(servers: tuple[Server, ...], host: Host, said: str | None) -> int:
    """Which server of the table this machine is.

    Raises:
        UsageError, RefusedLayoutError: none, or it cannot be told.
    """
    ids = [server.server_id for server in servers]
    if said is not None:
        check_server_id(said, ids)
        return ids.index(said)
    fitting = servers_here(servers, host)
    if len(fitting) == 1:
        return servers.index(fitting[0])
    what = "could be any of" if fitting else "is none of"
    device_count = sum(len(server.devices) for server in servers)
    raise RefusedLayoutError(
        f"this machine, {host.name}, {what} the rank table's servers {', '.join(map(escaped, ids))}",
        hint="start the command on every server (--server ID says which one this is), or have them started from here: "
        f"--engine mpi, --engine slurm; `tlaunch run --dry-run` shows what each would run; --devices {device_count} "
        "stands for as many ranks on this machine",
    )
