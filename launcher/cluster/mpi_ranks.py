"""Ranks in MPI_COMM_WORLD: the engine starts a placeholder process per rank, whose MPI identity the rank takes over.

    launcher  runs `mpirun -n 4 tlaunch agent` with TLAUNCH_MEMBERS=0x2,1x2: two processes on server 0, two on server 1
    server 0  process 0 forks this server's agent in a new session, then waits like process 1: `hand_over`
              the agent's guard collects the identities of the processes, then works like any server's agent

So MPI_COMM_WORLD has a rank for each device, but a rank is a child of its server's agent, with a log, a grace period
and evidence. A placeholder cannot be used twice, so a restart starts a new engine.
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

GATHER_S = 60.0  # for all of a server's placeholders to connect; an engine starts them at about the same time
# If a rank calls MPI_Abort, the engine sends SIGTERM, and SIGKILL a second later. The signal is delayed, so that the
# exit of that rank is seen first and counts as the cause. Other sources of SIGTERM give a run more time.
ABORT_S = 2.0
_AT_ONCE = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT)  # signals that do not end a run


Stretch = tuple[int, int]  # the server index and the number of consecutive global ranks on it


@frozen
class ProcessPlace:
    global_rank: int
    server_index: int
    global_ranks: frozenset[int]  # all ranks of its server

    @property
    def is_lowest(self) -> bool:
        """True if this process has the lowest rank of its server, and therefore also starts the server's agent."""
        return self.global_rank == min(self.global_ranks)


def stretches_of(servers: Sequence[Server]) -> tuple[Stretch, ...]:
    """Split the ranks into ranges on one server each. Return the server and length of each range, in rank order."""
    placed = sorted((device.global_rank, index) for index, server in enumerate(servers) for device in server.devices)
    found = groupby(index for _, index in placed)
    return tuple((index, sum(1 for _ in same)) for index, same in found)


def members_text(stretches: Sequence[Stretch]) -> str:
    return ",".join(f"{index}x{count}" for index, count in stretches)


def place_of(environment: Mapping[str, str], engine_rank: EngineRank | None) -> ProcessPlace | None:
    """Return the rank and server of a placeholder process, or None for an agent. Raise UsageError for a wrong rank."""
    text = environment.get(env.TLAUNCH_MEMBERS, "")
    if not text:
        return None
    if re.fullmatch(r"\d+x\d+(,\d+x\d+)*", text) is None:
        raise UsageError(
            f"{env.TLAUNCH_MEMBERS} is {text[:80]!r}; expected a list, for example 0x2,1x2",
            hint="do not set this variable: `tlaunch run` sets it",
        )
    counted = [(int(index), int(count)) for index, _, count in (part.partition("x") for part in text.split(","))]
    servers = [index for index, count in counted for _ in range(count)]  # by global rank
    if engine_rank is None:
        raise UsageError("mpirun or srun has not set the rank of this process", hint="use --no-mpi-ranks")
    needs = f", but the run needs {len(servers)}"
    hint = "leave the number of processes out of --engine-option"
    if engine_rank.world_size not in {None, len(servers)}:
        raise UsageError(f"{engine_rank.engine} started {engine_rank.world_size} processes{needs}", hint=hint)
    if engine_rank.global_rank >= len(servers):  # some engines do not set the world size
        found = f"{engine_rank.engine} started a process with rank {engine_rank.global_rank}"
        raise UsageError(f"{found}{needs} processes", hint=hint)
    here = servers[engine_rank.global_rank]
    mates = frozenset(global_rank for global_rank, index in enumerate(servers) if index == here)
    return ProcessPlace(engine_rank.global_rank, here, mates)


# --- placeholder processes ---


def stand_for(place: ProcessPlace, token: str, environment: Mapping[str, str], guard: int | None) -> None:
    """Pass the MPI identity of this process to its agent, and wait until the run has ended. Raises TlaunchError."""

    def pass_on(number: int) -> None:
        if number not in _AT_ONCE:
            time.sleep(ABORT_S)
        if guard is not None:
            with suppress(OSError):  # it has ended
                os.kill(guard, number)

    name = meeting_name(token, str(place.server_index))
    hand_over(name, environment, place.global_rank, pass_on=None if guard is None else pass_on)
    if guard is not None:
        os.waitpid(guard, 0)


def fork_guard() -> int:
    """Fork a guard for the agent into a new session. Return 0 in the guard, and the guard's pid in the parent."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
    return pid


# --- the agent's guard ---


def open_endpoint(place: ProcessPlace, token: str) -> MpiProxies:
    """Open the socket for placeholder processes. Raise TlaunchError if another agent of this server is running."""
    try:
        return MpiProxies(meeting_name(token, str(place.server_index)), place.global_ranks)
    except OSError as error:
        raise TlaunchError(
            f"another agent of this run is already running on this server: {error.strerror}",
            hint="wait until the previous agent on this server exits; tlaunch lost contact with it, but it is still running",
        ) from error


def gather(members: MpiProxies, patience_s: float = GATHER_S) -> None:
    """Wait until all placeholder processes have connected. Raise TlaunchError if one is late or has ended."""
    deadline = time.monotonic() + patience_s
    poll = select.poll()
    poll.register(members, select.POLLIN)
    while members.missing:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TlaunchError(
                f"the engine's processes of ranks {ranges(members.missing)} did not connect within {patience_s:g} s",
                hint="read the output of mpirun or srun in engine.log in the run directory",
            )
        left = [one.global_rank for one in members.step() if isinstance(one, MemberLeft)]
        if left:
            raise TlaunchError(f"processes of mpirun or srun ended before tlaunch started their ranks: {ranges(left)}")


def check_server(place: ProcessPlace, server_index: int, servers: Sequence[Server]) -> None:
    """Raise RefusedLayoutError if the engine placed a process on the wrong server."""
    if server_index != place.server_index:
        raise RefusedLayoutError(
            f"the engine's process of rank {place.global_rank} is on server {servers[server_index].server_id}, "
            f"but that rank belongs to {servers[place.server_index].server_id}",
            hint="remove the options for process placement from --engine-option",
        )
