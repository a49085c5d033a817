"""Probes of whether this server reaches others at the moment: connections to ports of theirs, all at the same time.

Nothing is sent to a port that may be a rank's own: a connection there is proof enough. The port of another server's probes
also echoes, because a path may let connections through and lose large packets:

    prober                        other server
    GREETING   ───────────>
               <───────────  ACKNOWLEDGED     it answers
    LARGE      ───────────>                   several packets of the largest size
               <───────────  ACKNOWLEDGED     the first of them has arrived
               <───────────  LARGE

Large packets are lost if nothing follows the first acknowledgement. The doctor's probes (launcher/doctor/reach.py) ask for a proof of
who answers; here both ends belong to one run.
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
MIN_LARGE_S = 1.0  # without an answer, after which large packets count as lost
MAX_OPEN = 512  # connections at once, so that a small limit of open files is enough
_BEGUN = {0, errno.EINPROGRESS}
_NO_SUCH_FAMILY = {errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}


@dataclass
class _Probe:
    """One connection that is made, and may be echoed on."""

    server_index: int
    connection: socket.socket
    echoes: bool
    stands: bool = False
    heard_bytes: int = 0  # as far as LARGE
    large_s: float | None = None  # when LARGE was sent, monotonic


class ReachProbes:
    """Listens on a free port from the start, for others to try. Nothing here waits; `step` when readable or due."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None  # on every address of this machine; None if no port can be had
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        with suppress(OSError):
            self._listener = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=BACKLOG)
            self._listener.setblocking(False)
        self._epoll = select.epoll()
        if self._listener is not None:
            self._epoll.register(self._listener, select.EPOLLIN)
        self._open: dict[int, _Probe] = {}  # by descriptor
        self._callers: dict[int, tuple[socket.socket, int]] = {}  # by descriptor, with the bytes that have come
        self._echoed: dict[int, bool] = {}  # by server: whether large packets arrived
        self._why: dict[int, str] = {}  # of servers that were not reached yet
        self._order: ProbeReach | None = None  # that is to be answered
        self._deadline = 0.0  # monotonic

    @property
    def port(self) -> int | None:
        return None if self._listener is None else int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def timeout_s(self) -> float | None:
        """The seconds until what has not answered is given up; None if no probe is under way."""
        return None if self._order is None else max(0.0, self._deadline - time.monotonic())

    def begin(self, order: ProbeReach) -> None:
        """Try all targets, and forget what was begun before."""
        self._forget()
        self._order, self._deadline = order, time.monotonic() + order.timeout_s
        self._why, self._echoed = {}, {}
        for target in order.targets:
            self._why[target.server] = "no answer"
            for address in target.addresses:
                for number, port in enumerate(target.ports):
                    self._connect(target.server, address, port, echoes=number == 0)

    def step(self) -> ProbeResult | None:
        """Return the answer, once it is known of every target. Accept connections of other servers meanwhile."""
        for descriptor, _ in self._epoll.poll(0):
            if self._listener is not None and descriptor == self._listener.fileno():
                self._accept(self._listener)
            elif descriptor in self._callers:
                self._hear(descriptor)
            elif descriptor in self._open:
                self._take(self._open[descriptor])
        if self._order is None:
            return None
        if self._open and time.monotonic() < self._deadline:
            return None
        for probe in self._open.values():
            if probe.large_s is not None and time.monotonic() - probe.large_s >= MIN_LARGE_S:
                self._echoed.setdefault(probe.server_index, False)
        lossy = tuple(sorted(index for index, arrived in self._echoed.items() if not arrived))
        answer = ProbeResult(self._order.server, self._order.number, tuple(sorted(self._why.items())), lossy=lossy)
        self._forget()
        return answer

    def close(self) -> None:
        """May be called again."""
        self._forget()
        for connection, _ in self._callers.values():
            connection.close()
        self._callers.clear()
        self._epoll.close()
        if self._listener is not None:
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # no more wait, or no descriptor is left
            while True:
                connection, _ = listener.accept()
                if len(self._callers) >= MAX_OPEN:
                    connection.close()  # that it stood is enough for the other server
                    continue
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._callers[connection.fileno()] = connection, 0
                self._epoll.register(connection, select.EPOLLIN)

    def _hear(self, descriptor: int) -> None:
        """Answer the first bytes of a caller, and the first of its large packets. The caller closes the connection."""
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
                connection.send(ACKNOWLEDGED)  # in a packet of its own
                connection.send(LARGE)

    def _connect(self, server_index: int, address: str, port: int, *, echoes: bool) -> None:
        if len(self._open) >= MAX_OPEN:
            self._why.pop(server_index, None)  # nothing is known of it
            return
        try:
            connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:  # no descriptor is left: nothing is known of it
                self._why.pop(server_index, None)
            return
        connection.setblocking(False)
        try:
            code = connection.connect_ex((address, port))
        except (OSError, OverflowError, UnicodeError):  # it is no address
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
        probe.connection.close()  # which takes it out of the set, too

    def _forget(self) -> None:
        for probe in self._open.values():
            probe.connection.close()
        self._open.clear()
        self._order = None


def _received(connection: socket.socket) -> bytes:
    """Return what has come; empty if the other side has closed the connection."""
    try:
        return connection.recv(len(LARGE) + 1)
    except OSError:
        return b""


def listening_ports(pids: Iterable[int]) -> tuple[int, ...]:
    """Return the ports on which these processes listen for others."""
    listening = {link: port for link, (port, is_listening) in tcp_sockets().items() if is_listening}
    return tuple(sorted({listening[link] for pid in pids for link in open_links(pid) if link in listening}))
