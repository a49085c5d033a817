"""The agent of one server: one loop that starts ranks, watches them, ends them by one rule, and starts them again.

Everything is an event of one selector: signals and ended children through a `Wakeup` and pidfds, the preload process
through its socket, the head's end through a pipe that only the head holds open. Nothing here needs a thread.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from launcher.core import atomic
from launcher.core.errors import EXIT_FAILURE, EXIT_HUNG, EXIT_OK, exit_code_of
from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Cause,
    NotRestarting,
    Trouble,
    Unkillable,
)
from launcher.core.proc import ProcessId, identify
from launcher.core.records import RunSpec
from launcher.core.report import Attempt, Report
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Verdict
from launcher.supervise.cgroup import RunGroup, group_name
from launcher.supervise.crew import AttemptVariables, Crew
from launcher.supervise.journal import Journal
from launcher.supervise.port import HeldPort, hold_port
from launcher.supervise.pulse import Pulse
from launcher.supervise.restart import Restarts
from launcher.supervise.starter import Starter
from launcher.supervise.tree import NothingLeft, descendants, reap
from launcher.supervise.wakeup import Wakeup
from launcher.supervise.watch import Watch

ASKS_TO_STOP = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
KILLS_AT_ONCE = signal.SIGQUIT
PAUSES, CONTINUES = signal.SIGTSTP, signal.SIGCONT


@dataclass(frozen=True)
class HeadLink:
    """The two pipes between an agent and the head that started it."""

    death_fd: int  # readable (end of file) when the head has gone
    events_fd: int  # takes events, one JSON line each
    pid: int


class Agent:
    """Supervises the ranks of one server from the first fork to the report."""

    def __init__(
        self,
        spec: RunSpec,
        server_index: int,
        *,
        inherited: Mapping[str, str],
        head: HeadLink | None = None,
        port: HeldPort | None = None,
    ) -> None:
        self._spec = spec
        self._server_index = server_index
        self._inherited = inherited
        self._head = head
        self._port = port or HeldPort(spec.master_port)
        self._started_ns = time.time_ns()
        self._run_dir = RunDir(spec.run_dir)
        self._ranks = tuple(rank for rank in spec.ranks if rank.server_index == server_index)
        self._journal = Journal(self._run_dir.events, server_index, head.events_fd if head else None)
        self._forwarded = frozenset(spec.supervision.forward_signals)
        self._asks_to_stop = ASKS_TO_STOP - self._forwarded
        numbers = {signal.SIGCHLD, KILLS_AT_ONCE, PAUSES, CONTINUES, *self._asks_to_stop}
        self._wakeup = Wakeup(numbers.union(signal.Signals(number) for number in self._forwarded))
        self._selector = selectors.DefaultSelector()
        self._listened: dict[str, Any] = {}  # what the selector holds, by what it is for
        self._group = RunGroup(group_name(os.getpid()))
        self._restarts = Restarts(spec.supervision.max_restarts)
        self._attempts: list[Attempt] = []
        self._childless = False
        self._paused = False
        self._signal: int | None = None  # the first that asked to stop

    def run(self) -> int:
        """Supervise until nothing is left; the run's exit code. Blocks. Call once, in the main thread."""
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signals)
        if self._head:
            self._selector.register(self._head.death_fd, selectors.EVENT_READ, self._on_head_lost)
        head = identify(self._head.pid) if self._head else None
        self._journal.record(AgentStarted(_identity(os.getpid()), head, len(self._ranks)))
        self._starter = Starter(self._spec, self._ranks, self._inherited, self._journal, self._group.directory)
        self._begin_attempt()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the head forks with signals held back
        while self._goes_on():
            self._watch.start()
            self._listen()
            self._reap()
            self._watch.step(childless=self._childless)
        return self._finish()

    # --- attempts ---

    def _begin_attempt(self) -> None:
        variables = AttemptVariables(len(self._attempts), self._port.number)
        self._attempt_ns = self._journal.record(AttemptStarted(variables.number, variables.master_port))
        self._crew = Crew(
            self._ranks,
            self._run_dir,
            variables,
            inherited=self._inherited,
            starter=self._starter,
            journal=self._journal,
        )
        supervision = self._spec.supervision
        self._watch = Watch(
            self._crew,
            Pulse(
                self._run_dir,
                [rank.global_rank for rank in self._ranks],
                supervision.hang_timeout_s,
                self._spec.layout,
            ),
            run_dir=self._run_dir,
            supervision=supervision,
            starter=self._starter,
            group=self._group,
            journal=self._journal,
            decide=self._decide,
        )

    def _decide(self, verdict: Verdict, progressed: bool) -> bool:
        restarts = self._restarts.decide(verdict, progressed=progressed)
        if self._restarts.refusal:
            self._journal.record(NotRestarting(self._restarts.refusal))
        return restarts

    def _goes_on(self) -> bool:
        if not self._watch.over(childless=self._childless):
            return True
        self._end_attempt()
        if not self._watch.restarts or self._watch.left():
            return False
        self._take_another_port()
        self._begin_attempt()
        return True

    def _end_attempt(self) -> None:
        self._watch.close()
        self._attempts.append(
            Attempt(
                number=len(self._attempts),
                master_port=self._port.number,
                started_ns=self._attempt_ns,
                ended_ns=time.time_ns(),
                cause=self._watch.cause,
                exits=tuple(self._crew.exits),
                verdict=self._watch.verdict,
                killed=self._watch.killed,
            )
        )

    def _take_another_port(self) -> None:
        """Nothing of the last attempt can reach the next one, unless the user chose the port."""
        if self._port.holder is not None:
            self._port.close()
            self._port = hold_port()

    # --- what may happen ---

    def _listen(self) -> None:
        """Sleep until something happens or is due."""
        self._choose_what_to_hear()
        for key, _ in self._selector.select(self._watch.timeout_s):
            key.data()

    def _choose_what_to_hear(self) -> None:
        """What comes and goes: ends of ranks, the preload process, a head's pipe that takes no more at the moment."""
        nursery = self._starter.preloading
        self._hear("ranks", self._crew if self._crew.fileno() >= 0 else None, selectors.EVENT_READ)
        wants = selectors.EVENT_READ | (selectors.EVENT_WRITE if nursery and nursery.wants_write else 0)
        self._hear("nursery", nursery, wants, nursery.send if nursery else None)
        backlog = self._head.events_fd if self._head and self._journal.backlog else None
        self._hear("backlog", backlog, selectors.EVENT_WRITE, self._journal.send)

    def _hear(self, purpose: str, wanted: Any, events: int, react: Any = None) -> None:
        known = self._listened.get(purpose)
        if known == (wanted, events):
            return
        if known is not None and known[0] is not None:
            with suppress(KeyError, ValueError):  # closed meanwhile
                self._selector.unregister(known[0])
        if wanted is not None:
            self._selector.register(wanted, events, react or _nothing)
        self._listened[purpose] = (wanted, events)

    def _on_signals(self) -> None:
        for number in self._wakeup.take():
            if number == KILLS_AT_ONCE or number in self._asks_to_stop:
                self._signal = self._signal or number
                self._watch.stop(Cause.STOPPED, number)
            elif number in self._forwarded:
                self._watch.forward(number)
            elif number in {PAUSES, CONTINUES}:
                self._pause_or_resume(number)
            if number == KILLS_AT_ONCE:
                self._watch.kill_now()

    def _pause_or_resume(self, number: int) -> None:
        if number == PAUSES and not self._paused:
            self._watch.pause()
        elif number == CONTINUES and self._paused:
            self._watch.resume()
        self._paused = number == PAUSES

    def _on_head_lost(self) -> None:
        if self._head:
            self._selector.unregister(self._head.death_fd)
        self._journal.forget_head()
        self._watch.stop(Cause.HEAD_LOST)

    def _reap(self) -> None:
        """Take every child that has ended before any is judged: which came first is known of all of them only."""
        self._childless = False
        self._crew.look_at_the_dead()
        statuses: dict[int, int] = {}
        try:
            for pid, status in reap():
                statuses[pid] = status  # noqa: PERF403 - kept although an exception ends the loop
        except NothingLeft:
            self._childless = True
        self._watch.note_ends(statuses)

    # --- the end ---

    def _finish(self) -> int:
        unkillable = () if self._childless else tuple(descendants())
        if not self._childless:  # perhaps without a pid: it may have another one at each look
            self._journal.record(Unkillable(unkillable))
        exit_code = self._exit_code()
        self._group.remove()
        self._starter.close()
        self._port.close()
        self._write_report(exit_code, unkillable)
        self._journal.record(AgentEnded(self._watch.cause, exit_code))
        self._journal.close(self._head.death_fd if self._head else None)
        self._selector.close()
        self._wakeup.close()
        return exit_code

    def _exit_code(self) -> int:
        match self._watch.cause:
            case Cause.FINISHED:
                return EXIT_OK
            case Cause.HUNG:
                return EXIT_HUNG
            case Cause.STOPPED if self._signal:
                return 128 + self._signal
            case Cause.FAILED if self._watch.verdict:
                return _exit_code_of_failure(self._watch.verdict, self._attempts[-1])
            case _:
                return EXIT_FAILURE

    def _write_report(self, exit_code: int, unkillable: tuple[int, ...]) -> None:
        path = self._run_dir.report
        report = Report(
            run=self._spec.name,
            server_index=self._server_index,
            cause=self._watch.cause,
            exit_code=exit_code,
            started_ns=self._started_ns,
            ended_ns=time.time_ns(),
            attempts=tuple(self._attempts),
            not_restarting=self._restarts.refusal,
            unkillable=unkillable,
            events_lost=self._journal.lost,
        )
        try:
            atomic.write_text(path, report.to_json())
        except OSError as error:
            self._journal.record(Trouble(f"cannot write {path}: {error.strerror}"))


def _exit_code_of_failure(verdict: Verdict, attempt: Attempt) -> int:
    """The culprit's own, or, where it had not failed itself, that of the first rank that did."""
    failed = [ended for ended in attempt.exits if ended.failed]
    culprits = [ended for ended in failed if ended.global_rank == verdict.culprit]
    known = [failure.status for failure in verdict.failures if failure.status]
    if culprits and culprits[0].status in known:
        return exit_code_of(culprits[0].status)
    return exit_code_of(failed[0].status) if failed else EXIT_FAILURE


def _identity(pid: int) -> ProcessId:
    """Of this process; without /proc there is no start time, and nobody can ask whether it lives."""
    return identify(pid) or ProcessId(pid, 0, os.uname().nodename, "")


def _nothing() -> None:
    """Waking up is all that is wanted."""
