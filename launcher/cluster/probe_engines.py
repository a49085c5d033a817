"""The engines of an examination: one that starts all agents, and one for each server that did not join with the others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.cluster.engine_end import GRACE_S
from launcher.cluster.engine_process import EngineProcess
from launcher.core.proc import limit_to, own_limit
from launcher.doctor.join_failure import JoinFailure, diagnose_output, engine_hangs
from launcher.engines.command import EngineCommand
from launcher.supervise.tree import Ending, something_left

ENGINE_LAST_S = 1.0  # an engine that has ended may have started agents that are about to join
MAX_OUTPUT_LINES = 60
POLL_S = 0.05


class ProbeEngines:
    """Starts engines, by the index of the server for which each is, None being all of them. `close` it."""

    def __init__(self, directory: Path) -> None:
        """`directory`: for what engines print."""
        self._directory = directory
        self._engines: dict[int | None, EngineProcess] = {}
        self._ended_at: dict[int | None, float] = {}
        self._usual_files = own_limit()

    def __contains__(self, index: int) -> bool:
        return index in self._engines

    @contextmanager
    def usual_limits(self) -> Iterator[None]:
        """Start processes with the limit of open files that the user has set; this process needs many."""
        own = own_limit()
        limit_to(self._usual_files)
        try:
            yield
        finally:
            limit_to(own)

    def start(self, index: int | None, command: EngineCommand) -> None:
        """Start an engine.

        Raises:
            UnreadableError: it cannot be started at all.
        """
        log = self._directory / f"engine{'' if index is None else index}.log"
        with self.usual_limits():
            self._engines[index] = EngineProcess(command, os.environ, self._directory, log)

    def has_ended(self, index: int | None) -> bool:
        """Return whether an engine ended so long ago that its last lines and agents have come."""
        if not self._engines[index].ended:
            return False
        return time.monotonic() - self._ended_at.setdefault(index, time.monotonic()) > ENGINE_LAST_S

    def failure(self, index: int | None) -> JoinFailure:
        """Return why an engine that has ended did not start an agent."""
        engine = self._engines[index]
        return diagnose_output(
            engine.last_lines(MAX_OUTPUT_LINES), f"{engine.name} ended with exit code {engine.exit_code}"
        )

    def give_up(self, index: int, seconds: float) -> JoinFailure:
        """End an engine that has not started an agent within so many seconds, and return why."""
        engine = self._engines[index]
        failure = engine_hangs(engine.name, round(seconds, 1), engine.last_lines(MAX_OUTPUT_LINES))
        engine.signal(signal.SIGTERM)
        return failure

    def close(self, patience_s: float) -> None:
        """Let engines end by themselves for `patience_s`, then end them and all that they have left. Blocks meanwhile.

        They start ssh in process groups of its own, which outlives them if a server does not answer.
        """
        deadline = time.monotonic() + patience_s
        while any(self._running()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        ending: Ending | None = None
        while something_left() and (ending is None or not ending.in_vain):
            ending = ending or Ending(GRACE_S, lambda: [engine.pid for engine in self._running()])
            ending.step()
            time.sleep(POLL_S)
        for engine in self._engines.values():
            engine.clean_up()

    def _running(self) -> Iterator[EngineProcess]:
        return (engine for engine in self._engines.values() if not engine.ended)
