"""Start a run on several servers: coordinate it, or join the coordinator on another server."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from launcher.cli.launch.begin import LaunchOutcome, announce, attendance, begin_run, wait_for_start
from launcher.cli.launch.detach import detach
from launcher.cli.launch.dry_run import render_engine
from launcher.cli.launch.elastic import attempt_spec
from launcher.cli.launch.engine_commands import engine_for, own_agent, reachable, server_names, with_endpoint
from launcher.cli.launch.prepare import Prepared
from launcher.cli.launch.rank_network import with_network
from launcher.cli.launch.shared_token import draw_token, known_tokens
from launcher.cli.run_options import RunOptions, check_server_id
from launcher.cli.text.columns import awaited, server_list
from launcher.cli.text.stdout import say
from launcher.cluster.agent_connection import RANK_TABLE, listen
from launcher.cluster.agent_setup import ANY_PORT, awaited_begin, get_ready, start
from launcher.cluster.coordinator_files import ControlEndpoint, write_endpoint
from launcher.cluster.job import COMMAND, Job, Plan, to_text
from launcher.cluster.join import AgentInfo, Endpoint, RunOverError, Session, join
from launcher.control.messages import JoinAccepted, Waiting
from launcher.core.codec import json_text
from launcher.core.devices import device_name
from launcher.core.errors import RefusedLayoutError, TlaunchError, UsageError
from launcher.core.machine.proc import ProcessId
from launcher.core.records import Cluster, Server
from launcher.core.resources import START
from launcher.core.run_dir import RunDir
from launcher.core.text import shell_words
from launcher.engines.host_match import Host, local_servers, read_host
from launcher.engines.local import signals_held_back, start_child
from launcher.engines.slurm import cpus_notes
from launcher.engines.slurm_allocation import read_allocation
from launcher.engines.slurm_time import within_job
from launcher.logs.terminal import escaped
from launcher.preload.masking import masked_argv
from launcher.runs.store import last_agent
from launcher.supervise.port import reason_of

LOOK_S = 0.2  # polling interval for a process


def run_on_servers(prepared: Prepared) -> LaunchOutcome:
    """Coordinate or join the run, wait for it to end, and return its outcome.

    Raises a TlaunchError if this machine or the engine does not match the rank table.
    """
    servers = prepared.used.servers
    host = read_host(server_names(servers))
    prepared = with_network(prepared, host)
    if prepared.options.by_engine:
        return _coordinate(prepared, host, None)
    here = this_server(servers, host, prepared.options.server)
    if here == prepared.used.first_server:
        return _coordinate(prepared, host, here)
    return _take_part(prepared, host, here)


# --- on the coordinator's machine ---


def _coordinate(prepared: Prepared, host: Host, here: int | None) -> LaunchOutcome:
    """Coordinate the run. `here` is this server's index, or None if an engine starts all agents."""
    from launcher.cluster.coordinator import Coordinator  # only on the coordinator

    options, servers, table = prepared.options, prepared.used.servers, prepared.table
    if options.engine == "slurm":
        prepared = _within_allocation(prepared, host)
    command = engine_for(options, servers, host, mpi_ranks=prepared.request.mpi_ranks) if here is None else None
    with signals_held_back():
        listener, endpoint = open_endpoint(host, None if here is None else options.port_by_hand)
        spec = begin_run(prepared, options.master_port or ANY_PORT)
        engine = with_endpoint(command(spec.run_dir), endpoint) if command else own_agent(servers[here or 0], endpoint)
        plan = Plan(
            listener=listener,
            token=endpoint.token,
            shared_token="" if options.by_engine else draw_token(spec.run_dir.parent, os.environ),
            silence_s=options.lost_after,
            join_timeout_s=options.join_timeout,
            engine=engine,
            brings_all=options.by_engine,
            job=to_text(Job(prepared.request, prepared.files, table.text, table.format, options.master_port)),
            agreement=agreement(prepared),
            engine_anew=prepared.request.mpi_ranks,
            resolved=tuple((name, frozenset(map(str, found))) for name, found in host.resolved),
            same_program=not options.allow_different_program,
            key=secrets.token_hex(16),
        )
        if options.verbose and options.by_engine:
            for line in render_engine(plan.engine):
                say(line)
        port = listener.getsockname()[1]
        addresses = tuple((address, port) for address in reachable(host))
        write_endpoint(RunDir(spec.run_dir), ControlEndpoint(addresses, plan.key))
        detached = detach(RunDir(spec.run_dir).console_log) if options.detach else None
        if detached is not None and detached.is_parent:
            listener.close()
            return wait_for_start(detached, spec, options)
        child = start_child(lambda head: Coordinator(spec, plan, head).run(), RunDir(spec.run_dir))
        listener.close()
        attend = attendance(spec, child, detached, quiet=options.quiet)
    return attend()


