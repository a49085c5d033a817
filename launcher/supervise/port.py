"""Reserves a rendezvous port, so that no process takes it before rank 0 uses it. Also finds who uses a port."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.proc import PROC, every_process, open_links, tcp_sockets
from launcher.core.text import shell_words
from launcher.preload.masking import masked_argv

_MAX_COMMAND_CHARS = 100
_PORT_TROUBLE = (errno.EADDRINUSE, errno.EACCES)  # other errors may mean that the machine has no IPv6


@frozen
class HeldPort:
    """A port number, and the socket `holder` that reserves the port. `holder` is None if no socket reserves it."""

    number: int
    holder: socket.socket | None = None

    def close(self) -> None:
        if self.holder is not None:
            self.holder.close()


def hold_port() -> HeldPort:
    """Reserve a free TCP port of this machine until the returned object is closed.

    The socket is bound without SO_REUSEADDR, so the kernel chooses a completely free port. It gets SO_REUSEADDR
    afterwards. A store that sets SO_REUSEADDR too, as in torch, can then bind and listen on the port. Processes that
    ask the kernel for a free port never get it. A listener without SO_REUSEADDR gets "address already in use"; such
    programs need `--master-port`, which reserves nothing. The descriptor is close-on-exec, so ranks do not inherit
    it.
    """
    holder = _bound_socket(0)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return HeldPort(holder.getsockname()[1], holder)


def check_port(number: int) -> HeldPort:
    """Check that the user's port can be used, and return it without reserving it. Raises UsageError."""
    try:
        _bound_socket(number, reuse=True).close()
    except OSError as error:
        hint = "omit --master-port to use a free port"
        raise UsageError(f"port {number} cannot be used: {reason_of(error, number)}", hint=hint) from error
    return HeldPort(number)


def _bound_socket(number: int, *, reuse: bool = False) -> socket.socket:
    """Return a socket bound to all IPv6 and IPv4 addresses, or only to IPv4 on a machine without IPv6."""
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
        # With SO_REUSEADDR, a port with old connections in TIME_WAIT counts as free, as it does for a store.
        created.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        created.bind(("", number))
    except BaseException:
        created.close()
        raise
    return created


# --- who uses a port, if this user may see it in /proc ---


def reason_of(error: OSError, port: int) -> str:
    """Describe why a port is unavailable, for example "Address already in use, by process 7 (python a.py)"."""
    reason = error.strerror or str(error)
    if error.errno != errno.EADDRINUSE or (pid := holder_of(port)) is None:
        return reason
    command = command_of(pid)
    return f"{reason}, by process {pid}{f' ({command})' if command else ''}"


def holder_of(port: int) -> int | None:
    """Return the pid of a process that uses this port, or None if no such process is visible.

    Listening sockets are preferred. Sockets of other users, and bound sockets that do not listen yet, are not visible.
    """
    listens = {link: is_listening for link, (local_port, is_listening) in tcp_sockets().items() if local_port == port}
    wanted = {link for link in listens if listens[link] or not any(listens.values())}
    pids = sorted(process.pid for process in every_process()) if wanted else ()
    return next((pid for pid in pids if not wanted.isdisjoint(open_links(pid))), None)


def command_of(pid: int) -> str:
    """Return the command line of a process with secrets masked, or an empty string if it cannot be read."""
    with suppress(OSError):
        words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
        command = shell_words(masked_argv(words)) if words != [""] else ""
        return command if len(command) <= _MAX_COMMAND_CHARS else f"{command[:_MAX_COMMAND_CHARS]}..."
    return ""
