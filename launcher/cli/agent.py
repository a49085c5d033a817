"""`tlaunch agent`: one server's part of a run over several, as mpirun, srun or another launcher starts it. Not for people."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from launcher.core import env

if TYPE_CHECKING:
    from launcher.core.events import Stamped
    from launcher.core.messages import Waiting

JOIN_S = 60.0  # for the coordinator, which is there before its agents, to be found


@click.command(hidden=True)
@click.pass_context
def agent(context: click.Context, /) -> None:
    """Take part in a run that another launcher coordinates."""
    from launcher.core.engine_rank import read_engine_rank
    from launcher.engines.attend import Head
    from launcher.engines.cluster.membership import Member, join
    from launcher.engines.cluster.server_part import check_table, door_of, get_ready, start, told_job
    from launcher.engines.local import signals_held_back
    from launcher.engines.whereabouts import read_host

    door = door_of(os.environ)
    host = read_host()
    member = Member(
        host=host.name,
        addresses=tuple(map(str, host.addresses)),
        said=os.environ.get(env.TLAUNCH_SERVER),
        engine_rank=read_engine_rank(os.environ, os.getpid()),
    )
    for name in (env.TLAUNCH_COORDINATOR, env.TLAUNCH_COORDINATOR_TOKEN):
        os.environ.pop(name, None)  # nothing for ranks
    membership = join(door, member, time.monotonic() + JOIN_S, lambda _why: None)
    job = told_job(membership)
    part = get_ready(membership, job.request, job.files, job.master_port, lambda: check_table(job))
    begin = membership.wait_for_start(part.master_port, _say_nothing)
    with signals_held_back():
        started = start(part, membership, begin)
        head = Head(part.spec, started, _Silent(), part.server_index)
    head.attend()
    context.exit(0)  # how the run ended is told by its coordinator; an engine would end other agents for it


class _Silent:
    """Observes nothing: what happens is told to the coordinator by the agent itself."""

    def event(self, stamped: Stamped) -> None: ...

    def interrupted(self, number: int, *, at_once: bool) -> None: ...

    def tick(self) -> bool:
        return False


def _say_nothing(_waiting: Waiting) -> None: ...
