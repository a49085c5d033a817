"""The agent of one server: one loop that starts ranks, watches them, and ends them by one rule.

    starting ──> running ──> all ended well ──> leftovers ended ──> report
        └───────────┴── a rank failed, a signal asked, the head is gone ──> SIGTERM, grace, SIGKILL ──> report

Everything is an event of one selector: signals and ended children through a `Wakeup`, the head's end through a pipe
that only the head holds open. Nothing is polled; nothing here needs a thread.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.core import atomic
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, exit_code_of
from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    Cause,
    Killing,
    Leftovers,
    RankExit,
    Report,
    Stopping,
    Trouble,
    Unkillable,
)
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.supervise.crew import Crew
from launcher.supervise.journal import Journal
from launcher.supervise.tree import Ending, NothingLeft, descendants, reap
from launcher.supervise.wakeup import Wakeup

ASKS_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILLS_AT_ONCE = signal.SIGQUIT
# Helpers that end by themselves once their rank has gone (a resource tracker, `tee`) get this long to do so.
LEFTOVER_PATIENCE_S = 0.25


@dataclass(frozen=True)
class HeadLink:
    """The two pipes between an agent and the head that started it."""

    death_fd: int  # readable (end of file) when the head has gone
    events_fd: int  # takes events, one JSON line each


class Agent:
    """Supervises the ranks of one server from the first fork to the report."""

    def __init__(
        self, spec: RunSpec, server_index: int, *, inherited: Mapping[str, str], head: HeadLink | None = None
    ) -> None:
        self._spec = spec
        self._server_index = server_index
        self._head = head
        self._started_ns = time.time_ns()
        self._journal = Journal(RunDir(spec.run_dir).events, server_index, head.events_fd if head else None)
        self._crew = Crew(spec, server_index, inherited, self._journal)
        self._wakeup = Wakeup([signal.SIGCHLD, *ASKS_TO_STOP, KILLS_AT_ONCE])
        self._selector = selectors.DefaultSelector()
        self._childless = False
        self._cause = Cause.FINISHED
        self._signal: int | None = None  # the first that asked to stop
        self._first_failure: RankExit | None = None
        self._ending: Ending | None = None
        self._patience_ends: float | None = None  # monotonic; set once every rank has ended well

    def run(self) -> int:
        """Supervise until nothing is left; the run's exit code. Blocks. Call once, in the main thread."""
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signals)
        if self._head:
            self._selector.register(self._head.death_fd, selectors.EVENT_READ, self._on_head_lost)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the head forks with signals held back
        self._journal.record(AgentStarted(os.getpid(), len(self._crew.waiting)))
        while not self._over():
            if self._crew.waiting and not self._ending:
                self._fail_on(self._crew.start_next())
            self._listen()
            self._reap()
            self._move_on()
        return self._finish()

    # --- what may happen ---

    def _listen(self) -> None:
        """Sleep until something happens or is due."""
        self._watch_backlog()
        for key, _ in self._selector.select(self._timeout_s()):
            key.data()

    def _timeout_s(self) -> float | None:
        if self._ending:
            return self._ending.timeout_s
        if self._crew.waiting:
            return 0
        if self._patience_ends is not None:
            return max(0.0, self._patience_ends - time.monotonic())
        return None

    def _watch_backlog(self) -> None:
        """Wait for the head's pipe to take more only while there is more to give."""
        if self._head is None:
            return
        watched = self._head.events_fd in self._selector.get_map()
        if self._journal.backlog and not watched:
            self._selector.register(self._head.events_fd, selectors.EVENT_WRITE, self._journal.send)
        elif watched and not self._journal.backlog:
            self._selector.unregister(self._head.events_fd)

    def _on_signals(self) -> None:
        for number in self._wakeup.take():
            if number != signal.SIGCHLD:
                self._signal = self._signal or number
                self._stop(Cause.STOPPED, number)
            if number == KILLS_AT_ONCE and self._ending:
                self._ending.kill_now()

    def _on_head_lost(self) -> None:
        if self._head:
            self._selector.unregister(self._head.death_fd)
        self._journal.forget_head()
        self._stop(Cause.HEAD_LOST)

    def _reap(self) -> None:
        """Take every child that has ended before any is judged: which came first is known of all of them only."""
        self._childless = False
        statuses: dict[int, int] = {}
        try:
            for pid, status in reap():
                statuses[pid] = status  # noqa: PERF403 - kept although an exception ends the loop
        except NothingLeft:
            self._childless = True
        for ended in self._crew.note_ends(statuses, time.time_ns()):
            self._fail_on(ended)

    # --- what follows from it ---

    def _fail_on(self, ended: RankExit | None) -> None:
        """The first rank that fails ends the run; how ranks end while they are being ended says nothing."""
        if ended and ended.failed and not self._ending:
            self._first_failure = ended
            self._stop(Cause.FAILED)

    def _stop(self, cause: Cause, number: int | None = None) -> None:
        """End everything, unless that is under way already: the first cause stands."""
        if self._ending:
            return
        self._cause = cause
        self._crew.waiting.clear()
        self._journal.record(Stopping(cause, self._spec.grace_s, number))
        self._end_everything()

    def _end_everything(self) -> None:
        self._ending = Ending(
            self._spec.grace_s, lambda: self._crew.leaders, on_kill=lambda count: self._journal.record(Killing(count))
        )

    def _move_on(self) -> None:
        if self._ending:
            if not self._childless:
                self._ending.step()
        elif self._crew.all_ended and not self._childless:
            self._wait_for_leftovers()

    def _wait_for_leftovers(self) -> None:
        now = time.monotonic()
        if self._patience_ends is None:
            self._patience_ends = now + LEFTOVER_PATIENCE_S
        elif now >= self._patience_ends:
            self._journal.record(Leftovers(len(descendants())))
            self._end_everything()

    def _over(self) -> bool:
        if self._ending and self._ending.in_vain:
            return True
        return self._crew.all_ended and self._childless

    # --- the end ---

    def _finish(self) -> int:
        unkillable = () if self._childless else tuple(descendants())
        if not self._childless:  # perhaps without a pid: it may have another one at each look
            self._journal.record(Unkillable(unkillable))
        exit_code = self._exit_code()
        self._write_report(exit_code, unkillable)
        self._journal.record(AgentEnded(self._cause, exit_code))
        self._journal.close(self._head.death_fd if self._head else None)
        self._crew.close()
        self._selector.close()
        self._wakeup.close()
        return exit_code

    def _exit_code(self) -> int:
        if self._first_failure:
            return exit_code_of(self._first_failure.status)
        if self._cause is Cause.STOPPED and self._signal:
            return 128 + self._signal
        return EXIT_OK if self._cause is Cause.FINISHED else EXIT_FAILURE

    def _write_report(self, exit_code: int, unkillable: tuple[int, ...]) -> None:
        path = RunDir(self._spec.run_dir).report
        report = Report(
            run=self._spec.name,
            server_index=self._server_index,
            cause=self._cause,
            exit_code=exit_code,
            started_ns=self._started_ns,
            ended_ns=time.time_ns(),
            first_failure=self._first_failure.global_rank if self._first_failure else None,
            exits=tuple(self._crew.exits),
            killed=self._ending.killed if self._ending else 0,
            unkillable=unkillable,
            events_lost=self._journal.lost,
        )
        try:
            atomic.write_text(path, report.to_json())
        except OSError as error:
            self._journal.record(Trouble(f"cannot write {path}: {error.strerror}"))
