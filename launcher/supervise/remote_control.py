"""An agent's control in a run on several servers: the coordinator decides, the agent carries out orders and reports.

The agent acts on its own only if it cannot wait. It collects evidence as soon as a local rank fails. It ends its
ranks after a stop signal, or if its launcher or the coordinator is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from launcher.control.events import (
    CONTINUES,
    KILLS_AT_ONCE,
    PAUSES,
    AttemptEnded,
    EvidenceReport,
    SignalReceived,
    ends_run,
)
from launcher.control.messages import AgentFailed, ChunkAck, Message, TakeStacks
from launcher.control.orders import BeginAttempt, CollectEvidence, EndRanks, Finish, ForwardSignal, ProbeReach
from launcher.control.outcome import exit_code
from launcher.core.codec import encode
from launcher.core.errors import EXIT_FAILURE
from launcher.core.events import Cause, Continued, Forwarded, Judged, Paused, Stopping, Trouble
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Confidence, Verdict
from launcher.supervise.attempt_monitor import AttemptStage
from launcher.supervise.attempts import Attempts
from launcher.supervise.diagnosis.root_cause import with_remark
from launcher.supervise.diagnosis.servers import judged, merge_evidence
from launcher.supervise.event_log import EventLog
from launcher.supervise.file_upload import FileUpload
from launcher.supervise.link import Link
from launcher.supervise.reach_probes import ReachProbes, listening_ports
from launcher.supervise.stack_collection import StackCollection


class RemoteControl:
    """Carries out the coordinator's orders on this server, and reports the server's events to the coordinator."""

    not_restarting = None  # only in the coordinator's report
    timeout_s = None  # nothing is scheduled

    def __init__(self, attempts: Attempts, link: Link, run_dir: RunDir, first: BeginAttempt) -> None:
        self._attempts = attempts
        self._event_log = attempts.event_log
        self._supervision = attempts.share.spec.supervision
        self._server_index = attempts.share.server_index
        self._first = first
        global_ranks = [rank.global_rank for rank in attempts.share.ranks]
        self.services = LinkServices(link, run_dir, self._event_log, global_ranks, follows_another=first.number > 0)
        self._reported = False  # True if the evidence of this attempt was reported
        self._waits = False  # True if all processes of the last attempt on this server have ended
        self._finish: Finish | None = None  # the coordinator's last message
        self.reach_probes: ReachProbes | None = None  # while other servers may check connections to this one

    def begin(self) -> None:
        self._attempts.carry_out(self._first)

    @property
    def _link(self) -> Link | None:
        return self.services.link

    # --- orders of the coordinator ---

    def listen(self) -> None:
        self.services.step()
        for message in self.services.hear(self._attempts.rank_group.running):
            self._hear(message)
        if self.services.lose():
            if self._waits:
                self._finish = Finish(Cause.COORDINATOR_LOST, EXIT_FAILURE)
            else:
                self._stop(EndRanks(Cause.COORDINATOR_LOST))

    def _hear(self, message: Message) -> None:
        match message:
            case CollectEvidence():
                if self._waits or self._attempts.monitor.stage is AttemptStage.ENDING_LEFTOVERS:
                    self._report_evidence()
                else:
                    self._attempts.carry_out(message)
            case ProbeReach() if self.reach_probes is not None:
                self.reach_probes.begin(message)
            case BeginAttempt(number=number) if self._waits and number == self._attempts.number + 1:
                self._waits = self._reported = False
                self._attempts.carry_out(message)
            case EndRanks(verdict=verdict) if verdict is not None:
                self._end_reach_probes()
                self._end_judged(message, verdict)
            case EndRanks():
                self._stop(message)
            case ForwardSignal(number=number):
                self.on_signal(number)
            case Finish():
                self._finish = message
            case _:
                pass

    def on_own_signal(self, number: int) -> bool:
        """Report a signal to the coordinator if it concerns all servers. Return True if this server handled it."""
        ends = ends_run(number, self._supervision)
        if self._link is not None and (ends or self._link.by_hand):
            self._link.send(SignalReceived(number, self._server_index))
            if not ends:
                return False  # the coordinator will send it to all servers
        self.on_signal(number)
        return True

    def on_signal(self, number: int) -> None:
        if ends_run(number, self._supervision):
            self._stop(EndRanks(Cause.STOPPED, signal=number))
            if number == KILLS_AT_ONCE:
                self._attempts.carry_out(ForwardSignal(number))
        elif number in self._supervision.forward_signals:
            self._attempts.carry_out(ForwardSignal(number))
            self._event_log.record(Forwarded(number))
        elif number in {PAUSES, CONTINUES} and self._attempts.paused != (number == PAUSES):
            self._attempts.carry_out(ForwardSignal(number))
            self._event_log.record(Paused() if number == PAUSES else Continued())

    def on_launcher_lost(self) -> None:
        if self._link is not None:
            self._link.send(AgentFailed("the process that started its agent was killed"))
        self._stop(EndRanks(Cause.HEAD_LOST))

    def step(self, *, childless: bool) -> bool:
        monitor = self._attempts.monitor
        answer = None if self.reach_probes is None else self.reach_probes.step()
        if answer is not None and self._link is not None:
            pids = {*self._attempts.rank_group.leaders, *monitor.ender.left()}
            self._link.send(replace(answer, ports=listening_ports(pids)))
        if not self._waits:
            if monitor.stage is AttemptStage.COLLECTED and not self._reported:
                self._report_evidence()
            if monitor.over(childless=childless):
                self._waits = True
                self._report_end()
        elif monitor.scheduler.has_failed and not self._reported:
            self._report_evidence()  # running ranks on other servers need the scheduler
        return not self._waits or self._finish is None

    @property
    def cause(self) -> Cause:
        """The cause of the run's end. If this server's launcher was lost, the cause is HEAD_LOST."""
        own = self._attempts.monitor.cause
        return own if own is Cause.HEAD_LOST or self._finish is None else self._finish.cause

    @property
    def exit_code(self) -> int:
        return self._finish.exit_code if self._finish else EXIT_FAILURE

    # --- evidence ---

    def _report_evidence(self) -> None:
        self._reported = True
        if self._link is None:
            return
        self._end_reach_probes()
        with suppress(OSError, AttributeError):  # no free descriptor, or no epoll: other servers do not check this one
            self.reach_probes = ReachProbes()
        port = None if self.reach_probes is None else self.reach_probes.port
        evidence = encode(self._attempts.monitor.evidence())
        self._link.send(EvidenceReport(self._server_index, self._attempts.number, evidence, port))

    def _end_reach_probes(self) -> None:
        if self.reach_probes is not None:
            self.reach_probes.close()
            self.reach_probes = None

    # --- shutdown of an attempt ---

    def _end_judged(self, order: EndRanks, verdict: Verdict) -> None:
        """End the ranks of this server because a rank has failed, here or on another server."""
        attempts = self._attempts
        if self._waits:
            is_ended = attempts.over[-1].cause is not Cause.FINISHED
        else:
            is_ended = attempts.monitor.stage is AttemptStage.ENDING
        if is_ended:
            return
        self._event_log.record(Judged(verdict))
        self._record_stopping(order)
        if self._waits:  # the report should show the failure, although all ranks on this server had succeeded
            attempts.over[-1] = replace(attempts.over[-1], cause=order.cause, verdict=verdict)
        else:
            attempts.carry_out(order)

    def _stop(self, order: EndRanks) -> None:
        """End the ranks, unless no rank is left or a shutdown is already running."""
        self._end_reach_probes()
        stage = self._attempts.monitor.stage
        if self._waits:
            return
        if stage in {AttemptStage.ENDING, AttemptStage.ENDING_LEFTOVERS}:
            if not order.restarts:
                self._attempts.monitor.ender.forget_repeat()
            return
        if stage in {AttemptStage.COLLECTING, AttemptStage.COLLECTED}:
            verdict = self._judged_alone()
            if order.cause is not Cause.COORDINATOR_LOST or verdict.confidence is not Confidence.UNSURE:
                self._end_judged(EndRanks(self._attempts.monitor.failure_cause, verdict, order.restarts), verdict)
                return
        self._record_stopping(order)
        self._attempts.carry_out(order)

    def _judged_alone(self) -> Verdict:
        """Judge the failure from this server's evidence only. Return a verdict with a confidence of at most LIKELY."""
        present = self._attempts.present
        here = {rank.global_rank for rank in present.ranks}
        elsewhere = [rank for rank in range(present.world_size) if rank not in here]
        evidence = merge_evidence({self._server_index: self._attempts.monitor.evidence()}, {}, unheard=elsewhere)
        verdict = judged(evidence, self._event_log.record)
        if verdict.confidence is not Confidence.CERTAIN:
            return verdict
        return with_remark(replace(verdict, confidence=Confidence.LIKELY), "no other server has reported")

    def _report_end(self) -> None:
        monitor = self._attempts.monitor
        left = self._attempts.end()
        if self._link is None:
            exits = [(ended.global_rank, ended.status) for ended in self._attempts.over[-1].exits]
            # Ranks that should restart on other devices cannot do so without the coordinator.
            cause = Cause.COORDINATOR_LOST if monitor.cause is Cause.RESIZED else monitor.cause
            self._finish = Finish(cause, exit_code(cause, monitor.verdict, exits))
        else:
            number, port = self._attempts.number, self._attempts.held_port()
            self._link.send(AttemptEnded(self._server_index, number, left, port))

    def _record_stopping(self, order: EndRanks) -> None:
        grace_s = self._supervision.grace_from(time.time())
        self._event_log.record(Stopping(order.cause, grace_s, order.signal, order.restarts, order.server))


