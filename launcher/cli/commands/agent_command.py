"""`tlaunch agent`: one server's part of a run over several, as mpirun, srun or another launcher starts it. Not for people."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import click

from launcher.cluster.agent_setup import endpoint_of
from launcher.cluster.mpi_ranks import fork_guard, place_of, stand_for
from launcher.core import env
from launcher.core.machine.engine_rank import read_engine_rank

JOIN_S = 60.0  # for the coordinator, which is there before its agents, to be found


@click.command(hidden=True)
@click.pass_context
def agent(context: click.Context, /) -> None:
    """Take part in a run that another launcher coordinates."""
    endpoint = endpoint_of(os.environ)
    engine_rank = read_engine_rank(os.environ, os.getpid())
    place = place_of(os.environ, engine_rank)
    patience_s = JOIN_S
    with suppress(ValueError):  # an examination has less time than a run
        patience_s = float(os.environ.get(env.TLAUNCH_JOIN_S, JOIN_S))
    until = time.monotonic() + patience_s
    for name in (env.TLAUNCH_COORDINATOR, env.TLAUNCH_COORDINATOR_TOKEN, env.TLAUNCH_MEMBERS, env.TLAUNCH_JOIN_S):
        os.environ.pop(name, None)  # nothing for ranks
    guard = fork_guard() if place is not None and place.is_lowest else None
    if place is not None and guard != 0:
        stand_for(place, endpoint.token, os.environ, guard)
    else:
        from launcher.cli.launch.server_agent import take_part  # a process that stands for a rank needs none of it

        take_part(endpoint, engine_rank, place, until)
    context.exit(0)  # the coordinator reports how the run ended; an engine would end other agents for another code
