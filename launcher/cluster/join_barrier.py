"""The wait until every server has come: it says which are missing, and why when it has been too long."""

from __future__ import annotations

import time

from launcher.cluster.engine_output import not_come, own_agent_ended
from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.plan import Plan
from launcher.cluster.registration import Registration
from launcher.core.errors import TlaunchError

FIRST_TOLD_S, TOLD_EVERY_S = 2.0, 30.0  # who is missing
ENGINE_LAST_S = 1.0  # an engine that has ended may have started agents that are about to come


class JoinBarrier:
    """One wait for all servers, from the start of the engine on."""

    def __init__(self, plan: Plan, registration: Registration, first_server: int) -> None:
        """`first_server`: that of rank 0; where servers are started by hand, the engine brings its agent alone."""
        self._plan = plan
        self._registration = registration
        self._first_server = first_server
        self._since = time.monotonic()
        self._ends = self._since + plan.join_timeout_s
        self._next_told = self._since + FIRST_TOLD_S
        self._engine_last: float | None = None  # until when agents of an engine that has ended may come
        self.told = False  # somebody has heard who is missing

    @property
    def due(self) -> float:
        """The moment to look again, monotonic."""
        moments = (self._ends, self._next_told, self._engine_last)
        return min(moment for moment in moments if moment is not None)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def hurry(self) -> None:
        """One that had come has gone: that is worth a word."""
        self._next_told = time.monotonic()

    def missing_to_tell(self) -> tuple[str, ...]:
        """Return the servers that are missing, if it is time to tell."""
        now = time.monotonic()
        if now < self._next_told:
            return ()
        self._next_told = now + TOLD_EVERY_S
        self.told = True
        return self._registration.missing

    def in_vain(self, engine: EngineProcess | None) -> TlaunchError | None:
        """Return why it makes no sense to wait any longer; None while it does. May take some seconds to find that out.

        Of servers that are all ready: why nothing can be started on them.
        """
        if self._registration.complete:
            return self._registration.unlike()
        brought_by = engine if self._plan.brings_all else None
        if engine is not None and self._has_ended(engine):
            if brought_by is None:
                return own_agent_ended(engine)
            why = f"{engine.name} ended with exit code {engine.exit_code}"
            return not_come(brought_by, why, self._registration.missing)
        if time.monotonic() < self._ends:
            return None
        return not_come(
            brought_by, f"after {self._plan.join_timeout_s:g} s (--join-timeout)", self._registration.missing
        )

    def _has_ended(self, engine: EngineProcess) -> bool:
        """Long ago, and agents that it should have brought are missing."""
        if not engine.ended or not (self._plan.brings_all or not self._registration.is_ready(self._first_server)):
            return False
        now = time.monotonic()
        self._engine_last = self._engine_last or now + ENGINE_LAST_S
        return now >= self._engine_last
