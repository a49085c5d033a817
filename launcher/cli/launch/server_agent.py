"""The agent of one server in a run on several servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from launcher.cli.launch.elastic import attempt_spec
from launcher.cluster.agent_setup import awaited_begin, check_table, get_ready, received_job, start
from launcher.cluster.job import EXAMINATION
from launcher.cluster.join import AgentInfo, Endpoint, join
from launcher.cluster.launcher_loop import LauncherLoop
from launcher.cluster.lost_agents import longest_s, report_freed_in_background
from launcher.cluster.mpi_ranks import ProcessPlace, check_server, gather, open_endpoint
from launcher.core import env
from launcher.core.errors import TlaunchError
from launcher.core.events import AgentEnded, Cause, TimestampedEvent, Unkillable
from launcher.core.machine.engine_rank import EngineRank
from launcher.core.machine.interfaces import go_by_names
from launcher.engines.assemble import Request, servers_with_agents
from launcher.engines.host_match import read_host
from launcher.engines.local import signals_held_back
from launcher.engines.mpi_match import check_library
from launcher.supervise.mpi_proxy import MpiProxies
from launcher.supervise.tree import something_left


def take_part(endpoint: Endpoint, engine_rank: EngineRank | None, place: ProcessPlace | None, until: float) -> None:
    """Join the run, start this server's ranks, and supervise them until they end.

    If the engine starts a process per rank, `place` is this process's place among them. `until` is the deadline for
    joining, on the monotonic clock.
    """
    members, trouble = (None, None) if place is None else _members(place, endpoint)
    host = read_host()
    number = None if engine_rank is None else engine_rank.global_rank
    info = AgentInfo(
        host=host.name,
        addresses=tuple(map(str, host.addresses)),
        said=os.environ.get(env.TLAUNCH_SERVER),
        index=number if place is None else place.server_index,
    )
    membership = join(endpoint, info, until, lambda _why: None)
    if membership.welcome.job == EXAMINATION:
        from launcher.cluster.probe_server import serve_probes  # only for `tlaunch doctor`

        serve_probes(membership)
        return
    job = received_job(membership)

    def check() -> Mapping[str, str]:
        check_table(job)
        return _check_place(job.request, place, membership.welcome.server_index, trouble)

    part = get_ready(membership, job.request, job.files, job.master_port, check)
    begin = awaited_begin(part, membership, lambda _waiting: None)
    with signals_held_back():
        specify = partial(
            attempt_spec, part.request, job.table_format, name=part.spec.name, master_port=begin.master_port
        )
        started = start(part, membership, begin, members, specify)
        observer = _Silent()
        head = LauncherLoop(part.spec, started, observer, part.server_index)
    head.attend()
    head.restore_signals()
    supervision = part.spec.supervision
    if observer.frees and supervision.max_restarts and not something_left():
        # A restart on other servers may be waiting for this server's ranks to end.
        limit_s = longest_s(membership.welcome.silence_s, supervision.grace_s)
        report_freed_in_background(membership.address, endpoint.token, membership.nonce, limit_s)


def _members(place: ProcessPlace, endpoint: Endpoint) -> tuple[MpiProxies | None, TlaunchError | None]:
    """Connect to the engine's processes on this server, and return the connections or the error."""
    try:
        members = open_endpoint(place, endpoint.token)
        gather(members)
    except TlaunchError as error:
        return None, error
    return members, None


def _check_place(
    request: Request, place: ProcessPlace | None, server_index: int, trouble: TlaunchError | None
) -> Mapping[str, str]:
    """Check the engine's processes on this server, and return extra variables for the ranks' MPI library.

    Raises a TlaunchError if the engine's processes do not match the rank table, or their MPI library is incompatible.
    """
    servers = servers_with_agents(request.cluster, request.layout, request.supervision).servers
    if place is not None:
        check_server(place, server_index, servers)
    if trouble is not None:
        raise trouble
    if place is None or request.layout.world_size == 1:
        return {}
    environment = {**os.environ, **request.user_env}
    return check_library(request.argv, environment, request.cwd, by_names=go_by_names(servers))


class _Silent:
    """An observer that prints nothing, because the coordinator shows the events of all servers.

    `frees` becomes True if all ranks of this server have ended but the agent could not report that to the coordinator.
    """

    frees = False
    _unkillable = False

    def event(self, stamped: TimestampedEvent) -> None:
        if isinstance(stamped.event, Unkillable):
            self._unkillable = True
        elif isinstance(stamped.event, AgentEnded):
            self.frees = stamped.event.cause in {Cause.COORDINATOR_LOST, Cause.AGENT_LOST} and not self._unkillable

    def interrupted(self, number: int, *, at_once: bool) -> None: ...

    def tick(self) -> bool:
        return False
