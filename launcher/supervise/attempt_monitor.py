"""One attempt: from the start of its ranks until nothing of them is left.

    starting ──> running ──> all ended well ──> leftovers ended ──> over
        └───────────┴── a rank failed or hangs ──> evidence, verdict ──┐
        └───────────┴── someone asked to stop ─────────────────────────┴──> SIGTERM, grace, SIGKILL ──> over

Nothing here waits: its owner sleeps until something happened or `timeout_s` has passed, reaps, and calls `step`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.core.events import Cause, Forwarded, Hung, Judged, Killing, Leftovers, Stopping, Trouble
from launcher.core.records import Supervision
from launcher.core.report import RankExit
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Confidence, Verdict
from launcher.supervise.cgroup import RunGroup
from launcher.supervise.event_log import EventLog
from launcher.supervise.order import LATE_S
from launcher.supervise.progress_monitor import ProgressMonitor
from launcher.supervise.rank_group import RankGroup
from launcher.supervise.spawner import Spawner
from launcher.supervise.tree import Ending, descendants, signal_rank

if TYPE_CHECKING:
    from launcher.supervise.court import Court, Decision, Evidence
    from launcher.supervise.inquest import Inquest

# Helpers that end by themselves once their rank has gone (a resource tracker, `tee`) get this long to do so.
LEFTOVER_PATIENCE_S = 0.25
# However quiet it is: an end that is noticed later than that was noticed late, and is told so.
LOOK_EVERY_S = LATE_S / 2


class AttemptMonitor:
    """Supervises one rank group. `court` is asked once, after a failure: who is to blame, and are ranks started again?"""

    def __init__(
        self,
        rank_group: RankGroup,
        progress_monitor: ProgressMonitor,
        *,
        run_dir: RunDir,
        supervision: Supervision,
        spawner: Spawner,
        group: RunGroup,
        event_log: EventLog,
        court: Court,
        others: bool = False,
    ) -> None:
        self._rank_group = rank_group
        self._progress_monitor = progress_monitor
        self._run_dir = run_dir
        self._supervision = supervision
        self._spawner = spawner
        self._group = group
        self._event_log = event_log
        self._court = court
        self._others = others  # ranks of other servers belong to the attempt: their failures end it too
        self._hung: Collection[int] = ()
        self._inquest: Inquest | None = None
        self._awaits_decision = False  # evidence is with the court
        self._ending: Ending | None = None
        self._paused = False
        self._patience_ends: float | None = None  # monotonic; set once every rank has ended well
        self.cause = Cause.FINISHED
        self.verdict: Verdict | None = None
        self.restarts = False  # the ranks are to be started again when this is over

    # --- what may happen ---

    def start(self) -> None:
        """Start what can be started now."""
        pids, not_started = self._rank_group.start()
        for global_rank, pid in self._rank_group.running.items():
            if pid in pids:
                self._progress_monitor.started(global_rank, pid)
                if self._ending:  # it was being forked when the end began
                    self._ending.end_too(pid)
                elif self._paused:
                    signal_rank(pid, signal.SIGSTOP)
        self._judge_ends(not_started)
        if self._rank_group.all_started and not self._supervision.max_restarts:
            self._spawner.end_preloading()  # it has nothing more to do

    def note_ends(self, statuses: Mapping[int, int]) -> None:
        """These children have been reaped."""
        self._spawner.note_ends(statuses)
        self._judge_ends(self._rank_group.note_ends(statuses, time.time_ns()))

    def stop(self, cause: Cause, number: int | None = None, server: str | None = None) -> None:
        """Someone wants the end: no restart follows. Where the end is under way already, its cause stands."""
        if self._inquest:
            self._conclude_alone(cause)
        elif not self._ending:
            self._end(cause, number, server)
        self.restarts = False
        self._others = False
        self._spawner.end_preloading()
        if self._ending:
            self._ending.spared = self._spared()

    def inquire(self) -> None:
        """Another server has seen a failure: tell the court what is known here, and end ranks when it has decided."""
        if not self._inquest and not self._ending:
            self._inquire()

    def testify(self) -> Evidence:
        """What is known here of ranks that have all ended."""
        return self._evidence(load_inquest()(self._run_dir, self._rank_group, self._hung))

    def decided(self, decision: Decision, cause: Cause) -> None:
        """The court has heard all servers. Ranks are ended, also where nobody had asked for evidence yet."""
        if not self._ending:
            self._conclude(decision, cause)

    def kill_now(self) -> None:
        """Let no grace period pass."""
        if self._ending:
            self._ending.kill_now()

    def hurry(self, grace_s: float) -> None:
        """Let no more of it pass than that from now on."""
        if self._ending:
            self._ending.hurry(grace_s)

    def pause(self) -> None:
        """Stop every rank, as Ctrl-Z does, unless they are being ended: their grace goes on.

        SIGTSTP would not do: it is ignored by groups that have no shell.
        """
        self._paused = True
        self._progress_monitor.pause()
        if not self._ending:
            self._signal_ranks(signal.SIGSTOP)

    def resume(self) -> None:
        self._paused = False
        self._progress_monitor.resume()
        self._signal_ranks(signal.SIGCONT)

    def forward(self, number: int) -> None:
        """Hand a signal to the process of every rank, but not to what ranks have started."""
        for pid in self._rank_group.leaders:
            with suppress(OSError):
                os.kill(pid, number)  # not reaped yet, so the pid is the rank's own
        self._event_log.record(Forwarded(number))

    # --- its loop ---

    @property
    def timeout_s(self) -> float | None:
        """Until something is due; None if nothing is."""
        patience_s = None if self._patience_ends is None else max(0.0, self._patience_ends - time.monotonic())
        due_s = (
            None if self._inquest is None or self._awaits_decision else self._inquest.timeout_s,
            None if self._ending is None else self._ending.timeout_s,
            self._spawner.timeout_s,
            patience_s,
            None if self._inquest or self._ending else self._progress_monitor.timeout_s,
            LOOK_EVERY_S if self._rank_group.leaders else None,
        )
        return min((seconds for seconds in due_s if seconds is not None), default=None)

    def step(self, *, childless: bool) -> None:
        """Do what is due. `childless`: this process has no child at all, so nothing is left."""
        if self._inquest:
            if not self._awaits_decision and self._gathered():
                self._ask_court(self._inquest)
        elif self._ending:
            if not self.over(childless=childless):
                self._ending.step()
        elif self._rank_group.all_ended:
            self._wait_for_leftovers(childless=childless)
        else:
            self._look()

    def over(self, *, childless: bool) -> bool:
        """Whether nothing of this attempt is left, or nothing that could be killed."""
        if self._inquest:
            return False
        if self._ending and self._ending.in_vain:
            return True
        if not self._rank_group.all_ended:
            return False
        return childless or (self._may_start_again and not self.left())

    def left(self) -> list[int]:
        """What of it is still there."""
        return descendants(self._spared())

    @property
    def undisturbed(self) -> bool:
        """Whether ranks run, and neither a failure nor anybody's wish has begun to end them."""
        return not (self._inquest or self._ending or self._rank_group.all_ended)

    @property
    def ends_leftovers(self) -> bool:
        """Whether every rank has ended well, and what they left is being ended."""
        return self._ending is not None and self.cause is Cause.FINISHED

    @property
    def killed(self) -> int:
        return self._ending.killed if self._ending else 0

    def close(self) -> None:
        if self._inquest:
            self._inquest.close()
        self._rank_group.close()

    # --- what follows ---

    def _judge_ends(self, ends: Collection[RankExit]) -> None:
        """The first rank that fails ends the attempt; how ranks end while they are being ended says nothing."""
        for ended in ends:
            self._progress_monitor.ended(ended.global_rank)
            if ended.failed and not self._ending and not self._inquest:
                self._inquire()

    def _look(self) -> None:
        if self._progress_monitor.timeout_s != 0:
            return
        load_inquest()
        for news in self._progress_monitor.look(time.monotonic()):
            if isinstance(news, Hung):
                self._hung = news.global_ranks
                self._event_log.record(news)
                self._inquire()
                return
            self._event_log.record(news)

    def _inquire(self) -> None:
        self._rank_group.cancel()
        self._inquest = load_inquest()(self._run_dir, self._rank_group, self._hung)

    def _ask_court(self, inquest: Inquest) -> None:
        decision = self._court.decide(self._evidence(inquest))
        if decision is None:
            self._awaits_decision = True
        else:
            self._conclude(decision, self._own_cause)

    def _conclude_alone(self, cause: Cause) -> None:
        """Nobody waits for what others know, and nothing is started again. `cause`: why the end is wanted."""
        from launcher.supervise.court import Decision  # noqa: PLC0415 - loaded with the inquest

        assert self._inquest is not None, "there is something to judge"
        verdict = self._court.judge_alone(self._evidence(self._inquest))
        if cause is Cause.COORDINATOR_LOST and verdict.confidence is Confidence.UNSURE:  # a loss is surer
            self._close_inquest()
            self._end(cause)
        else:
            self._conclude(Decision(verdict, restarts=False), self._own_cause)

    @property
    def _own_cause(self) -> Cause:
        return Cause.HUNG if self._hung else Cause.FAILED

    def _conclude(self, decision: Decision, cause: Cause) -> None:
        self._close_inquest()
        self.verdict = decision.verdict
        self._event_log.record(Judged(self.verdict))
        self.restarts = decision.restarts
        self._end(cause)

    def _close_inquest(self) -> None:
        if self._inquest:
            self._inquest.close()
            self._inquest = None

    def _gathered(self) -> bool:
        """Whether the evidence is complete, after another step towards it."""
        assert self._inquest is not None, "there is something to judge"
        try:
            self._inquest.step()
        except Exception as error:  # noqa: BLE001 - whatever a failing system shows us, ranks are ended as they must be
            self._event_log.record(Trouble(f"no more evidence can be gathered: {error!r}"))
            return True
        return self._inquest.done

    def _evidence(self, inquest: Inquest) -> Evidence:
        from launcher.supervise.court import Evidence  # noqa: PLC0415 - as above

        try:
            return inquest.evidence(self._progress_monitor.steps(), self._progress_monitor.highest_step())
        except Exception as error:  # noqa: BLE001 - as above
            self._event_log.record(Trouble(f"the evidence cannot be read: {error!r}"))
            return Evidence(())

    def _end(self, cause: Cause, number: int | None = None, server: str | None = None) -> None:
        self.cause = cause
        self._rank_group.cancel()
        grace_s = self._supervision.grace_from(time.time())
        self._event_log.record(Stopping(cause, grace_s, number, self.restarts, server))
        self._end_everything()

    def _end_everything(self) -> None:
        if not self._may_start_again:
            self._spawner.end_preloading()
        self._ending = Ending(
            self._supervision.grace_from(time.time()),
            lambda: self._rank_group.leaders,
            on_kill=lambda count: self._event_log.record(Killing(count)),
            kill_group=self._kill_group,
            spared=self._spared(),
        )

    def _kill_group(self) -> None:
        """All of it but this process, and what the next attempt is forked from."""
        assert self._ending is not None, "it is the one that kills"
        spared = [self._group.let_out(pid) for pid in (os.getpid(), *self._ending.spared)]
        if all(spared):
            self._group.kill()

    def _wait_for_leftovers(self, *, childless: bool) -> None:
        if self.over(childless=childless):
            return
        if not self._may_start_again:
            self._spawner.end_preloading()
        now = time.monotonic()
        if self._patience_ends is None:
            self._patience_ends = now + LEFTOVER_PATIENCE_S
        elif now >= self._patience_ends:
            self._event_log.record(Leftovers(len(self.left())))
            self._end_everything()

    @property
    def _may_start_again(self) -> bool:
        """Whether ranks may be forked once more after this: ranks that ended well too, where others may fail."""
        return self.restarts or (self._others and self.cause is Cause.FINISHED and self._supervision.max_restarts > 0)

    def _spared(self) -> Collection[int]:
        """Processes of our own that must outlive the ranks."""
        return self._spawner.processes

    def _signal_ranks(self, number: int) -> None:
        for leader in self._rank_group.leaders:
            signal_rank(leader, number)


def load_inquest() -> type[Inquest]:
    """What only a failure needs is loaded when ranks are first looked after, half a second after their start.

    Not before, since it would delay that start; not when one fails, since an upgrade may have replaced our files by then.
    """
    from launcher.supervise.inquest import Inquest  # noqa: PLC0415 - see above

    return Inquest
