"""MindSpore's scheduler, the rendezvous of an attempt's ranks, which runs next to rank 0.

MindSpore's workers register with the scheduler in `init()` and unregister when they end. It must run until the last
worker on any server has left. It has no state to save, so it is killed without a grace period as soon as no rank
needs it. An attempt may be over while its scheduler is still running.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.core import env
from launcher.core.events import SchedulerEnded, SchedulerStarted, Trouble
from launcher.core.machine.proc import stat
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.supervise.event_log import EventLog
from launcher.supervise.rank_ends import ALIKE_S, FROM_OUTSIDE
from launcher.supervise.spawn import (
    EXIT_NOT_EXECUTABLE,
    Complaints,
    Program,
    begin_log,
    overlaid,
    spawn,
    write_environment,
)
from launcher.supervise.tree import signal_rank

if TYPE_CHECKING:
    from launcher.supervise.diagnosis.scheduler_failure import SchedulerFailure

ROLE = "MS_SCHED"
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - torch's stores listen there too
_OF_RANKS_ALONE = (env.MS_NODE_ID, env.TLAUNCH_HEARTBEAT_FILE)
LEAVING_S = 30.0  # after the end of rank 0, for ranks that an engine started to unregister
LOOK_S = 0.2
MIN_ALIKE_S = 2.0  # for ranks to fail of the same cause as the scheduler
# Signals for the ranks' programs, and signals of a terminal, which engines handle themselves.
_FORWARDED_BY_ENGINES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGWINCH, signal.SIGURG)
_REAP_S = 1.0  # after SIGKILL, for the process to end


def meeting_place(master_addr: str, master_port: int) -> dict[str, str]:
    """Return the environment variables that hold the address of MindSpore's scheduler.

    The port is the one that torch programs use for their store, which MindSpore programs do not have. MindSpore
    accepts only IP addresses. A name that cannot be resolved is passed on unchanged, and MindSpore reports the error.
    """
    host = master_addr
    with suppress(OSError, UnicodeError):
        host = str(socket.getaddrinfo(master_addr, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    return {env.MS_SCHED_HOST: host, env.MS_SCHED_PORT: str(master_port)}


def patience_s(lived_s: float) -> float:
    """Return the seconds to wait after the scheduler fails, in case ranks fail for the same reason.

    It depends on the scheduler's lifetime `lived_s`: ranks start at the same time, and may take as long to fail.
    """
    return min(max(lived_s, MIN_ALIKE_S), ALIKE_S)


class Scheduler:
    """MindSpore's scheduler for one attempt. It runs on the server of rank 0, if the run needs a scheduler."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._pid: int | None = None  # Invariant: not reaped yet, so the pid cannot have been reused
        self._complaints: Complaints | None = None  # from the child if it cannot execute its program
        self._killed = False
        self._ended: SchedulerEnded | None = None  # if it failed
        self._ended_ns = 0  # since 1970
        self._began_s = time.monotonic()
        self._lived_s = 0.0
        self._is_command = False  # True if it runs the ranks' command, which may fail in the same way in ranks
        self._log, self._log_offset = Path(), 0  # the log, and where the current attempt's part starts

    @property
    def processes(self) -> Collection[int]:
        return () if self._pid is None else (self._pid,)

    @property
    def is_ending(self) -> bool:
        return self._killed and self._pid is not None

    def start(
        self,
        spec: RunSpec,
        ranks: Collection[RankSpec],
        inherited: Mapping[str, str],
        variables: Mapping[str, str],
        attempt: int = 0,
    ) -> None:
        """Start the scheduler if rank 0 is one of `ranks`. The attempt's `variables` override those of rank 0.

        If it cannot be started, it counts as failed.
        """
        rank_0 = next((rank for rank in ranks if rank.global_rank == 0), None)
        if spec.supervision.scheduler is None or rank_0 is None:
            return
        self._is_command = spec.supervision.scheduler == rank_0.argv
        environment = overlaid(inherited, {**rank_0.env, **variables})
        try:
            is_alone = len(ranks) == len(spec.ranks)
            program = _program(spec, environment, is_alone=is_alone, record=self._event_log.record)
            self._log, self._log_offset = program.log, begin_log(program.log, attempt)
            self._complaints = Complaints()
            self._pid = spawn(program, self._complaints)
        except OSError as error:
            self._fail(EXIT_NOT_EXECUTABLE, f"{error.filename or 'cannot create a process'}: {error.strerror}")
        else:
            found = stat(self._pid)
            started = found.started if found else 0
            self._event_log.record(SchedulerStarted(self._pid, started, self._log_offset))

    def note_ends(self, statuses: Mapping[int, int]) -> bool:
        """If the scheduler is one of the reaped processes, record its exit. Return True if the scheduler has failed."""
        if self._pid is None or self._pid not in statuses:
            return False
        pid, self._pid = self._pid, None
        status = statuses[pid]
        if status == 0 and not self._killed:  # as far as it knows, all ranks have left it
            self._event_log.record(SchedulerEnded(pid, status))
        if status == 0 or self._killed:
            return False
        self._fail(status, self._complaints.reason_of(pid) if self._complaints else None, pid)
        return True

    @property
    def has_failed(self) -> bool:
        return self._ended is not None

    @property
    def is_missed(self) -> bool:
        """True if the scheduler has failed, and the time for ranks to fail for the same reason is over."""
        if self._ended is None:
            return False
        if self._ended.reason is not None or -self._ended.status in FROM_OUTSIDE:
            return True
        return time.monotonic() >= self._began_s + self._lived_s + patience_s(self._lived_s)

    def failure(self) -> SchedulerFailure | None:
        if self._ended is None:
            return None
        from launcher.supervise.diagnosis.scheduler_failure import read_scheduler_failure  # noqa: PLC0415 - late

        status, reason, where = self._ended.status, self._ended.reason, (self._log, self._log_offset)
        return read_scheduler_failure(
            status, self._ended_ns, *where, lived_s=self._lived_s, is_command=self._is_command, reason=reason
        )

    def pause(self, *, pauses: bool) -> None:
        self._signal(signal.SIGSTOP if pauses else signal.SIGCONT)

    def kill(self) -> None:
        """Kill the scheduler if it is running. Call this once no rank needs it any more."""
        self._killed = True
        self._signal(signal.SIGKILL)

    def close(self) -> bool:
        """Kill the scheduler and wait until it has exited. Return True if it was running."""
        was_there = self._pid is not None
        self.kill()
        deadline_s = time.monotonic() + _REAP_S
        while self._pid is not None and time.monotonic() < deadline_s:
            with suppress(ChildProcessError):
                if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                    time.sleep(0.005)
                    continue
            self._pid = None
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None
        return was_there

    def _signal(self, number: int) -> None:
        """Send a signal to the process group of the scheduler, whose leader may be a shell."""
        if self._pid is not None:
            signal_rank(self._pid, number)

    def _fail(self, status: int, reason: str | None = None, pid: int | None = None) -> None:
        self._ended = SchedulerEnded(pid, status, reason)
        self._lived_s = time.monotonic() - self._began_s
        self._ended_ns = self._event_log.record(self._ended)


