"""Checks if this server can connect to other servers, all at the same time.

No data are sent to ports that may belong to ranks; an established connection is enough. The other server's probe port
also echoes data, because a network path may allow connections but lose large packets:

    prober                        other server
    GREETING   ───────────>
               <───────────  ACKNOWLEDGED     it responds
    LARGE      ───────────>                   several packets of the largest size
               <───────────  ACKNOWLEDGED     the first of them has arrived
               <───────────  LARGE

If nothing follows the first acknowledgement, large packets are lost. The doctor's probes (launcher/doctor/reach.py)
authenticate the responding server; these probes do not need to, because both ends belong to one run.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from launcher.control.events import ProbeResult
from launcher.control.orders import ProbeReach
from launcher.core.machine.proc import open_links, tcp_sockets

BACKLOG = 4096
GREETING, ACKNOWLEDGED = b"?", b"+"
LARGE = bytes(16 << 10)  # more than one packet of any network
MIN_LARGE_S = 1.0  # large packets count as lost after this time without a response
MAX_OPEN = 512  # connections at the same time; works with a small limit of open files
_BEGUN = {0, errno.EINPROGRESS}
_NO_SUCH_FAMILY = {errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}


@dataclass
class _Probe:
    """An attempt to connect to another server. `echoes` is True if the attempt also tests large packets."""

    server_index: int
    connection: socket.socket
    echoes: bool
    stands: bool = False
    heard_bytes: int = 0  # counted up to LARGE
    large_s: float | None = None  # when LARGE was sent, monotonic


class ReachProbes:
    """Checks the connections to other servers. Call `step` when `fileno()` is readable or `timeout_s` has passed."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None  # on all addresses of this machine; None if no port is available
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        with suppress(OSError):
            self._listener = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=BACKLOG)
            self._listener.setblocking(False)
        self._epoll = select.epoll()
        if self._listener is not None:
            self._epoll.register(self._listener, select.EPOLLIN)
        self._open: dict[int, _Probe] = {}  # by descriptor
        self._callers: dict[int, tuple[socket.socket, int]] = {}  # by descriptor, with the number of received bytes
        self._echoed: dict[int, bool] = {}  # by server: True if large packets arrived
        self._why: dict[int, str] = {}  # by unreached server: the reason
        self._order: ProbeReach | None = None  # the current order
        self._deadline = 0.0  # monotonic

    @property
    def port(self) -> int | None:
        return None if self._listener is None else int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def timeout_s(self) -> float | None:
        """The seconds until unanswered probes are abandoned, or None if no probe is running."""
        return None if self._order is None else max(0.0, self._until() - time.monotonic())

    def begin(self, order: ProbeReach) -> None:
        """Cancel earlier probes, and start to connect to all targets."""
        self._forget()
        self._order, self._deadline = order, time.monotonic() + order.timeout_s
        self._why, self._echoed = {}, {}
        for target in order.targets:
            self._why[target.server] = "no answer"
            for address in target.addresses:
                for number, port in enumerate(target.ports):
                    self._connect(target.server, address, port, echoes=number == 0)

    def step(self) -> ProbeResult | None:
        """Process events on all connections. Return the result if the probes have ended, else None."""
        for descriptor, _ in self._epoll.poll(0):
            if self._listener is not None and descriptor == self._listener.fileno():
                self._accept(self._listener)
            elif descriptor in self._callers:
                self._hear(descriptor)
            elif descriptor in self._open:
                self._take(self._open[descriptor])
        if self._order is None:
            return None
        if self._open and time.monotonic() < self._until():
            return None
        for probe in self._open.values():
            if probe.large_s is not None and time.monotonic() - probe.large_s >= MIN_LARGE_S:
                self._echoed.setdefault(probe.server_index, False)
        lossy = tuple(sorted(index for index, arrived in self._echoed.items() if not arrived))
        answer = ProbeResult(self._order.server, self._order.number, tuple(sorted(self._why.items())), lossy=lossy)
        self._forget()
        return answer

    def close(self) -> None:
        """Close all connections. May be called twice."""
        self._forget()
        for connection, _ in self._callers.values():
            connection.close()
        self._callers.clear()
        self._epoll.close()
        if self._listener is not None:
            self._listener.close()

    def _until(self) -> float:
        """Return the monotonic deadline for responses: at least `MIN_LARGE_S` after the last large packet was sent."""
        sent = (probe.large_s + MIN_LARGE_S for probe in self._open.values() if probe.large_s is not None)
        return max(self._deadline, max(sent, default=0.0))

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # no more connections are waiting, or no descriptor is free
            while True:
                connection, _ = listener.accept()
                if len(self._callers) >= MAX_OPEN:
                    connection.close()  # for the other server, an established connection is enough
                    continue
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._callers[connection.fileno()] = connection, 0
                self._epoll.register(connection, select.EPOLLIN)

    def _hear(self, descriptor: int) -> None:
        """Answer the greeting and the first large packet of another server, which closes the connection afterwards."""
        connection, before = self._callers[descriptor]
        piece = _received(connection)
        if not piece or before + len(piece) > len(GREETING) + len(LARGE):
            del self._callers[descriptor]
            connection.close()
            return
        self._callers[descriptor] = connection, before + len(piece)
        with suppress(OSError):
            if before == 0:
                connection.send(ACKNOWLEDGED)
            elif before == len(GREETING):
                connection.send(ACKNOWLEDGED)  # in a separate packet
                connection.send(LARGE)

    def _connect(self, server_index: int, address: str, port: int, *, echoes: bool) -> None:
        if len(self._open) >= MAX_OPEN:
            self._why.pop(server_index, None)  # unknown
            return
        try:
            connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:  # no free descriptor: unknown
                self._why.pop(server_index, None)
            return
        connection.setblocking(False)
        try:
            code = connection.connect_ex((address, port))
        except (OSError, OverflowError, UnicodeError):  # not an address
            connection.close()
            return
        if code not in _BEGUN:
            self._why[server_index] = os.strerror(code)
            connection.close()
            return
        self._open[connection.fileno()] = _Probe(server_index, connection, echoes)
        self._epoll.register(connection, select.EPOLLOUT)

    def _take(self, probe: _Probe) -> None:
        if probe.stands:
            self._take_echo(probe)
            return
        code = probe.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._drop(probe)
            if probe.server_index in self._why:
                self._why[probe.server_index] = os.strerror(code)
            return
        self._why.pop(probe.server_index, None)
        probe.stands = True
        for other in [one for one in self._open.values() if one.server_index == probe.server_index and not one.echoes]:
            self._drop(other)
        if probe.echoes:
            probe.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._epoll.modify(probe.connection, select.EPOLLIN)
            with suppress(OSError):
                probe.connection.send(GREETING)

    def _take_echo(self, probe: _Probe) -> None:
        piece = _received(probe.connection)
        before = probe.heard_bytes
        probe.heard_bytes += len(piece)
        if probe.heard_bytes > 2 * len(ACKNOWLEDGED):
            self._echoed[probe.server_index] = True
            for other in [one for one in self._open.values() if one.server_index == probe.server_index]:
                self._drop(other)
        elif not piece:
            self._drop(probe)
        elif before == 0:
            probe.large_s = time.monotonic()
            with suppress(OSError):
                probe.connection.send(LARGE)

    def _drop(self, probe: _Probe) -> None:
        del self._open[probe.connection.fileno()]
        probe.connection.close()  # also removes it from the epoll set

    def _forget(self) -> None:
        for probe in self._open.values():
            probe.connection.close()
        self._open.clear()
        self._order = None


def _received(connection: socket.socket) -> bytes:
    """Return the received data, or empty bytes if the connection is closed."""
    try:
        return connection.recv(len(LARGE) + 1)
    except OSError:
        return b""


def listening_ports(pids: Iterable[int]) -> tuple[int, ...]:
    """Return the TCP ports on which the processes `pids` listen."""
    listening = {link: port for link, (port, is_listening) in tcp_sockets().items() if is_listening}
    return tuple(sorted({listening[link] for pid in pids for link in open_links(pid) if link in listening}))
