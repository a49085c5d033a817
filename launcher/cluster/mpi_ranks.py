"""Ranks that MPI shall know: the engine starts a process for each of them, and tlaunch's own ranks take their place.

    head      mpirun -n 4 tlaunch agent, with TLAUNCH_MEMBERS=0x2,1x2: two processes on server 0, then two on server 1
    server 0  process 0: forks this server's agent in a session of its own, then waits as process 1 does: hand_over
              the agent's guard: collects who the processes are, then does what the agent of any server does

So MPI_COMM_WORLD has a rank for each device, and yet a rank is a child of its server's agent, with its log, its grace
and its evidence. A process of the engine that stood for a rank cannot stand for another one: a restart takes a new engine.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby

from launcher.core import env
from launcher.core.errors import RefusedLayoutError, TlaunchError, UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.engine_rank import EngineRank
from launcher.core.records import Server
from launcher.core.text import ranges
from launcher.supervise.mpi_member import hand_over, meeting_name
from launcher.supervise.mpi_proxy import MemberLeft, MpiProxies

GATHER_S = 60.0  # for all of a server's processes to come; an engine starts them at about the same time
# An engine sends SIGTERM and then, a second later, SIGKILL, when a rank calls MPI_Abort: that rank's own end is to be
# seen as the cause. Whoever wants the run to end otherwise gives it more time.
ABORT_S = 2.0
_AT_ONCE = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT)  # nothing that ends a run


@frozen
class Stretch:
    """Consecutive global ranks on one server."""

    server_index: int
    count: int


@frozen
class ProcessPlace:
    """The place of one of the engine's processes in the run."""

    global_rank: int
    server_index: int
    global_ranks: frozenset[int]  # all of its server

    @property
    def is_lowest(self) -> bool:
        """True if this process also becomes the agent of its server."""
        return self.global_rank == min(self.global_ranks)


def stretches_of(servers: Sequence[Server]) -> tuple[Stretch, ...]:
    """Return the stretches of ranks of each server, in the order of global ranks: a table may deal them out in turn."""
    placed = sorted((device.global_rank, index) for index, server in enumerate(servers) for device in server.devices)
    found = groupby(index for _, index in placed)
    return tuple(Stretch(index, sum(1 for _ in same)) for index, same in found)


def members_text(stretches: Sequence[Stretch]) -> str:
    return ",".join(f"{stretch.server_index}x{stretch.count}" for stretch in stretches)


def place_of(environment: Mapping[str, str], engine_rank: EngineRank | None) -> ProcessPlace | None:
    """Return None where the engine starts nothing but an agent on each server.

    Raises:
        UsageError: no engine has started this process, or not as was meant.
    """
    text = environment.get(env.TLAUNCH_MEMBERS, "")
    if not text:
        return None
    if re.fullmatch(r"\d+x\d+(,\d+x\d+)*", text) is None:
        raise UsageError(f"{env.TLAUNCH_MEMBERS} is {text[:80]!r}", hint="`tlaunch run` sets it; it is not for people")
    counted = [(int(index), int(count)) for index, _, count in (part.partition("x") for part in text.split(","))]
    servers = [index for index, count in counted for _ in range(count)]  # by global rank
    if engine_rank is None:
        raise UsageError("neither mpirun nor srun says which of its processes this is", hint="use --no-mpi-ranks")
    if engine_rank.world_size not in {None, len(servers)}:
        raise UsageError(
            f"{engine_rank.engine} has started {engine_rank.world_size} processes, and {len(servers)} are wanted",
            hint="leave the number of processes out of --engine-option",
        )
    if engine_rank.global_rank >= len(servers):  # some do not say how many there are
        raise UsageError(
            f"{engine_rank.engine} has started a process {engine_rank.global_rank}, and {len(servers)} from 0 on are wanted",
            hint="leave the number of processes out of --engine-option",
        )
    here = servers[engine_rank.global_rank]
    mates = frozenset(global_rank for global_rank, index in enumerate(servers) if index == here)
    return ProcessPlace(engine_rank.global_rank, here, mates)


# --- a process that stands for a rank ---


def stand_for(place: ProcessPlace, token: str, environment: Mapping[str, str], guard: int | None) -> None:
    """Hand this process's identity over to its server's agent and wait for the end of the run. Blocks.

    `guard`: the agent's, where it is a child of this process. It gets the signals that the engine sends.

    Raises:
        TlaunchError: no agent listened in time.
    """

    def pass_on(number: int) -> None:
        if number not in _AT_ONCE:
            time.sleep(ABORT_S)
        if guard is not None:
            with suppress(OSError):  # it has ended
                os.kill(guard, number)

    hand_over(_name(place, token), environment, place.global_rank, pass_on=None if guard is None else pass_on)
    if guard is not None:
        os.waitpid(guard, 0)


def fork_guard() -> int:
    """Fork the process that becomes the agent's guard, out of the engine's reach: 0 in it, its pid in this process."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
    return pid


# --- the agent's guard ---


def open_endpoint(place: ProcessPlace, token: str) -> MpiProxies:
    """Open the socket at which the processes of this server are awaited.

    Raises:
        TlaunchError: an agent of this run and server is here already.
    """
    try:
        return MpiProxies(_name(place, token), place.global_ranks)
    except OSError as error:
        raise TlaunchError(
            f"another agent of this run serves the ranks of this server: {error.strerror}",
            hint="it is left from a server that was lost, and has to end first",
        ) from error


def gather(members: MpiProxies, patience_s: float = GATHER_S) -> None:
    """Wait until each process of this server has said who it is. Blocks.

    Raises:
        TlaunchError: one of them did not come in time, or has ended already.
    """
    deadline = time.monotonic() + patience_s
    poll = select.poll()
    poll.register(members, select.POLLIN)
    while members.missing:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TlaunchError(
                f"the engine's processes of ranks {ranges(members.missing)} did not come within {patience_s:g} s",
                hint="engine.log in the run directory says what the engine has to say",
            )
        left = [one.global_rank for one in members.step() if isinstance(one, MemberLeft)]
        if left:
            raise TlaunchError(f"the engine's processes of ranks {ranges(left)} ended before their ranks were started")


def check_server(place: ProcessPlace, server_index: int, servers: Sequence[Server]) -> None:
    """Check that an engine's process is on the server whose ranks it stands for.

    Raises:
        RefusedLayoutError: the engine uses another order of servers.
    """
    if server_index != place.server_index:
        raise RefusedLayoutError(
            f"the engine's process of rank {place.global_rank} is on server {servers[server_index].server_id}, and that "
            f"rank belongs to {servers[place.server_index].server_id}",
            hint="leave what places processes out of --engine-option",
        )


def _name(place: ProcessPlace, token: str) -> bytes:
    return meeting_name(token, str(place.server_index))
