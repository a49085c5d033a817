"""A forked child of the launcher, tied to it by two pipes: the agent of this machine, or the coordinator of all agents."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.core.errors import EXIT_FAILURE, exit_code_of
from launcher.core.events import TimestampedEvent, from_line
from launcher.core.machine.proc import PROC
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.supervise.port import HeldPort
from launcher.supervise.spawn import become_subreaper, keep_descriptors_private
from launcher.supervise.tree import RunGroup, forget_bystanders, spare_bystanders
from launcher.supervise.watcher import Watcher

if TYPE_CHECKING:
    from launcher.control.orders import BeginAttempt
    from launcher.supervise.agent import LauncherLink
    from launcher.supervise.link import Link
    from launcher.supervise.mpi_proxy import MpiProxies
    from launcher.supervise.spawner import SpecifyAttempt

THIS_SERVER = 0


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Hold back all signals until the end of the block, so that their handlers can be installed first."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class LocalAgent:
    """The launcher's handle for the agent process of this machine, or for the coordinator process."""

    def __init__(self, pid: int, events_fd: int, life_fd: int, group: RunGroup, watcher: Watcher | None = None) -> None:
        self.pid = pid
        self.group = group  # it and its descendants
        self._events_fd = events_fd
        self._life_fd = life_fd  # only this process has the write end open: the agent notices when it closes
        self._partial = b""
        self._gone = False  # already reaped: another process may have the pid
        self._watcher = watcher

    def fileno(self) -> int:
        return self._events_fd

    def read(self) -> list[TimestampedEvent] | None:
        """Block until there are events, and return them. Return None after the last event."""
        chunk = os.read(self._events_fd, 1 << 16)
        if not chunk:
            return None
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return [stamped for line in lines if (stamped := from_line(line))]

    def signal(self, number: int) -> None:
        """Forward a signal to the agent. It is safe to call this in a signal handler.

        SIGINT, SIGTERM and SIGHUP end the run with the grace period. SIGQUIT ends it now. SIGTSTP and SIGCONT pause and
        continue the ranks. Other signals are passed to the ranks.
        """
        if not self._gone:
            os.kill(self.pid, number)
            if number != signal.SIGTSTP:
                os.kill(self.pid, signal.SIGCONT)  # a stopped agent cannot handle it, nor can stopped ranks

    def wait(self) -> int:
        self._gone = True  # set before it is reaped, since a signal handler may run in between
        _, status = os.waitpid(self.pid, 0)
        os.close(self._events_fd)
        os.close(self._life_fd)
        return exit_code_of(os.waitstatus_to_exitcode(status))

    def forget(self) -> None:
        self.group.remove()
        if self._watcher is not None:
            self._watcher.dismiss()


def start_agent(
    spec: RunSpec,
    port: HeldPort | None = None,
    *,
    server_index: int = THIS_SERVER,
    link: Link | None = None,
    first: BeginAttempt | None = None,
    members: MpiProxies | None = None,
    specify: SpecifyAttempt | None = None,
) -> LocalAgent:
    """Fork the agent of this machine. Call it inside `signals_held_back`, before any thread is started.

    `first`: as in `Agent`. `specify` gives the spec of an attempt of an elastic run. The agent keeps `port`, `link` and
    `members`; this process closes them. This process becomes a subreaper, so that no process is lost even if the agent
    is killed.
    Raises OSError if a process or pipe could not be created.
    """
    facts = {"port": port, "link": link, "first": first, "members": members, "specify": specify}
    run_dir = RunDir(spec.run_dir, None if link is None else server_index)
    watcher = None
    with suppress(OSError):  # the run continues without
        watcher = Watcher(run_dir) if PROC.is_dir() else None
    keeps_stdin = spec.stdin is not None
    agent = start_child(
        lambda head: _supervise(spec, server_index, head, facts), run_dir, watcher, keeps_stdin=keeps_stdin
    )
    for kept in (port, link, members):
        if kept is not None:
            kept.close()
    return agent


def _supervise(spec: RunSpec, server_index: int, head: LauncherLink, facts: Mapping[str, Any]) -> int:
    from launcher.supervise.agent import Agent  # noqa: PLC0415 - the launcher continues without it meanwhile

    return Agent(spec, server_index, inherited=os.environ, head=head, **facts).run()


def start_child(
    work: Callable[[LauncherLink], int], run_dir: RunDir, watcher: Watcher | None = None, *, keeps_stdin: bool = False
) -> LocalAgent:
    """Fork a process that runs `work` and exits with its result. The conditions of `start_agent` apply.

    The process keeps this process's stdin if `keeps_stdin` is set, and its stdin is /dev/null otherwise.
    """
    spare_bystanders()
    become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored from the start, it would leave no child to wait for
    events_reader, events_writer = os.pipe()
    life_reader, life_writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    head_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(events_reader)
        os.close(life_writer)
        _be_child(work, run_dir, head_pid, life_reader, events_writer, keeps_stdin=keeps_stdin)
    os.close(events_writer)
    os.close(life_reader)
    group = RunGroup(pid)
    group.take_in(pid)
    return LocalAgent(pid, events_reader, life_writer, group, watcher)


def _be_child(
    work: Callable[[LauncherLink], int],
    run_dir: RunDir,
    head_pid: int,
    life_fd: int,
    events_fd: int,
    *,
    keeps_stdin: bool,
) -> NoReturn:
    exit_code = EXIT_FAILURE
    try:
        os.setsid()  # Ctrl-C in a terminal is for the launcher only
        become_subreaper()
        forget_bystanders()
        # If the agent outlives its launcher, it must not keep a pipe open that someone reads.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (1, 2) if keeps_stdin else (0, 1, 2):
            os.dup2(nowhere, standard)
        os.close(nowhere)
        keep_descriptors_private()
        from launcher.supervise.agent import LauncherLink  # noqa: PLC0415 - the launcher continues without it meanwhile

        exit_code = work(LauncherLink(death_fd=life_fd, events_fd=events_fd, pid=head_pid))
    except BaseException:  # noqa: BLE001 - logged; the launcher then sees that the agent is gone
        os.close(0)  # the cause may be too many open files
        with suppress(OSError), run_dir.agent_log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(exit_code)