class LinkServices:
    """Uploads files and collects stacks for the coordinator. Only `finish_upload` and `close` block."""

    def __init__(
        self, link: Link, run_dir: RunDir, event_log: EventLog, global_ranks: Sequence[int], *, follows_another: bool
    ) -> None:
        """Start to upload the files of ranks if the coordinator cannot see the run directory of this server."""
        self.link: Link | None = link  # None once the coordinator is lost
        self._run_dir = run_dir
        self._event_log = event_log
        self._upload: FileUpload | None = None
        if not link.shares_files:
            self._upload = FileUpload(run_dir, global_ranks, link, follows_another=follows_another)
        self._survey = StackCollection(run_dir, link.send)

    @property
    def next_action_s(self) -> list[float | None]:
        return [part.timeout_s for part in (self.link, self._upload, self._survey) if part is not None]

    def step(self) -> None:
        if self._upload is not None:
            self._upload.step()
        self._survey.step()

    def hear(self, running: Mapping[int, int]) -> Iterator[Message]:
        """Handle messages about uploads and stacks, and yield all other messages."""
        for message in () if self.link is None else self.link.take():
            if isinstance(message, ChunkAck) and self._upload is not None:
                self._upload.take(message)
                if self._upload.shares:
                    self._end_upload()
            elif isinstance(message, TakeStacks):
                self._survey.begin(message, running)
            else:
                yield message

    def lose(self) -> bool:
        """If the connection to the coordinator was lost since the last call, close it and return True."""
        if self.link is None or self.link.lost is None:
            return False
        self._end_upload()
        self._event_log.record(Trouble(f"the run's coordinator is lost: {self.link.lost}"))
        self.link.close()
        self.link = None
        return True

    def finish_upload(self, hears_kill: Callable[[], bool]) -> None:
        """Upload the remaining data. Stop early if `hears_kill` returns True."""
        if self._upload is not None:
            left = self._upload.finish(hears_kill)
            self._end_upload()
            if left is not None:
                self._event_log.record(Trouble(left))

    def close(self, unkillable: tuple[int, ...]) -> None:
        self._survey.close()
        if self.link is not None:
            self.link.say_farewell(unkillable, self._event_log.lost)

    def _end_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.close()
            if not upload.shares:  # otherwise the file belongs to the coordinator
                with suppress(OSError):  # local clients then find no server to ask
                    self._run_dir.endpoint.unlink()
