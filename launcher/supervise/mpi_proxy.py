"""Runs ranks in place of placeholder processes (members) that an MPI engine started. Members pass on their identity.

    member (mpi_member.py)  -- {"rank": n, "environment": {...}}, and the descriptor of PMI_FD -->  agent (MpiProxies)
                            <-- {"ended": status} ------------------------------------------------

Messages are JSON objects, one line in each direction, over an abstract socket, so no file is left. mpirun starts one
member per device. On each server one member also becomes the agent. A rank is then a child of the agent, with the usual
log, grace period and evidence. To the engine it still looks like its own process, because MPI_Init finds the engine's
daemon through the environment and does not use pids.

An engine reacts to a failed rank only when its *member* ends. Members end late, so other ranks have a grace period:

| engine            | a rank ends without MPI_Finalize                 | MPI_Abort in a rank                           |
|-------------------|--------------------------------------------------|-----------------------------------------------|
| Open MPI 4, 5     | nothing until its member ends                    | CONT, TERM, then KILL to all members          |
| MPICH, Intel MPI  | nothing while any process holds PMI_FD open      | KILL to all members at once                   |
| srun --mpi=pmi2   | nothing                                          | KILL to all members at once                   |
| srun --mpi=pmix   | exit 0: nothing; killed: KILL to all members     | KILL to all members at once                   |

MpiProxies holds PMI_FD of each member open, because Hydra kills all members when it is closed. If a member is killed,
the agent gets MemberLeft. If the agent is killed, `hand_over` returns None in its members. An agent that must survive
the kill of all members runs in a child process with its own session.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from launcher.core.events import Trouble
from launcher.core.frozen import frozen
from launcher.core.records import RankSpec
from launcher.core.text import ranges
from launcher.supervise.event_log import EventLog
from launcher.supervise.mpi_member import DESCRIPTOR, line_of, user_of

ABORT_PATIENCE_S = 2.0  # after MPI_Abort, for the rank itself to end after the engine started to kill the others
_MAX_BYTES = 1 << 23  # larger than any environment, unless the stack limit was raised


@frozen
class MemberJoined:
    global_rank: int


@frozen
class MemberLeft:
    """A member process left before the exit of its rank was reported, usually because the engine killed it."""

    global_rank: int


@frozen
class MemberRefused:
    """A process was refused because it is not a rank of this server or because it sent invalid data."""

    reason: str


MemberEvent = MemberJoined | MemberLeft | MemberRefused


class _Caller:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.descriptors: list[int] = []
        # Once it has sent its identity:
        self.global_rank: int | None = None
        self.environment: Mapping[str, str] = {}

    def receive(self) -> bool:
        """Read available data. Return False at the end of the stream."""
        try:
            chunk, descriptors, _, _ = socket.recv_fds(self.connection, 1 << 16, 1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for number in descriptors:
            os.set_inheritable(number, False)  # recv_fds of Python 3.11 does not set close-on-exec
        self.descriptors += descriptors
        self.received += chunk
        return bool(chunk)

    def close(self) -> None:
        self.connection.close()
        for number in self.descriptors:
            os.close(number)
        self.descriptors.clear()


class MpiProxies:
    """The agent's connections to the processes that an MPI engine started as ranks. Never blocks.

    `__init__` raises OSError if the name is in use, because an agent of this job and server is already running.
    """

    def __init__(self, name: bytes, global_ranks: Iterable[int]) -> None:
        self._awaited = set(global_ranks)
        self._joined: dict[int, _Caller] = {}  # by global rank
        self._callers: dict[int, _Caller] = {}  # by the descriptor of their connection
        self._released: set[int] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(name)
            self._listener.listen(socket.SOMAXCONN)
            self._listener.setblocking(False)
            self._epoll = select.epoll()
        except OSError:
            self._listener.close()
            raise
        self._epoll.register(self._listener, select.EPOLLIN)

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def missing(self) -> frozenset[int]:
        return frozenset(self._awaited - self._joined.keys())

    def environment_of(self, global_rank: int) -> dict[str, str]:
        """Return the environment that the engine set for a rank, with PMI_FD set to a descriptor of this process."""
        member = self._joined[global_rank]
        return {**member.environment, **({DESCRIPTOR: str(member.descriptors[0])} if member.descriptors else {})}

    def descriptors_of(self, global_rank: int) -> tuple[int, ...]:
        """Return the descriptors of this process that only the given rank inherits.

        This process keeps them open, so the engine does not notice the rank's end before the agent reports it.
        """
        return tuple(self._joined[global_rank].descriptors[:1])

    def step(self) -> list[MemberEvent]:
        happened: list[MemberEvent] = []
        for number, _ in self._epoll.poll(0):
            if number == self._listener.fileno():
                happened += self._welcome()
            elif number in self._callers:
                happened += self._hear(self._callers[number])
        return happened

    def report_end(self, global_rank: int, status: int) -> None:
        """Make the member process of a rank exit with `status`. Repeated calls have no effect.

        Call it as a last step, because the engine may kill all members after the first one has exited.
        """
        member = self._joined.get(global_rank)
        if member is not None and global_rank not in self._released:
            self._released.add(global_rank)
            with suppress(OSError):  # it has exited; the short message always fits into the buffer
                member.connection.send(line_of({"ended": status}))

    def close(self) -> None:
        """Close all connections. Members that still wait for the exit of their rank assume that the agent is lost."""
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()
        self._listener.close()
        self._epoll.close()

    def _welcome(self) -> list[MemberEvent]:
        refused: list[MemberEvent] = []
        with suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                connection, _ = self._listener.accept()
                if (user := user_of(connection)) != os.getuid():
                    connection.close()
                    refused.append(MemberRefused(f"a process of another user (uid {user}) tried to join as a rank"))
                    continue
                connection.setblocking(False)
                self._callers[connection.fileno()] = _Caller(connection)
                self._epoll.register(connection, select.EPOLLIN)
        return refused

    def _hear(self, caller: _Caller) -> list[MemberEvent]:
        stays = caller.receive()
        happened: list[MemberEvent] = []
        if caller.global_rank is None and caller.received.endswith(b"\n"):
            happened.append(self._admit(caller))
            stays = stays and caller.global_rank is not None
        elif len(caller.received) > _MAX_BYTES:
            happened.append(MemberRefused(f"a process sent more than {_MAX_BYTES} bytes without a line end"))
            stays = False
        if not stays:
            self._epoll.unregister(caller.connection)
            if caller.global_rank is None:
                del self._callers[caller.connection.fileno()]
                caller.close()
            elif caller.global_rank not in self._released:  # keep its descriptor open: its rank may still run
                happened.append(MemberLeft(caller.global_rank))
        return happened

    def _admit(self, caller: _Caller) -> MemberEvent:
        try:
            fields = json.loads(caller.received)
            global_rank = int(fields["rank"])
            environment = {str(name): str(value) for name, value in fields["environment"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            return MemberRefused(f"a process sent a line that cannot be read: {error}")
        finally:
            caller.received.clear()
        if global_rank not in self.missing:
            has = "has a member already" if global_rank in self._joined else "is not on this server"
            return MemberRefused(f"a process tried to join as rank {global_rank}, which {has}")
        caller.global_rank, caller.environment = global_rank, environment
        self._joined[global_rank] = caller
        return MemberJoined(global_rank)


class ProxyControl:
    """Manages the processes that an MPI engine started as ranks, after all of them have joined.

    Each rank gets its member's identity. All members exit together when the run is over on all servers, because an
    engine may kill all other processes after the first exit. If a member is killed earlier, its rank probably called
    MPI_Abort and will end soon. Otherwise the engine was ended, and the run ends too.
    """

    def __init__(self, members: MpiProxies, ranks: Iterable[RankSpec], inherited: Mapping[str, str]) -> None:
        self._members = members
        given = [(rank, members.environment_of(rank.global_rank)) for rank in ranks]
        self.ranks = tuple(
            # The member's differences from `inherited`; None removes a variable.
            replace(rank, env={**dict.fromkeys(inherited.keys() - environment.keys()), **environment, **rank.env})
            for rank, environment in given
        )
        self.descriptors = {rank.global_rank: members.descriptors_of(rank.global_rank) for rank in self.ranks}
        self._left: set[int] = set()
        self._deadline: float | None = None  # monotonic: by this time a rank's failure should explain the lost members

    def fileno(self) -> int:
        return self._members.fileno()

    @property
    def timeout_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def step(self, event_log: EventLog) -> str | None:
        """Process pending events. If the engine has killed members for an unknown reason, return a message."""
        for event in self._members.step():
            if isinstance(event, MemberLeft):
                self._left.add(event.global_rank)
                self._deadline = self._deadline or time.monotonic() + ABORT_PATIENCE_S
            elif isinstance(event, MemberRefused):
                event_log.record(Trouble(event.reason))
        if self._deadline is None or time.monotonic() < self._deadline:
            return None
        self._deadline = None
        what = "process" if len(self._left) == 1 else "processes"
        return f"the engine ended the {what} of rank{'s' * (len(self._left) > 1)} {ranges(self._left)}"

    def release(self) -> None:
        """Make all members exit with code 0, because the engine does not need the exit codes of ranks."""
        for rank in self.ranks:
            self._members.report_end(rank.global_rank, 0)
        self._members.close()
