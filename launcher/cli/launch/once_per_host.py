"""Report an error once per host, even if an engine started many copies of the command."""

from __future__ import annotations

import atexit
import errno
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from launcher.core.errors import TlaunchError
from launcher.core.machine.engine_rank import EngineRank

LINGER_S = 1.0  # Open MPI may hang if ranks exit immediately
# The reporting rank stays longer, so that ranks that start later see that the error was reported.
FIRST_LINGERS_S = 5.0
_held: list[socket.socket] = []


@contextmanager
def reported_once(rank: EngineRank) -> Iterator[None]:
    """Let only the first rank on this host report an error. Other ranks exit silently with the same exit code."""
    try:
        yield
    except TlaunchError as error:
        error.is_reported = not _is_first(rank, error)
        waits_for_others = not error.is_reported and (rank.local_world_size or 1) > 1
        atexit.register(time.sleep, FIRST_LINGERS_S if waits_for_others else LINGER_S)
        if not error.is_reported:  # name the host: the error may concern only one server
            host = os.uname().nodename
            named = rf"is on (server )?(\S+ \()?{re.escape(host)}[),]"  # a message of launcher/engines/host_match.py
            if re.search(named, error.message) is None:
                separator = "\n" if "\n" in error.message else " "
                error.message += f"{separator}(rank {rank.global_rank} on {host})"
        raise


def _is_first(rank: EngineRank, error: TlaunchError) -> bool:
    """Return True if this process is the first on its host to report the error.

    The first process binds an abstract socket, whose name the kernel releases when the process ends. Without abstract
    sockets, every process is first. The name depends on the hint, because messages may differ between ranks.
    """
    words = f"{os.getuid()} {rank.job or os.getppid()} {error.hint or error.message}"
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    _held.append(holder)
    try:
        holder.bind(b"\0tlaunch-" + sha256(words.encode(errors="surrogateescape")).hexdigest()[:32].encode())
    except OSError as refused:
        return refused.errno != errno.EADDRINUSE
    return True
