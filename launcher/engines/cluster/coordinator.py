"""The coordinator of a run over several servers: one process beside the head, to which every server's agent connects.

    gathering ──> running ──> every server ended well ─────────────────────────────────┐
        ^            └── a rank failed or hangs, a server is lost ──> judging ──> ending ──> leaving ──> over
        └──────────────────────────────── another attempt ────────────────────────┘

Agents do everything on their servers by the rules of one server. What needs all of them is done here: nothing starts
before all have come and agree, the evidence of all is judged together and by one clock, and the next attempt begins
when nothing of the last one is left anywhere. The head attends this process as it would an agent.

Why connections, and not the output and the signals of the engine: engines cut and mix the lines of several processes,
no signal can carry a verdict, MPICH does not notice that a host is gone, and a run that is started by hand on each
server has no engine. Why not MPI: it ends all agents and their ranks, without grace, as soon as one agent is lost.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from enum import Enum

from launcher.core.errors import TlaunchError, UnreadableError
from launcher.core.events import (
    AgentStarted,
    AttemptStarted,
    Awaiting,
    Cause,
    Continued,
    Forwarded,
    Paused,
    Trouble,
)
from launcher.core.messages import (
    AttemptOver,
    Begin,
    Done,
    EventReport,
    EvidenceReport,
    EvidenceRequest,
    FileChunk,
    FileSnapshot,
    ForwardSignal,
    GivingUp,
    Message,
    ProbeResult,
    SignalWanted,
    Stacks,
    Waiting,
)
from launcher.core.proc import identify
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.core.system import limit_to, make_room_for_servers, own_limit
from launcher.engines.assemble import used_cluster
from launcher.engines.cluster.agent_connection import AgentConnection
from launcher.engines.cluster.asker_endpoint import remove_door
from launcher.engines.cluster.chronicle import Chronicle
from launcher.engines.cluster.connections import BEATS, Connections
from launcher.engines.cluster.engine_end import EngineEnd
from launcher.engines.cluster.engine_output import turned_back
from launcher.engines.cluster.engine_process import EngineProcess
from launcher.engines.cluster.file_receiver import FileReceiver
from launcher.engines.cluster.join_barrier import JoinBarrier
from launcher.engines.cluster.outcome import Outcome
from launcher.engines.cluster.plan import Plan
from launcher.engines.cluster.registration import DuplicateServerError, Registration, take_first_words
from launcher.engines.cluster.shared_fs import leave_mark, remove_mark
from launcher.supervise.agent import ASKS_TO_STOP, CONTINUES, KILLS_AT_ONCE, PAUSES, LauncherLink, identity_of
from launcher.supervise.event_loop import SignalPipe

INQUEST_S = 5.0  # for all servers to tell what they know; each looks for less than two seconds
FAREWELL_S = 30.0  # for the last words of agents that are there: they may have logs to send yet


class Phase(Enum):
    GATHERING = "gathering"
    RUNNING = "running"
    JUDGING = "judging"
    ENDING = "ending"
    LEAVING = "leaving"
    OVER = "over"


class Coordinator:
    """Runs in a process of its own, as an agent does. Nothing in its loop waits for a single server."""

    def __init__(self, spec: RunSpec, plan: Plan, head: LauncherLink) -> None:
        self._spec = spec
        self._plan = plan
        self._head = head
        self._servers = used_cluster(spec.cluster, spec.layout.world_size).servers
        self._first_server = next(rank.server_index for rank in spec.ranks if rank.global_rank == 0)
        self._run_dir = RunDir(spec.run_dir)
        self._chronicle = Chronicle(spec, self._run_dir, head)
        self._record = self._chronicle.record
        self._mark = leave_mark(self._run_dir)
        self._registration = Registration(plan, self._servers, spec.name, self._mark)
        self._mirrored = FileReceiver(self._run_dir, spec.ranks, lambda trouble: self._record(Trouble(trouble)))
        self._outcome = Outcome(spec, plan, self._servers, self._chronicle)
        self._forwarded = frozenset(spec.supervision.forward_signals)
        self._asks_to_stop = ASKS_TO_STOP - self._forwarded
        numbers = {signal.SIGCHLD, KILLS_AT_ONCE, PAUSES, CONTINUES, *self._asks_to_stop}
        self._signal_pipe = SignalPipe(numbers.union(signal.Signals(number) for number in self._forwarded))
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(
            self._registration, self._selector, plan.silence_s, on_words=self._on_words, on_loss=self._on_loss
        )
        self._gathering = JoinBarrier(plan, self._registration, self._first_server)
        self._engine: EngineProcess | None = None
        self._phase = Phase.GATHERING
        self._deadline: float | None = None  # of the phase, monotonic
        self._attempt = 0
        self._master_port = spec.master_port
        self._engine_end: EngineEnd | None = None
        self._paused = False
        self._names: dict[int, tuple[str, ...]] = {}  # what servers are called, by server_index
        self._usual_files = own_limit()

    def run(self) -> int:
        """Coordinate until nothing of the run is left; its exit code. Blocks. Call once, in the main thread."""
        self._selector.register(self._signal_pipe, selectors.EVENT_READ, self._on_signals)
        self._selector.register(self._head.death_fd, selectors.EVENT_READ, self._on_head_lost)
        self._selector.register(self._plan.listener, selectors.EVENT_READ, self._connections.on_knock)
        self._record(AgentStarted(identity_of(os.getpid()), identify(self._head.pid), len(self._spec.ranks)))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the head forks with signals held back, and so would we
        self._gather()
        while self._phase is not Phase.OVER:
            self._listen()
            self._connections.look()  # who has gone with a last word
            self._step()
        return self._close()

    # --- what may happen ---

    def _listen(self) -> None:
        self._connections.beat()
        self._connections.look()
        if self._chronicle.event_log.backlog:
            self._chronicle.event_log.send()
        for key, _ in self._selector.select(self._timeout_s()):
            key.data()

    def _timeout_s(self) -> float:
        gathering_due = self._gathering.due if self._phase is Phase.GATHERING else None
        due = [self._connections.next_beat, self._deadline, gathering_due]
        if self._registration.strangers or self._chronicle.event_log.backlog:
            due.append(time.monotonic() + 0.1)
        return max(0.0, min(moment for moment in due if moment is not None) - time.monotonic())

    def _on_words(self, peer: AgentConnection) -> None:
        if peer.server_index is None:
            error = self._registration.hear(peer, joining=self._phase is Phase.GATHERING)
            if error is not None and self._phase is Phase.GATHERING:
                self._on_misfit(error)
            return
        if self._phase is Phase.GATHERING:
            error = take_first_words(peer, self._id_of(peer), peer.take(), lambda message: self._take(peer, message))
            if error is not None:
                self._refuse(error)
            return
        for message in peer.take():
            self._take(peer, message)

    def _take(self, peer: AgentConnection, message: Message) -> None:
        """Of an agent of a known server."""
        assert peer.server_index is not None, "it has been welcomed"
        match message:
            case EventReport(line=line):
                index = peer.server_index
                self._chronicle.take(line, peer.clock.ahead_ns, self._servers[index], index)
            case EvidenceReport(attempt=attempt) if attempt == self._attempt:
                self._outcome.hearing.take(peer.server_index, message.evidence, peer.clock, message.port)
                self._inquire()
            case AttemptOver(attempt=attempt) if attempt == self._attempt:
                peer.over = True
                if message.left:
                    self._outcome.refuse_restart(f"what is left on server {self._id_of(peer)} cannot be killed")
                self._master_port = message.master_port or self._master_port
            case SignalWanted(signal=number):
                self._on_signal(number, by_server=peer.server_index)
            case GivingUp(reason=reason):  # it ends its ranks, and says when that is done
                self._note_loss(peer.server_index, reason, peer)
            case Stacks():
                self._registration.surveys.take(peer.server_index, message)
            case ProbeResult():
                self._outcome.hearing.take_reach(peer.server_index, message)
            case Done():
                peer.done = True
                self._chronicle.note_end(message)
            case _:
                self._mirror(peer, message)

    def _mirror(self, peer: AgentConnection, message: Message) -> None:
        """Keep what a server's ranks wrote to its own disk. While that comes, the end waits for the rest of it."""
        if peer.server_index is None or peer.ready is None or peer.ready.shares_files:
            return
        if not isinstance(message, FileChunk | FileSnapshot):
            return
        kept = self._mirrored.take(peer.server_index, message, peer.clock.ahead_ns)
        if kept is not None:
            peer.send(kept)
        if self._phase is Phase.LEAVING and self._engine_end is None:
            self._deadline = time.monotonic() + FAREWELL_S

    def _on_misfit(self, error: TlaunchError) -> None:
        """Nothing can begin with a server that is not like the others; but by hand, somebody may have started one twice."""
        if isinstance(error, DuplicateServerError) and not self._plan.brings_all:
            self._record(Trouble(f"refused: {error.message}"))
        else:
            self._refuse(error)

    def _on_signals(self) -> None:
        for number in self._signal_pipe.take():
            self._on_signal(number)

    def _on_signal(self, number: int, *, by_server: int | None = None) -> None:
        """`by_server`: the index of the one to whose agent it came, which wants it to reach all."""
        if number == KILLS_AT_ONCE or number in self._asks_to_stop:
            self._stop(Cause.STOPPED, number, by_server=by_server)
        if number == KILLS_AT_ONCE or number in self._forwarded:
            self._connections.send_all(ForwardSignal(number))
        if number in self._forwarded:
            self._record(Forwarded(number))
        if number in {PAUSES, CONTINUES} and self._paused != (number == PAUSES):
            self._paused = number == PAUSES
            self._connections.send_all(ForwardSignal(number))
            self._record(Paused() if self._paused else Continued())

    def _on_head_lost(self) -> None:
        self._selector.unregister(self._head.death_fd)
        self._chronicle.event_log.forget_head()
        self._stop(Cause.HEAD_LOST)

    # --- who is there ---

    def _on_loss(self, server_index: int, peer: AgentConnection) -> None:
        if self._phase is Phase.GATHERING:
            self._on_turning_back(server_index, peer)
        if peer.done or self._phase in {Phase.GATHERING, Phase.LEAVING}:
            return
        self._registration.note_unheard(peer, self._spec.supervision.grace_s)
        self._note_loss(server_index, peer.lost or "", peer)

    def _on_turning_back(self, server_index: int, peer: AgentConnection) -> None:
        """One that had come has gone before anything began. An engine brings nobody twice; a person may."""
        if self._plan.brings_all:
            names = {index: self._names.get(index, (server.server_id,)) for index, server in enumerate(self._servers)}
            absent = [index for index in names if index != server_index and index not in self._registration.peers]
            self._refuse(turned_back(self._engine, server_index, peer.lost or "", names, absent))
        else:
            self._gathering.hurry()

    def _note_loss(self, server_index: int, reason: str, peer: AgentConnection) -> None:
        if server_index not in self._outcome.hearing.lost:
            hears_others = self._registration.hears_others(self._plan.silence_s)
            self._outcome.note_loss(server_index, reason, peer, hears_others=hears_others)
            self._record(Trouble(f"server {self._servers[server_index].server_id} is lost: {reason}"))
            self._inquire()

    def _id_of(self, peer: AgentConnection) -> str:
        return self._servers[peer.server_index].server_id if peer.server_index is not None else peer.address

    # --- from phase to phase ---

    def _enter(self, phase: Phase, limit_s: float | None = None) -> None:
        self._gathering.close()
        self._phase = phase
        self._deadline = None if limit_s is None else time.monotonic() + limit_s

    def _step(self) -> None:
        match self._phase:
            case Phase.GATHERING:
                self._step_gathering()
            case Phase.RUNNING | Phase.ENDING:
                if all(peer.over for peer in self._registration.peers.values()):
                    self._go_on()
            case Phase.JUDGING:
                self._step_judging()
            case Phase.LEAVING:
                self._step_leaving()
            case Phase.OVER:
                pass

    @property
    def _overdue(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _gather(self) -> None:
        """Have an agent on every server, by the engine or by waiting for those who are started by hand."""
        self._enter(Phase.GATHERING)
        self._gathering = JoinBarrier(self._plan, self._registration, self._first_server)
        environment = dict(os.environ)
        limit_to(self._usual_files)  # what the engine starts keeps the limit that the person has set
        try:
            self._engine = EngineProcess(self._plan.engine, environment, self._spec.cwd, self._run_dir.engine_log)
            make_room_for_servers(len(self._servers))
        except UnreadableError as error:
            self._refuse(error)

    def _step_gathering(self) -> None:
        if (error := self._gathering.in_vain(self._engine)) is not None:
            self._refuse(error)
        elif self._registration.complete:
            self._begin()
        elif missing := self._gathering.missing_to_tell():
            limit_s = self._plan.join_timeout_s
            self._record(Awaiting(missing, self._gathering.seconds, limit_s))
            self._connections.send_all(Waiting(missing, limit_s))

    def _refuse(self, error: TlaunchError) -> None:
        """Nothing starts, also where an attempt was to be repeated."""
        self._outcome.refuse(error)
        self._registration.refusal = error
        self._leave()

    def _begin(self) -> None:
        first = self._registration.peers[self._first_server].ready
        if first is not None and first.master_port is not None:
            self._master_port = first.master_port
        if self._gathering.told:
            self._record(Awaiting((), self._gathering.seconds))
        self._start_attempt()

    def _start_attempt(self) -> None:
        for index, peer in self._registration.peers.items():
            self._names[index] = (self._servers[index].server_id, *([peer.hello.host] if peer.hello else []))
        self._outcome.begin_attempt()
        for peer in self._registration.peers.values():
            peer.over = False
        if self._engine is not None:
            self._engine.forget_words()
        self._record(AttemptStarted(self._attempt, self._master_port))
        self._connections.send_all(Begin(self._attempt, self._master_port))
        if self._paused:
            self._connections.send_all(ForwardSignal(PAUSES))
        self._enter(Phase.RUNNING)

    def _inquire(self) -> None:
        """Something failed: ask all servers what they know."""
        if self._phase is Phase.RUNNING:
            self._enter(Phase.JUDGING, INQUEST_S)
            for server_index in self._outcome.hearing.awaited(self._registration.peers):
                self._registration.peers[server_index].send(EvidenceRequest(self._attempt))
                self._registration.peers[server_index].ask()  # an answer shows that it was there after the failure

    def _step_judging(self) -> None:
        """Judge once all have been heard. Who is silent may be lost, and then that is the cause: wait to see."""
        peers = self._registration.peers
        silent = [peers[index] for index in self._outcome.hearing.awaited(peers)]
        if not silent or self._outcome.hearing.reach is not None:
            self._check_reach()
        elif self._overdue:
            doubtful = [peer for peer in silent if peer.silent_s > 2 * self._plan.silence_s / BEATS]
            if doubtful:
                self._deadline = time.monotonic() + self._plan.silence_s / BEATS
            else:
                self._check_reach()

    def _check_reach(self) -> None:
        """Judge, once it is known which servers reach each other, where that matters."""
        master = (self._first_server, self._master_port)
        self._deadline = self._outcome.hearing.check_reach(self._registration.peers, master, self._plan.resolved)
        if self._deadline is None:
            self._judge()

    def _judge(self) -> None:
        self._connections.send_all(self._outcome.judge(self._attempt, self._engine))
        self._enter(Phase.ENDING)

    def _stop(self, cause: Cause, number: int | None = None, *, by_server: int | None = None) -> None:
        """Somebody wants the end; `by_server`: as above."""
        if self._phase is Phase.JUDGING:
            self._judge()  # of what is known by now; then ranks are being ended
        if self._phase in {Phase.ENDING, Phase.LEAVING, Phase.OVER}:
            self._outcome.stop_restart(by_server=by_server)
            return
        stop = self._outcome.stop(cause, number, by_server=by_server)
        if self._phase is Phase.GATHERING:
            self._leave()
            return
        self._connections.send_all(stop)
        self._enter(Phase.ENDING)

    def _go_on(self) -> None:
        """Nothing of the attempt is left on any server that is there."""
        self._outcome.settle()
        if self._outcome.again_here:
            self._attempt += 1
            self._start_attempt()
        else:
            self._leave()

    def _leave(self) -> None:
        assert self._outcome.finish is not None, "it is decided"
        self._connections.send_all(self._outcome.finish)
        self._enter(Phase.LEAVING, FAREWELL_S)
        self._engine_end = None

    def _step_leaving(self) -> None:
        """First the agents go, then the engine, by itself or not; then whatever it left."""
        if any(not peer.done for peer in self._registration.peers.values()) and not self._overdue:
            return
        if self._outcome.again and time.monotonic() < self._registration.unheard.until:
            self._deadline = (
                self._registration.unheard.until
            )  # the engine's end would take agents that end their ranks yet
            return
        if self._engine_end is None:
            nobody_lost = not self._outcome.hearing.lost
            self._engine_end = EngineEnd(self._engine, patient=nobody_lost, tells=self._outcome.stopped_by_server)
        self._engine_end.step()
        if self._engine_end.over:
            self._be_over(self._engine_end)
        else:
            self._deadline = self._engine_end.due

    def _be_over(self, end: EngineEnd) -> None:
        if end.by_itself and self._engine:
            self._outcome.note_engine_end(self._engine, self._names)
        self._connections.forget_all()
        if self._outcome.again:
            self._attempt += 1
            self._registration.unheard.forget()
            self._outcome.forget_end()
            self._gather()
        else:
            self._enter(Phase.OVER)

    def _close(self) -> int:
        assert self._outcome.finish is not None, "it is over"
        remove_mark(self._run_dir, self._mark)
        remove_door(self._run_dir)
        self._chronicle.close(self._outcome.finish)
        self._selector.close()
        self._signal_pipe.close()
        return self._outcome.finish.exit_code
