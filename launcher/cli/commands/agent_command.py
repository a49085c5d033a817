"""`tlaunch agent`: join a run as one server's agent. Internal: started by mpirun, srun and other launchers."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import click

from launcher.cluster.agent_setup import endpoint_of
from launcher.cluster.mpi_ranks import fork_guard, place_of, stand_for
from launcher.core import env
from launcher.core.machine.engine_rank import read_engine_rank

JOIN_S = 60.0  # time to find the coordinator, which starts before its agents


@click.command(hidden=True)
def agent() -> None:
    """Join a run as the agent of this server."""
    endpoint = endpoint_of(os.environ)
    engine_rank = read_engine_rank(os.environ, os.getpid())
    place = place_of(os.environ, engine_rank)
    patience_s = JOIN_S
    with suppress(ValueError):  # `tlaunch doctor` allows less time than a run
        patience_s = float(os.environ.get(env.TLAUNCH_JOIN_S, JOIN_S))
    until = time.monotonic() + patience_s
    for name in (env.TLAUNCH_COORDINATOR, env.TLAUNCH_COORDINATOR_TOKEN, env.TLAUNCH_MEMBERS, env.TLAUNCH_JOIN_S):
        os.environ.pop(name, None)  # not for ranks
    guard = fork_guard() if place is not None and place.is_lowest else None
    if place is not None and guard != 0:
        stand_for(place, endpoint.token, os.environ, guard)
    else:
        from launcher.cli.launch.server_agent import take_part  # a placeholder process does not need it

        take_part(endpoint, engine_rank, place, until)
    # The coordinator reports the run's exit code; at any other code than 0 the engine would end the other agents.
