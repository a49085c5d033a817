"""The commands that start agents: by mpirun, by srun, or on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from launcher.cli.launch.once_per_host import reported_once
from launcher.cli.launch.prepare import Prepared
from launcher.cli.run_options import RunOptions
from launcher.cluster.agent_setup import ANY_PORT
from launcher.cluster.join import Endpoint
from launcher.cluster.mpi_ranks import members_text, stretches_of
from launcher.core import env
from launcher.core.errors import UsageError
from launcher.core.machine.engine_rank import read_task
from launcher.core.machine.interfaces import INTERFACE_VARIABLES, names_of
from launcher.core.records import RunSpec, Server
from launcher.core.resources import START
from launcher.engines.engine_command import EngineCommand
from launcher.engines.host_match import Host, read_host
from launcher.engines.mpi import find_mpirun, mpi_command
from launcher.engines.slurm import slurm_command
from launcher.engines.slurm_allocation import read_allocation

AGENT = (sys.executable, START, "agent")
HANDED_ON = (env.TLAUNCH_COORDINATOR, env.TLAUNCH_COORDINATOR_TOKEN)
# Variables that programs need to start. Only Open MPI must be asked to pass them on.
HANDED_ON_IF_SET = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", env.OMP_NUM_THREADS, env.OMP_WAIT_POLICY, env.GOMP_SPINCOUNT,
    *INTERFACE_VARIABLES,  # otherwise the user's choice applies only to ranks on this machine
)  # fmt: skip


def own_agent(server: Server, endpoint: Endpoint) -> EngineCommand:
    variables = {**endpoint_variables(endpoint), env.TLAUNCH_SERVER: server.server_id}
    return EngineCommand("the agent of this server", AGENT, variables, {})


def engine_for(
    options: RunOptions,
    servers: tuple[Server, ...],
    host: Host,
    handed_on: tuple[str, ...] = HANDED_ON,
    *,
    mpi_ranks: bool = False,
) -> Callable[[Path], EngineCommand]:
    """Return a function that builds the command to start all agents. Its argument is a directory for files.

    May run the engine to find its version. With `mpi_ranks`, the engine starts a process for each rank, and one of
    these processes on each server also becomes the agent. Raises a TlaunchError if the engine is not installed, or
    cannot start agents on these servers.
    """
    stretches = stretches_of(servers) if mpi_ranks else ()
    places = tuple(servers[index] for index, _ in stretches) or servers
    counts = [count for _, count in stretches] or None
    if options.engine == "slurm":
        _refuse_several()
        make = partial(slurm_command, read_allocation(os.environ))
    else:
        more = (env.TLAUNCH_MEMBERS,) if mpi_ranks else ()
        make = partial(
            mpi_command,
            find_mpirun(os.environ),
            environment=os.environ,
            as_root=os.geteuid() == 0,
            handed_on=(*handed_on, *more, *(name for name in HANDED_ON_IF_SET if name in os.environ)),
        )

    def command(directory: Path) -> EngineCommand:
        made = make(places, AGENT, counts=counts, options=options.engine_options, directory=directory, host=host)
        if not mpi_ranks:
            return made
        return replace(made, env={**made.env, env.TLAUNCH_MEMBERS: members_text(stretches)})

    command(options.runs_dir.absolute())  # raises errors before the run directory is created
    return command


def _refuse_several() -> None:
    """Raise UsageError if srun started several copies of this launcher, because each would launch all ranks."""
    task = read_task(os.environ, os.getpid())
    if task is not None and (task.world_size or 1) > 1:
        with reported_once(task):
            raise UsageError(
                f"srun started {task.world_size} copies of this command, and each copy would launch the whole job",
                hint="run this command without srun, or with `srun --ntasks=1 --overlap`; to start each rank with srun, use `tlaunch exec`",
            )


def with_endpoint(command: EngineCommand, endpoint: Endpoint) -> EngineCommand:
    # Unset this machine's TLAUNCH_SERVER, so that agents on other servers do not inherit it.
    return replace(command, env={**command.env, env.TLAUNCH_SERVER: None, **endpoint_variables(endpoint)})


def endpoint_variables(endpoint: Endpoint) -> dict[str, str | None]:
    words = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in endpoint.addresses)
    return {env.TLAUNCH_COORDINATOR: ",".join(words), env.TLAUNCH_COORDINATOR_TOKEN: endpoint.token}


def reachable(host: Host) -> tuple[str, ...]:
    """Return addresses at which other machines may reach this machine: IPv4 first, then IPv6, then 127.0.0.1."""
    outer = [address for address in host.addresses if not address.is_loopback and not address.is_link_local]
    return (*map(str, sorted(outer, key=lambda address: (address.version, int(address)))), "127.0.0.1")


def engine_command(prepared: Prepared, spec: RunSpec) -> EngineCommand:
    """Return the engine's command for display, with placeholders for the coordinator's address and token."""
    servers = prepared.used.servers
    host = read_host(server_names(servers))
    endpoint = Endpoint(tuple((address, ANY_PORT) for address in reachable(host)), "chosen for each run")
    command = engine_for(prepared.options, servers, host, mpi_ranks=prepared.request.mpi_ranks)
    return with_endpoint(command(spec.run_dir), endpoint)


def server_names(servers: tuple[Server, ...]) -> list[str]:
    return [name for server in servers for name in names_of(server)]
