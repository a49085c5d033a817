"""The process of the engine that starts agents, and a check for servers that it cannot reach."""

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
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir

from launcher.core import atomic, env
from launcher.core.errors import UnreadableError, exit_code_of
from launcher.engines.engine_command import EngineCommand
from launcher.logs.log_file import tail
from launcher.logs.terminal import one_line
from launcher.supervise.spawn import overlaid

LIMIT_S = 8.0  # for all checks together
KILLED_S = 1.0  # for a killed check to end
MAX_ASKED = 64  # servers
# Runs on the server with its agent's Python. It tries all addresses at once, since some may be unreachable.
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
        else:  # no way there, which the socket itself would not report again
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
    """Find servers that the remote shell cannot reach, or that cannot reach this machine. Return the reason for each.

    Checks up to `MAX_ASKED` servers, and blocks for at most `LIMIT_S` seconds. `shell` is the remote shell with its
    options, used as `shell... HOST COMMAND`. `endpoints` are "HOST:PORT" of this machine.
    """
    ends = time.monotonic() + LIMIT_S
    # On one line, since csh does not allow line breaks in quotes.
    program = f'import base64; exec(base64.b64decode("{base64.b64encode(_WAY_BACK.encode()).decode()}"))'
    command = shlex.join([sys.executable, "-c", program, *endpoints]) if endpoints else "true"
    asked: dict[str, subprocess.Popen[str]] = {}
    for server_id in (one for one in server_ids[:MAX_ASKED] if not one.startswith("-")):
        with suppress(OSError):
            asked[server_id] = subprocess.Popen(
                [*shell, server_id, command], env=dict(environment), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
    return {server_id: why for server_id, process in asked.items() if (why := _answer(process, ends))}


def _answer(process: subprocess.Popen[str], ends: float) -> str:
    """Wait for a check to end. Return the reason that the server cannot be reached, or "" if the check passed."""
    try:
        _, said = process.communicate(timeout=max(0.1, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        # Kill its children, too: they may hold its output open.
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_S)
        if process.stderr is not None:
            process.stderr.close()
        return "no answer"
    if process.returncode == 0:
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else f"exit code {process.returncode}"


LAST_LINES = 12
TAIL_BYTES = 64 << 10


class EngineProcess:
    """The process of an engine such as mpirun. Its output goes to a file, so that it never blocks the coordinator."""

    def __init__(self, command: EngineCommand, environment: Mapping[str, str], cwd: Path, log: Path) -> None:
        """Start the engine. Raise UnreadableError if the engine cannot be started or its files cannot be written."""
        self.name = command.engine
        self._command = command
        self._environment = overlaid(environment, command.env)
        self.log = log
        try:
            for path, text in command.files.items():
                atomic.write_text(path, text)
            self._begins_at = log.stat().st_size if log.exists() else 0
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    command.argv,
                    cwd=cwd,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise UnreadableError(f"{command.engine} cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The engine's exit code as a shell reports it, or None while the engine runs."""
        status = self._process.poll()
        return None if status is None else exit_code_of(status)

    @property
    def was_killed(self) -> bool:
        """True if SIGKILL ended the engine. Exit code 137 does not count, since it may come from a child process."""
        return self._process.poll() == -signal.SIGKILL

    def signal(self, number: int) -> None:
        with suppress(OSError):
            os.killpg(self._process.pid, number)

    def clean_up(self) -> None:
        """Remove the files that the ended engine left in the system's temporary directory."""
        directory = Path(gettempdir())
        for path in self._command.files:
            if path.parent == directory:
                path.unlink(missing_ok=True)
        for path in (directory / f"ompi.{self.pid}", *directory.glob(f"ompi.*.{os.getuid()}/pid.{self.pid}")):
            rmtree(path, ignore_errors=True)
            with suppress(OSError):  # it has directories of other jobs, or is not Open MPI's
                if path.parent != directory:
                    path.parent.rmdir()

    def why_not(self, server_ids: Sequence[str]) -> dict[str, str]:
        """Find servers that the remote shell cannot reach, or that cannot reach this machine. Return the reasons."""
        if not self._command.shell:
            return {}
        endpoints = [endpoint for endpoint in self._environment.get(env.TLAUNCH_COORDINATOR, "").split(",") if endpoint]
        return unreachable(self._command.shell, server_ids, self._environment, endpoints)

    def forget_words(self) -> None:
        """Exclude the output written so far from `last_lines`."""
        with suppress(OSError):
            self._begins_at = self.log.stat().st_size

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        with suppress(OSError):
            text = tail(self.log, self._begins_at, TAIL_BYTES)
            lines = text.replace(b"\0", b"").decode(errors="replace").splitlines()
            return [line for line in lines if line.strip(" -=*")][-count:]
        return []
