"""The agent's side of preloading. A fork server imports heavy modules once and is then forked for every rank.

    agent (this file)  -- {"program": ..., "modules": [...], "agent_pid": n} --->  fork server (launcher/preload)
                    <-- {"ready": true, "seconds": s} | {"unsafe": why} | {"failed": why} --
                    -- {"fork": [{"key": global_rank, "env": {...}, "log": ..., ...}, ...]} -->
                    <-- {"key": global_rank, "pid": n} | {"key": global_rank, "error": why} --

Messages are JSON objects, one per line, on a socket pair. A forked rank becomes the agent's child before any of the
program's code runs, and its pid is reported before that. An agent that calls `take` before it reaps therefore knows
every rank that it reaps.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.core.frozen import frozen
from launcher.core.machine.proc import stat
from launcher.program.program_command import PythonCommand
from launcher.supervise.spawn import Complaints, Program, spawn

_BOOTSTRAP = Path(__file__).parents[1] / "preload" / "__main__.py"
_MAX_LINE_BYTES = 1 << 20  # longer lines are not from the fork server
TICKS_OF_WORK = 2  # a sleeping process uses no ticks, an importing one uses all


@frozen
class StartRequest:
    global_rank: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # complete
    log: Path  # stdout and stderr both append to it
    device_dir: Path  # for failure.json and stacks.log
    cpus: tuple[int, ...] | None = None  # the cores that it may use; None: no restriction


@frozen
class Ready:
    """The fork server has imported all modules and can fork ranks."""

    seconds: float  # duration of the imports


@frozen
class Unusable:
    """The fork server cannot fork ranks. A ForkFailed follows for each pending request."""

    reason: str
    died: bool = False  # True if it ended without a reason, or sent invalid data


@frozen
class ForkResult:
    global_rank: int
    pid: int  # a child of the agent, with its own session and process group


@frozen
class ForkFailed:
    """The program of a rank could not be started. If its process was already forked, it exits with code 126."""

    global_rank: int
    reason: str


Answer = Ready | Unusable | ForkResult | ForkFailed


def bootstrap_argv(command: PythonCommand, device_dir: Path, engines_stderr: int | None = None) -> tuple[str, ...]:
    """Return a command that runs a program with the failure hook, which writes its files to `device_dir`.

    `engines_stderr` is an inheritable descriptor on which the hook prints the first failure of a run.
    """
    way = "run" if engines_stderr is None else f"run={engines_stderr}"
    return (*_python(command), way, str(device_dir), command.kind, command.target, *command.arguments)


class ForkServer:
    """A running fork server, which imports modules once and forks ranks on request. Its methods do not block."""

    def __init__(self, command: PythonCommand, modules: tuple[str, ...], shown: Program) -> None:
        """Start the fork server. `shown` is the program of the ranks, with the environment that they share."""
        self._complaints = Complaints()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._worked = self._heard = time.monotonic()
        self._ticks = 0  # processor time when it was last seen working
        self._reaped = False  # if True, its pid may have been reused
        self._asked: dict[int, float] = {}  # pending requests: global rank -> time of the request (monotonic)
        self._usable = True
        try:
            os.set_inheritable(theirs.fileno(), True)
            argv: tuple[str, ...] = (*_python(command), "preload", str(theirs.fileno()))
            # Padded, so it can be overwritten with the command line that `ps` should show.
            missing_bytes = len(os.fsencode(" ".join(shown.argv))) - len(os.fsencode(" ".join(argv))) - 1
            if missing_bytes > 0:
                argv = (*argv, "." * missing_bytes)
            self.pid = spawn(replace(shown, argv=argv), self._complaints)
        except OSError:
            self.close()
            raise
        finally:
            theirs.close()
        program = {"kind": command.kind, "target": command.target, "arguments": command.arguments}
        program["shown_argv"] = shown.argv
        self._say({"program": program, "modules": modules, "agent_pid": os.getpid()})

    def fileno(self) -> int:
        """Return a descriptor that is readable when `take` has messages to return."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._outgoing)

    @property
    def idle_s(self) -> float:
        """The seconds since the fork server last used CPU time, or 0 if /proc is missing."""
        found = stat(self.pid)
        if found is None or found.ticks > self._ticks + TICKS_OF_WORK:
            self._ticks = found.ticks if found else 0
            self._worked = time.monotonic()
        return time.monotonic() - self._worked

    @property
    def waiting_for_s(self) -> float:
        """The seconds for which requests have been pending without any response, or 0 if no request is pending."""
        return time.monotonic() - max(min(self._asked.values()), self._heard) if self._asked else 0.0

    def fork(self, requests: Sequence[StartRequest], stdin: int | None = None) -> None:
        """Request the fork of ranks. `take` returns a ForkResult or ForkFailed for each of them.

        The rank `stdin` inherits the stdin of the fork server; the other ranks read /dev/null.
        """
        self._asked |= dict.fromkeys((one.global_rank for one in requests), time.monotonic())
        if self._usable:
            forks = [
                {
                    "key": one.global_rank,
                    "env": dict(one.environment),
                    "log": str(one.log),
                    "device_dir": str(one.device_dir),
                    "cpus": one.cpus,
                    "stdin": one.global_rank == stdin,
                }
                for one in requests
            ]
            self._say({"fork": forks})

    def send(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # it has exited; its earlier messages are still readable, so `take` will see the end
            self._outgoing.clear()

    def take(self) -> list[Answer]:
        if not self._usable:
            return self._refuse_rest()
        answers: list[Answer] = []
        ended = self._receive()
        *lines, self._incoming = self._incoming.split(b"\n")
        try:
            for line in lines:
                answers.append(self._read(bytes(line)))  # noqa: PERF401 - results before an exception are kept
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            ended = f"the fork server wrote a line that cannot be read: {error}"
        for refused in answers:
            if isinstance(refused, Unusable):
                answers.remove(refused)
                return answers + self._end(refused)
        return answers if ended is None else answers + self.give_up(ended)

    def give_up(self, reason: str, *, died: bool = True) -> list[Answer]:
        """Kill the fork server. Return Unusable and a ForkFailed for each pending request.

        Call `take` directly before this, so that ranks that were already forked do not count as pending.
        """
        if not self._usable:
            return self._refuse_rest()
        self.kill()
        return self._end(Unusable(reason, died=died))

    def kill(self) -> bool:
        """Kill the fork server. Return True if the caller still has to reap it."""
        if not self._reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)
        return not self._reaped

    def note_reaped(self) -> None:
        self._reaped = True

    def close(self) -> None:
        """Close the socket, so that the fork server exits. Ranks that it has forked keep running."""
        self._usable = False
        self._outgoing.clear()
        self._incoming.clear()
        if self._socket.fileno() >= 0:
            self._socket.close()
            self._complaints.close()

    def _say(self, message: Mapping[str, Any]) -> None:
        # Environment bytes that are not UTF-8 are sent unchanged, as raw bytes inside JSON strings.
        self._outgoing += json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"
        self.send()

    def _receive(self) -> str | None:
        """Read all available data. If the connection has ended, return the reason."""
        try:
            while chunk := self._socket.recv(1 << 16):
                self._heard = time.monotonic()
                self._incoming += chunk
                if len(self._incoming) > _MAX_LINE_BYTES:
                    return f"the fork server wrote more than {_MAX_LINE_BYTES} bytes at once"
        except BlockingIOError:
            return None
        except OSError:  # it exited before it had read everything
            pass
        return self._complaints.reason_of(self.pid) or "the fork server ended"

    def _read(self, line: bytes) -> Answer:
        fields = json.loads(line)
        if "key" in fields:
            rank = int(fields["key"])
            failed = ForkFailed(rank, str(fields["error"])) if "error" in fields else None
            answer = failed or ForkResult(rank, int(fields["pid"]))
            self._asked.pop(rank, None)
            return answer
        if "ready" in fields:
            return Ready(float(fields["seconds"]))
        return Unusable(str(fields["unsafe"] if "unsafe" in fields else fields["failed"]))

    def _end(self, unusable: Unusable) -> list[Answer]:
        self.close()
        return [unusable, *self._refuse_rest(unusable.reason)]

    def _refuse_rest(self, reason: str = "the fork server has ended") -> list[Answer]:
        refused: list[Answer] = [ForkFailed(global_rank, reason) for global_rank in self._asked]
        self._asked.clear()
        return refused


def _python(command: PythonCommand) -> tuple[str, ...]:
    """Return a command that starts the bootstrap, with an argv[0] that lets Python find its libraries."""
    return (command.name or command.interpreter, *command.options, str(_BOOTSTRAP))
