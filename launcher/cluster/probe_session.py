"""The coordinator's side of an examination by `tlaunch doctor`: agents on every server, questions and answers.

    gather ──> ask ... ask ──> finish

A run ends if one server does not join, but an examination continues with the others. An engine that cannot start one
agent ends all of them. So missing servers are started once more, each by a separate engine, whose output then
concerns only that server.
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
from launcher.doctor import join_failure
from launcher.engines.engine_command import EngineCommand
from launcher.supervise.spawn import become_subreaper
from launcher.supervise.tree import Ending, something_left, spare_bystanders

ENGINE_LAST_S = 1.0  # time for agents to join that an engine started just before it ended
MAX_OUTPUT_LINES = 60
POLL_S = 0.05


class ProbeEngines:
    """The engines of an examination, keyed by server index. The engine with the key None starts all agents."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._engines: dict[int | None, EngineProcess] = {}
        self._ended_at: dict[int | None, float] = {}
        self._usual_files = own_limit()

    def __contains__(self, index: int) -> bool:
        return index in self._engines

    @contextmanager
    def usual_limits(self) -> Iterator[None]:
        """Restore the user's limit on open files in the `with` block, so that processes started there inherit it."""
        own = own_limit()
        limit_to(self._usual_files)
        try:
            yield
        finally:
            limit_to(own)

    def start(self, index: int | None, command: EngineCommand) -> None:
        """Start an engine. Raise UnreadableError if the engine cannot be started."""
        log = self._directory / f"engine{'' if index is None else index}.log"
        with self.usual_limits():
            self._engines[index] = EngineProcess(command, os.environ, self._directory, log)

    def has_ended(self, index: int | None) -> bool:
        """Return True if an engine has ended and its last agents have had time to join."""
        if not self._engines[index].ended:
            return False
        return time.monotonic() - self._ended_at.setdefault(index, time.monotonic()) > ENGINE_LAST_S

    def failure(self, index: int | None) -> join_failure.JoinFailure:
        engine = self._engines[index]
        return join_failure.diagnose_output(
            engine.last_lines(MAX_OUTPUT_LINES), f"{engine.name} ended with exit code {engine.exit_code}"
        )

    def give_up(self, index: int, seconds: float) -> join_failure.JoinFailure:
        """Stop an engine whose agent did not join within `seconds`, and return the failure."""
        engine = self._engines[index]
        failure = join_failure.engine_hangs(engine.name, round(seconds, 1), engine.last_lines(MAX_OUTPUT_LINES))
        engine.signal(signal.SIGTERM)
        return failure

    def close(self, patience_s: float) -> None:
        """Wait up to `patience_s` seconds for the engines to end. Then end their remaining processes, such as ssh."""
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


# Takes a server's index and the seconds for its agent to find the coordinator; returns the command for only that agent.
Alone = Callable[[int, float], EngineCommand]
NAME = "examination"
SILENCE_S = 60.0
STEP_S = 0.2
BEAT_S = 5.0
MAX_BEHIND_S = 20.0  # a server this long behind the last one (or half of --join-timeout) is started once more
MIN_ALONE_S = 10.0  # minimum time for that, even beyond --join-timeout
MAX_ENGINES = 16  # at the same time
ANSWER_S = 30.0
PER_SERVER_S = 0.1  # additional time for each server that a server has to reach