def _program(
    spec: RunSpec,
    of_rank_0: Mapping[str, str],
    *,
    is_alone: bool,
    record: Callable[[Trouble], object] = lambda _trouble: None,
) -> Program:
    """Return the scheduler's program and write its env.log. `is_alone` is True if all ranks are on this server."""
    run_dir = RunDir(spec.run_dir)
    # A machine may resolve its own name to a loopback address, which other servers cannot reach.
    listens_at = of_rank_0[env.MS_SCHED_HOST] if is_alone else EVERY_ADDRESS
    own = {env.MS_ROLE: ROLE, env.MS_SCHED_HOST: listens_at, **dict.fromkeys(_OF_RANKS_ALONE)}
    environment = overlaid(of_rank_0, own)
    run_dir.scheduler.mkdir(exist_ok=True)
    path = run_dir.scheduler / "env.log"
    try:
        write_environment(path, environment)
    except OSError as error:  # start it anyway, like a rank
        record(Trouble(f"cannot write {path}: {error.strerror}"))
    assert spec.supervision.scheduler is not None, "the run has one"
    return Program(spec.supervision.scheduler, environment, spec.cwd, run_dir.scheduler_log)


def start_scheduler(spec: RunSpec, environment: Mapping[str, str]) -> None:
    """Start the scheduler of a run. Call this in the process that is about to become rank 0.

    A child process starts the scheduler and later ends it: engines manage only their own ranks. May raise OSError.
    """
    program = _program(spec, environment, is_alone=len({rank.server_index for rank in spec.ranks}) == 1)
    rank_0 = os.getpid()
    if os.fork() == 0:
        try:
            _see_to_its_end(program, rank_0)
        finally:
            os._exit(0)


def _see_to_its_end(program: Program, rank_0: int) -> None:
    """Start the scheduler and wait until it exits. Kill it `LEAVING_S` seconds after rank 0 has exited."""
    # Otherwise the engine would wait until this process closes the rank's pipes.
    nowhere = os.open(os.devnull, os.O_RDONLY)
    output = os.open(program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, standard in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    for number in _FORWARDED_BY_ENGINES:  # engines send them to the process group, for the rank's program
        signal.signal(number, signal.SIG_IGN)
    complaints = Complaints()
    try:
        pid = spawn(program, complaints)
    except OSError as error:
        os.write(2, f"cannot create a process: {error.strerror}\n".encode())
        return
    deadline_s: float | None = None
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if deadline_s is None and os.getppid() != rank_0:
            deadline_s = time.monotonic() + LEAVING_S
        if deadline_s is not None and time.monotonic() > deadline_s:
            signal_rank(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
    if reason := complaints.reason_of(pid):
        os.write(2, f"{reason}\n".encode(errors="backslashreplace"))
