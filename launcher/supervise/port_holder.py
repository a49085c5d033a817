"""Finds the process of this machine that has a TCP port, as far as /proc shows it to this user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

from launcher.core.machine.proc import PROC
from launcher.core.text import shell_words
from launcher.preload.masking import masked_argv

_LISTENING = "0A"
_MAX_COMMAND_CHARS = 100


def reason_of(error: OSError, port: int) -> str:
    """Return why a port could not be had, for a message: "Address already in use, by process 7 (python serve.py)"."""
    reason = error.strerror or str(error)
    if error.errno != errno.EADDRINUSE or (pid := holder_of(port)) is None:
        return reason
    command = command_of(pid)
    return f"{reason}, by process {pid}{f' ({command})' if command else ''}"


def holder_of(port: int) -> int | None:
    """Return the lowest pid that has a socket of that port open; None where that cannot be seen. Looks at all processes.

    Sockets that listen come first. Those of other users, and those that are bound and do not listen yet, are not seen.
    """
    sockets = dict(_sockets_of(port))
    listening = {name for name, state in sockets.items() if state == _LISTENING}
    wanted = {f"socket:[{name}]" for name in listening or sockets}
    with suppress(OSError):
        for pid in sorted(int(name) for name in os.listdir(PROC) if name.isdecimal()) if wanted else ():  # noqa: PTH208
            if any(one in wanted for one in _open_files(pid)):
                return pid
    return None


def command_of(pid: int) -> str:
    """Return a process's command line, on one line, its secrets masked; empty where it has none or may not be read."""
    with suppress(OSError):
        words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
        command = shell_words(masked_argv(words)) if words != [""] else ""
        return command if len(command) <= _MAX_COMMAND_CHARS else f"{command[:_MAX_COMMAND_CHARS]}..."
    return ""


def _sockets_of(port: int) -> Iterator[tuple[str, str]]:
    """Yield inode and state of the sockets whose local port it is."""
    for family in ("tcp", "tcp6"):
        with suppress(OSError), open(PROC / "net" / family, encoding="ascii") as file:  # noqa: PTH123
            for line in file:
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[9] != "0":
                    yield fields[9], fields[3]


def _open_files(pid: int) -> Iterator[str]:
    directory = f"{PROC}/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 - as many as there are open files
            with suppress(OSError):
                yield os.readlink(f"{directory}/{name}")  # noqa: PTH115
