"""Agents on every server: started by the engine, or by persons; and what the engine says when they do not come or go."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.cluster.engine_output import cancelled, gave_up, killed, turned_back
from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.join_barrier import JoinBarrier
from launcher.cluster.plan import Plan
from launcher.cluster.registration import Registration
from launcher.control.events import EngineExited
from launcher.core.errors import TlaunchError
from launcher.core.events import Awaiting
from launcher.core.proc import limit_to, make_room_for_servers, own_limit
from launcher.core.records import RunSpec, Server
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Verdict


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
        """Start the engine, or begin to wait for those who are started by hand.

        Raises:
            UnreadableError: the engine cannot be started.
        """
        self.barrier = JoinBarrier(self._plan, self._registration, self._first_server)
        environment = dict(os.environ)
        limit_to(self._usual_files)  # what the engine starts keeps the limit that the person has set
        engine_log = RunDir(self._spec.run_dir).engine_log
        self.engine = EngineProcess(self._plan.engine, environment, self._spec.cwd, engine_log)
        make_room_for_servers(len(self._servers))

    def in_vain(self) -> TlaunchError | None:
        """Return why it makes no sense to wait any longer; None while it does."""
        return self.barrier.in_vain(self.engine)

    def missing(self) -> Awaiting | None:
        """Return which servers are missing, if it is time to say so."""
        missing = self.barrier.missing_to_tell()
        return Awaiting(missing, self.barrier.seconds, self._plan.join_timeout_s) if missing else None

    def note_begin(self) -> None:
        """Take note that an attempt begins on the servers that have come."""
        for index, peer in self._registration.peers.items():
            self._names[index] = (self._servers[index].server_id, *([peer.hello.host] if peer.hello else []))
        if self.engine is not None:
            self.engine.forget_words()

    def turned_back(self, server_index: int, why: str) -> TlaunchError | None:
        """Return why nothing can begin, where a server has gone before that. An engine brings none twice; a person may."""
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
        return EngineExited(
            cancelled(self.engine), killed(self.engine), gave_up(self.engine, self._servers, self._names)
        )
