"""One server's part of a run over several, as its engine or another launcher has started it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.cluster.agent_setup import (
    awaited_begin,
    check_table,
    get_ready,
    is_examination,
    received_job,
    start,
)
from launcher.cluster.job import Job
from launcher.cluster.join import AgentInfo, Endpoint, Session, join
from launcher.cluster.launcher_loop import LauncherLoop
from launcher.cluster.mpi_ranks import Place, check_server, gather, open_endpoint
from launcher.cluster.unheard import longest_s, tell_freed_apart
from launcher.core import env
from launcher.core.engine_rank import EngineRank
from launcher.core.errors import TlaunchError
from launcher.core.events import AgentEnded, Cause, TimestampedEvent, Unkillable
from launcher.core.interfaces import go_by_names
from launcher.core.messages import Waiting
from launcher.core.records import Server, Supervision
from launcher.engines.assemble import used_cluster
from launcher.engines.host_match import read_host
from launcher.engines.local import signals_held_back
from launcher.engines.mpi_match import check_library
from launcher.supervise.mpi_proxy import MpiProxies
from launcher.supervise.tree import something_left


def take_part(endpoint: Endpoint, engine_rank: EngineRank | None, place: Place | None, until: float) -> None:
    """Guard this server's agent. `place`: where the engine has started a process for each rank. `until`: monotonic."""
    members, trouble = (None, None) if place is None else _gathered(place, endpoint.token)
    membership = join(endpoint, _this_machine(engine_rank, place), until, lambda _why: None)
    if is_examination(membership):
        from launcher.cluster.probe_server import serve_probes  # runs need none of it

        serve_probes(membership)
        return
    job = received_job(membership)

    def check() -> Mapping[str, str]:
        check_table(job)
        if place is not None:
            check_server(place, membership.welcome.server_index, _servers_of(job))
        if trouble is not None:
            raise trouble
        return {} if place is None else _check_library(job)

    part = get_ready(membership, job.request, job.files, job.master_port, check)
    begin = awaited_begin(part, membership, _say_nothing)
    with signals_held_back():
        started = start(part, membership, begin, members)
        observer = _Silent()
        head = LauncherLoop(part.spec, started, observer, part.server_index)
    head.attend()
    if observer.frees and not something_left():
        _connect_again(membership, endpoint, part.spec.supervision)


def _this_machine(engine_rank: EngineRank | None, place: Place | None) -> AgentInfo:
    host = read_host()
    number = None if engine_rank is None else engine_rank.global_rank
    return AgentInfo(
        host=host.name,
        addresses=tuple(map(str, host.addresses)),
        said=os.environ.get(env.TLAUNCH_SERVER),
        index=number if place is None else place.server_index,
    )


def _connect_again(membership: Session, endpoint: Endpoint, supervision: Supervision) -> None:
    """Ranks may be started again elsewhere, and wait for nothing but the end of those that were here."""
    if supervision.max_restarts:
        limit_s = longest_s(membership.welcome.silence_s, supervision.grace_s)
        tell_freed_apart(membership.address, endpoint.token, membership.nonce, limit_s)


def _gathered(place: Place, token: str) -> tuple[MpiProxies | None, TlaunchError | None]:
    """Return the engine's processes of this server, or the error that the coordinator is to report."""
    try:
        members = open_endpoint(place, token)
        gather(members)
    except TlaunchError as error:
        return None, error
    return members, None


def _check_library(job: Job) -> Mapping[str, str]:
    """Check the MPI library that a rank of this server would find, and return the variables that it needs besides."""
    request = job.request
    if request.layout.world_size == 1:
        return {}
    environment = {**os.environ, **request.user_env}
    return check_library(request.argv, environment, request.cwd, by_names=go_by_names(_servers_of(job)))


def _servers_of(job: Job) -> tuple[Server, ...]:
    return used_cluster(job.request.cluster, job.request.layout.world_size).servers


class _Silent:
    """Shows nothing: what happens is told to the coordinator by the agent itself.

    `frees`: nobody else tells it that nothing of this server's ranks is left.
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


def _say_nothing(_waiting: Waiting) -> None: ...
