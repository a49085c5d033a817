"""The coordinator's side of an examination: an agent on every server, messages and answers, and who did not join.

    gather ──> ask ... ask ──> finish

A run is over when one server does not join. Here every other server is examined nevertheless, and engines end all of
their agents when they cannot start one. So servers that do not join with the others are started once more, each by an
engine of its own, whose output concerns that server alone.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launcher.cluster.agent_connection import AgentConnection
from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.job import Plan
from launcher.cluster.registration import Registration
from launcher.cluster.shutdown import GRACE_S, PATIENCE_S
from launcher.control.messages import ProbeAnswer, ProbeQuestion, Refused
from launcher.control.orders import Finish
from launcher.core import env
from launcher.core.errors import TlaunchError, UnreadableError
from launcher.core.events import Cause
from launcher.core.machine.proc import limit_to, make_room_for_servers, own_limit
from launcher.core.records import Server
from launcher.doctor.join_failure import (
    JoinFailure,
    connection_lost,
    diagnose_output,
    engine_hangs,
    join_timed_out,
    no_answer,
)
from launcher.engines.engine_command import EngineCommand
from launcher.supervise.spawn import become_subreaper
from launcher.supervise.tree import Ending, something_left, spare_bystanders

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
        """Return whether an engine ended long enough ago for its last lines and agents to have come."""
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
        while something_left() and (ending is None or not ending.is_unkillable):
            ending = ending or Ending(GRACE_S, lambda: [engine.pid for engine in self._running()])
            ending.step()
            time.sleep(POLL_S)
        for engine in self._engines.values():
            engine.clean_up()

    def _running(self) -> Iterator[EngineProcess]:
        return (engine for engine in self._engines.values() if not engine.ended)


# Given the index of a server, and how long its agent may look for the coordinator: what starts that agent alone.
Alone = Callable[[int, float], EngineCommand]
NAME = "examination"
SILENCE_S = 60.0
STEP_S = 0.2
BEAT_S = 5.0
MAX_BEHIND_S = 20.0  # the time after all others, or half of --join-timeout, after which a server is started once more
MIN_ALONE_S = 10.0  # for that, however little time is left: --join-timeout may last so much longer
MAX_ENGINES = 16  # at the same time
ANSWER_S = 30.0
PER_SERVER_S = 0.1  # of patience, for each server that a server has to reach


class ProbeSession:
    """A Transport of launcher/doctor/examine.py. `close` it, whatever happens."""

    def __init__(self, plan: Plan, servers: Sequence[Server], alone: Alone | None, directory: Path) -> None:
        """`alone`: None where servers are started by hand. `directory`: for what engines print."""
        self.join_failures: dict[int, JoinFailure] = {}
        self.objections: list[tuple[int | None, TlaunchError]] = []  # servers that joined and do not fit
        self._plan = plan
        self._servers = servers
        self._alone = alone
        self._registration = Registration(plan, servers, NAME)
        self._engines = ProbeEngines(directory)
        self.usual_limits = self._engines.usual_limits
        self._left: dict[int, str] = {}  # why connections were lost before all had joined
        self._has_gathered = False
        self._answers: dict[int, Any] = {}  # to the present messages
        self._number = 0  # of the present messages
        self._last_joined = 0.0  # monotonic
        self._next_beat = 0.0

    @property
    def missing(self) -> list[int]:
        known = {*self._registration.peers, *self.join_failures}
        return [index for index in range(len(self._servers)) if index not in known]

    def gather(self, on_missing: Callable[[Sequence[str]], None]) -> None:
        """Have an agent on every server, or know why not. `on_missing` gets once which are missing.

        Blocks as long as all servers may take to join (--join-timeout), and `MIN_ALONE_S` more for each `MAX_ENGINES`
        servers that are started once more.

        Raises:
            UnreadableError: the engine cannot be started at all.
        """
        spare_bystanders()
        become_subreaper()  # to end what an engine leaves behind
        try:
            make_room_for_servers(len(self._servers))
        except UnreadableError as error:  # a run would fail of it, too; some servers will join nevertheless
            self.objections.append((None, error))
        began = self._last_joined = time.monotonic()
        deadline = began + self._plan.join_timeout_s
        self._engines.start(None, self._plan.engine)
        self._gather_together(began, deadline, on_missing)
        if self._alone is not None and self.missing:
            self._gather_alone(self._alone, deadline)
        for index in self.missing:
            why = self._left.get(index)
            self.join_failures[index] = connection_lost(why) if why else join_timed_out(self._plan.join_timeout_s)
        self._has_gathered = True

    def ask(self, messages: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Mapping[str, Any]]:
        """Send all messages at once, and return the answers that came in time. Blocks until then."""
        patience_s = ANSWER_S + PER_SERVER_S * len(self._servers)
        deadline = time.monotonic() + patience_s
        asked = self.begin_to_ask(messages)
        while time.monotonic() < deadline and self._awaited(asked):
            self.step(deadline)
        for index in self._awaited(asked):
            self.join_failures.setdefault(index, no_answer(patience_s))
        return {index: self._answers[index] for index in asked if isinstance(self._answers.get(index), dict)}

    def begin_to_ask(self, messages: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Send all messages without waiting; return the servers that got one: those that have always answered."""
        self._number += 1
        self._answers = {}
        asked = [index for index in messages if index in self._registration.peers and index not in self.join_failures]
        for index in asked:
            self._registration.peers[index].ask()
            self._registration.peers[index].send(ProbeQuestion(self._number, messages[index]))
        return asked

    def troubles(self) -> Iterator[str]:
        """Yield what servers that have answered the present messages by now could not do."""
        for index, answer in sorted(self._answers.items()):
            if isinstance(answer, dict) and "trouble" in answer:
                yield f"server {self._servers[index].server_id}: {answer['trouble']}"

    def offsets_s(self) -> Mapping[int, float]:
        """Return how far the clock of each server is ahead of this machine's."""
        clocks = {index: peer.pings.clock for index, peer in self._registration.peers.items()}
        return {index: clock.ahead_ns / 1e9 for index, clock in clocks.items() if clock.known}

    def step(self, until: float) -> None:
        """Receive what comes, for a moment, until `until` (monotonic) at most. Call it while waiting for other things."""
        now = time.monotonic()
        if now >= self._next_beat:  # agents that hear nothing leave
            self._next_beat = now + BEAT_S
            for peer in self._registration.peers.values():
                peer.ask()
        poll = select.poll()
        poll.register(self._plan.listener, select.POLLIN)
        for peer in (*self._registration.unauthenticated, *self._registration.peers.values()):
            poll.register(peer, select.POLLIN | (select.POLLOUT if peer.channel.wants_write else 0))
        poll.poll(max(0.0, min(STEP_S, until - now)) * 1000)
        for _ in self._registration.accept():
            pass
        self._receive_joins()
        for index, peer in list(self._registration.peers.items()):
            self._receive(index, peer)

    def finish(self, exit_code: int) -> None:
        for peer in self._registration.peers.values():
            peer.send(Finish(Cause.FINISHED, exit_code))

    def close(self) -> None:
        """Close all connections, and end the engines. Blocks for a few seconds at most."""
        for peer in (*self._registration.unauthenticated, *self._registration.peers.values()):
            peer.close(ENGINE_LAST_S)
        self._plan.listener.close()
        self._engines.close(PATIENCE_S if self._registration.peers else 0.0)

    def _gather_together(self, began: float, deadline: float, on_missing: Callable[[Sequence[str]], None]) -> None:
        """Wait for the agents that the first engine starts, or that are started by hand."""
        max_behind_s = min(MAX_BEHIND_S, self._plan.join_timeout_s / 2)
        # Where servers are started by hand, the engine is this server's own agent.
        own_id = None if self._plan.brings_all else self._plan.engine.env.get(env.TLAUNCH_SERVER)
        own = next((index for index, server in enumerate(self._servers) if server.server_id == own_id), None)
        has_reported = False
        while self.missing and (now := time.monotonic()) < deadline:
            self.step(deadline)
            if self._plan.brings_all and (self._engines.has_ended(None) or now - self._last_joined > max_behind_s):
                return
            if own in self.missing and self._engines.has_ended(None):
                self.join_failures[own] = self._engines.failure(None)
            if not has_reported and now - began > MAX_BEHIND_S / 10:
                on_missing([self._servers[index].server_id for index in self.missing])
                has_reported = True

    def _gather_alone(self, alone: Alone, deadline: float) -> None:
        """Start the missing servers once more, each with a time of its own: an engine that hangs keeps no other waiting."""
        waiting = self.missing
        running: dict[int, tuple[float, float]] = {}  # until when, and how many seconds that were
        while waiting or running:
            while waiting and len(running) < MAX_ENGINES:
                index = waiting.pop(0)
                patience_s = max(MIN_ALONE_S, deadline - time.monotonic())
                if index not in self.missing:
                    continue
                self._left.pop(index, None)
                try:
                    # Its agent looks for this machine for half of the time, so that it can still report why it failed.
                    self._engines.start(index, alone(index, patience_s / 2))
                    running[index] = time.monotonic() + patience_s, patience_s
                except TlaunchError as error:
                    self.join_failures[index] = JoinFailure("did-not-come", error.message, error.hint)
            self.step(min((until for until, _ in running.values()), default=0.0))
            for index, (until, patience_s) in list(running.items()):
                if index in self.missing and self._engines.has_ended(index):
                    self.join_failures[index] = self._engines.failure(index)
                elif index in self.missing and time.monotonic() >= until:
                    self.join_failures[index] = self._engines.give_up(index, patience_s)
                if index not in self.missing:
                    del running[index]

    def _receive_joins(self) -> None:
        for connection in list(self._registration.unauthenticated):
            before = len(self._registration.peers)
            self._registration.hear(connection, joining=True)
            if len(self._registration.peers) > before:
                self._last_joined = time.monotonic()
        while self._registration.refused:
            hello, error = self._registration.refused.pop(0)
            index = None
            with suppress(TlaunchError):
                index = self._registration.place_of(hello)
            if index is not None and index in self._engines:
                continue  # this session has started it twice
            if index is not None and index not in self._registration.peers:
                self.join_failures[index] = JoinFailure("refused", error.message, error.hint)
            else:
                self.objections.append((index, error))
        for connection in self._registration.dismiss():
            connection.close()

    def _receive(self, index: int, peer: AgentConnection) -> None:
        for message in peer.take():
            if isinstance(message, ProbeAnswer) and message.number == self._number:
                self._answers[index] = message.content
            elif isinstance(message, Refused):
                self.join_failures[index] = JoinFailure("refused", message.message, message.hint)
        if peer.lost is not None:
            self._left[index] = peer.lost
            if self._has_gathered:  # before that it may join again
                self.join_failures.setdefault(index, connection_lost(peer.lost))
            peer.close()
            del self._registration.peers[index]

    def _awaited(self, asked: Sequence[int]) -> list[int]:
        return [index for index in asked if index in self._registration.peers and index not in self._answers]
