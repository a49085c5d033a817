"""The coordinator's side of a connection to an agent: messages, pings, the clock offset, and errors."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from launcher.control import messages
from launcher.core.errors import RefusedLayoutError, TlaunchError, UsageError
from launcher.core.machine.interfaces import address_of, addresses_of, names_of
from launcher.core.records import Server
from launcher.engines.host_match import ServerIndex
from launcher.supervise.channel import Channel, ChannelClosedError

UNAUTHENTICATED_S = 10.0  # for a connection to authenticate before it is closed
BACKLOG = 4096
MAX_ADDRESSES = 4  # addresses of one server that others try
ANSWERS_KEPT = 32
RANK_TABLE = "rank table"  # a key of `Plan.agreement`
ROUNDING_NS = 2  # rounding error of halved round trips
FIRST_ASKED = 8  # pings right after the registration, to know the clock offset before anything fails


class Clock:
    """Estimates another server's clock offset from the fastest answer to a ping (Cristian's algorithm)."""

    def __init__(self) -> None:
        # Round trip and offset. Old answers are dropped, since clocks drift and are adjusted.
        self._answers: deque[tuple[int, int]] = deque(maxlen=ANSWERS_KEPT)

    @property
    def known(self) -> bool:
        return bool(self._answers)

    @property
    def ahead_ns(self) -> int:
        return min(self._answers)[1] if self._answers else 0

    @property
    def error_ns(self) -> int:
        """The maximum error of the estimated offset in nanoseconds: half of the shortest round trip."""
        return min(self._answers)[0] // 2 if self._answers else 0

    def take(self, here_ns: int, round_trip_ns: int, now_ns: int) -> None:
        """Add a measurement of the clock offset, taken from the answer to a ping.

        The offset is `here_ns - (now_ns - round_trip_ns / 2)`. For example, an answer with time 162 that arrives at 104
        after a round trip of 4 comes from a clock that is 60 ahead. An answer that contradicts the one with the
        shortest round trip means that a clock was adjusted or has drifted, so older answers are dropped.
        """
        if round_trip_ns < 0:
            return
        ahead_ns = here_ns - (now_ns - round_trip_ns // 2)
        if self._answers and abs(ahead_ns - self.ahead_ns) > round_trip_ns / 2 + self.error_ns + ROUNDING_NS:
            self._answers.clear()
        self._answers.append((round_trip_ns, ahead_ns))


class PingHistory:
    """Records when the pings of a connection were sent and answered, and estimates the other side's clock offset."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.answered_ns: int | None = None  # send time of the last answered ping
        self._unanswered: deque[int] = deque()  # send times of later pings
        self._first_left = FIRST_ASKED

    @property
    def unanswered_ns(self) -> int | None:
        return self._unanswered[0] if self._unanswered else None

    def next_ping(self) -> messages.Ping:
        now_ns = time.monotonic_ns()
        self._unanswered.append(now_ns)
        return messages.Ping(now_ns)

    def take(self, pong: messages.Pong) -> bool:
        """Process the answer to a ping. Return True if the next ping should be sent immediately."""
        now_ns = time.time_ns()  # read first: a delay between the two clocks then only increases the round trip
        self.clock.take(pong.here_ns, time.monotonic_ns() - pong.sent_ns, now_ns)
        self.answered_ns = pong.sent_ns
        while self._unanswered and self._unanswered[0] <= pong.sent_ns:
            self._unanswered.popleft()
        again = self._first_left > 0
        self._first_left -= again
        return again


