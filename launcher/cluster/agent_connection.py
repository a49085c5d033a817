"""The coordinator's side of its connections: who is there, what their clocks say, and who has gone."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from launcher.control.messages import (
    MAX_FIRST_LINE_BYTES,
    PROTOCOL,
    AgentEvent,
    Challenge,
    Hello,
    Message,
    Ping,
    Pong,
    Ready,
    to_line,
)
from launcher.core.errors import RefusedLayoutError, TlaunchError, UsageError
from launcher.core.machine.interfaces import address_of, addresses_of, names_of
from launcher.core.records import Server
from launcher.engines.host_match import ServerIndex
from launcher.supervise.channel import Channel, ChannelClosedError

UNAUTHENTICATED_S = 10.0  # a connection that has not authenticated by then is closed
BACKLOG = 4096
MAX_ADDRESSES = 4  # of one server, that others try
ANSWERS_KEPT = 32
RANK_TABLE = "rank table"  # in what servers must have alike
ROUNDING_NS = 2  # of halves of round trips
FIRST_ASKED = 8  # times right after the welcome: a clock is wanted before anything fails


class Clock:
    """The estimate how far another server's wall clock is ahead, from the quickest answer (Cristian's algorithm)."""

    def __init__(self) -> None:
        # Round trip and difference. Clocks drift, and are set: old answers are forgotten.
        self._answers: deque[tuple[int, int]] = deque(maxlen=ANSWERS_KEPT)

    @property
    def known(self) -> bool:
        return bool(self._answers)

    @property
    def ahead_ns(self) -> int:
        return min(self._answers)[1] if self._answers else 0

    @property
    def error_ns(self) -> int:
        """The error of the estimate at most: half of the round trip of that answer."""
        return min(self._answers)[0] // 2 if self._answers else 0

    def take(self, here_ns: int, round_trip_ns: int, now_ns: int) -> None:
        """Ahead = here - (now - round trip / 2): the answer of 162 that comes at 104, after 4, is of a clock 60 ahead.

        An answer that cannot be true together with the best one shows that a clock was set, or has drifted, since then.
        """
        if round_trip_ns < 0:
            return
        ahead_ns = here_ns - (now_ns - round_trip_ns // 2)
        if self._answers and abs(ahead_ns - self.ahead_ns) > round_trip_ns / 2 + self.error_ns + ROUNDING_NS:
            self._answers.clear()
        self._answers.append((round_trip_ns, ahead_ns))


class PingHistory:
    """The pings of a connection: when they were sent, which were answered, and what the answers say of the other clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.answered_ns: int | None = None  # of the monotonic clock: when the last ping that was answered was sent
        self._unanswered: deque[int] = deque()  # when those since were sent
        self._first_left = FIRST_ASKED

    @property
    def unanswered_ns(self) -> int | None:
        """The time of the first ping that has no answer yet; None if all have one."""
        return self._unanswered[0] if self._unanswered else None

    def next_ping(self) -> Ping:
        """Return a ping with the time by a clock that is never set, which the answer brings back."""
        now_ns = time.monotonic_ns()
        self._unanswered.append(now_ns)
        return Ping(now_ns)

    def take(self, pong: Pong) -> bool:
        """Keep an answer. Return whether to ping again at once: of many at once the later answers would have to wait."""
        now_ns = time.time_ns()  # first: held up between the two clocks, the answer counts as a slow one
        self.clock.take(pong.here_ns, time.monotonic_ns() - pong.sent_ns, now_ns)
        self.answered_ns = pong.sent_ns
        while self._unanswered and self._unanswered[0] <= pong.sent_ns:
            self._unanswered.popleft()
        again = self._first_left > 0
        self._first_left -= again
        return again


