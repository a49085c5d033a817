"""The end of the agents of a run, of the engine that has started them, and of whatever that leaves."""

from __future__ import annotations

import time

from launcher.cluster.engine_end import EngineEnd
from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.registration import Registration
from launcher.control.outcome import Outcome

FAREWELL_S = 30.0  # for the last words of agents that are there: they may have logs to send yet


class Departure:
    """First the agents go, then the engine, by itself or not; then whatever it left. Nothing here waits."""

    def __init__(self, outcome: Outcome, registration: Registration, engine: EngineProcess | None) -> None:
        self._outcome = outcome
        self._registration = registration
        self._engine = engine
        self._engine_end: EngineEnd | None = None
        self.due_s = time.monotonic() + FAREWELL_S  # when to step at the latest

    @property
    def by_itself(self) -> bool:
        """Return whether the engine has ended before it was told to."""
        return self._engine_end is not None and self._engine_end.by_itself

    def extend(self) -> None:
        """Wait for the rest of what an agent sends: while that comes, it has not gone."""
        if self._engine_end is None:
            self.due_s = time.monotonic() + FAREWELL_S

    def step(self) -> bool:
        """Do what is due; return whether all have gone."""
        now_s = time.monotonic()
        if any(not peer.done for peer in self._registration.peers.values()) and now_s < self.due_s:
            return False
        if self._outcome.restarts and now_s < self._registration.unheard.until:
            # The engine's end would take agents that end their ranks yet.
            self.due_s = self._registration.unheard.until
            return False
        if self._engine_end is None:
            none_lost = not self._outcome.lost
            self._engine_end = EngineEnd(self._engine, patient=none_lost, tells=self._outcome.stopped_by_server)
        self._engine_end.step()
        if not self._engine_end.over:
            self.due_s = self._engine_end.due
        return self._engine_end.over
