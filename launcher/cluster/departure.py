"""The end of the agents of a run, of the engine that started them, and of every process that it leaves."""

from __future__ import annotations

import time

from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.registration import Registration
from launcher.control.outcome import Outcome
from launcher.supervise.tree import Ending, something_left

PATIENCE_S = 3.0  # for an engine to end by itself after its agents
WORDS_PATIENCE_S = 10.0  # where only its end shows what ended them, on a busy machine too
GRACE_S = 2.0
LOOK_S = 0.1


class EngineEnd:
    """`step` until `over`. Nothing here waits."""

    def __init__(self, engine: EngineProcess | None, *, patient: bool, explains: bool) -> None:
        """`patient`: the engine may still end by itself; one that has lost a server may never do so.

        `explains`: it may have ended the agents, and says so when it ends.
        """
        self._engine = engine
        patience_s = WORDS_PATIENCE_S if explains else PATIENCE_S
        self._patience_ends = time.monotonic() + (patience_s if patient else 0.0)
        self._ending: Ending | None = None
        self.by_itself = False  # whether the engine had ended before it got a signal
        self.over = False

    @property
    def due(self) -> float:
        """The monotonic time of the next step. An engine's end wakes its parent up anyway."""
        if self._ending is None:
            return self._patience_ends
        timeout_s = self._ending.timeout_s
        return time.monotonic() + (LOOK_S if timeout_s is None else min(LOOK_S, timeout_s))

    def step(self) -> None:
        ended = self._engine is None or self._engine.ended
        if self._ending is None:
            self.by_itself = ended
        if ended and not something_left():
            self._be_over()
            return
        if self._ending is None and (ended or time.monotonic() >= self._patience_ends):
            leaders = () if self._engine is None else (self._engine,)
            self._ending = Ending(GRACE_S, lambda: [engine.pid for engine in leaders if not engine.ended])
        if self._ending is not None:
            self._ending.step()
            if self._ending.in_vain:
                self._be_over()

    def _be_over(self) -> None:
        self.over = True
        if self._engine is not None:
            self._engine.clean_up()


FAREWELL_S = 30.0  # for the last messages of agents: they may have logs to send yet


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
        """Return whether the engine ended before it got a signal."""
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
            self._engine_end = EngineEnd(self._engine, patient=none_lost, explains=self._outcome.stopped_by_server)
        self._engine_end.step()
        if not self._engine_end.over:
            self.due_s = self._engine_end.due
        return self._engine_end.over
