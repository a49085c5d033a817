"""Finds out why an engine could not start an agent on a server, in the engine's own way, for most engines do not say."""

from __future__ import annotations

import base64
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launcher.logs.terminal import one_line

LIMIT_S = 8.0  # for all of them together
KILLED_S = 1.0  # for one that was killed to end
MOST = 64  # servers that are asked
# Run there by the Python of its agent: all addresses at once, since some may be of networks that this server does not have.
_WAY_BACK = """
import errno, os, select, socket, sys, time
calls, why, ends = {}, {}, time.monotonic() + 3
for endpoint in sys.argv[1:]:
    host, _, port = endpoint.rpartition(":")
    try:
        kind, _, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), 0, socket.SOCK_STREAM)[0]
        call = socket.socket(kind)
        call.setblocking(False)
        code = call.connect_ex(address)
        if code in (0, errno.EINPROGRESS):
            calls[call] = endpoint
        else:  # no way there, which the socket itself would not tell again
            why[endpoint] = os.strerror(code)
    except OSError as error:
        why[endpoint] = error.strerror
while calls and time.monotonic() < ends:
    for call in select.select([], list(calls), [], max(0, ends - time.monotonic()))[1]:
        code, endpoint = call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), calls.pop(call)
        if not code:
            sys.exit(0)
        why[endpoint] = os.strerror(code)
why.update((endpoint, "no answer") for endpoint in calls.values())
sys.exit("it does not reach this machine: " + ", ".join(f"{endpoint}: {why[endpoint]}" for endpoint in sys.argv[1:]))
"""


def unreachable(
    shell: Sequence[str], server_ids: Sequence[str], environment: Mapping[str, str], endpoints: Sequence[str] = ()
) -> dict[str, str]:
    """Return what the remote shell says of those `server_ids` that cannot be reached, or do not reach any of `endpoints` here.

    Blocks, for `LIMIT_S` seconds at most. `shell`: the remote shell with its options: `shell... HOST COMMAND` is what an
    engine starts. `endpoints`: "HOST:PORT", of this machine. Nothing is asked of more than `MOST` servers.
    """
    ends = time.monotonic() + LIMIT_S
    command = shlex.join([sys.executable, "-c", _in_one_line(_WAY_BACK), *endpoints]) if endpoints else "true"
    asked = {server_id: _ask(shell, server_id, command, environment) for server_id in server_ids[:MOST]}
    return {server_id: why for server_id, process in asked.items() if process and (why := _answer(process, ends))}


def _in_one_line(program: str) -> str:
    """Return the program on one line, since a csh takes no line end inside of quotes."""
    return f'import base64; exec(base64.b64decode("{base64.b64encode(program.encode()).decode()}"))'


def _ask(
    shell: Sequence[str], server_id: str, command: str, environment: Mapping[str, str]
) -> subprocess.Popen[str] | None:
    if server_id.startswith("-"):
        return None
    try:
        return subprocess.Popen(
            [*shell, server_id, command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return None


def _answer(process: subprocess.Popen[str], ends: float) -> str:
    """Empty where it can be reached."""
    try:
        _, said = process.communicate(timeout=max(0.1, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(process)
        return "no answer"
    if process.returncode == 0:
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else f"exit code {process.returncode}"


def _kill(process: subprocess.Popen[str]) -> None:
    """With all that it has started; nobody waits for what is left of that and may hold its output open."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)
    if process.stderr is not None:
        process.stderr.close()
