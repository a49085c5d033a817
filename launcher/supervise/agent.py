"""The agent of one server: one loop that starts ranks, watches them, ends them by one rule, and starts them again.

Everything is an event of one selector: signals and ended children through a `SignalPipe` and pidfds, the preload process
through its socket, the head's end through a pipe that only the head holds open. Nothing here needs a thread.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from launcher.core import atomic
from launcher.core.events import AgentEnded, AgentStarted, Cause, Trouble, Unkillable
from launcher.core.frozen import frozen
from launcher.core.proc import ProcessId, identify
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.core.system import is_readable
from launcher.supervise.cgroup import RunGroup
from launcher.supervise.event_log import EventLog
from launcher.supervise.event_loop import Listening, SignalPipe
from launcher.supervise.port import HeldPort
from launcher.supervise.spawner import Spawner
from launcher.supervise.tree import NothingLeft, descendants, reap

if TYPE_CHECKING:
    from launcher.core.messages import TakeStacks
    from launcher.supervise.attempt_monitor import AttemptMonitor
    from launcher.supervise.attempts import Attempts
    from launcher.supervise.file_upload import FileUpload
    from launcher.supervise.fork_server import ForkServer
    from launcher.supervise.link import Link
    from launcher.supervise.mpi_proxy import MpiProxies
    from launcher.supervise.proxy_control import ProxyControl
    from launcher.supervise.survey import Survey

ASKS_TO_STOP = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2))
KILLS_AT_ONCE = signal.SIGQUIT
PAUSES, CONTINUES = signal.SIGTSTP, signal.SIGCONT


@frozen
class LauncherLink:
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
        head: LauncherLink | None = None,
        port: HeldPort | None = None,
        link: Link | None = None,
        first_attempt: int = 0,
        members: MpiProxies | None = None,
    ) -> None:
        """`link`: to the coordinator, where the run has ranks on other servers. `members`: whose place ranks take."""
        self._first_attempt = first_attempt
        self._spec = spec
        self._server_index = server_index
        self._inherited = inherited
        self._head = head
        self._port = port or HeldPort(spec.master_port)  # of the first attempt
        self._started_ns = time.time_ns()
        self._link = link
        self._mirror: FileUpload | None = None  # where the coordinator does not see what ranks write
        self._survey: Survey | None = None  # once somebody has asked where ranks are
        self._run_dir = RunDir(spec.run_dir, None if link is None else server_index)
        self._ranks = tuple(rank for rank in spec.ranks if rank.server_index == server_index)
        self._proxy_control = _proxy_control(members, self._ranks, inherited)
        if self._proxy_control is not None:
            self._ranks = self._proxy_control.ranks
        self._event_log = EventLog(
            self._run_dir.events, server_index, head.events_fd if head else None, link.tell if link else None
        )
        self._forwarded = frozenset(spec.supervision.forward_signals)
        self._asks_to_stop = ASKS_TO_STOP - self._forwarded
        numbers = {signal.SIGCHLD, KILLS_AT_ONCE, PAUSES, CONTINUES, *self._asks_to_stop}
        self._signal_pipe = SignalPipe(numbers.union(signal.Signals(number) for number in self._forwarded))
        self._selector = selectors.DefaultSelector()
        self._listening = Listening(self._selector)
        self._group = RunGroup(os.getpid())
        self._alone = head is None
        self._childless = False
        self._signal: int | None = None  # the first that asked to stop

    def run(self) -> int:
        """Supervise until nothing is left; the run's exit code. Blocks. Call once, in the main thread."""
        self._group.take_in(os.getpid())
        self._selector.register(self._signal_pipe, selectors.EVENT_READ, self._on_signals)
        if self._head:
            self._selector.register(self._head.death_fd, selectors.EVENT_READ, self._on_head_lost)
        head = identify(self._head.pid) if self._head else None
        self._event_log.record(AgentStarted(identity_of(os.getpid()), head, len(self._ranks)))
        descriptors = self._proxy_control.descriptors if self._proxy_control else None
        self._spawner = Spawner(
            self._spec, self._ranks, self._inherited, self._event_log, self._run_dir, descriptors=descriptors
        )
        self._attempts = self._make_attempts()
        self._attempts.begin()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the head forks with signals held back
        while self._attempts.go_on(childless=self._childless):
            self._listen()
            self._watch.start()
            self._reap()
            self._watch.step(childless=self._childless)
        return self._finish()

    def _make_attempts(self) -> Attempts:
        from launcher.supervise.attempts import Attempts  # noqa: PLC0415 - loaded while the preload process imports

        needs: dict[str, Any] = {
            "port": self._port,
            "starter": self._spawner,
            "group": self._group,
            "journal": self._event_log,
            "first": self._first_attempt,
        }
        if self._link is None:
            return Attempts(self._spec, self._ranks, self._inherited, **needs)
        from launcher.supervise.concerted import ConcertedAttempts  # noqa: PLC0415 - one server needs none of it

        if not self._link.shares_files:
            from launcher.supervise.file_upload import FileUpload  # noqa: PLC0415 - as above

            self._mirror = FileUpload(
                self._run_dir,
                [rank.global_rank for rank in self._ranks],
                self._link,
                follows_another=self._first_attempt > 0,
            )
        return ConcertedAttempts(self._spec, self._ranks, self._inherited, link=self._link, **needs)

    @property
    def _watch(self) -> AttemptMonitor:
        return self._attempts.watch

    # --- what may happen ---

    def _listen(self) -> None:
        """Sleep until something happens or is due."""
        self._choose_what_to_hear()
        timed = (
            self._watch, self._link, self._mirror, self._proxy_control, self._survey, self._attempts.soundings,
        )  # fmt: skip
        due_s = [each.timeout_s for each in timed if each is not None]
        for key, _ in self._selector.select(min((seconds for seconds in due_s if seconds is not None), default=None)):
            key.data()
        if self._mirror is not None:
            self._mirror.step()
        if self._survey is not None:
            self._survey.step()
        if self._link is not None:
            self._hear_coordinator(self._link)
        if self._proxy_control is not None:
            self._hear_members(self._proxy_control)

    def _choose_what_to_hear(self) -> None:
        """What comes and goes: ends of ranks, the preload process, a head's pipe that takes no more at the moment."""
        fork_server = self._spawner.preloading
        rank_group = self._attempts.rank_group if self._attempts.rank_group.fileno() >= 0 else None
        link = self._link if self._link and self._link.lost is None else None
        backlog = self._head.events_fd if self._head and self._event_log.backlog else None
        self._listening.choose(
            {
                "ranks": (rank_group, selectors.EVENT_READ, _nothing),
                "nursery": (fork_server, _events(fork_server), fork_server.send if fork_server else _nothing),
                "coordinator": (link, _events(link), _nothing),
                "members": (self._proxy_control, selectors.EVENT_READ, _nothing),
                "soundings": (self._attempts.soundings, selectors.EVENT_READ, _nothing),
                "backlog": (backlog, selectors.EVENT_WRITE, self._event_log.send),
            }
        )

    def _on_signals(self) -> None:
        for number in self._signal_pipe.take():
            ends = number == KILLS_AT_ONCE or number in self._asks_to_stop
            if self._link is not None and (ends or (self._link.by_hand and number != signal.SIGCHLD)):
                self._link.want(number)
                if not ends:
                    continue  # it comes back, as to all servers
            self._act_on(number)
            if number == signal.SIGTERM:  # a batch system's own, which is followed by SIGKILL
                self._watch.hurry(self._spec.supervision.grace_when_told_s)

    def _act_on(self, number: int) -> None:
        if number == KILLS_AT_ONCE or number in self._asks_to_stop:
            self._signal = self._signal or number
            self._attempts.stop(Cause.STOPPED, number)
        elif number in self._forwarded:
            self._watch.forward(number)
        elif number in {PAUSES, CONTINUES}:
            self._pause_or_resume(number)
        if number == KILLS_AT_ONCE:
            self._watch.kill_now()

    def _hear_coordinator(self, link: Link) -> None:
        from launcher.core.messages import ChunkAck, ForwardSignal, TakeStacks  # noqa: PLC0415 - loaded with the link

        attempts: Any = self._attempts
        for message in link.take():
            if isinstance(message, ForwardSignal):
                self._act_on(message.signal)
            elif isinstance(message, ChunkAck) and self._mirror is not None:
                self._mirror.take(message)
            elif isinstance(message, TakeStacks):
                self._begin_survey(link, message)
            else:
                attempts.hear(message)
        if link.lost is not None:
            self._link = None
            self._forget_mirror()
            self._event_log.record(Trouble(f"the run's coordinator is lost: {link.lost}"))
            attempts.lose_coordinator()

    def _begin_survey(self, link: Link, asked: TakeStacks) -> None:
        from launcher.supervise.survey import Survey  # noqa: PLC0415 - most runs need none of it

        self._survey = self._survey or Survey(self._run_dir, link.send)
        self._survey.begin(asked, self._attempts.rank_group.running)

    def _hear_members(self, proxy_control: ProxyControl) -> None:
        proxy_control.step(self._event_log)
        gone = proxy_control.engine_gone()
        if gone is not None and self._watch.undisturbed:
            self._event_log.record(Trouble(gone))
            self._watch.inquire()

    def _pause_or_resume(self, number: int) -> None:
        if number == PAUSES:
            self._attempts.pause()
        else:
            self._attempts.resume()

    def _on_head_lost(self) -> None:
        if self._head:
            self._selector.unregister(self._head.death_fd)
        self._alone = True
        self._event_log.forget_head()
        if self._link is not None:
            self._link.give_up("the process that started its agent was killed")
        self._attempts.stop(Cause.HEAD_LOST)

    def _reap(self) -> None:
        """Take every child that has ended before any is judged: which came first is known of all of them only."""
        self._childless = False
        self._attempts.rank_group.look_at_the_dead()
        statuses: dict[int, int] = {}
        try:
            for pid, status in reap():
                statuses[pid] = status  # noqa: PERF403 - kept although an exception ends the loop
        except NothingLeft:
            self._childless = True
        self._watch.note_ends(statuses)

    # --- the end ---

    def _finish(self) -> int:
        unkillable = self._unkillable()
        exit_code = self._attempts.exit_code(self._signal)
        if self._alone:  # else the head removes the group
            self._group.let_out(os.getpid())
            self._group.remove()
        self._spawner.close()
        self._attempts.close()
        self._write_report(exit_code, unkillable)
        self._finish_mirror()
        self._event_log.record(AgentEnded(self._attempts.cause, exit_code))
        if self._survey is not None:
            self._survey.close()
        if self._proxy_control is not None:
            self._listening.forget("members")
            self._proxy_control.release()
        if self._link is not None:
            self._link.say_farewell(unkillable, self._event_log.lost)
        self._event_log.close(self._head.death_fd if self._head else None)
        if self._head is not None and not self._alone and is_readable(self._head.death_fd):  # gone in the meantime
            self._group.let_out(os.getpid())
            self._group.remove()
        self._selector.close()
        self._signal_pipe.close()
        return exit_code

    def _finish_mirror(self) -> None:
        """Before the last word; the coordinator waits for it."""
        if self._mirror is not None:
            left = self._mirror.finish(self._hears_kill)
            self._forget_mirror()
            if left is not None:
                self._event_log.record(Trouble(left))

    def _forget_mirror(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None
            with suppress(OSError):  # whoever looks here finds nobody to ask any more
                self._run_dir.door.unlink()

    def _hears_kill(self) -> bool:
        return KILLS_AT_ONCE in self._signal_pipe.take()

    def _unkillable(self) -> tuple[int, ...]:
        """What is left although it was killed; perhaps without a pid: it may have another one at each look."""
        preloading = self._spawner.processes  # for a restart that could not be
        left = () if self._childless else tuple(descendants(preloading))
        if left or not (self._childless or preloading):
            self._event_log.record(Unkillable(left))
        return left

    def _write_report(self, exit_code: int, unkillable: tuple[int, ...]) -> None:
        path = self._run_dir.report
        report = self._attempts.report(self._server_index, self._started_ns, exit_code, unkillable)
        try:
            atomic.write_text(path, report.to_json())
        except OSError as error:
            self._event_log.record(Trouble(f"cannot write {path}: {error.strerror}"))


def _proxy_control(
    members: MpiProxies | None, ranks: Sequence[RankSpec], inherited: Mapping[str, str]
) -> ProxyControl | None:
    if members is None:
        return None
    from launcher.supervise.proxy_control import ProxyControl  # noqa: PLC0415 - most runs need none of it

    return ProxyControl(members, ranks, inherited)


def identity_of(pid: int) -> ProcessId:
    """Of this process; without /proc there is no start time, and nobody can ask whether it lives."""
    return identify(pid) or ProcessId(pid, 0, os.uname().nodename, "")


def _events(channel: ForkServer | Link | None) -> int:
    """What to hear of it: also that there is room for what waits to be sent."""
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if channel and channel.wants_write else 0)


def _nothing() -> None:
    """Waking up is all that is wanted."""