class AgentConnection:
    """One connection, from its first byte on. Nothing here waits or raises."""

    def __init__(self, connection: socket.socket, noticed: set[AgentConnection] | None = None) -> None:
        """Begin with a challenge. `noticed`: connections that are found lost, or have something to send, put themselves there."""
        self._noticed = set() if noticed is None else noticed
        self.channel = Channel(connection, MAX_FIRST_LINE_BYTES)
        self.nonce = os.urandom(16).hex()
        self.address = self.channel.peer
        self.since = time.monotonic()
        self.hello: Hello | None = None
        self.server_index: int | None = None  # once it is known and wanted
        self.ready: Ready | None = None
        self.has_begun = False  # an attempt: its agent runs
        self.over = False  # nothing of the present attempt is left there
        self.done = False  # it has sent its last message
        self.given_up = False  # it ends its ranks, and takes no further part
        self.pings = PingHistory()
        self.disk_silent_s = 0.0  # how long its disk had not answered, as its last pong says
        self._mute: str | None = None  # why nothing can be sent any more; last words may have come
        self.lost: str | None = None  # why nothing more is heard of it
        self.send(Challenge(PROTOCOL, self.nonce))

    def fileno(self) -> int:
        return self.channel.fileno()

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.channel.heard_at

    def send(self, message: Message) -> None:
        self.send_line(to_line(message))

    def send_line(self, line: bytes) -> None:
        """Send a message as it travels, which is written once for many."""
        if self.lost is None and self._mute is None:
            try:
                self.channel.send_line(line)
            except ChannelClosedError as error:
                self._mute = str(error)
            if self.is_mute or self.channel.wants_write:
                self._noticed.add(self)

    @property
    def is_mute(self) -> bool:
        """Return whether nothing can be sent to it any more: `take` gives its last messages, and then it is lost."""
        return self._mute is not None

    def lose(self, why: str) -> None:
        """Give this connection up as lost. Of several reasons the first counts."""
        self.lost = self.lost or why
        self._noticed.add(self)

    def ask(self, *, disk_stalls: bool = False) -> None:
        """Send a ping, from any thread. `disk_stalls`: see Ping."""
        self.send(replace(self.pings.next_ping(), disk_stalls=disk_stalls))

    def take(self) -> list[Message]:
        """Return what has come, but for answers to `ask`, which are kept here, and events of another server."""
        taken: list[Message] = []
        try:
            for message in self.channel.receive():
                if isinstance(message, Pong):
                    self.disk_silent_s = message.disk_silent_s
                    if self.pings.take(message):
                        self.ask()
                elif (
                    self.server_index is None
                    or not isinstance(message, AgentEvent)
                    or message.server == self.server_index
                ):
                    taken.append(message)
            if self._mute is None:
                self.channel.flush()
        except ChannelClosedError as error:
            self.lose(str(error))
        if self._mute is not None:
            self.lose(self._mute)
        return taken

    def close(self, patience_s: float = 0.0) -> None:
        """Wait at most `patience_s` seconds until the last message has been sent."""
        if self.lost is None and self._mute is None:
            self.channel.drain(time.monotonic() + patience_s)
        self.channel.close()


def listen(port: int = 0) -> socket.socket:
    """Return a socket on which agents are awaited, on every address of this machine.

    Raises:
        OSError: the port is in use.
    """
    if socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    else:
        listener = socket.create_server(("", port), backlog=BACKLOG)
    listener.setblocking(False)
    return listener


def server_of(hello: Hello, register: ServerIndex) -> int:
    """Return which server of the table said hello.

    What it was given (--server) counts first, then its addresses and its name, and at last its place among the engine's processes.

    Raises:
        UsageError, RefusedLayoutError: it is not one of them, or could be several.
    """
    if hello.said is not None:
        if hello.said not in register.places:
            raise UsageError(
                f"--server {hello.said}: the rank table has no such server",
                hint=f"its servers are {', '.join(register.places)}",
            )
        return register.places[hello.said]
    fitting = register.find(hello.host, addresses_of(hello.addresses))
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and hello.index is not None and 0 <= hello.index < len(register.servers):
        return hello.index
    what = "could be any of" if fitting else "is not one of"
    ids = ", ".join(register.servers[index].server_id for index in fitting or range(len(register.servers)))
    raise RefusedLayoutError(
        f"{described(hello)} {what} the table's servers {ids}",
        hint="set --server or TLAUNCH_SERVER on that machine",
    )


def addresses_to_try(
    server: Server, peer: AgentConnection | None, resolved: Mapping[str, Iterable[object]]
) -> tuple[str, ...]:
    """Return where another server may reach this one: few addresses, none where none is known.

    Those of the table, since ranks use them; else what its names mean, which `resolved` has; else where its agent comes
    from, and what that says.
    """
    names = names_of(server)
    # A machine may have many addresses, in no order, and most lead nowhere from outside: bridges of containers.
    own = (peer.address, *(peer.hello.addresses if peer.hello else ())) if peer is not None else ()
    meant = [str(address) for name in names for address in resolved.get(name, ())]
    for found in ([name for name in names if address_of(name)], _of_others(meant), _of_others(own)):
        if found:
            return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]
    return ()


def _of_others(addresses: Iterable[str]) -> list[str]:
    known = ((text, address_of(text)) for text in addresses)
    return [text for text, address in known if address and not (address.is_loopback or address.is_link_local)]


def described(hello: Hello) -> str:
    found = addresses_of(hello.addresses)
    outer = sorted(str(one) for one in found if one.version == 4 and not one.is_loopback)
    return f"{hello.host} ({outer[0]})" if outer else hello.host


def differences(hello: Hello, agreement: Mapping[str, str], server_id: str) -> TlaunchError | None:
    """Return why a server that was started by hand does not fit the first one; None where it does."""
    if hello.agreement is None:  # the engine has started it, and it gets its job from here
        return None
    for what, ours in agreement.items():
        theirs = hello.agreement.get(what, "nothing")
        if theirs != ours:
            # Without digests: values could be guessed from them.
            there, here = (one.rpartition(" (")[0] or one if one.endswith(")") else one for one in (theirs, ours))
            shown = (
                f"{there} there, {here} on the first server" if there != here else f"{there}, of other values or words"
            )
            return RefusedLayoutError(
                f"server {server_id} was started with another {what}: {shown}",
                hint=_HINTS.get(what, "start the same command with the same options on every server"),
            )
    return None


_HINTS = {RANK_TABLE: "have the same table on every server; `tlaunch table diff` shows where two of them differ"}
