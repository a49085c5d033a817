"""Monitors one attempt on one server, from the start of its ranks until all their processes have ended.

    starting ──> running ──> all succeeded ──> leftovers ended ──> over
        └───────────┴── a rank failed or hangs ──> evidence is collected, and reported ──┐
        └───────────┴── the end is ordered ───────────────────────────────> SIGTERM, grace, SIGKILL ──> over

The monitor does not decide what follows a failure; its owner calls `end` once that is decided. It never blocks: its
owner sleeps until an event arrives or `timeout_s` has passed, reaps children, and calls `step`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from launcher.core.events import Cause, Hung, Killing, Leftovers
from launcher.core.records import Supervision
from launcher.core.run_report import RankExit
from launcher.core.verdict import Verdict
from launcher.supervise.lingering import LingeringRanks
from launcher.supervise.progress_monitor import ProgressMonitor
from launcher.supervise.rank_ends import LATE_S
from launcher.supervise.rank_group import RankGroup
from launcher.supervise.scheduler import Scheduler
from launcher.supervise.tree import Ending, RunGroup, descendants, signal_rank

if TYPE_CHECKING:
    from launcher.supervise.diagnosis.collect import EvidenceCollector
    from launcher.supervise.diagnosis.servers import Evidence

# Helpers that exit on their own after their rank (a resource tracker, `tee`) get this much time.
LEFTOVER_PATIENCE_S = 0.25
# Wake up at least this often, so an end that is noticed later than LATE_S is recorded as late.
WAKE_EVERY_S = LATE_S / 2


class AttemptStage(Enum):
    RUNNING = "running"  # or being started
    COLLECTING = "collecting evidence"  # after a failure, before anything is ended
    COLLECTED = "evidence collected"
    ENDED_WELL = "ended well"  # every rank succeeded; their leftover processes may still end by themselves
    ENDING_LEFTOVERS = "ending leftovers"  # every rank succeeded, and their leftover processes are being ended
    ENDING = "ending"


class AttemptMonitor:
    """Monitors a group of ranks, collects evidence after a failure or hang, and shuts the group down."""

    def __init__(
        self, rank_group: RankGroup, progress_monitor: ProgressMonitor, ender: RankEnder, *, others: bool
    ) -> None:
        """Start monitoring a group of ranks. `others` is True if the run also has ranks on other servers."""
        self._rank_group = rank_group
        self._progress_monitor = progress_monitor
        self._spawner = rank_group.spawner
        self.ender, self.scheduler = ender, ender.scheduler
        self._others = others
        self._lingering = LingeringRanks(rank_group, ender.supervision.grace_s)
        self._hung: Collection[int] = ()
        self._collector: EvidenceCollector | None = None
        self._paused = False
        self._patience_ends: float | None = None  # monotonic; set once every rank has succeeded
        self.cause = Cause.FINISHED
        self.verdict: Verdict | None = None

    # --- events ---

    def start(self) -> None:
        pids, not_started = self._rank_group.start()
        for global_rank, pid in self._rank_group.running.items():
            if pid in pids:
                self._progress_monitor.started(global_rank, pid)
                if self.ender.has_started:  # it was being forked when the shutdown started
                    signal_rank(pid, signal.SIGTERM)
                elif self._paused:
                    signal_rank(pid, signal.SIGSTOP)
        self._look_at_ends(not_started)
        if self._rank_group.all_started and not self.ender.supervision.may_restart:
            self._spawner.end_preloading()

    def note_ends(self, statuses: Mapping[int, int]) -> None:
        self._spawner.note_ends(statuses)
        scheduler_failed = self.scheduler.note_ends(statuses)
        self._look_at_ends(self._rank_group.note_ends(statuses, time.time_ns()))
        if scheduler_failed and self.scheduler.is_missed and not self._rank_group.all_ended:
            self.collect()

    def pause(self, *, pauses: bool) -> None:
        """Suspend all ranks, or resume them if `pauses` is False. Ranks that are being shut down are not suspended.

        Uses SIGSTOP: the kernel discards SIGTSTP in an orphaned process group, and each rank's group is one.
        """
        self._paused = pauses
        if pauses:
            self._progress_monitor.pause()
        else:
            self._progress_monitor.resume()
            self._lingering.resume()
        if pauses and self.ender.has_started:
            return
        for leader in self._rank_group.leaders:
            signal_rank(leader, signal.SIGSTOP if pauses else signal.SIGCONT)
        self.scheduler.pause(pauses=pauses)

    def forward(self, number: int) -> None:
        """Forward a signal to the process of every rank, but not to the ranks' child processes."""
        self.start()  # a rank that the fork server has just reported may be waiting for this signal
        self._rank_group.forwarded.add(number)
        for pid in self._rank_group.leaders:
            with suppress(OSError):
                os.kill(pid, number)  # not reaped yet, so the pid cannot have been reused

    # --- evidence and shutdown ---

    def collect(self) -> None:
        """Start to collect evidence, unless the collection or the shutdown has already started."""
        if not self._collector and not self.ender.has_started:
            self._rank_group.cancel()
            self._collector = load_collector()(self._rank_group, self._hung)

    @property
    def stage(self) -> AttemptStage:
        if self._collector:
            return AttemptStage.COLLECTED if self._collector.done else AttemptStage.COLLECTING
        if self.ender.has_started:
            return AttemptStage.ENDING_LEFTOVERS if self.cause is Cause.FINISHED else AttemptStage.ENDING
        return AttemptStage.ENDED_WELL if self._rank_group.all_ended else AttemptStage.RUNNING

    def evidence(self) -> Evidence:
        collector = self._collector or load_collector()(self._rank_group, self._hung)
        evidence = collector.evidence(self._progress_monitor.steps(), self._progress_monitor.highest_step())
        return replace(evidence, scheduler=self.scheduler.failure())

    @property
    def failure_cause(self) -> Cause:
        return Cause.HUNG if self._hung else Cause.FAILED

    def end(self, cause: Cause, verdict: Verdict | None = None, *, restarts: bool = False) -> None:
        """Record the cause and the verdict, and shut all ranks down.

        `restarts` means that the ranks are restarted afterwards. Call this once per attempt. It may be called even
        while leftover processes of successful ranks are being ended, because another server may have failed.
        """
        self._close_collector()
        self.cause, self.verdict = cause, verdict
        self.ender.may_repeat = restarts
        if self.ender.has_started:
            if not restarts:
                self.ender.forget_repeat()
            return
        self._rank_group.cancel()
        self.ender.end_ranks()

    # --- the loop ---

    @property
    def timeout_s(self) -> float | None:
        running = not (self._collector or self.ender.has_started)
        due_s = (
            self._collector.timeout_s if self._collector and not self._collector.done else None,
            self.ender.timeout_s,
            self._spawner.timeout_s,
            None if self._patience_ends is None else max(0.0, self._patience_ends - time.monotonic()),
            self._progress_monitor.timeout_s if running else None,
            self._lingering.timeout_s if running and not self._paused else None,
            WAKE_EVERY_S if self._rank_group.leaders else None,
        )
        return min((seconds for seconds in due_s if seconds is not None), default=None)

    def step(self, *, childless: bool) -> None:
        """Monitor the ranks or shut them down. `childless` is True if the agent has no child processes left."""
        if self._collector:
            self._collector.step()
        elif not (self.ender.has_started or self._rank_group.all_ended):
            lingers = not self._paused and self._lingering.look()
            if lingers or self.scheduler.is_missed:  # it could not start, or no rank failed in the same way
                self.collect()
            else:
                self._look()
        elif not self.over(childless=childless):
            # Running ranks on other servers still need the scheduler, as long as the attempt may succeed.
            if self._rank_group.all_ended and not (self._others and self.cause is Cause.FINISHED):
                self.scheduler.kill()
            if self.ender.has_started:
                self.ender.step()
            else:
                self._wait_for_leftovers()

    def over(self, *, childless: bool) -> bool:
        """Return True if all processes of this attempt have ended. Processes that cannot be killed are ignored."""
        if self._collector:
            return False
        if self.ender.is_unkillable:
            return True
        if not self._rank_group.all_ended or self.scheduler.is_ending:
            return False
        outlived = self.ender.may_repeat or bool(self.scheduler.processes)
        return childless or (outlived and not self.ender.left())

    def close(self) -> None:
        self._close_collector()
        self._rank_group.close()

    def _close_collector(self) -> None:
        if self._collector:
            self._collector.close()
            self._collector = None

    def _look_at_ends(self, ends: Collection[RankExit]) -> None:
        """Record the exits of ranks, and start to collect evidence if one of the ranks failed."""
        for ended in ends:
            self._progress_monitor.ended(ended.global_rank)
            if ended.failed:
                self.collect()

    def _look(self) -> None:
        if self._progress_monitor.timeout_s != 0:
            return
        load_collector()
        for news in self._progress_monitor.look(time.monotonic()):
            self._rank_group.event_log.record(news)
            if isinstance(news, Hung):
                self._hung = news.global_ranks
                self.collect()
                return

    def _wait_for_leftovers(self) -> None:
        if not self.ender.may_repeat:
            self._spawner.end_preloading()
        now = time.monotonic()
        if self._patience_ends is None:
            self._patience_ends = now + LEFTOVER_PATIENCE_S
        elif now >= self._patience_ends:
            self._patience_ends = None  # otherwise `timeout_s` would stay 0 until they have ended
            if left := set(self.ender.left()).difference(self._spawner.dying):
                self._rank_group.event_log.record(Leftovers(len(left)))
            self.ender.end_ranks()


