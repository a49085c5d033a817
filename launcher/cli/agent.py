"""`tlaunch agent`: one server's part of a run over several, as mpirun, srun or another launcher starts it. Not for people."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from launcher.core import env

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.core.engine_rank import EngineRank
    from launcher.core.errors import TlaunchError
    from launcher.core.events import TimestampedEvent
    from launcher.core.messages import Waiting
    from launcher.core.records import Server, Supervision
    from launcher.engines.cluster.job import Job
    from launcher.engines.cluster.join import AgentInfo, Endpoint, Session
    from launcher.engines.cluster.mpi_ranks import Place
    from launcher.supervise.mpi_proxy import MpiProxies

JOIN_S = 60.0  # for the coordinator, which is there before its agents, to be found


@click.command(hidden=True)
@click.pass_context
def agent(context: click.Context, /) -> None:
    """Take part in a run that another launcher coordinates."""
    from launcher.core.engine_rank import read_engine_rank
    from launcher.engines.cluster.agent_setup import door_of
    from launcher.engines.cluster.mpi_ranks import fork_guard, place_of, stand_for

    door = door_of(os.environ)
    engine_rank = read_engine_rank(os.environ, os.getpid())
    place = place_of(os.environ, engine_rank)
    until = time.monotonic() + _patience_s(os.environ)
    for name in (env.TLAUNCH_COORDINATOR, env.TLAUNCH_COORDINATOR_TOKEN, env.TLAUNCH_MEMBERS, env.TLAUNCH_JOIN_S):
        os.environ.pop(name, None)  # nothing for ranks
    guard = fork_guard() if place is not None and place.is_lowest else None
    if place is not None and guard != 0:
        stand_for(place, door.token, os.environ, guard)
    else:
        _take_part(door, engine_rank, place, until)
    context.exit(0)  # how the run ended is told by its coordinator; an engine would end other agents for it


def _patience_s(environment: Mapping[str, str]) -> float:
    """For how long to look for the coordinator: an examination has less time than a run."""
    try:
        return float(environment.get(env.TLAUNCH_JOIN_S, JOIN_S))
    except ValueError:
        return JOIN_S


def _take_part(door: Endpoint, engine_rank: EngineRank | None, place: Place | None, until: float) -> None:
    """As the agent's guard. `place`: where the engine has started a process for each rank. `until`: monotonic."""
    from launcher.engines.cluster.agent_setup import (
        awaited_begin,
        check_table,
        get_ready,
        is_examination,
        start,
        told_job,
    )
    from launcher.engines.cluster.join import join
    from launcher.engines.cluster.mpi_ranks import check_server
    from launcher.engines.launcher_loop import LauncherLoop
    from launcher.engines.local import signals_held_back
    from launcher.supervise.tree import something_left

    members, trouble = (None, None) if place is None else _gathered(place, door.token)
    membership = join(door, _this_machine(engine_rank, place), until, lambda _why: None)
    if is_examination(membership):
        from launcher.engines.cluster.examined import be_examined  # runs need none of it

        be_examined(membership)
        return
    job = told_job(membership)

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
        _knock_again(membership, door, part.spec.supervision)


def _this_machine(engine_rank: EngineRank | None, place: Place | None) -> AgentInfo:
    from launcher.engines.cluster.join import AgentInfo
    from launcher.engines.host_match import read_host

    host = read_host()
    number = None if engine_rank is None else engine_rank.global_rank
    return AgentInfo(
        host=host.name,
        addresses=tuple(map(str, host.addresses)),
        said=os.environ.get(env.TLAUNCH_SERVER),
        index=number if place is None else place.server_index,
    )


def _knock_again(membership: Session, door: Endpoint, supervision: Supervision) -> None:
    """Ranks may be started again elsewhere, and wait for nothing but the end of those that were here."""
    from launcher.engines.cluster.unheard import longest_s, tell_freed_apart

    if supervision.max_restarts:
        limit_s = longest_s(membership.welcome.silence_s, supervision.grace_s)
        tell_freed_apart(membership.address, door.token, membership.nonce, limit_s)


def _gathered(place: Place, token: str) -> tuple[MpiProxies | None, TlaunchError | None]:
    """The engine's processes of this server; or why they are not there, for whoever coordinates the run."""
    from launcher.core.errors import TlaunchError
    from launcher.engines.cluster.mpi_ranks import gather, open_door

    try:
        members = open_door(place, token)
        gather(members)
    except TlaunchError as error:
        return None, error
    return members, None


def _check_library(job: Job) -> Mapping[str, str]:
    """What a rank of this server would find: its engine's processes have one environment. What its MPI needs besides."""
    from launcher.core.interfaces import go_by_names
    from launcher.engines.mpi_match import check_library

    request = job.request
    if request.layout.world_size == 1:
        return {}
    environment = {**os.environ, **request.user_env}
    return check_library(request.argv, environment, request.cwd, by_names=go_by_names(_servers_of(job)))


def _servers_of(job: Job) -> tuple[Server, ...]:
    from launcher.engines.assemble import used_cluster

    return used_cluster(job.request.cluster, job.request.layout.world_size).servers


class _Silent:
    """Shows nothing: what happens is told to the coordinator by the agent itself.

    `frees`: nobody else tells it that nothing of this server's ranks is left.
    """

    frees = False
    _unkillable = False

    def event(self, stamped: TimestampedEvent) -> None:
        from launcher.core.events import AgentEnded, Cause, Unkillable  # loaded by then

        if isinstance(stamped.event, Unkillable):
            self._unkillable = True
        elif isinstance(stamped.event, AgentEnded):
            self.frees = stamped.event.cause in {Cause.COORDINATOR_LOST, Cause.AGENT_LOST} and not self._unkillable

    def interrupted(self, number: int, *, at_once: bool) -> None: ...

    def tick(self) -> bool:
        return False


def _say_nothing(_waiting: Waiting) -> None: ...
