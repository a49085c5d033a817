"""Start agents with the engine, and wait until the agents of all servers have joined."""

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

FIRST_REPORT_S, REPORT_EVERY_S = 2.0, 30.0  # for missing servers
ENGINE_LAST_S = 1.0  # time for agents to join that an engine started just before it ended


class JoinBarrier:
    """Tracks whether all servers join in time. The time limit starts when the engine starts."""

    def __init__(self, plan: Plan, registration: Registration, first_server: int) -> None:
        """Start the time limit. `first_server` is the index of the server that has rank 0."""
        self._plan = plan
        self._registration = registration
        self._first_server = first_server
        self._since = time.monotonic()
        self._ends = self._since + plan.join_timeout_s
        self._next_report = self._since + FIRST_REPORT_S
        self._engine_last: float | None = None  # deadline for agents of an engine that has ended
        self.reported = False  # missing servers have been reported

    @property
    def next_look_s(self) -> float:
        moments = (self._ends, self._next_report, self._engine_last)
        return min(moment for moment in moments if moment is not None)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def hurry(self) -> None:
        self._next_report = time.monotonic()

    def missing(self) -> tuple[str, ...]:
        """Return the names of the missing servers if it is time to report them again, else an empty tuple."""
        now = time.monotonic()
        if now < self._next_report:
            return ()
        self._next_report = now + REPORT_EVERY_S
        self.reported = True
        return self._registration.missing

    def failure(self, engine: EngineProcess | None) -> TlaunchError | None:
        """Return an error if servers did not join in time or do not match each other, else None. May block."""
        if self._registration.complete:
            return self._registration.unlike() or self._registration.unresolved(self._first_server)
        brought_by = engine if self._plan.brings_all else None
        own_is_missing = self._plan.brings_all or not self._registration.is_ready(self._first_server)
        now = time.monotonic()
        if engine is not None and engine.ended and own_is_missing:
            self._engine_last = self._engine_last or now + ENGINE_LAST_S
            if now >= self._engine_last:
                if brought_by is None:
                    return own_agent_ended(engine)
                why = f"{engine.name} ended with exit code {engine.exit_code}"
                return not_come(brought_by, why, self._registration.missing)
        if now < self._ends:
            return None
        why = f"after {self._plan.join_timeout_s:g} s (--join-timeout)"
        return not_come(brought_by, why, self._registration.missing, self._registration.mistaken)


class AgentStarter:
    """Starts the engine, which starts the agents, and starts it again if an attempt needs new agents."""

    def __init__(
        self, spec: RunSpec, plan: Plan, servers: Sequence[Server], first_server: int, registration: Registration
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._servers = servers
        self._first_server = first_server
        self._registration = registration
        self._usual_files = own_limit()
        self._names: dict[int, tuple[str, ...]] = {}  # the names of servers, by server_index
        self.engine: EngineProcess | None = None
        self.barrier = JoinBarrier(plan, registration, first_server)

    def start(self) -> None:
        """Start the engine and the time limit for agents. Raise UnreadableError if the engine cannot be started."""
        self.barrier = JoinBarrier(self._plan, self._registration, self._first_server)
        limit_to(self._usual_files)  # the engine's processes keep the user's limit
        engine_log = RunDir(self._spec.run_dir).engine_log
        self.engine = EngineProcess(self._plan.engine, os.environ, self._spec.cwd, engine_log)
        make_room_for_servers(len(self._servers))

    def note_begin(self) -> None:
        for index, peer in self._registration.peers.items():
            self._names[index] = (self._servers[index].server_id, *([peer.hello.host] if peer.hello else []))
        if self.engine is not None:
            self.engine.forget_words()

    def turned_back(self, server_index: int, why: str) -> TlaunchError | None:
        """Return the error for a server that was lost before ranks started. Return None if a user can restart it."""
        if not self._plan.brings_all:
            self.barrier.hurry()
            return None
        names = {index: self._names.get(index, (server.server_id,)) for index, server in enumerate(self._servers)}
        absent = [index for index in names if index != server_index and index not in self._registration.peers]
        return turned_back(self.engine, server_index, why, names, absent)

    def killed(self) -> Verdict | None:
        return killed(self.engine) if self._plan.brings_all else None

    def exited(self) -> EngineExited | None:
        if self.engine is None:
            return None
        found = gave_up(self.engine, self._servers, self._names)
        return EngineExited(cancelled(self.engine), killed(self.engine), found)
