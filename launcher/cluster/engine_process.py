"""The one process by which an engine starts agents: started in a session of its own, and ended with all that it left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from launcher.cluster.diagnosis import unreachable
from launcher.core import atomic, env
from launcher.core.errors import UnreadableError, exit_code_of
from launcher.engines.command import EngineCommand, temporary_directory
from launcher.supervise.spawn import overlaid

LAST_LINES = 12
TAIL_BYTES = 64 << 10


class EngineProcess:
    """Its output goes to a file: neither an engine nor what it leaves behind can hold the coordinator up."""

    def __init__(self, command: EngineCommand, environment: Mapping[str, str], cwd: Path, log: Path) -> None:
        """Start it.

        Raises:
            UnreadableError: it cannot be started, or its files cannot be written.
        """
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
        """The exit code as a shell reports it; None while the engine runs."""
        status = self._process.poll()
        return None if status is None else exit_code_of(status)

    @property
    def was_killed(self) -> bool:
        """True if SIGKILL ended the engine itself: some engines exit with 137 when a process of theirs was killed."""
        return self._process.poll() == -signal.SIGKILL

    def signal(self, number: int) -> None:
        """To it and all that is still in its process group."""
        with suppress(OSError):
            os.killpg(self._process.pid, number)

    def clean_up(self) -> None:
        """Remove what the engine, which has ended, leaves in the system's temporary directory."""
        directory = temporary_directory()
        for path in self._command.files:
            if path.parent == directory:
                path.unlink(missing_ok=True)
        for path in (directory / f"ompi.{self.pid}", *directory.glob(f"ompi.*.{os.getuid()}/pid.{self.pid}")):
            rmtree(path, ignore_errors=True)
            with suppress(OSError):  # others of this user's jobs are there, or it is not Open MPI's
                if path.parent != directory:
                    path.parent.rmdir()

    def why_not(self, server_ids: Sequence[str]) -> dict[str, str]:
        """Return those of these servers that cannot be reached in the engine's way, or cannot reach back, with the reason.

        Blocks for some seconds.
        """
        if not self._command.shell:
            return {}
        endpoints = [endpoint for endpoint in self._environment.get(env.TLAUNCH_COORDINATOR, "").split(",") if endpoint]
        return unreachable(self._command.shell, server_ids, self._environment, endpoints)

    def forget_words(self) -> None:
        """Forget the output until now: it explains nothing that happens later."""
        with suppress(OSError):
            self._begins_at = self.log.stat().st_size

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """Return the last lines of the engine's output."""
        with suppress(OSError), self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._begins_at, end - TAIL_BYTES))
            lines = file.read().replace(b"\0", b"").decode(errors="replace").splitlines()
            return [line for line in lines if line.strip(" -=*")][-count:]
        return []
