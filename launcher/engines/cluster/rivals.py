"""Several coordinators of one run: by hand more than one server may have been made to take itself for the first.

Each would wait for the others until its time is over. So whoever waits knocks at the doors of the servers it misses:

    who knocks                            coordinator there
                     <──────────────────  Challenge   as for whoever knocks
    Rival            ──────────────────>              I coordinate a run, and wait; proves that it knows the token
                     <──────────────────  Rival       so do I

Then both know the same of each other, and judge alike. Whoever answers in another way is none of our concern: there a
coordinator has begun, or examines, or has another token, or something else listens.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from launcher.core.channel import Channel, ChannelClosedError
from launcher.core.errors import RefusedLayoutError
from launcher.core.interfaces import address_of, names_of
from launcher.core.messages import MAX_FIRST_LINE_BYTES, PROTOCOL, Challenge, Rival, is_proof, proof_of
from launcher.core.records import Cluster, Server
from launcher.engines.cluster.plan import COMMAND, Plan

FIRST_ROUND_S, ROUND_S = 1.0, 3.0  # a door that has not answered by the next round is left
LOOK_S = 0.2  # between two looks for answers
MAX_DOORS = 64  # of one round; then it is the turn of others


class Rivalry:
    """What this coordinator tells others of itself, and what it thinks of them."""

    def __init__(self, plan: Plan, servers: Sequence[Server]) -> None:
        self.is_possible = not plan.brings_all
        self._token = plan.shared_token
        self._coordinator = os.urandom(16).hex()
        self._first = servers[Cluster(tuple(servers)).first_server].server_id
        self._servers = tuple(server.server_id for server in servers)
        self._command = plan.agreement.get(COMMAND)

    def introduction(self, drawn: str, nonce: str) -> Rival:
        """For who drew the nonce `drawn`; `nonce` is our own."""
        return Rival(
            proof=self._proof(drawn, nonce, self._coordinator),
            nonce=nonce,
            coordinator=self._coordinator,
            host=os.uname().nodename,
            first=self._first,
            servers=self._servers,
            command=self._command,
        )

    def knows_token(self, rival: Rival, drawn: str) -> bool:
        """`drawn`: our nonce."""
        return is_proof(rival.proof, self._token, "rival", drawn, rival.nonce, rival.coordinator)

    def is_own(self, rival: Rival) -> bool:
        """Whether it is this coordinator itself, which has knocked at its own door."""
        return rival.coordinator == self._coordinator

    def judge(self, rival: Rival) -> RefusedLayoutError | None:
        """Why neither run can begin; None for one that is another run. The other side comes to the same result."""
        if self.is_own(rival) or self._command is None or self._command != rival.command:
            return None
        if rival.first not in self._servers or self._first not in rival.servers:
            return None
        if rival.first == self._first:
            return RefusedLayoutError(
                f"{os.uname().nodename} and {rival.host} were both started as server {self._first} of the rank table: "
                "each coordinates a run of its own",
                hint="--server or TLAUNCH_SERVER names another server on one of them",
            )
        return RefusedLayoutError(
            f"server {rival.first} ({rival.host}) coordinates a run of its own: its rank table has rank 0 there, "
            f"that of {os.uname().nodename} has it on server {self._first}",
            hint="have the same table on every server; `tlaunch table diff` tells where two of them differ",
        )

    def _proof(self, drawn: str, nonce: str, coordinator: str) -> str:
        # What is proved here is good for nothing else, and from nobody else.
        return proof_of(self._token, "rival", drawn, nonce, coordinator)


class Knocks:
    """At the doors of servers that are missing, round after round. Nothing here waits."""

    def __init__(self, plan: Plan, rivalry: Rivalry) -> None:
        self._rivalry = rivalry
        self._port: int = plan.listener.getsockname()[1]
        self._resolved = dict(plan.resolved)
        self._own: set[str] = set()  # addresses at which we have met ourselves
        self._open: list[_Knock] = []
        self._next_round = time.monotonic() + FIRST_ROUND_S
        self._turn = 0

    @property
    def due(self) -> float:
        """When to look again, monotonic."""
        return min(self._next_round, time.monotonic() + LOOK_S) if self._open else self._next_round

    def look(self, missing: Sequence[Server]) -> RefusedLayoutError | None:
        """Hear what was answered, and knock again where that is due."""
        for knock in list(self._open):
            try:
                rival = knock.answer()
            except ChannelClosedError:
                self._leave(knock)
                continue
            if rival is None:
                continue
            self._leave(knock)
            if self._rivalry.is_own(rival):
                self._own.add(knock.address)
            if (error := self._rivalry.judge(rival)) is not None:
                return error
        if time.monotonic() >= self._next_round:
            self._begin_round(missing)
        return None

    def close(self) -> None:
        """It may be called twice."""
        for knock in list(self._open):
            self._leave(knock)

    def _begin_round(self, missing: Sequence[Server]) -> None:
        self.close()
        self._next_round = time.monotonic() + ROUND_S
        doors = [address for server in missing for address in self._addresses(server) if address not in self._own]
        self._turn = self._turn % len(doors) if doors else 0
        for address in (doors[self._turn :] + doors[: self._turn])[:MAX_DOORS]:
            with suppress(OSError):  # no way there, or no descriptors left for now
                self._open.append(_Knock(address, self._port, self._rivalry))
        self._turn += MAX_DOORS

    def _addresses(self, server: Server) -> set[str]:
        names = names_of(server)
        return {name for name in names if address_of(name)}.union(*(self._resolved.get(name, ()) for name in names))

    def _leave(self, knock: _Knock) -> None:
        self._open.remove(knock)
        knock.close()


class _Knock:
    """At one door."""

    def __init__(self, address: str, port: int, rivalry: Rivalry) -> None:
        """Begin to connect.

        Raises:
            OSError: there is no way to it.
        """
        self.address = address
        self._rivalry = rivalry
        self._nonce = os.urandom(16).hex()
        self._introduced = False
        self._channel = Channel(_connecting(address, port), MAX_FIRST_LINE_BYTES)

    def answer(self) -> Rival | None:
        """Of a coordinator that knows the token; None as long as none has come.

        Raises:
            ChannelClosedError: none will come.
        """
        for message in self._channel.receive():
            if isinstance(message, Challenge) and message.protocol == PROTOCOL and not self._introduced:
                self._introduced = True
                self._channel.send(self._rivalry.introduction(message.nonce, self._nonce))
            elif isinstance(message, Rival) and self._introduced and self._rivalry.knows_token(message, self._nonce):
                return message
            else:
                raise ChannelClosedError("what answers there is no coordinator that waits")
        self._channel.flush()
        return None

    def close(self) -> None:
        self._channel.close()


def _connecting(address: str, port: int) -> socket.socket:
    """A connection that is being made.

    Raises:
        OSError: it is known already that it cannot.
    """
    connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    connection.setblocking(False)
    try:
        with suppress(BlockingIOError):
            connection.connect((address, port))
    except BaseException:
        connection.close()
        raise
    return connection