class RankEnder(Ending):
    """Shuts down an attempt's ranks and their child processes, but keeps the processes that are still needed.

    With `may_repeat`, the fork server is kept, because ranks may be forked again after this attempt. MindSpore's
    scheduler is kept until no rank is running.
    """

    def __init__(
        self,
        rank_group: RankGroup,
        supervision: Supervision,
        group: RunGroup,
        scheduler: Scheduler,
        *,
        may_repeat: bool,
    ) -> None:
        super().__init__(
            None,
            lambda: rank_group.leaders,
            on_kill=lambda count: rank_group.event_log.record(Killing(count)),
            kill_group=self._kill_all_but_spared,
        )
        self.supervision = supervision
        self._spawner = rank_group.spawner
        self._group = group
        self.scheduler = scheduler
        self.may_repeat = may_repeat

    def end_ranks(self) -> None:
        """Start the shutdown of all ranks. Keep the fork server and the scheduler if they are still needed."""
        if not self.may_repeat:
            self._spawner.end_preloading()
        self.spared = self._outliving
        self.begin(self.supervision.grace_from(time.time()))

    def forget_repeat(self) -> None:
        self.may_repeat = False
        self._spawner.end_preloading()
        self.spared = self._outliving

    def left(self) -> list[int]:
        return descendants(self._outliving)

    @property
    def _outliving(self) -> Collection[int]:
        return (*self._spawner.processes, *self.scheduler.processes)

    def _kill_all_but_spared(self) -> None:
        spared = [self._group.let_out(pid) for pid in (os.getpid(), *self.spared)]
        if all(spared):
            self._group.kill()


def load_collector() -> type[EvidenceCollector]:
    """Import the evidence collector. The agent does this about half a second after it has started the ranks.

    An import before that would delay the start of ranks. An import after a failure may be too late, because an upgrade
    may have replaced the package's files.
    """
    from launcher.supervise.diagnosis.collect import EvidenceCollector  # noqa: PLC0415 - see above

    return EvidenceCollector
