"""The agent of one server: a single event loop that starts, watches, ends and restarts ranks.

One selector waits for all events. Signals and ended children arrive through a `SignalPipe` and pidfds, fork server
messages through a socket, and the launcher's exit through a pipe that only the launcher holds open. Two threads do work
that would block the loop or must not wait for a stalled disk: launcher/supervise/disk.py, link.py.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from launcher.control.events import KILLS_AT_ONCE
from launcher.control.orders import BeginAttempt
from launcher.core.events import AgentEnded, AgentStarted, Trouble, Unkillable
from launcher.core.frozen import frozen
from launcher.core.machine.proc import ProcessId, identify, is_readable
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.supervise.disk import Disk
from launcher.supervise.event_log import EventLog, RunRecorder
from launcher.supervise.event_loop import Listening, run_signals
from launcher.supervise.port import HeldPort
from launcher.supervise.spawner import ServerShare, Spawner, SpecifyAttempt
from launcher.supervise.tree import KILL_PATIENCE_S, NothingLeft, RunGroup, descendants, reap, signal_everything

if TYPE_CHECKING:
    from launcher.supervise.link import Link
    from launcher.supervise.local_control import LocalControl
    from launcher.supervise.mpi_proxy import MpiProxies, ProxyControl
    from launcher.supervise.remote_control import RemoteControl


@frozen
class LauncherLink:
    """The two pipes between an agent and the launcher that started it."""

    death_fd: int  # readable (end of file) when the launcher has exited
    events_fd: int  # receives events, one JSON line each
    pid: int


class Agent:
    """Supervises the ranks on one server, from their start to the final report."""

    def __init__(
        self,
        spec: RunSpec,
        server_index: int,
        *,
        inherited: Mapping[str, str],
        head: LauncherLink | None = None,
        port: HeldPort | None = None,
        link: Link | None = None,
        first: BeginAttempt | None = None,
        members: MpiProxies | None = None,
        specify: SpecifyAttempt | None = None,
    ) -> None:
        """Prepare the agent. Call `run` to start it.

        `link` is the connection to the coordinator, if the run has ranks on other servers. `first` is the coordinator's
        first order. `members` are placeholders that an MPI engine started and in whose place tlaunch runs ranks.
        """
        run_dir = RunDir(spec.run_dir, None if link is None else server_index)
        ranks = tuple(rank for rank in spec.ranks if rank.server_index == server_index)
        self._proxy_control: ProxyControl | None = None
        if members is not None:
            from launcher.supervise.mpi_proxy import ProxyControl  # noqa: PLC0415 - only some runs need it

            self._proxy_control = ProxyControl(members, ranks, inherited)
            ranks = self._proxy_control.ranks
        self._share = ServerShare(spec, ranks, inherited, server_index, port or HeldPort(spec.master_port), specify)
        self._first = first
        self._head = head  # None without a launcher, and once it is lost
        self._disk = Disk(run_dir.events)
        self._event_log = EventLog(
            run_dir.events, server_index, head.events_fd if head else None, link.report if link else None, self._disk
        )
        self._recorder = RunRecorder(spec.name, server_index, run_dir, self._event_log)
        self._link = link
        if link is not None:
            link.begin(self._disk)
        self._signal_pipe = run_signals(spec.supervision)
        self._selector = selectors.DefaultSelector()
        self._listening = Listening(self._selector)
        self._group = RunGroup(os.getpid())
        self._childless = False

    def run(self) -> int:
        """Supervise the ranks until no process is left, and return the exit code. Call it once, in the main thread."""
        share = self._share
        self._group.take_in(os.getpid())
        self._selector.register(self._signal_pipe, selectors.EVENT_READ, self._on_signals)
        if self._head:
            self._selector.register(self._head.death_fd, selectors.EVENT_READ, self._on_head_lost)
        head = identify(self._head.pid) if self._head else None
        self._event_log.record(AgentStarted(identity_of(os.getpid()), head, len(share.ranks)))
        descriptors = self._proxy_control.descriptors if self._proxy_control else None
        self._spawner = Spawner(
            share.spec, share.ranks, share.inherited, self._event_log, self._recorder.run_dir, descriptors=descriptors
        )
        self._control = self._make_control()
        self._control.begin()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher forks with signals blocked
        while self._control.step(childless=self._childless):
            self._listen()
            self._attempts.monitor.start()
            self._reap()
            self._attempts.monitor.step(childless=self._childless)
        return self._finish()

    def _make_control(self) -> LocalControl | RemoteControl:
        from launcher.supervise.attempts import Attempts  # noqa: PLC0415 - loaded while the fork server imports

        self._attempts = Attempts(self._share, self._spawner, self._group, self._disk, self._link)
        if self._link is None or self._first is None:
            from launcher.supervise.local_control import LocalControl  # noqa: PLC0415 - as above

            return LocalControl(self._attempts)
        from launcher.supervise.remote_control import RemoteControl  # noqa: PLC0415 - not needed for one server

        return RemoteControl(self._attempts, self._link, self._recorder.run_dir, self._first)

    # --- events ---

    def _listen(self) -> None:
        reads, writes = selectors.EVENT_READ, selectors.EVENT_WRITE
        fork_server = self._spawner.preloading
        has_data = fork_server is not None and fork_server.wants_write
        rank_group = self._attempts.rank_group if self._attempts.rank_group.fileno() >= 0 else None
        services = self._control.services
        link = services.link if services else None
        backlog = self._head.events_fd if self._head and self._event_log.backlog else None
        self._listening.choose(
            {
                "ranks": (rank_group, reads, _nothing),
                "fork_server": (
                    fork_server,
                    reads | writes if has_data else reads,
                    fork_server.send if fork_server else _nothing,
                ),
                "coordinator": (link, reads, _nothing),
                "members": (self._proxy_control, reads, _nothing),
                "reach_probes": (self._control.reach_probes, reads, _nothing),
                "backlog": (backlog, writes, self._event_log.send),
            }
        )
        timed = (self._attempts.monitor, self._proxy_control, self._control.reach_probes)
        due_s = [self._control.timeout_s, *(each.timeout_s for each in timed if each is not None)]
        due_s += services.next_action_s if services else []
        for key, _ in self._selector.select(min((seconds for seconds in due_s if seconds is not None), default=None)):
            key.data()
        self._control.listen()
        if self._proxy_control is not None:
            gone = self._proxy_control.step(self._event_log)
            if gone is not None and self._attempts.undisturbed:
                self._event_log.record(Trouble(gone))
                self._attempts.monitor.collect()

    def _on_signals(self) -> None:
        for number in self._signal_pipe.take():
            has_acted = number == signal.SIGCHLD or self._control.on_own_signal(number)
            if has_acted and number == signal.SIGTERM:  # may come from a batch system, which sends SIGKILL next
                self._attempts.monitor.ender.hurry(self._share.spec.supervision.grace_on_request_s)

    def _on_head_lost(self) -> None:
        if self._head:
            self._selector.unregister(self._head.death_fd)
        self._head = None
        self._event_log.forget_head()
        self._control.on_launcher_lost()

    def _reap(self) -> None:
        """Reap all exited children, then process their exits in the order in which they happened."""
        self._childless = False
        self._attempts.rank_group.look_at_the_dead()
        statuses: dict[int, int] = {}
        try:
            for pid, status in reap():
                statuses[pid] = status  # noqa: PERF403 - results before the exception are kept
        except NothingLeft:
            self._childless = True
        self._attempts.monitor.note_ends(statuses)

    # --- shutdown ---

    def _finish(self) -> int:
        preloading = self._spawner.processes  # kept for a restart that did not happen
        if self._attempts.end_scheduler():
            self._end_rest_of_scheduler(preloading)
        # Processes that survived SIGKILL. May be empty, because processes change between two scans.
        unkillable = () if self._childless else tuple(descendants(preloading))
        if unkillable or not (self._childless or preloading):
            self._event_log.record(Unkillable(unkillable))
        exit_code = self._control.exit_code
        if self._head is None:  # otherwise the launcher removes the group
            self._remove_group()
        self._spawner.close()
        self._attempts.close()
        self._recorder.write_report(
            self._control.cause,
            exit_code,
            tuple(self._attempts.over),
            not_restarting=self._control.not_restarting,
            unkillable=unkillable,
        )
        if self._control.services is not None:
            self._control.services.finish_upload(lambda: KILLS_AT_ONCE in self._signal_pipe.take())
        self._event_log.record(AgentEnded(self._control.cause, exit_code))
        if self._proxy_control is not None:
            self._listening.forget("members")
            self._proxy_control.release()
        if self._control.services is not None:
            self._control.services.close(unkillable)
        self._event_log.close(self._head.death_fd if self._head else None)
        self._disk.close()
        if self._head is not None and is_readable(self._head.death_fd):  # it exited in the meantime
            self._remove_group()
        self._selector.close()
        self._signal_pipe.close()
        return exit_code

    def _remove_group(self) -> None:
        self._group.let_out(os.getpid())
        self._group.remove()

    def _end_rest_of_scheduler(self, spared: Collection[int]) -> None:
        """Kill and reap the remaining processes of the scheduler. Block for at most `KILL_PATIENCE_S` seconds.

        Processes remain if a shell started the scheduler. A multithreaded process looks dead (a zombie) once its main
        thread has exited, but it can be reaped only after its last thread has exited.
        """
        deadline_s = time.monotonic() + KILL_PATIENCE_S
        self._reap()
        while not self._childless and (not spared or descendants(spared)) and time.monotonic() < deadline_s:
            signal_everything((), signal.SIGKILL, spared)
            time.sleep(0.005)
            self._reap()


def identity_of(pid: int) -> ProcessId:
    """Return the identity of a process. On a system without /proc, it does not contain the start time."""
    return identify(pid) or ProcessId(pid, 0, os.uname().nodename, "")


def _nothing() -> None:
    """Do nothing. This is the callback for events that only have to wake up the event loop."""