class AgentConnection:
    """The coordinator's connection to an agent or a client. Its methods never raise, and only `close` may block."""

    def __init__(self, connection: socket.socket, noticed: set[AgentConnection] | None = None) -> None:
        """Send an authentication challenge. The object adds itself to `noticed` if it is lost or has unsent data."""
        self._noticed = set() if noticed is None else noticed
        self.channel = Channel(connection, messages.MAX_FIRST_LINE_BYTES)
        self.nonce = os.urandom(16).hex()
        self.address = self.channel.peer
        self.since = time.monotonic()
        self.hello: messages.Hello | None = None
        self.server_index: int | None = None  # set by the registration
        self.ready: messages.Ready | None = None
        self.has_begun = False  # an attempt has started on it
        self.over = False  # no process of the current attempt is left on it
        self.done = False  # it has sent its last message
        self.given_up = False  # it ends its ranks and leaves the run
        self.pings = PingHistory()
        self.disk_silent_s = 0.0  # how long its disk has not answered, from its last pong
        self.mute: str | None = None  # why nothing can be sent; `take` marks it as lost after its last messages
        self.lost: str | None = None  # why the connection is lost
        self.send(messages.Challenge(messages.PROTOCOL, self.nonce))

    def fileno(self) -> int:
        return self.channel.fileno()

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.channel.heard_at

    def send(self, message: messages.Message) -> None:
        self.send_line(messages.to_line(message))

    def send_line(self, line: bytes) -> None:
        if self.lost is None and self.mute is None:
            try:
                self.channel.send_line(line)
            except ChannelClosedError as error:
                self.mute = str(error)
            if self.mute is not None or self.channel.wants_write:
                self._noticed.add(self)

    def lose(self, why: str) -> None:
        self.lost = self.lost or why
        self._noticed.add(self)

    def ask(self, *, disk_stalls: bool = False) -> None:
        """Send a ping. Any thread may call this method."""
        self.send(replace(self.pings.next_ping(), disk_stalls=disk_stalls))

    def take(self) -> list[messages.Message]:
        """Return the received messages, except answers to pings and events about other servers."""
        taken: list[messages.Message] = []
        try:
            for message in self.channel.receive():
                if isinstance(message, messages.Pong):
                    self.disk_silent_s = message.disk_silent_s
                    if self.pings.take(message):
                        self.ask()
                elif not isinstance(message, messages.AgentEvent) or self.server_index in {None, message.server}:
                    taken.append(message)
            if self.mute is None:
                self.channel.flush()
        except ChannelClosedError as error:
            self.lose(str(error))
        if self.mute is not None:
            self.lose(self.mute)
        return taken

    def close(self, patience_s: float = 0.0) -> None:
        """Wait up to `patience_s` seconds for pending messages to be sent, and then close the connection."""
        if self.lost is None and self.mute is None:
            self.channel.drain(time.monotonic() + patience_s)
        self.channel.close()


def listen(port: int = 0) -> socket.socket:
    """Return a non-blocking socket that listens on all addresses; raise OSError if the port is in use."""
    if socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    else:
        listener = socket.create_server(("", port), backlog=BACKLOG)
    listener.setblocking(False)
    return listener


def server_of(hello: messages.Hello, register: ServerIndex) -> int:
    """Return the rank table index of the server that sent `hello`.

    It is identified by --server, then by its addresses and hostname, then by its index among the engine's processes.
    Raises UsageError or RefusedLayoutError if no server matches, or several do.
    """
    if hello.said is not None:
        if hello.said not in register.places:
            raise UsageError(
                f"--server {hello.said} is not a server in the rank table",
                hint=f"use one of {', '.join(register.places)}",
            )
        return register.places[hello.said]
    fitting = register.find(hello.host, addresses_of(hello.addresses))
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and hello.index is not None and 0 <= hello.index < len(register.servers):
        return hello.index
    what = "matches several of" if fitting else "is not one of"
    ids = ", ".join(register.servers[index].server_id for index in fitting or range(len(register.servers)))
    raise RefusedLayoutError(
        f"{described(hello)} {what} the table's servers {ids}",
        hint=f"set --server or TLAUNCH_SERVER on {described(hello)}",
    )


def addresses_to_try(
    server: Server, peer: AgentConnection | None, resolved: Mapping[str, Iterable[object]]
) -> tuple[str, ...]:
    """Return up to `MAX_ADDRESSES` addresses at which other servers may reach this one.

    Addresses in the rank table come first, since ranks use them. If it has only names, these are their `resolved`
    addresses. If there are none, they are the addresses of the agent's connection and those that the agent reports.
    """
    names = names_of(server)
    # A machine may have many addresses, and most are unreachable from outside, such as bridges of containers.
    own = (peer.address, *(peer.hello.addresses if peer.hello else ())) if peer is not None else ()
    meant = [str(address) for name in names for address in resolved.get(name, ())]
    for found in ([name for name in names if address_of(name)], _of_others(meant), _of_others(own)):
        if found:
            return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]
    return ()


def _of_others(addresses: Iterable[str]) -> list[str]:
    known = ((text, address_of(text)) for text in addresses)
    return [text for text, address in known if address and not (address.is_loopback or address.is_link_local)]


def described(hello: messages.Hello) -> str:
    found = addresses_of(hello.addresses)
    outer = sorted(str(one) for one in found if one.version == 4 and not one.is_loopback)
    return f"{hello.host} ({outer[0]})" if outer else hello.host


def differences(hello: messages.Hello, agreement: Mapping[str, str], server_id: str) -> TlaunchError | None:
    """Return an error if a manually started server has different settings from the first server, else None."""
    if hello.agreement is None:  # the engine started it, and it gets its job from the coordinator
        return None
    for what, ours in agreement.items():
        theirs = hello.agreement.get(what, "nothing")
        if theirs != ours:
            # Digests are not shown: values could be guessed from them.
            there, here = (one.rpartition(" (")[0] or one if one.endswith(")") else one for one in (theirs, ours))
            shown = f"{there} there, {here} on the first server" if there != here else f"{there}, with different values"
            hint = "start the same command with the same options on every server"
            if what == RANK_TABLE:
                hint = "copy the same table to every server; `tlaunch table diff` shows the differences"
            return RefusedLayoutError(f"server {server_id} was started with a different {what}: {shown}", hint=hint)
    return None
