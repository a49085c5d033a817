"""The shutdown of a run's agents, of the engine that started them, and of the engine's remaining processes."""

from __future__ import annotations

import time

from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.registration import Registration
from launcher.control.outcome import Outcome
from launcher.supervise.tree import Ending, something_left

FAREWELL_S = 30.0  # for the agents' last messages, since they may still send logs
PATIENCE_S = 3.0  # for an engine to end by itself after its agents
WORDS_PATIENCE_S = 10.0  # the same if only the engine's end explains what ended the agents
GRACE_S = 2.0
LOOK_S = 0.1


class Shutdown:
    """Ends the agents of a run, then the engine, and then the engine's remaining processes. No step blocks."""

    def __init__(self, outcome: Outcome, registration: Registration, engine: EngineProcess | None) -> None:
        self._outcome = outcome
        self._registration = registration
        self._engine = engine
        self._engine_due_s: float | None = None  # when to end the engine; None while agents are left
        self._ending: Ending | None = None
        self.by_itself = False  # the engine ended without a signal
        self.due_s = time.monotonic() + FAREWELL_S  # the latest time of the next step

    def extend(self) -> None:
        if self._engine_due_s is None:
            self.due_s = time.monotonic() + FAREWELL_S

    def step(self) -> bool:
        now_s = time.monotonic()
        if self._registration.has_agents_left and now_s < self.due_s:
            return False
        if self._outcome.restarts and now_s < self._registration.unheard.until:
            # Ending the engine would kill lost agents that are still ending their ranks.
            self.due_s = self._registration.unheard.until
            return False
        if self._engine_due_s is None:
            # An engine that lost a server may never end by itself. One that ended its agents then prints the reason.
            patience_s = WORDS_PATIENCE_S if self._outcome.stopped_by_server else PATIENCE_S
            self._engine_due_s = now_s + (0.0 if self._outcome.lost else patience_s)
        return self._end_engine(now_s, self._engine_due_s)

    def _end_engine(self, now_s: float, engine_due_s: float) -> bool:
        ended = self._engine is None or self._engine.ended
        if self._ending is None:
            self.by_itself = ended
            self.due_s = engine_due_s
        is_over = ended and not something_left()
        if not is_over and self._ending is None and (ended or now_s >= engine_due_s):
            leaders = () if self._engine is None else (self._engine,)
            self._ending = Ending(GRACE_S, lambda: [engine.pid for engine in leaders if not engine.ended])
        if not is_over and self._ending is not None:
            self._ending.step()
            timeout_s = self._ending.timeout_s
            self.due_s = time.monotonic() + (LOOK_S if timeout_s is None else min(LOOK_S, timeout_s))
            is_over = self._ending.is_unkillable
        if is_over and self._engine is not None:
            self._engine.clean_up()
        return is_over
