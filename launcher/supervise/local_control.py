"""Drives the run controller inside the agent's process, in a run on a single server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.control import events, orders
from launcher.control.controller import Phase, RunController
from launcher.control.disk_stalls import DiskStalls
from launcher.control.events import Setup
from launcher.core.errors import EXIT_FAILURE
from launcher.core.events import Cause, DevicesChanged, NotRestarting, Trouble
from launcher.supervise.attempt_monitor import AttemptStage
from launcher.supervise.attempts import Attempts
from launcher.supervise.disk import TURN_S

if TYPE_CHECKING:
    from launcher.supervise.exclusions import WatchedExclusions

SERVER = 0  # the index of the only server


class LocalControl:
    """Runs the controller of a run on a single server: reports events to it and carries out its orders."""

    reach_probes = services = None  # there are no other servers

    def __init__(self, attempts: Attempts) -> None:
        spec, event_log = attempts.share.spec, attempts.event_log
        self._attempts = attempts
        self._event_log = event_log
        self._controller = RunController(Setup((spec.ranks[0].server_id,), spec.supervision))
        self._exclusions: WatchedExclusions | None = None  # of an elastic run
        if spec.supervision.elastic is not None:
            from launcher.supervise.exclusions import WatchedExclusions  # noqa: PLC0415 - only elastic runs need it

            self._exclusions = WatchedExclusions(spec, spec.supervision.elastic, attempts.disk, event_log.record)
        self._stalls = DiskStalls(str(spec.run_dir))
        self._exits_reported = 0  # number of reported rank ends of this attempt
        self._stage = AttemptStage.RUNNING  # the last reported stage
        self.not_restarting: str | None = None  # why the remaining restarts were not used

    def begin(self) -> None:
        self._report(events.ServersReady(self._attempts.master_port))

    @property
    def timeout_s(self) -> float | None:
        look_s = None if self._exclusions is None else TURN_S
        due_s = self._controller.next_tick_s
        tick_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        return min((seconds for seconds in (look_s, tick_s) if seconds is not None), default=None)

    def listen(self) -> None:
        """Check whether the disk responds and whether the user has changed the excluded devices."""
        if news := self._stalls.look({"": self._attempts.disk.recent_silence_s()}, time.monotonic()):
            self._event_log.record(Trouble(news))
        if self._exclusions is not None and (excluded := self._exclusions.look()) is not None:
            self._report(events.ExclusionsChanged(excluded))

    def on_own_signal(self, number: int) -> bool:
        self._report(events.SignalReceived(number))
        return True

    def on_launcher_lost(self) -> None:
        self._report(events.EndWanted(Cause.HEAD_LOST))

    def step(self, *, childless: bool) -> bool:
        attempts, monitor = self._attempts, self._attempts.monitor
        for ended in attempts.rank_group.exits[self._exits_reported :]:
            self._report(ended.event)
            self._exits_reported += 1
        stage = monitor.stage
        if stage in {AttemptStage.COLLECTING, AttemptStage.COLLECTED} and self._stage is AttemptStage.RUNNING:
            self._report(events.RankFailed(SERVER))
        if stage is AttemptStage.COLLECTED:
            self._report(events.EvidenceReport(SERVER, attempts.number))
        elif stage is AttemptStage.ENDING_LEFTOVERS and self._stage is not stage:
            self._report(events.EndingLeftovers(SERVER))
        self._stage = stage
        self._report(events.Tick())
        # Check this after the tick: the diagnosis may end an attempt without processes, and no event would follow.
        if monitor.over(childless=childless):
            self._exits_reported, self._stage = 0, AttemptStage.RUNNING
            left = attempts.end()
            self._report(events.AttemptEnded(SERVER, attempts.number, left, attempts.master_port))
            self._report(events.Tick())
        return self._controller.phase is not Phase.LEAVING

    @property
    def cause(self) -> Cause:
        finish = self._controller.outcome.finish
        return self._attempts.monitor.cause if finish is None else finish.cause

    @property
    def exit_code(self) -> int:
        finish = self._controller.outcome.finish
        return EXIT_FAILURE if finish is None else finish.exit_code

    def _report(self, event: events.Event) -> None:
        """Report an event to the controller and carry out the resulting orders."""
        for order in self._controller.take(event, time.monotonic(), time.time()):
            if (answer := self._carry_out(order)) is not None:
                self._report(answer)

    def _carry_out(self, order: orders.Order) -> events.Event | None:
        if isinstance(order, orders.Diagnose):
            from launcher.supervise.diagnosis.servers import judged, merge_evidence  # noqa: PLC0415 - as the collector

            monitor = self._attempts.monitor
            evidence = merge_evidence({SERVER: monitor.evidence()}, {})
            verdict = judged(evidence, self._event_log.record, self._stalls.remark(time.monotonic()))
            return events.Diagnosed(verdict, monitor.failure_cause, evidence.highest_step)
        event = order.event if isinstance(order, orders.Record) else None
        if isinstance(event, NotRestarting):
            self.not_restarting = event.reason
        if isinstance(event, DevicesChanged) and self._exclusions is not None:
            self._exclusions.note(event)
        self._attempts.carry_out(order)
        return None
