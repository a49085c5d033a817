"""Probes of whether this server reaches others at the moment: connections to ports of theirs, all at the same time.

Nothing is sent on a connection, since the port may be a rank's own: that it stands is enough. The doctor's probes
(launcher/doctor/reach.py) ask for a proof of who answers; here both ends belong to one run.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterable
from contextlib import suppress

from launcher.core.messages import ProbeResult, ProbeTarget
from launcher.core.proc import PROC

BACKLOG = 4096
MAX_OPEN = 512  # connections at once, so that a small limit of open files is enough
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp
_BEGUN = {0, errno.EINPROGRESS}
_NO_SUCH_FAMILY = {errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}


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
        self._open: dict[int, tuple[int, socket.socket]] = {}  # server index and connection, by descriptor
        self._why: dict[int, str] = {}  # of servers that were not reached yet
        self._number: int | None = None  # of what is to be answered
        self._deadline = 0.0  # monotonic

    @property
    def port(self) -> int | None:
        return None if self._listener is None else int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def timeout_s(self) -> float | None:
        """The seconds until what has not answered is given up; None if no probe is under way."""
        return None if self._number is None else max(0.0, self._deadline - time.monotonic())

    def begin(self, number: int, targets: Iterable[ProbeTarget], timeout_s: float) -> None:
        """Try all targets, and forget what was begun before."""
        self._forget()
        self._number, self._deadline = number, time.monotonic() + timeout_s
        self._why = {}
        for target in targets:
            self._why[target.server_index] = "no answer"
            for address in target.addresses:
                for port in target.ports:
                    self._connect(target.server_index, address, port)

    def step(self) -> ProbeResult | None:
        """Return the answer, once it is known of every target. Accept connections of other servers meanwhile."""
        for descriptor, _ in self._epoll.poll(0):
            if self._listener is not None and descriptor == self._listener.fileno():
                with suppress(OSError):  # no more wait, or no descriptor is left
                    while True:
                        self._listener.accept()[0].close()  # that the connection stood is enough for the other server
            else:
                self._take(descriptor)
        if self._number is None:
            return None
        if self._open and time.monotonic() < self._deadline:
            return None
        answer = ProbeResult(self._number, tuple(sorted(self._why.items())))
        self._forget()
        return answer

    def close(self) -> None:
        """May be called again."""
        self._forget()
        self._epoll.close()
        if self._listener is not None:
            self._listener.close()

    def _connect(self, server_index: int, address: str, port: int) -> None:
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
        self._open[connection.fileno()] = (server_index, connection)
        self._epoll.register(connection, select.EPOLLOUT)

    def _take(self, descriptor: int) -> None:
        if descriptor not in self._open:
            return
        server_index, connection = self._open.pop(descriptor)
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        connection.close()  # which takes it out of the set, too
        if code == 0:
            self._why.pop(server_index, None)
            for other in [each for each, (server, _) in self._open.items() if server == server_index]:
                self._open.pop(other)[1].close()
        elif server_index in self._why:
            self._why[server_index] = os.strerror(code)

    def _forget(self) -> None:
        for _, connection in self._open.values():
            connection.close()
        self._open.clear()
        self._number = None


def listening_ports(pids: Iterable[int]) -> tuple[int, ...]:
    """Return the ports on which these processes listen for others."""
    inodes: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in (PROC / "net" / name).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    inodes[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    found = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(PROC / str(pid) / "fd"):  # noqa: PTH208 - many names, and no use for paths
                with suppress(OSError):
                    inode = os.readlink(f"{PROC}/{pid}/fd/{name}")  # noqa: PTH115
                    found.add(inodes.get(inode.removeprefix("socket:[").removesuffix("]")))
    return tuple(sorted(port for port in found if port is not None))