def _within_allocation(prepared: Prepared, host: Host) -> Prepared:
    """Adapt a run to its Slurm job: fit the grace period to the time limit, and add notes on the job's CPUs."""
    request, allocation = prepared.request, read_allocation(os.environ)
    # Slurm's variables describe this process, not the ranks: Slurm starts their agents as separate tasks.
    inherited = {name: value for name, value in request.inherited_env.items() if not name.startswith("SLURM_")}
    supervision = within_job(request.supervision, allocation, os.environ)
    return replace(
        prepared,
        request=replace(request, supervision=supervision, inherited_env=inherited),
        notes=(*prepared.notes, *cpus_notes(allocation, prepared.used.servers, host)),
    )


def open_endpoint(host: Host, chosen_port: int | None) -> tuple[socket.socket, Endpoint]:
    """Return a listening socket and its endpoint. Raises UsageError if the port is in use.

    With a chosen port, the endpoint contains only the loopback address, for the agent on this machine. Otherwise it
    contains all addresses of this machine, for the agents on all servers.
    """
    try:
        listener = listen(ANY_PORT if chosen_port is None else chosen_port)
    except OSError as error:
        raise UsageError(
            f"port {chosen_port} cannot be used: {reason_of(error, chosen_port or ANY_PORT)}",
            hint="if another run uses this port, choose another port with --coordinator-port N on every server",
        ) from error
    port = listener.getsockname()[1]
    addresses = reachable(host) if chosen_port is None else ("127.0.0.1",)
    return listener, Endpoint(tuple((address, port) for address in addresses), secrets.token_hex(16))


# --- on other servers that are started by hand ---


def _take_part(prepared: Prepared, host: Host, here: int) -> LaunchOutcome:
    options = prepared.options
    until = time.monotonic() + options.join_timeout

    def join_run() -> Session:
        return join_first_server(options, prepared.used.servers, host, here, agreed=agreement(prepared), until=until)

    membership = join_run()
    if prepared.request.supervision.elastic is not None:
        run_dir = RunDir(prepared.request.runs_dir / membership.welcome.run_name, here)
        if (former := last_agent(run_dir)) is not None and former.lives:
            membership.close()
            wait_for_end(former, options.join_timeout, until)
            # By then the coordinator has noticed, or the run has ended.
            until = min(until, time.monotonic() + 2 * options.lost_after)
            membership = join_run()
    part = get_ready(membership, prepared.request, prepared.files, options.master_port)
    announce(prepared, part.spec)
    with signals_held_back():
        detached = detach(RunDir(part.spec.run_dir, here).console_log) if options.detach else None
        if detached is not None and detached.is_parent:
            membership.close()
            return wait_for_start(detached, part.spec, options)
    if detached is not None:
        detached.report_started()  # the same shell may start the other servers next

    def report(news: Waiting | JoinAccepted) -> None:
        text = f"joined {part.spec.name}; the run uses this server's devices when it next restarts and needs them"
        if not options.quiet:
            say(awaited(server_list(news.missing), news.limit_s) if isinstance(news, Waiting) else text)

    try:
        begin = awaited_begin(part, membership, report)
    except RunOverError as over:
        say(over.message)
        return LaunchOutcome(over.exit_code, part.spec.run_dir)
    with signals_held_back():
        specify = partial(
            attempt_spec, part.request, prepared.table.format, name=part.spec.name, master_port=begin.master_port
        )
        agent = start(part, membership, begin, specify=specify)
        attend = attendance(part.spec, agent, detached, here, quiet=options.quiet)
    return attend()


