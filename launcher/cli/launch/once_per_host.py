"""An error that all ranks of an engine meet is reported once on every host, not by each of its ranks."""

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

LINGER_S = 1.0  # Open MPI may hang on ranks that end at once
# While others, which may start later, know that it was reported; engines end it with the first of them.
FIRST_LINGERS_S = 5.0
_held: list[socket.socket] = []


@contextmanager
def reported_once(rank: EngineRank) -> Iterator[None]:
    """Let the first rank of this host that meets an error here report it; others end with its exit code alone."""
    try:
        yield
    except TlaunchError as error:
        error.is_reported = not _is_first(rank, error)
        waits_for_others = not error.is_reported and (rank.local_world_size or 1) > 1
        atexit.register(time.sleep, FIRST_LINGERS_S if waits_for_others else LINGER_S)
        if not error.is_reported:  # of several servers only one may lack a file, or have another table
            host = os.uname().nodename
            named = rf"is on (server )?(\S+ \()?{re.escape(host)}[),]"  # by launcher/engines/host_match.py
            if re.search(named, error.message) is None:
                separator = "\n" if "\n" in error.message else " "  # a report ends with a line of its own
                error.message += f"{separator}(rank {rank.global_rank} on {host})"
        raise


def _is_first(rank: EngineRank, error: TlaunchError) -> bool:
    """Return whether this process binds an abstract name first; where the system has none, each process does.

    The kernel forgets the name with this process. A hint is about all ranks, where a message may be about one.
    """
    words = f"{os.getuid()} {rank.job or os.getppid()} {error.hint or error.message}"
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    _held.append(holder)
    try:
        holder.bind(b"\0tlaunch-" + sha256(words.encode(errors="surrogateescape")).hexdigest()[:32].encode())
    except OSError as refused:
        return refused.errno != errno.EADDRINUSE
    return True
