"""The agent's side of preloading: one process imports heavy modules once, and is then forked for every rank.

    agent (here)  -- {"program": ..., "modules": [...], "agent_pid": n} ------>  fork server (launcher/preload)
                    <-- {"ready": true, "seconds": s} | {"unsafe": why} | {"failed": why} --
                    -- {"fork": [{"key": global_rank, "env": {...}, "log": ..., ...}, ...]} -->
                    <-- {"key": global_rank, "pid": n} | {"key": global_rank, "error": why} --

One JSON object a line, over a socket pair. A forked rank becomes the agent's own child before anything of the program
runs, and its pid comes before that: an agent that calls `take` before it reaps knows every rank that it reaps.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.core.frozen import frozen
from launcher.core.machine.proc import stat
from launcher.program.program_command import PythonCommand
from launcher.supervise.spawn import Complaints, Program, spawn

_BOOTSTRAP = Path(__file__).parents[1] / "preload" / "__main__.py"
_MAX_LINE_BYTES = 1 << 20  # longer ones did not come from us
TICKS_OF_WORK = 2  # a sleeping process uses none, one that imports uses all


@frozen
class ForkRequest:
    """One rank to fork, with everything decided."""

    global_rank: int
    environment: Mapping[str, str]  # complete
    log: Path  # stdout and stderr both append to it
    device_dir: Path  # for failure.json and stacks.log
    cpus: tuple[int, ...] | None = None


@frozen
class Ready:
    """The fork server has imported everything: forks are quick from now on."""

    seconds: float  # that the imports took


@frozen
class Unusable:
    """No rank can be forked (any more); comes once. Ranks asked for and not answered follow as ForkFailed."""

    reason: str
    died: bool = False  # it ended without a reason, or wrote nonsense


@frozen
class ForkResult:
    global_rank: int
    pid: int  # a child of the agent, a session and process group of its own


@frozen
class ForkFailed:
    """The rank does not run; if there was a ForkResult before, its process ends with 126."""

    global_rank: int
    reason: str


Answer = Ready | Unusable | ForkResult | ForkFailed


def bootstrap_argv(command: PythonCommand, device_dir: Path, engines_stderr: int | None = None) -> tuple[str, ...]:
    """Return a command that runs the same program with the failure hook and stack dumps, which write to `device_dir`.

    `engines_stderr`: an inheritable descriptor, on which the hook announces the first failure of a run.
    """
    way = "run" if engines_stderr is None else f"run={engines_stderr}"
    return (*_python(command), way, str(device_dir), command.kind, command.target, *command.arguments)


class ForkServer:
    """A fork server, from its start to its end. Nothing here blocks, except that `__init__` forks.

    Raises (`__init__`):
        OSError: no process could be made.
    """

    def __init__(
        self,
        command: PythonCommand,
        modules: tuple[str, ...],
        *,
        argv_shown: Sequence[str],
        common_environment: Mapping[str, str],
        cwd: Path,
        log: Path,
    ) -> None:
        self._complaints = Complaints()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._worked = self._heard = time.monotonic()
        self._ticks = 0  # of processor time, when it was last seen to work
        self._reaped = False  # then its pid may be anyone's
        self._asked: dict[int, float] = {}  # global rank -> when, for those not answered yet (monotonic)
        self._usable = True
        try:
            os.set_inheritable(theirs.fileno(), True)
            argv: tuple[str, ...] = (*_python(command), "preload", str(theirs.fileno()))
            # Long enough to be overwritten with the command that people shall see in `ps`.
            missing_bytes = len(os.fsencode(" ".join(argv_shown))) - len(os.fsencode(" ".join(argv))) - 1
            if missing_bytes > 0:
                argv = (*argv, "." * missing_bytes)
            self.pid = spawn(Program(argv, common_environment, cwd, log), self._complaints)
        except OSError:
            self.close()
            raise
        finally:
            theirs.close()
        program = {"kind": command.kind, "target": command.target, "arguments": command.arguments}
        shown = {**program, "shown_argv": list(argv_shown)}
        self._say({"program": shown, "modules": modules, "agent_pid": os.getpid()})

    def fileno(self) -> int:
        """Return what is readable when it has sent something: then call `take`. Only while it is usable."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """True if something is left to be sent: then wait until `fileno` is writable and call `send`."""
        return bool(self._outgoing)

    @property
    def idle_s(self) -> float:
        """The seconds for which the fork server has used hardly any processor time, as far as it was looked at; 0 without /proc."""
        found = stat(self.pid)
        if found is None or found.ticks > self._ticks + TICKS_OF_WORK:
            self._ticks = found.ticks if found else 0
            self._worked = time.monotonic()
        return time.monotonic() - self._worked

    @property
    def waiting_for_s(self) -> float:
        """The seconds for which the fork server has not answered requests, as a stopped process does not; 0 without requests."""
        return time.monotonic() - max(min(self._asked.values()), self._heard) if self._asked else 0.0

    def fork(self, requests: Sequence[ForkRequest]) -> None:
        """Ask for ranks. `take` will return ForkResult or ForkFailed for each, also for those of a lost process."""
        self._asked |= dict.fromkeys((request.global_rank for request in requests), time.monotonic())
        if self._usable:
            forks = [
                {
                    "key": request.global_rank,
                    "env": dict(request.environment),
                    "log": str(request.log),
                    "device_dir": str(request.device_dir),
                    "cpus": request.cpus,
                }
                for request in requests
            ]
            self._say({"fork": forks})

    def send(self) -> None:
        """Send what the process takes without blocking."""
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # it has gone; what it sent before can still be read, so `take` sees the end
            self._outgoing.clear()

    def take(self) -> list[Answer]:
        """Return all answers that the process has sent since the last call."""
        answers: list[Answer] = []
        ended = self._receive() if self._usable else None
        *lines, self._incoming = self._incoming.split(b"\n")
        try:
            for line in lines:
                answers.append(self._read(bytes(line)))  # noqa: PERF401 - kept although a line raises
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            ended = f"the fork server wrote a line that cannot be read: {error}"
        refused = next((message for message in answers if isinstance(message, Unusable)), None)
        if refused is not None:
            return [message for message in answers if message is not refused] + self._end(refused)
        if ended is not None:
            return answers + self.give_up(ended)
        return answers if self._usable else answers + self._refuse_rest()

    def give_up(self, reason: str, *, died: bool = True) -> list[Answer]:
        """Kill the process. Return Unusable, and ForkFailed for each rank that it owes an answer.

        Call `take` just before: a rank that it has reported runs, and is not the process's any more.
        """
        if not self._usable:
            return self._refuse_rest()
        self.kill()
        return self._end(Unusable(reason, died=died))

    def kill(self) -> bool:
        """Kill the process, which keeps nothing that could be lost; return whether the caller's reaper has yet to reap it."""
        if not self._reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)
        return not self._reaped

    def note_reaped(self) -> None:
        self._reaped = True

    def close(self) -> None:
        """Let the process end by itself; its owner reaps it. Ranks that it forked run on. May be called twice."""
        self._usable = False
        self._outgoing.clear()
        self._incoming.clear()
        if self._socket.fileno() >= 0:
            self._socket.close()
            self._complaints.close()

    def _say(self, message: Mapping[str, Any]) -> None:
        # Bytes of the environment that are not text travel as they are: JSON here is bytes between the quotes.
        self._outgoing += json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"
        self.send()

    def _receive(self) -> str | None:
        """Read all that has come. Return why there will be no more, or None."""
        try:
            while chunk := self._socket.recv(1 << 16):
                self._heard = time.monotonic()
                self._incoming += chunk
                if len(self._incoming) > _MAX_LINE_BYTES:
                    return f"the fork server wrote more than {_MAX_LINE_BYTES} bytes at once"
        except BlockingIOError:
            return None
        except OSError:  # it ended before it had read everything
            pass
        return self._complaints.reason_of(self.pid) or "the fork server ended"

    def _read(self, line: bytes) -> Answer:
        fields = json.loads(line)
        if "key" in fields:
            global_rank = int(fields["key"])
            failed = ForkFailed(global_rank, str(fields["error"])) if "error" in fields else None
            answer = failed or ForkResult(global_rank, int(fields["pid"]))
            self._asked.pop(global_rank, None)
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
    """Return the interpreter as it would be found without us: it finds its own libraries by its argv[0]."""
    return (command.name or command.interpreter, *command.options, str(_BOOTSTRAP))