def wait_for_end(former: ProcessId, limit_s: float, until: float) -> None:
    """Wait until this server's previous agent, which the run no longer uses, has ended.

    Raises a TlaunchError at the time `until` (on the monotonic clock). `limit_s` is the time limit for messages.
    """
    say(awaited(f"this server's previous ranks to end (agent {former.pid})", limit_s))
    while former.lives:
        if time.monotonic() >= until:
            raise TlaunchError(
                f"this server's previous ranks (agent {former.pid}) did not end within {limit_s:g} s",
                hint=f"kill process {former.pid} and start again",
            )
        time.sleep(LOOK_S)


def join_first_server(
    options: RunOptions, servers: tuple[Server, ...], host: Host, here: int, *, agreed: Mapping[str, str], until: float
) -> Session:
    """Join the run that the first server coordinates. The user has started the command by hand on each server.

    Blocks until `until` (monotonic clock) at most. Raises a TlaunchError if the first server does not answer by then,
    or rejects this server.
    """
    first = servers[Cluster(servers).first_server].server_id
    whom = f"the launcher on server {first}"
    addresses = tuple(map(str, host.addresses))
    member = AgentInfo(host=host.name, addresses=addresses, said=servers[here].server_id, agreement=agreed)

    def report(why: str) -> None:
        if not options.quiet:
            say(awaited(f"{whom} ({why})", options.join_timeout))

    def tokens() -> tuple[str, ...]:
        return known_tokens(options.runs_dir.absolute(), os.environ)

    return join(Endpoint(((first, options.port_by_hand),), ""), member, until, report, whom, tokens=tokens)


# --- values that must match on all servers ---


def agreement(prepared: Prepared) -> Mapping[str, str]:
    """Return the values that must be equal on all servers, keyed by name. Secrets are masked or hashed."""
    request = prepared.request
    servers, supervision = request.cluster.servers, request.supervision
    elastic = supervision.elastic
    excluded = elastic.excluded if elastic else ()
    first, *words = request.argv
    # Paths of programs, such as Python, may differ between servers.
    start = ("tlaunch" if word == START else word for word in words)
    command = ("python" if first == sys.executable else Path(first).name, *start)
    devices = f"{sum(len(server.devices) for server in servers)} devices on {len(servers)} servers"
    return {
        RANK_TABLE: f"{devices} ({_digest([repr(server) for server in servers])})",
        "layout": f"{request.layout} micro_batches={request.layout.micro_batches}",
        COMMAND: f"{shell_words(masked_argv(command))} ({_digest(command)})",
        "set of --env variables": f"{' '.join(sorted(request.user_env)) or 'none'} ({_digest(sorted(request.user_env.items()))})",
        "--max-restarts": str(supervision.max_restarts),
        "--hang-timeout": str(supervision.hang_timeout_s),
        "--timeout": str(supervision.time_limit_s),
        "--mindspore": "off" if supervision.scheduler is None else "cluster",
        "--elastic": str(elastic is not None),
        "--exclude": " ".join(device_name(device, servers) for device in excluded) or "none",
    }


def _digest(value: object) -> str:
    return sha256(json_text(value).encode()).hexdigest()[:12]


# --- this machine's server ---


def this_server(servers: tuple[Server, ...], host: Host, said: str | None) -> int:
    """Return the index of this machine's server in the rank table.

    Raises UsageError if no server has the id `said` (the value of --server). Without `said`, raises RefusedLayoutError
    unless exactly one server matches this machine.
    """
    ids = [server.server_id for server in servers]
    if said is not None:
        check_server_id(said, ids)
        return ids.index(said)
    fitting = local_servers(servers, host)
    if len(fitting) == 1:
        return servers.index(fitting[0])
    what = "could be any of" if fitting else "is not one of"
    raise RefusedLayoutError(
        f"this machine, {host.name}, {what} the rank table's servers {', '.join(map(escaped, ids))}",
        hint="run the command with --server ID on every server, or start all servers with --engine mpi or --engine "
        "slurm; to try the run on this machine only, use --devices "
        f"{sum(len(server.devices) for server in servers)}; to see each rank's command, use --dry-run",
    )
