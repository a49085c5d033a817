"""The coordinator's side of an examination: an agent on every server, questions and answers, and who did not come.

    gather ──> ask ... ask ──> finish

A run is over when one server fails to come. Here every other server is to be examined nevertheless, and engines end all
of their agents when they cannot start one. So servers that do not come with the others are started once more, each by
an engine of its own: what that one says concerns that server and no other.
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

from launcher.core import env
from launcher.core.errors import TlaunchError, UnreadableError
from launcher.core.events import Cause
from launcher.core.messages import Finish, Hello, ProbeAnswer, ProbeQuestion, Refused
from launcher.core.records import Server
from launcher.core.system import limit_to, make_room_for_servers, own_limit
from launcher.doctor.absence import Absence, absence_of, hanging, late, lost, silent
from launcher.engines.cluster.agent_connection import AgentConnection
from launcher.engines.cluster.engine_end import GRACE_S, PATIENCE_S
from launcher.engines.cluster.engine_process import EngineProcess
from launcher.engines.cluster.plan import Plan
from launcher.engines.cluster.registration import Registration
from launcher.engines.command import EngineCommand
from launcher.supervise.spawn import become_subreaper
from launcher.supervise.tree import Ending, something_left, spare_bystanders

# Given the index of a server, and for how long its agent may look for us: what starts its agent and no other.
Alone = Callable[[int, float], EngineCommand]
NAME = "examination"
SILENCE_S = 60.0
STEP_S = 0.2
BEAT_S = 5.0
STRAGGLE_S = 20.0  # who comes so long after all others, or after half of the time, is started once more
ALONE_S = 10.0  # for those, at least, however little time is left: --join-timeout may last so much longer
AT_ONCE = 16  # engines
ENGINE_LAST_S = 1.0  # an engine that has ended may have started agents that are about to come
TOLD_LINES = 60
ANSWER_S = 30.0
PER_SERVER_S = 0.1  # of patience, for each server that a server has to reach


class Consultation:
    """A Transport of launcher/doctor/examine.py. `close` it, whatever happens."""

    def __init__(self, plan: Plan, servers: Sequence[Server], alone: Alone | None, directory: Path) -> None:
        """`alone`: None where servers are started by hand. `directory`: for what engines say."""
        self.absences: dict[int, Absence] = {}
        self.objections: list[tuple[int | None, TlaunchError]] = []  # who came, and does not fit
        self._plan = plan
        self._servers = servers
        self._alone = alone
        self._directory = directory
        self._registration = Registration(plan, servers, NAME)
        self._engines: dict[int | None, EngineProcess] = {}  # None: the one that starts all
        self._ended_at: dict[int | None, float] = {}
        self._left: dict[int, str] = {}
        self._patience_s: dict[int, float] = {}  # with the engine that starts a server alone
        self._has_gathered = False
        self._usual_files = own_limit()
        self._answers: dict[int, Any] = {}  # to the present question
        self._number = 0
        self._last_came = self._began = time.monotonic()
        self._next_beat = 0.0

    @property
    def missing(self) -> list[int]:
        known = {*self._registration.peers, *self.absences}
        return [index for index in range(len(self._servers)) if index not in known]

    def gather(self, tell: Callable[[Sequence[str]], None]) -> None:
        """Have an agent on every server, or know why not. `tell` hears once who is missing.

        Blocks: as long as all servers may take to come (--join-timeout), and `ALONE_S` more for each `AT_ONCE` servers
        that have to be started once more.

        Raises:
            UnreadableError: the engine cannot be started at all.
        """
        spare_bystanders()
        become_subreaper()  # what an engine leaves behind is ours to end
        try:
            make_room_for_servers(len(self._servers))
        except UnreadableError as error:  # a run would fail of it, too; some servers will come nevertheless
            self.objections.append((None, error))
        self._began = time.monotonic()
        self._start(None, self._plan.engine)
        self._together(tell)
        if self._alone is not None and self.missing:
            self._one_by_one(self._alone)
        for index in self.missing:
            self.absences[index] = lost(self._left[index]) if index in self._left else late(self._plan.join_timeout_s)
        self._has_gathered = True

    @contextmanager
    def usual_limits(self) -> Iterator[None]:
        """What is started meanwhile keeps the limit of files that the person has set; this process needs many."""
        own = own_limit()
        limit_to(self._usual_files)
        try:
            yield
        finally:
            limit_to(own)

    def ask(self, messages: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Mapping[str, Any]]:
        """Hand out all messages at once; the answers of the servers that answered in time. Blocks until then."""
        patience_s = ANSWER_S + PER_SERVER_S * len(self._servers)
        deadline = time.monotonic() + patience_s
        asked = self.begin_to_ask(messages)
        while time.monotonic() < deadline and any(self._is_awaited(index) for index in asked):
            self.step(deadline)
        for index in asked:
            if self._is_awaited(index):
                self.absences.setdefault(index, silent(patience_s))
        return {index: self._answers[index] for index in asked if isinstance(self._answers.get(index), dict)}

    def begin_to_ask(self, messages: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Wait for no answer; whom it was sent to. Who has failed to answer once is asked no more."""
        self._number += 1
        self._answers = {}
        asked = [index for index in messages if index in self._registration.peers and index not in self.absences]
        for index in asked:
            self._registration.peers[index].ask()
            self._registration.peers[index].send(ProbeQuestion(self._number, messages[index]))
        return asked

    def troubles(self) -> Iterator[str]:
        """What servers could not do of the present question, of those that have answered by now."""
        for index, answer in sorted(self._answers.items()):
            if isinstance(answer, dict) and "trouble" in answer:
                yield f"server {self._servers[index].server_id}: {answer['trouble']}"

    def offsets_s(self) -> Mapping[int, float]:
        """How far the clock of each server is ahead of this machine's."""
        clocks = {index: peer.clock for index, peer in self._registration.peers.items()}
        return {index: clock.ahead_ns / 1e9 for index, clock in clocks.items() if clock.known}

    def step(self, until: float) -> None:
        """Take what comes, for a moment. Whoever waits for something else calls this meanwhile."""
        self._beat()
        peers = [*self._registration.strangers, *self._registration.peers.values()]
        poll = select.poll()
        poll.register(self._plan.listener, select.POLLIN)
        for peer in peers:
            poll.register(peer, select.POLLIN | (select.POLLOUT if peer.channel.wants_write else 0))
        poll.poll(max(0.0, min(STEP_S, until - time.monotonic())) * 1000)
        for _ in self._registration.accept():
            pass
        self._hear_strangers()
        for index, peer in list(self._registration.peers.items()):
            self._hear(index, peer)

    def finish(self, exit_code: int) -> None:
        """Tell all servers how it ended."""
        for peer in self._registration.peers.values():
            peer.send(Finish(Cause.FINISHED, exit_code))

    def close(self) -> None:
        """Let go of all agents, and end the engines. Blocks for a few seconds at most."""
        for peer in (*self._registration.strangers, *self._registration.peers.values()):
            peer.close(ENGINE_LAST_S)
        self._plan.listener.close()
        self._wait_for_engines(PATIENCE_S if self._registration.peers else 0.0)
        self._end_what_is_left()
        for engine in self._engines.values():
            engine.clean_up()

    # --- who comes ---

    @property
    def _deadline(self) -> float:
        """By which all servers should have come."""
        return self._began + self._plan.join_timeout_s

    def _together(self, tell: Callable[[Sequence[str]], None]) -> None:
        began, deadline = self._began, self._deadline
        straggle_s = min(STRAGGLE_S, self._plan.join_timeout_s / 2)
        told = False
        while self.missing and (now := time.monotonic()) < deadline:
            self.step(deadline)
            if self._plan.brings_all and (self._has_ended(None) or now - max(began, self._last_came) > straggle_s):
                return
            self._explain_end_of_own(None)
            if not told and now - began > STRAGGLE_S / 10:
                tell([self._servers[index].server_id for index in self.missing])
                told = True

    def _one_by_one(self, alone: Alone) -> None:
        """Each has its own time: engines that hang must not keep others from being started."""
        waiting, going_on = self.missing, dict[int, float]()  # until when
        while waiting or going_on:
            while waiting and len(going_on) < AT_ONCE:
                index = waiting.pop(0)
                patience_s = max(ALONE_S, self._deadline - time.monotonic())
                if index in self.missing and self._start_alone(index, alone, patience_s):
                    going_on[index] = time.monotonic() + patience_s
                    self._patience_s[index] = patience_s
            self.step(min(going_on.values(), default=0.0))
            for index, until in list(going_on.items()):
                if index in self.missing and self._has_ended(index):
                    self._explain(index, self._engines[index])
                elif index in self.missing and time.monotonic() >= until:
                    self._give_up(index, self._engines[index])
                if index not in self.missing:
                    del going_on[index]

    def _start_alone(self, index: int, alone: Alone, patience_s: float) -> bool:
        """Its agent gets half of the time to look for us, so that it has time to say why it has not found us."""
        self._left.pop(index, None)
        try:
            self._start(index, alone(index, patience_s / 2))
        except TlaunchError as error:
            self.absences[index] = Absence("did-not-come", error.message, error.hint)
            return False
        return True

    def _start(self, index: int | None, command: EngineCommand) -> None:
        log = self._directory / f"engine{'' if index is None else index}.log"
        with self.usual_limits():
            self._engines[index] = EngineProcess(command, os.environ, self._directory, log)

    def _has_ended(self, index: int | None) -> bool:
        """Long enough for its last words and agents to have come."""
        if not self._engines[index].ended:
            return False
        return time.monotonic() - self._ended_at.setdefault(index, time.monotonic()) > ENGINE_LAST_S

    def _explain_end_of_own(self, index: int | None) -> None:
        """Started by hand, the engine is this server's own agent."""
        own = self._own_server
        if own is not None and own in self.missing and self._has_ended(index):
            self._explain(own, self._engines[index])

    @property
    def _own_server(self) -> int | None:
        return next((index for index, server in enumerate(self._servers) if self._is_own(server)), None)

    def _is_own(self, server: Server) -> bool:
        return not self._plan.brings_all and server.server_id == self._plan.engine.env.get(env.TLAUNCH_SERVER)

    def _explain(self, index: int, engine: EngineProcess) -> None:
        code = engine.exit_code
        ended = f"{engine.name} ended with exit code {code}" if code is not None else f"{engine.name} goes on"
        self.absences[index] = absence_of(engine.last_lines(TOLD_LINES), ended)

    def _give_up(self, index: int, engine: EngineProcess) -> None:
        self.absences[index] = hanging(engine.name, round(self._patience_s[index], 1), engine.last_lines(TOLD_LINES))
        engine.signal(signal.SIGTERM)

    # --- what is said ---

    def _hear_strangers(self) -> None:
        for stranger in list(self._registration.strangers):
            before = len(self._registration.peers)
            self._registration.hear(stranger, joining=True)
            if len(self._registration.peers) > before:
                self._last_came = time.monotonic()
        while self._registration.refused:
            self._object(*self._registration.refused.pop(0))
        for stranger in self._registration.dismiss():
            stranger.close()

    def _object(self, hello: Hello, error: TlaunchError) -> None:
        """Who was started twice by us is welcome once, and that is all."""
        index = self._index_of(hello)
        if index is not None and index in self._engines:
            return
        if index is not None and index not in self._registration.peers:
            self.absences[index] = Absence("refused", error.message, error.hint)
        else:
            self.objections.append((index, error))

    def _index_of(self, hello: Hello) -> int | None:
        with suppress(TlaunchError):
            return self._registration.place_of(hello)
        return None

    def _hear(self, index: int, peer: AgentConnection) -> None:
        for message in peer.take():
            if isinstance(message, ProbeAnswer) and message.number == self._number:
                self._answers[index] = message.content
            elif isinstance(message, Refused):
                self.absences[index] = Absence("refused", message.message, message.hint)
        if peer.lost is not None:
            self._left[index] = peer.lost
            if self._has_gathered:  # before that it may come again
                self.absences.setdefault(index, lost(peer.lost))
            peer.close()
            del self._registration.peers[index]

    def _is_awaited(self, index: int) -> bool:
        return index in self._registration.peers and index not in self._answers

    def _beat(self) -> None:
        """Agents that hear nothing leave."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            for peer in self._registration.peers.values():
                peer.ask()

    def _wait_for_engines(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while any(self._going_on()) and time.monotonic() < deadline:
            select.select((), (), (), STEP_S / 4)

    def _end_what_is_left(self) -> None:
        """Engines start ssh in process groups of its own, which outlives them where a server does not answer."""
        ending: Ending | None = None
        while something_left() and (ending is None or not ending.in_vain):
            ending = ending or Ending(GRACE_S, lambda: [engine.pid for engine in self._going_on()])
            ending.step()
            select.select((), (), (), STEP_S / 4)

    def _going_on(self) -> Iterator[EngineProcess]:
        return (engine for engine in self._engines.values() if not engine.ended)