class ProbeSession:
    """Examines all servers. It implements the Transport of launcher/doctor/examine.py. Always call `close`."""

    def __init__(self, plan: Plan, servers: Sequence[Server], alone: Alone | None, directory: Path) -> None:
        """Prepare a session. `alone` returns the command to start one agent. If users start the agents, it is None."""
        self.join_failures: dict[int, join_failure.JoinFailure] = {}
        self.objections: list[tuple[int | None, TlaunchError]] = []  # errors of servers that joined but do not fit
        self._plan = plan
        self._servers = servers
        self._alone = alone
        self._registration = Registration(plan, servers, NAME)
        self._engines = ProbeEngines(directory)
        self.usual_limits = self._engines.usual_limits
        self._left: dict[int, str] = {}  # reasons of connections that were lost before all had joined
        self._has_gathered = False
        self._answers: dict[int, Any] = {}  # to the current questions
        self._number = 0  # of the current questions
        self._last_joined = 0.0  # monotonic
        self._next_beat = 0.0

    @property
    def missing(self) -> list[int]:
        known = {*self._registration.peers, *self.join_failures}
        return [index for index in range(len(self._servers)) if index not in known]

    def gather(self, on_missing: Callable[[Sequence[str]], None]) -> None:
        """Start an agent on every server, and record in `join_failures` the servers whose agent did not join.

        `on_missing` is called once with the missing servers. Blocks for at most --join-timeout. Missing servers are
        started once more, `MAX_ENGINES` at a time, which may take `MIN_ALONE_S` longer each time.
        Raises UnreadableError if the engine cannot be started.
        """
        spare_bystanders()
        become_subreaper()  # to end the engines' remaining processes
        try:
            make_room_for_servers(len(self._servers))
        except UnreadableError as error:  # a run would fail, too, but some servers can still join
            self.objections.append((None, error))
        began = self._last_joined = time.monotonic()
        deadline = began + self._plan.join_timeout_s
        self._engines.start(None, self._plan.engine)
        self._gather_together(began, deadline, on_missing)
        if self._alone is not None and self.missing:
            self._gather_alone(self._alone, deadline)
        for index in self.missing:
            why = self._left.get(index)
            self.join_failures[index] = (
                join_failure.connection_lost(why) if why else join_failure.join_timed_out(self._plan.join_timeout_s)
            )
        self._has_gathered = True

    def ask(self, messages: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Mapping[str, Any]]:
        """Send all questions at once, and return the answers that arrive in time."""
        patience_s = ANSWER_S + PER_SERVER_S * len(self._servers)
        deadline = time.monotonic() + patience_s
        asked = self.begin_to_ask(messages)
        while time.monotonic() < deadline and self._awaited(asked):
            self.step(deadline)
        for index in self._awaited(asked):
            self.join_failures.setdefault(index, join_failure.no_answer(patience_s))
        return {index: self._answers[index] for index in asked if isinstance(self._answers.get(index), dict)}

    def begin_to_ask(self, messages: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Send questions to all servers that have not failed, and return these servers. Do not wait for answers."""
        self._number += 1
        self._answers = {}
        asked = [index for index in messages if index in self._registration.peers and index not in self.join_failures]
        for index in asked:
            self._registration.peers[index].ask()
            self._registration.peers[index].send(ProbeQuestion(self._number, messages[index]))
        return asked

    def troubles(self) -> Iterator[str]:
        """Yield the errors in the answers received so far."""
        for index, answer in sorted(self._answers.items()):
            if isinstance(answer, dict) and "trouble" in answer:
                yield f"server {self._servers[index].server_id}: {answer['trouble']}"

    def offsets_s(self) -> Mapping[int, float]:
        """Return the clock offset of each server in seconds. It is positive if the server's clock is ahead."""
        clocks = {index: peer.pings.clock for index, peer in self._registration.peers.items()}
        return {index: clock.ahead_ns / 1e9 for index, clock in clocks.items() if clock.known}

    def step(self, until: float) -> None:
        """Process messages for a moment, at most until `until` (monotonic). Call it regularly while waiting."""
        now = time.monotonic()
        if now >= self._next_beat:  # agents that hear nothing disconnect
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
        """Close all connections and end the engines. Blocks for a few seconds at most."""
        for peer in (*self._registration.unauthenticated, *self._registration.peers.values()):
            peer.close(ENGINE_LAST_S)
        self._plan.listener.close()
        self._engines.close(PATIENCE_S if self._registration.peers else 0.0)

    def _gather_together(self, began: float, deadline: float, on_missing: Callable[[Sequence[str]], None]) -> None:
        """Wait for agents that the first engine starts or that are started by hand."""
        max_behind_s = min(MAX_BEHIND_S, self._plan.join_timeout_s / 2)
        # If servers are started by hand, the engine is this server's own agent.
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
        """Start each missing server once more with a separate engine and time limit, so that none delays the others."""
        waiting = self.missing
        running: dict[int, tuple[float, float]] = {}  # deadline, and its distance in seconds
        while waiting or running:
            while waiting and len(running) < MAX_ENGINES:
                index = waiting.pop(0)
                patience_s = max(MIN_ALONE_S, deadline - time.monotonic())
                if index not in self.missing:
                    continue
                self._left.pop(index, None)
                try:
                    # The agent tries for half of the time, so that it can still report an error.
                    self._engines.start(index, alone(index, patience_s / 2))
                    running[index] = time.monotonic() + patience_s, patience_s
                except TlaunchError as error:
                    self.join_failures[index] = join_failure.JoinFailure("did-not-come", error.message, error.hint)
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
                continue  # this session started it twice
            if index is not None and index not in self._registration.peers:
                self.join_failures[index] = join_failure.JoinFailure("refused", error.message, error.hint)
            else:
                self.objections.append((index, error))
        for connection in self._registration.dismiss():
            connection.close()

    def _receive(self, index: int, peer: AgentConnection) -> None:
        for message in peer.take():
            if isinstance(message, ProbeAnswer) and message.number == self._number:
                self._answers[index] = message.content
            elif isinstance(message, Refused):
                self.join_failures[index] = join_failure.JoinFailure("refused", message.message, message.hint)
        if peer.lost is not None:
            self._left[index] = peer.lost
            if self._has_gathered:  # earlier it could join again
                self.join_failures.setdefault(index, join_failure.connection_lost(peer.lost))
            peer.close()
            del self._registration.peers[index]

    def _awaited(self, asked: Sequence[int]) -> list[int]:
        return [index for index in asked if index in self._registration.peers and index not in self._answers]
