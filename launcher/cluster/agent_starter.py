"""Agents on every server: started by the engine or by hand, awaited together, and why some do not join."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from launcher.cluster.engine_output import cancelled, gave_up, killed, not_come, own_agent_ended, turned_back
from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.job import Plan
from launcher.cluster.registration import Registration
from launcher.control.events import EngineExited
from launcher.core.errors import TlaunchError
from launcher.core.machine.proc import limit_to, make_room_for_servers, own_limit
from launcher.core.records import RunSpec, Server
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Verdict

FIRST_REPORT_S, REPORT_EVERY_S = 2.0, 30.0  # which servers are missing
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
        self._next_report = self._since + FIRST_REPORT_S
        self._engine_last: float | None = None  # until when agents of an engine that has ended may come
        self.reported = False  # that servers are missing

    @property
    def next_look_s(self) -> float:
        """The moment to look again, monotonic."""
        moments = (self._ends, self._next_report, self._engine_last)
        return min(moment for moment in moments if moment is not None)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def hurry(self) -> None:
        """Report at once which servers are missing: one that had joined has gone."""
        self._next_report = time.monotonic()

    def missing(self) -> tuple[str, ...]:
        """Return the servers that are missing, if it is time to report them."""
        now = time.monotonic()
        if now < self._next_report:
            return ()
        self._next_report = now + REPORT_EVERY_S
        self.reported = True
        return self._registration.missing

    def failure(self, engine: EngineProcess | None) -> TlaunchError | None:
        """Return why to stop waiting, or why servers that are all ready do not fit; None otherwise. May block for seconds."""
        if self._registration.complete:
            return self._registration.unlike() or self._registration.unresolved(self._first_server)
        brought_by = engine if self._plan.brings_all else None
        own_is_missing = self._plan.brings_all or not self._registration.is_ready(self._first_server)
        now = time.monotonic()
        if engine is not None and engine.ended and own_is_missing and self._engine_last is None:
            self._engine_last = now + ENGINE_LAST_S
        if engine is not None and engine.ended and own_is_missing and now >= (self._engine_last or now):
            if brought_by is None:
                return own_agent_ended(engine)
            why = f"{engine.name} ended with exit code {engine.exit_code}"
            return not_come(brought_by, why, self._registration.missing)
        if now < self._ends:
            return None
        return not_come(
            brought_by,
            f"after {self._plan.join_timeout_s:g} s (--join-timeout)",
            self._registration.missing,
            self._registration.mistaken,
        )


class AgentStarter:
    """Starts the engine, once for each time that agents are needed anew, and waits until all have come."""

    def __init__(
        self, spec: RunSpec, plan: Plan, servers: Sequence[Server], first_server: int, registration: Registration
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._servers = servers
        self._first_server = first_server
        self._registration = registration
        self._usual_files = own_limit()
        self._names: dict[int, tuple[str, ...]] = {}  # what servers are called, by server_index
        self.engine: EngineProcess | None = None
        self.barrier = JoinBarrier(plan, registration, first_server)

    def start(self) -> None:
        """Start the engine, or begin to wait for agents that are started by hand.

        Raises:
            UnreadableError: the engine cannot be started.
        """
        self.barrier = JoinBarrier(self._plan, self._registration, self._first_server)
        environment = dict(os.environ)
        limit_to(self._usual_files)  # what the engine starts keeps the limit that the user has set
        engine_log = RunDir(self._spec.run_dir).engine_log
        self.engine = EngineProcess(self._plan.engine, environment, self._spec.cwd, engine_log)
        make_room_for_servers(len(self._servers))

    def note_begin(self) -> None:
        for index, peer in self._registration.peers.items():
            self._names[index] = (self._servers[index].server_id, *([peer.hello.host] if peer.hello else []))
        if self.engine is not None:
            self.engine.forget_words()

    def turned_back(self, server_index: int, why: str) -> TlaunchError | None:
        """Return why nothing can begin, where a server has gone before that. An engine starts none twice; a user may."""
        if not self._plan.brings_all:
            self.barrier.hurry()
            return None
        names = {index: self._names.get(index, (server.server_id,)) for index, server in enumerate(self._servers)}
        absent = [index for index in names if index != server_index and index not in self._registration.peers]
        return turned_back(self.engine, server_index, why, names, absent)

    def killed(self) -> Verdict | None:
        """Return the verdict on an engine that was killed, and has taken its agents with it; None on any other."""
        return killed(self.engine) if self._plan.brings_all else None

    def exited(self) -> EngineExited | None:
        """Return what the engine's end says, once it has ended by itself."""
        if self.engine is None:
            return None
        found = gave_up(self.engine, self._servers, self._names)
        return EngineExited(cancelled(self.engine), killed(self.engine), found)
