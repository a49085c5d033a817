"""A rendezvous port that no other process can take between its choice and rank 0's use of it."""

from __future__ import annotations

import errno
import socket

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen

_PORT_TROUBLE = (errno.EADDRINUSE, errno.EACCES)  # as opposed to a machine without IPv6


@frozen
class HeldPort:
    """A port, and the socket that keeps it. `holder` is None if the user chose the port."""

    number: int
    holder: socket.socket | None = None

    def close(self) -> None:
        if self.holder is not None:
            self.holder.close()


def hold_port() -> HeldPort:
    """Take a free TCP port of this machine and keep others away from it until closed. Does not listen.

    The socket is bound without SO_REUSEADDR, so that the kernel gives a port that is wholly free, and gets
    SO_REUSEADDR afterwards: from then on a store that sets SO_REUSEADDR itself (torch's does) may bind and listen
    there, while a process that asks the kernel for a free port never gets this one. A listener that does not set
    SO_REUSEADDR gets "address already in use": such programs need `--master-port`, which holds nothing.
    The descriptor is close-on-exec: ranks do not inherit it.
    """
    holder = _bound_socket(0)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return HeldPort(holder.getsockname()[1], holder)


def check_port(number: int) -> HeldPort:
    """Return the port that the user chose, after a check that it is free now.

    Raises:
        UsageError: something uses the port.
    """
    try:
        _bound_socket(number, reuse=True).close()
    except OSError as error:
        from launcher.supervise.port_holder import reason_of  # noqa: PLC0415 - most ports are free

        hint = "leave --master-port out to get a free one"
        raise UsageError(f"port {number} cannot be used: {reason_of(error, number)}", hint=hint) from error
    return HeldPort(number)


def _bound_socket(number: int, *, reuse: bool = False) -> socket.socket:
    """Return a socket bound to every address of both families, or to every IPv4 address without IPv6."""
    try:
        return _bind(socket.AF_INET6, number, reuse=reuse)
    except OSError as error:
        if error.errno in _PORT_TROUBLE:
            raise
        return _bind(socket.AF_INET, number, reuse=reuse)


def _bind(family: socket.AddressFamily, number: int, *, reuse: bool) -> socket.socket:
    created = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            created.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # A port whose last connections still fade away (TIME_WAIT) is free for a store, so it counts as free here.
        created.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        created.bind(("", number))
    except BaseException:
        created.close()
        raise
    return created
