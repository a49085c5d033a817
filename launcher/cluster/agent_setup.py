"""Preparation and start of one server's agent in a run on several servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from launcher.cluster.job import Job, from_text
from launcher.cluster.join import Endpoint, RunOverError, Session, take_place
from launcher.cluster.meeting_check import resolved_meeting
from launcher.control.messages import JoinAccepted, Waiting
from launcher.control.orders import BeginAttempt
from launcher.core import atomic, env
from launcher.core.codec import digest_of_file, digest_of_meaning
from launcher.core.errors import RefusedTableError, TlaunchError, UnreadableError, UsageError
from launcher.core.events import AgentEnded, Cause, NotBegun
from launcher.core.frozen import frozen
from launcher.core.records import RunSpec
from launcher.core.run_dir import LATEST, RunDir
from launcher.core.text import printable
from launcher.engines.assemble import Request, assemble, servers_with_agents
from launcher.engines.host_match import own_interface
from launcher.engines.local import LocalAgent, start_agent
from launcher.engines.placement import read_machine
from launcher.program.digests import digests_of
from launcher.runs.owner import check_own_directory
from launcher.supervise.event_log import EventLog
from launcher.supervise.mpi_proxy import MpiProxies
from launcher.supervise.port import HeldPort, check_port, hold_port
from launcher.supervise.spawner import SpecifyAttempt

ANY_PORT = 0  # placeholder in a spec, until the server of rank 0 has reported its port


@frozen
class AgentSetup:
    """The result of preparing a server for a run, for example the run's spec and digests of the program."""

    spec: RunSpec
    server_index: int
    port: HeldPort | None
    program: Mapping[str, str]  # digests of its files
    request: Request  # adapted to this machine
    meeting: tuple[str, ...] | None = None  # addresses of MASTER_ADDR here; see launcher.cluster.meeting_check


def endpoint_of(environment: Mapping[str, str]) -> Endpoint:
    """Return the coordinator's endpoint from this agent's environment variables. Raise UsageError if it is missing."""
    token = environment.get(env.TLAUNCH_COORDINATOR_TOKEN, "")
    addresses = tuple(
        (host.strip("[]"), int(port))
        for host, _, port in (each.rpartition(":") for each in environment.get(env.TLAUNCH_COORDINATOR, "").split(","))
        if port.isdecimal()
    )
    if not addresses:
        raise UsageError(
            f"{env.TLAUNCH_COORDINATOR} does not contain the address of a coordinator",
            hint="use `tlaunch run`, which starts the agents and sets this variable",
        )
    return Endpoint(addresses, token)


def received_job(membership: Session) -> Job:
    """Return the job that the coordinator sent. Raise UsageError if the job is missing or cannot be parsed."""
    try:
        return from_text(membership.welcome.job or "", dict(os.environ), read_machine())
    except ValueError as error:
        raise UsageError(f"cannot parse the job that the coordinator sent: {error}") from error


def check_table(job: Job) -> None:
    """Raise RefusedTableError if this server's copy of the rank table differs from the table of the run."""
    source = job.request.cluster.source
    if source is None or job.table_text is None:
        return
    try:
        found = digest_of_file(source)
    except OSError:  # there is no file: ranks get a copy in the run directory
        return
    if found != digest_of_meaning(job.table_text.encode()):
        raise RefusedTableError(
            f"{printable(str(source))} on this server differs from the rank table of the run",
            hint="copy the rank table to every server",
        )


def get_ready(
    membership: Session,
    request: Request,
    files: Mapping[str, str],
    chosen_port: int | None,
    check: Callable[[], Mapping[str, str]] | None = None,
) -> AgentSetup:
    """Prepare the run directory, its files and the port. Report any TlaunchError to the coordinator before raising it.

    `check` returns the environment variables that the ranks' MPI needs, or raises.
    """
    server_index = membership.welcome.server_index
    try:
        name = membership.welcome.run_name
        mpi_variables = {**request.mpi_variables, **({} if check is None else check())}
        own = replace(at_place(request, server_index), mpi_variables=mpi_variables)
        spec = assemble(own, name=name, master_port=chosen_port or ANY_PORT)
        take_place(spec, server_index, files)
        if not membership.compare_files(RunDir(spec.run_dir)):
            with suppress(OSError):  # so that commands on this server find the run without its name
                atomic.point_link(spec.run_dir.parent / LATEST, spec.run_dir.name)
        port = None
        if spec.ranks[0].server_index == server_index or request.supervision.elastic is not None:
            try:
                port = hold_port() if chosen_port is None else check_port(chosen_port)
            except OSError as error:
                raise UnreadableError(f"cannot reserve a port: {error.strerror}") from error
    except TlaunchError as error:
        membership.refuse(error)
        _record_not_started(RunDir(request.runs_dir / membership.welcome.run_name, server_index), membership, error)
        raise
    program = digests_of(request.argv, {**os.environ, **request.user_env}, request.cwd)
    return AgentSetup(spec, server_index, port, program, own, resolved_meeting(spec, request))


def at_place(request: Request, server_index: int) -> Request:
    """Return a copy of the request with this server's index and network interface filled in. May block."""
    servers = servers_with_agents(request.cluster, request.layout, request.supervision).servers
    interface = own_interface(servers, server_index)
    return replace(request, here=server_index, interfaces={} if interface is None else {server_index: interface})


def awaited_begin(
    part: AgentSetup, membership: Session, on_waiting: Callable[[Waiting | JoinAccepted], None]
) -> BeginAttempt:
    """Wait for the order to start ranks. If the start fails, record the reason in the run directory."""
    try:
        master_port = None if part.port is None else part.port.number
        return membership.wait_for_start(master_port, on_waiting, part.program, part.meeting)
    except RunOverError:
        membership.forget_endpoint(RunDir(part.spec.run_dir, part.server_index))
        raise
    except TlaunchError as error:
        _record_not_started(RunDir(part.spec.run_dir, part.server_index), membership, error)
        raise


def start(
    part: AgentSetup,
    membership: Session,
    begin: BeginAttempt,
    members: MpiProxies | None = None,
    specify: SpecifyAttempt | None = None,
) -> LocalAgent:
    """Fork the agent process. Call this inside `signals_held_back`. Raises OSError.

    `members`: the placeholder processes, if the engine started one for each rank. `specify`: only for elastic runs.
    """
    spec = replace(part.spec, master_port=begin.master_port)
    port = part.port or HeldPort(begin.master_port)
    return start_agent(
        spec,
        port,
        server_index=part.server_index,
        link=membership.link(),
        first=begin,
        members=members,
        specify=specify,
    )


def _record_not_started(run_dir: RunDir, membership: Session, error: TlaunchError) -> None:
    membership.forget_endpoint(run_dir)
    with suppress(OSError, UsageError):  # there is no run directory, or it belongs to another user
        for directory in (run_dir.root, run_dir.report.parent):
            check_own_directory(directory)
        event_log = EventLog(run_dir.events, membership.welcome.server_index)
        event_log.record(NotBegun(error.message, error.hint))
        event_log.record(AgentEnded(Cause.FAILED, error.exit_code))
        event_log.close(None)
