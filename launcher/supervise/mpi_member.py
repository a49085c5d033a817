"""The process that an engine started in the place of a rank: it hands over who it is to its server's agent, and waits for the rank's end.

`mpi_proxy.py` says what passes between the two, and why.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256

from launcher.core.errors import TlaunchError

PATIENCE_S = 60.0  # for an agent that has not yet begun to listen
_RETRY_S = 0.01
DESCRIPTOR = "PMI_FD"  # Hydra's and Slurm's socket to their daemon: a number that holds in one process only
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
# Engines send these to every member. The agent, which is one of them, answers; the others wait for it.
_FOR_THE_AGENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
                  signal.SIGTSTP, signal.SIGCONT)  # fmt: skip


def meeting_name(*words: str) -> bytes:
    """Return an abstract socket name of this user, equal for all who give the same words: the job's name, the server's."""
    digest = sha256("\0".join((str(os.getuid()), *words)).encode(errors="surrogateescape")).hexdigest()
    return b"\0tlaunch-members-" + digest[:32].encode()


def hand_over(
    name: bytes,
    environment: Mapping[str, str],
    global_rank: int,
    *,
    patience_s: float = PATIENCE_S,
    pass_on: Callable[[int], None] | None = None,
) -> int | None:
    """Let the agent start this rank, wait for its end and return its status as in `subprocess`; None: the agent was lost.

    Blocks. From then on this process ignores the signals that the agent answers, or has `pass_on` called with them: call
    it last, in the main thread.

    Raises:
        TlaunchError: no agent listened in time, or another user's process does.
    """
    for number in _FOR_THE_AGENT:
        signal.signal(number, signal.SIG_IGN if pass_on is None else lambda number, _frame: pass_on(number))
    with _reach(name, time.monotonic() + patience_s) as connection:
        if user_of(connection) != os.getuid():
            raise TlaunchError(
                f"another user's process (uid {user_of(connection)}) listens in the place of this server's agent",
                hint="find out who runs it; nothing was handed over to it",
            )
        line = line_of({"rank": global_rank, "environment": dict(environment)})
        descriptor = environment.get(DESCRIPTOR, "")
        sent = 0
        try:
            if descriptor.isdecimal():
                with suppress(OSError):  # it was closed on the way here: the rank will report what it misses
                    sent = socket.send_fds(connection, [line], [int(descriptor)])
            connection.sendall(line[sent:])
            with connection.makefile("rb") as answer:
                line = answer.readline()
            return int(json.loads(line)["ended"]) if line.endswith(b"\n") else None
        except (BrokenPipeError, ConnectionResetError):
            return None


def _reach(name: bytes, deadline: float) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(name)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            connection.close()
            if time.monotonic() > deadline:
                raise TlaunchError(
                    "no agent of this server listens", hint="see the output of the process of its lowest rank"
                ) from error
            time.sleep(_RETRY_S)
        else:
            return connection


def user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def line_of(message: Mapping[str, object]) -> bytes:
    """Return one line of JSON; bytes of the environment that are not text are escaped, and come back as they were."""
    return json.dumps(message).encode() + b"\n"
