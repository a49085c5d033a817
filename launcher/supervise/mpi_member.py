"""A process that an engine started as a rank: passes its identity to the server's agent and waits for the rank's end.

`mpi_proxy.py` describes the protocol and the reasons for it.
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

PATIENCE_S = 60.0  # maximum wait for an agent that is not listening yet
_RETRY_S = 0.01
DESCRIPTOR = "PMI_FD"  # Hydra's and Slurm's socket to their daemon; its number is valid only in one process
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
# Engines send these to every member. The agent, which is one of them, handles them; the others ignore them.
_FOR_THE_AGENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
                  signal.SIGTSTP, signal.SIGCONT)  # fmt: skip


def meeting_name(*words: str) -> bytes:
    """Derive the name of an abstract Unix socket from the user and `words`, such as the name of the job."""
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
    """Let the agent start this rank, and return the rank's exit status, or None if the agent was lost.

    Blocks. Meanwhile this process ignores the signals that the agent handles, or calls `pass_on` with them. Call this
    last, in the main thread. Raises TlaunchError if no agent listens in time, or a process of another user listens.
    """
    for number in _FOR_THE_AGENT:
        signal.signal(number, signal.SIG_IGN if pass_on is None else lambda number, _frame: pass_on(number))
    with _reach(name, time.monotonic() + patience_s) as connection:
        if (user := user_of(connection)) != os.getuid():
            raise TlaunchError(
                f"expected this server's agent, but a process of another user (uid {user}) is listening",
                hint="find out why the other user's process is running; tlaunch sent no data to that process",
            )
        line = line_of({"rank": global_rank, "environment": dict(environment)})
        descriptor = environment.get(DESCRIPTOR, "")
        sent = 0
        try:
            if descriptor.isdecimal():
                with suppress(OSError):  # it is closed already: the rank will report the error
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
                hint = "read the output of the lowest rank on this server"
                raise TlaunchError("no agent is listening on this server", hint=hint) from error
            time.sleep(_RETRY_S)
        else:
            return connection


def user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def line_of(message: Mapping[str, object]) -> bytes:
    """Encode a message as one line of JSON. Bytes that are not UTF-8 are escaped."""
    return json.dumps(message).encode() + b"\n"
