"""The coordinator of a run on several servers: a process next to the launcher, to which every server's agent connects.

It drives the run controller (launcher/control/controller.py): agents' reports become events, and the controller's
orders become messages to agents. It also does the work that involves all servers:

    start       ranks start when all servers have joined and agree
    diagnosis   the evidence of all servers is judged by one clock
    restart     the next attempt starts when no process of the last one is left on any server

The launcher supervises this process like an agent. docs/internals/architecture.md explains why it has its own protocol.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from launcher.cluster.agent_connection import AgentConnection
from launcher.cluster.agent_starter import AgentStarter
from launcher.cluster.connections import BEATS, Connections
from launcher.cluster.coordinator_files import leave_mark, remove_endpoint, remove_marks
from launcher.cluster.disk_watch import DiskWatch
from launcher.cluster.job import Plan
from launcher.cluster.recorder import FileWriter, ServersRecorder
from launcher.cluster.registration import DuplicateServerError, Registration
from launcher.cluster.server_evidence import ServerEvidence
from launcher.cluster.shutdown import Shutdown
from launcher.control import events, messages, orders
from launcher.control.controller import Phase, RunController
from launcher.core.errors import EXIT_FAILURE, TlaunchError, UnreadableError
from launcher.core.events import AgentStarted, Awaiting, Cause, DevicesChanged, Trouble
from launcher.core.machine.proc import identify
from launcher.core.records import RunSpec, Server
from launcher.engines.assemble import servers_of_attempt, servers_with_agents
from launcher.supervise.agent import LauncherLink, identity_of
from launcher.supervise.disk import TURN_S
from launcher.supervise.event_loop import run_signals
from launcher.supervise.exclusions import WatchedExclusions

EVIDENCE_LIMIT_S = 5.0  # for all servers to report evidence; each takes less than two seconds


class Coordinator:
    """The coordinator's event loop, which runs in a separate process. No single server can block it."""

    def __init__(self, spec: RunSpec, plan: Plan, head: LauncherLink) -> None:
        self._spec = spec
        self._plan = plan
        self._head = head
        self._servers = servers_with_agents(spec.cluster, spec.layout, spec.supervision).servers
        first_server = next(rank.server_index for rank in spec.ranks if rank.global_rank == 0)
        self._controller = RunController(
            events.Setup(
                tuple(server.server_id for server in self._servers),
                spec.supervision,
                first_server=first_server,
                brings_all=plan.brings_all,
                engine_anew=plan.engine_anew,
                evidence_limit_s=EVIDENCE_LIMIT_S,
                look_again_s=plan.silence_s / BEATS,
            )
        )
        self._disks = DiskWatch(spec.run_dir, self._servers)
        self._recorder = ServersRecorder(spec, head, self._disks.disk)
        self._evidence = self._no_evidence(self._servers)  # of the current attempt
        elastic = spec.supervision.elastic
        self._exclusions = (
            None if elastic is None else WatchedExclusions(spec, elastic, self._disks.disk, self._recorder.record)
        )
        self._registration = Registration(plan, self._servers, spec.name, leave_mark(self._recorder.run_dir))
        self._starter = AgentStarter(spec, plan, self._servers, first_server, self._registration)
        self._files = FileWriter(spec, self._disks.disk)
        self._departure: Shutdown | None = None  # once agents have been ordered to end
        self._signal_pipe = run_signals(spec.supervision)
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(
            self._registration, self._selector, plan.silence_s, on_words=self._on_words, on_loss=self._on_loss
        )

    def run(self) -> int:
        """Run until no process of the run is left, and return the run's exit code. Call this in the main thread."""
        self._selector.register(self._signal_pipe, selectors.EVENT_READ, self._on_signals)
        self._selector.register(self._head.death_fd, selectors.EVENT_READ, self._on_head_lost)
        self._selector.register(self._plan.listener, selectors.EVENT_READ, self._connections.on_connect)
        self._selector.register(self._files, selectors.EVENT_READ, self._on_files)
        head = identify(self._head.pid)
        self._recorder.record(AgentStarted(identity_of(os.getpid()), head, len(self._spec.ranks)))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher forks with signals blocked
        self._connections.begin()
        self._start_agents()
        while self._controller.phase is not Phase.OVER:
            self._listen()
            self._connections.look()  # process last messages of agents that are gone
            self._step()
        finish = self._controller.outcome.finish
        assert finish is not None, "it is over"
        remove_marks(self._recorder.run_dir)
        remove_endpoint(self._recorder.run_dir)
        self._connections.close()
        self._recorder.close(finish.cause, finish.exit_code)
        self._disks.disk.close()
        self._selector.close()
        self._files.close()
        self._signal_pipe.close()
        return finish.exit_code

    # --- events ---

    def _listen(self) -> None:
        self._connections.beat()
        self._connections.look()
        if news := self._disks.look(self._registration.peers):
            self._recorder.record(Trouble(news))
        self._connections.disk_stalls = self._disks.some_stalls
        if self._disks.some_stalls:
            self._extend_departure()
        if self._recorder.event_log.backlog:
            self._recorder.event_log.send()
        gathering_due_s = self._starter.barrier.next_look_s if self._controller.phase is Phase.GATHERING else None
        leaving_due_s = None if self._departure is None else self._departure.due_s
        due_s = [self._connections.next_beat, self._controller.next_tick_s, gathering_due_s, leaving_due_s]
        if self._exclusions is not None:
            due_s.append(time.monotonic() + TURN_S)
        if self._registration.unauthenticated or self._recorder.event_log.backlog:
            due_s.append(time.monotonic() + 0.1)
        first_s = min(moment for moment in due_s if moment is not None)
        for key, _ in self._selector.select(max(0.0, first_s - time.monotonic())):
            key.data()
        if self._exclusions is not None and (excluded := self._exclusions.look()) is not None:
            self._report(events.ExclusionsChanged(excluded))

    def _on_words(self, peer: AgentConnection) -> None:
        gathers = self._controller.phase is Phase.GATHERING
        if peer.server_index is None:
            error = self._registration.hear(peer, joining=gathers)
            twice_by_hand = isinstance(error, DuplicateServerError) and not self._plan.brings_all
            if error is not None and gathers and twice_by_hand:
                self._recorder.record(Trouble(f"refused: {error.message}"))
            elif error is not None and gathers:
                self._refuse(error)
        elif gathers:
            error = self._registration.take_first_words(peer, lambda message: self._take(peer, message))
            if error is not None:
                self._refuse(error)
        elif peer.ready is None and self._registration.takes_back:
            self._take_back(peer, peer.server_index)
        else:  # also for an agent that was not ready when the run ended: unread data would wake this loop forever
            for message in peer.take():
                self._take(peer, message)

    def _take_back(self, peer: AgentConnection, index: int) -> None:
        """Process the messages of a lost server that joins an elastic run again."""
        if (error := self._registration.take_back(peer)) is not None:
            self._recorder.record(Trouble(f"refused: {error.message}"))
            peer.lose("refused")
        elif peer.ready is not None:
            peer.send(messages.JoinAccepted())
            self._report(events.ServerJoined(index, peer.ready.master_port))

    def _take(self, peer: AgentConnection, message: messages.Message) -> None:
        index = peer.server_index
        assert index is not None, "it has been welcomed"
        match message:
            case messages.EventReport(line=line):
                for ended in self._recorder.take(line, peer.pings.clock.ahead_ns, self._evidence.servers[index], index):
                    self._report(ended)
            case events.EvidenceReport() | events.AttemptEnded() if message.attempt != self._controller.attempt:
                pass  # from an earlier attempt
            case events.EvidenceReport():
                understood = self._evidence.take(message, peer.pings.clock)
                self._report(message if understood else events.RankFailed(index))
            case events.AttemptEnded() | events.ProbeResult() | events.SignalReceived():
                peer.over = peer.over or isinstance(message, events.AttemptEnded)
                self._report(message)
            case messages.AgentFailed(reason=reason):  # it ends its ranks and then reports
                peer.given_up = True
                self._note_loss(index, reason, peer)
            case messages.Stacks():
                self._registration.stacks_relay.take(index, message)
            case messages.Done():
                peer.done = True
                self._recorder.note_end(message)
            case messages.FileChunk() | messages.FileSnapshot() if (
                peer.ready is not None and not peer.ready.shares_files
            ):
                self._files.write(index, message, peer)
                self._extend_departure()

    def _on_files(self) -> None:
        for trouble in self._files.answer():
            self._recorder.record(Trouble(trouble))
        self._extend_departure()

    def _extend_departure(self) -> None:
        if self._departure is not None:
            self._departure.extend()

    def _on_signals(self) -> None:
        for number in self._signal_pipe.take():
            self._report(events.SignalReceived(number))

    def _on_head_lost(self) -> None:
        self._selector.unregister(self._head.death_fd)
        self._recorder.event_log.forget_head()
        self._report(events.EndWanted(Cause.HEAD_LOST))

    def _on_loss(self, server_index: int, peer: AgentConnection) -> None:
        if self._controller.phase is Phase.GATHERING:
            if (error := self._starter.turned_back(server_index, peer.lost or "")) is not None:
                self._refuse(error)
        elif peer.ready is not None:  # otherwise it was still joining and has no ranks
            self._report(events.ServerGone(server_index))
            if not peer.done and self._controller.phase is not Phase.LEAVING:
                self._registration.note_lost(peer, self._spec.supervision.grace_s)
                self._note_loss(server_index, peer.lost or "", peer)

    def _note_loss(self, server_index: int, reason: str, peer: AgentConnection) -> None:
        still_s = self._connections.stood_still_s(peer)
        if still_s:
            reason = f"the launcher's machine was suspended for {still_s:.0f} s, and the agent ended the connection"
        ranks = [device.global_rank for device in self._evidence.servers[server_index].devices]
        exits = self._recorder.progress.current.exits
        loss = events.ServerLost(server_index, reason, is_own_fault=still_s > 0)
        if not ranks:  # its loss causes no failure of ranks
            self._report(loss)
        elif all(rank in exits and not exits[rank].failed for rank in ranks) and not self._plan.brings_all:
            self._evidence.note_finished(server_index, exits)
            self._report(replace(loss, finished=True))
        elif server_index not in self._evidence.lost:
            self._evidence.lose_agent(
                server_index,
                reason,
                peer,
                self._plan.silence_s,
                failed=[rank for rank, ended in exits.items() if ended.failed],
                alone=not self._registration.hears_others(self._plan.silence_s),
                stood_still_s=still_s,
            )
            self._report(loss)
        if self._spec.supervision.elastic is not None and peer.lost is None:  # it takes part in no further attempt
            peer.send(orders.Finish(Cause.HEAD_LOST, EXIT_FAILURE))

    def _refuse(self, error: TlaunchError) -> None:
        """Cancel the start of the run or any pending restart."""
        self._registration.refusal = error
        self._report(events.CannotBegin(error))

    # --- the controller ---

    def _report(self, event: events.Event) -> None:
        """Report an event to the controller and carry out its orders. Also report events that result from an order."""
        for order in self._controller.take(event, time.monotonic(), time.time()):
            if (answer := self._carry_out(order)) is not None:
                self._report(answer)

    def _step(self) -> None:
        if self._controller.phase is Phase.GATHERING:
            self._report(events.Tick())  # the time limit may be over
        match self._controller.phase:
            case Phase.GATHERING:
                self._step_gathering()
            case Phase.LEAVING if self._departure is not None:
                if self._departure.step():
                    engine = self._starter.exited() if self._departure.by_itself else None
                    self._connections.forget_all()
                    self._departure = None
                    self._report(events.ServersLeft(engine))
            case _:
                due_s = self._controller.next_tick_s
                is_due = due_s is not None and time.monotonic() >= due_s
                limit_s = 2 * self._plan.silence_s / BEATS
                quiet = self._registration.quiet(limit_s) | self._disks.stalled if is_due else ()
                self._report(events.Tick(quiet))

    def _carry_out(self, order: orders.Order) -> events.Event | None:
        match order:
            case orders.Record(event=event):
                self._recorder.record(event)
                if isinstance(event, DevicesChanged) and self._exclusions is not None:
                    self._exclusions.note(event)
            case orders.BeginAttempt():
                self._starter.note_begin()
                self._evidence = self._no_evidence(servers_of_attempt(self._servers, order.allotment))
                self._registration.note_begin()
                self._recorder.record(order.event)
                # A server that is still joining would take it for its own start.
                self._connections.send_all(order, ready=True)
            case orders.CollectEvidence(server=server):
                self._registration.peers[server].send(order)
                self._registration.peers[server].ask()  # an answer proves that it was alive after the failure
            case orders.ProbeReach(server=server) if server in self._registration.peers:
                addresses_of = self._registration.addresses_of
                targets = (replace(target, addresses=addresses_of(target.server)) for target in order.targets)
                self._registration.peers[server].send(replace(order, targets=tuple(targets)))
            case orders.EndRanks() | orders.ForwardSignal():
                self._connections.send_all(order)
            case orders.Finish():
                self._registration.takes_back = False
                self._connections.send_all(order)
                self._departure = Shutdown(self._controller.outcome, self._registration, self._starter.engine)
            case orders.Diagnose(apart=apart):
                found = self._disks.remarked(self._evidence.diagnosed(apart))
                engine_killed = self._starter.killed() if self._evidence.lost else None
                return found if engine_killed is None else replace(found, verdict=engine_killed)
            case orders.GatherServers():
                self._registration.unheard.forget()
                self._start_agents()
            case _:  # agents get `Finish`, which ends restarts
                pass
        return None

    # --- start ---

    def _start_agents(self) -> None:
        try:
            self._starter.start()
        except UnreadableError as error:
            self._refuse(error)

    def _step_gathering(self) -> None:
        """Start the attempt if all servers are ready. Otherwise report missing servers from time to time."""
        if (error := self._starter.barrier.failure(self._starter.engine)) is not None:
            self._refuse(error)
        elif self._registration.complete:
            if self._starter.barrier.reported:
                self._recorder.record(Awaiting((), self._starter.barrier.seconds))
            if self._spec.supervision.elastic is not None:
                if (unshared := self._registration.unshared()) is not None:
                    self._refuse(unshared)
                    return
                self._registration.takes_back = True
            ports = self._registration.held_ports
            port = ports.get(self._spec.ranks[0].server_index)
            master_port = port or self._controller.master_port or self._spec.master_port
            self._report(events.ServersReady(master_port, tuple(ports.items())))
        elif missing := self._starter.barrier.missing():
            limit_s = self._plan.join_timeout_s
            self._recorder.record(Awaiting(missing, self._starter.barrier.seconds, limit_s))
            self._connections.send_all(messages.Waiting(missing, limit_s))

    def _no_evidence(self, servers: Sequence[Server]) -> ServerEvidence:
        """Return an empty ServerEvidence for a new attempt. `servers` must contain only devices of the attempt."""
        return ServerEvidence(servers, self._recorder.event_log, self._spec.supervision.hang_timeout_s)
