"""Why an engine could not put an agent on a server: asked in the engine's own way, since most engines keep that to themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launcher.logs.terminal import one_line

LIMIT_S = 8.0  # for all of them together
KILLED_S = 1.0  # for one that was killed to end
MOST = 8  # servers that are asked


def unreachable(shell: Sequence[str], server_ids: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Of those of `server_ids` that cannot be reached what the remote shell says. Blocks, for `LIMIT_S` seconds at most.

    `shell`: the remote shell with its options: `shell... HOST COMMAND` is what an engine starts. Nothing is asked of
    more than `MOST` servers.
    """
    ends = time.monotonic() + LIMIT_S
    asked = {server_id: _ask(shell, server_id, environment) for server_id in server_ids[:MOST]}
    return {server_id: why for server_id, process in asked.items() if process and (why := _answer(process, ends))}


def _ask(shell: Sequence[str], server_id: str, environment: Mapping[str, str]) -> subprocess.Popen[str] | None:
    if server_id.startswith("-"):
        return None
    try:
        return subprocess.Popen(
            [*shell, server_id, "true"],
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
