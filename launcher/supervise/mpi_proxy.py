"""Ranks in the place of the processes that an engine started: these, the members, hand over who they are, and wait.

    member (mpi_member.py)  -- {"rank": n, "environment": {...}}, with the descriptor that PMI_FD names -->  agent (MpiProxies)
                            <-- {"ended": status} ----------------------------------------------------------

One JSON object a line each way, over a socket with an abstract name, so that nothing is left on a disk. mpirun starts one
member for each device; one of each server is its agent as well. A rank then is a child of the agent (its log, its grace
and its evidence are those of every rank), and yet is what the engine takes for its own process: MPI_Init finds
the engine's daemon by the environment, and asks for no pid.

What an engine does about a failed rank, it does when a member *ends*. So late ends of members give ranks their grace:

| engine            | a rank ends without MPI_Finalize                 | MPI_Abort in a rank                                |
|-------------------|--------------------------------------------------|----------------------------------------------------|
| Open MPI 4, 5     | nothing, until its member ends                   | CONT, TERM, then KILL to all members               |
| MPICH, Intel MPI  | nothing, while anyone holds PMI_FD open          | KILL to all members at once                        |
| srun --mpi=pmi2   | nothing                                          | KILL to all members at once                        |
| srun --mpi=pmix   | exit 0: nothing; killed: KILL to all members     | KILL to all members at once                        |

MpiProxies hold their PMI_FD open while they wait, for Hydra kills all members when it sees its end.
A member that is killed shows to the agent as MemberLeft, and an agent that is killed to its members as None.
An agent that is to survive members that are killed must not be one of them, but a child in a session of its own.
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

ABORT_PATIENCE_S = 2.0  # for a rank that called MPI_Abort to end, after its engine has begun to end all others
_MAX_BYTES = 1 << 23  # the kernel gives no process a larger environment, unless its stack's limit was raised


@frozen
class MemberJoined:
    """The member of this rank has sent its identity."""

    global_rank: int


@frozen
class MemberLeft:
    """A member ended, or closed its socket, before its rank's end was reported: most likely the engine killed it."""

    global_rank: int


@frozen
class MemberRefused:
    """A process that is not a member, or sends nonsense."""

    reason: str


MemberEvent = MemberJoined | MemberLeft | MemberRefused


class _Caller:
    """A process that has connected, and what it has sent so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.descriptors: list[int] = []
        # Once it has sent its identity:
        self.global_rank: int | None = None
        self.environment: Mapping[str, str] = {}

    def receive(self) -> bool:
        """Take what has come. Return False at its end."""
        try:
            chunk, descriptors, _, _ = socket.recv_fds(self.connection, 1 << 16, 1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for number in descriptors:
            os.set_inheritable(number, False)  # recv_fds of Python 3.11 forgets the flag that would do it
        self.descriptors += descriptors
        self.received += chunk
        return bool(chunk)

    def close(self) -> None:
        self.connection.close()
        for number in self.descriptors:
            os.close(number)
        self.descriptors.clear()


class MpiProxies:
    """The agent's end: collects the identities of its server's members. Nothing here blocks.

    Raises (`__init__`):
        OSError: the name is taken: an agent of this job and server lives already.
    """

    def __init__(self, name: bytes, global_ranks: Iterable[int]) -> None:
        self._awaited = set(global_ranks)
        self._joined: dict[int, _Caller] = {}  # by global rank
        self._callers: dict[int, _Caller] = {}  # by the number of their connection
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
        """Return what is readable when something has come: then call `step`."""
        return self._epoll.fileno()

    @property
    def missing(self) -> frozenset[int]:
        """The global ranks whose members have not sent their identity."""
        return frozenset(self._awaited - self._joined.keys())

    def environment_of(self, global_rank: int) -> dict[str, str]:
        """Return the environment that the engine gave this rank's member, with descriptors' numbers as they are here."""
        member = self._joined[global_rank]
        changed = {DESCRIPTOR: str(member.descriptors[0])} if member.descriptors else {}
        return {**member.environment, **changed}

    def descriptors_of(self, global_rank: int) -> tuple[int, ...]:
        """Return the descriptors that this rank alone has to inherit under the same numbers; exec closes them otherwise.

        They stay open here, so that the engine does not see the rank's end before the agent reports it.
        """
        return tuple(self._joined[global_rank].descriptors[:1])

    def step(self) -> list[MemberEvent]:
        """Return everything that has happened since the last call."""
        happened: list[MemberEvent] = []
        for number, _ in self._epoll.poll(0):
            if number == self._listener.fileno():
                happened += self._welcome()
            elif number in self._callers:
                happened += self._hear(self._callers[number])
        return happened

    def report_end(self, global_rank: int, status: int) -> None:
        """Let a rank's member end; `status` as in `subprocess`. May be called again, or for one that has gone.

        Call it when nothing is left that needs time: the engine may kill all members once one has ended.
        """
        member = self._joined.get(global_rank)
        if member is not None and global_rank not in self._released:
            self._released.add(global_rank)
            with suppress(OSError):  # it has gone; and so few bytes always fit
                member.connection.send(line_of({"ended": status}))

    def close(self) -> None:
        """Hang up: members whose rank's end was not reported learn that the agent has gone. May be called twice."""
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()
        self._listener.close()
        self._epoll.close()

    def _welcome(self) -> list[MemberEvent]:
        happened: list[MemberEvent] = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return happened
            user = user_of(connection)
            if user != os.getuid():
                connection.close()
                happened.append(MemberRefused(f"a process of another user (uid {user}) tried to join as a rank"))
                continue
            connection.setblocking(False)
            self._callers[connection.fileno()] = _Caller(connection)
            self._epoll.register(connection, select.EPOLLIN)

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
            elif caller.global_rank not in self._released:  # its descriptor stays open: its rank may run on
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
    """The agent's part in `members`, none of which is missing any more. Nothing here blocks.

    It gives each rank the identity of its member, and lets all members end together when the run is over on all servers:
    an engine may kill every other process of its job as soon as one of them has ended. A member that is killed before
    means that a rank called MPI_Abort, which its own end will soon show; or the engine itself was ended, and so the run.
    """

    def __init__(self, members: MpiProxies, ranks: Iterable[RankSpec], inherited: Mapping[str, str]) -> None:
        self._members = members
        given = [(rank, members.environment_of(rank.global_rank)) for rank in ranks]
        self.ranks = tuple(
            # What the member has differently from `inherited`; None removes a variable.
            replace(rank, env={**dict.fromkeys(inherited.keys() - environment.keys()), **environment, **rank.env})
            for rank, environment in given
        )
        self.descriptors = {rank.global_rank: members.descriptors_of(rank.global_rank) for rank in self.ranks}
        self._left: set[int] = set()
        self._deadline: float | None = None  # monotonic: no rank's failure will explain by then why members left

    def fileno(self) -> int:
        return self._members.fileno()

    @property
    def timeout_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def step(self, event_log: EventLog) -> str | None:
        """Take what has come. Return, once, what to report when the engine has killed members and enough time has passed."""
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
        return f"the engine has ended its {what} of rank{'s' * (len(self._left) > 1)} {ranges(self._left)}"

    def release(self) -> None:
        """Let all members end well, for the engine needs not know how ranks ended. Call nothing else afterwards."""
        for rank in self.ranks:
            self._members.report_end(rank.global_rank, 0)
        self._members.close()
