"""Finds the local process that uses a TCP port, if this user may see it in /proc."""

from __future__ import annotations

import errno
from contextlib import suppress

from launcher.core.machine.proc import PROC, every_process, open_links, tcp_sockets
from launcher.core.text import shell_words
from launcher.preload.masking import masked_argv

_MAX_COMMAND_CHARS = 100


def reason_of(error: OSError, port: int) -> str:
    """Return the reason for an unavailable port, such as "Address already in use, by process 7 (python serve.py)"."""
    reason = error.strerror or str(error)
    if error.errno != errno.EADDRINUSE or (pid := holder_of(port)) is None:
        return reason
    command = command_of(pid)
    return f"{reason}, by process {pid}{f' ({command})' if command else ''}"


def holder_of(port: int) -> int | None:
    """Return the lowest pid with an open socket on this port, or None if unknown. Scans all processes.

    Listening sockets are preferred. Sockets of other users, and bound sockets that do not listen yet, are not visible.
    """
    listens = {link: is_listening for link, (local_port, is_listening) in tcp_sockets().items() if local_port == port}
    wanted = {link for link in listens if listens[link] or not any(listens.values())}
    pids = sorted(process.pid for process in every_process()) if wanted else ()
    return next((pid for pid in pids if not wanted.isdisjoint(open_links(pid))), None)


def command_of(pid: int) -> str:
    """Return a process's command line on one line, with secrets masked; empty if it has none or is not readable."""
    with suppress(OSError):
        words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
        command = shell_words(masked_argv(words)) if words != [""] else ""
        return command if len(command) <= _MAX_COMMAND_CHARS else f"{command[:_MAX_COMMAND_CHARS]}..."
    return ""
