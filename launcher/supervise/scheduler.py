"""MindSpore's scheduler: the process at which the ranks of one attempt find each other, beside rank 0.

MindSpore's workers register with it in `init()`, and leave it again when they end. It does so until the last one has
left, on whichever server that is; nothing that it knows is worth a grace period. So it is killed, not asked to end, as
soon as no rank needs it, and an attempt is over although it is still there.
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
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - as the stores of torch listen
_OF_RANKS_ALONE = (env.MS_NODE_ID, env.TLAUNCH_HEARTBEAT_FILE)
LEAVING_S = 30.0  # for ranks that an engine has started to leave it, once rank 0 has ended
LOOK_S = 0.2
MIN_ALIKE_S = 2.0  # for ranks to fail of what the scheduler has failed of
# Signals for the programs of ranks, and those of a terminal, which engines turn into an end of their own.
_FORWARDED_BY_ENGINES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGWINCH, signal.SIGURG)
_REAP_S = 1.0  # for a process that has got SIGKILL


def meeting_place(master_addr: str, master_port: int) -> dict[str, str]:
    """Return the variables that tell ranks where the scheduler of an attempt is. Blocks while a name is looked up.

    It listens where programs of torch have their store, of which no program of MindSpore makes one. MindSpore takes
    addresses alone; a name that this machine does not know is left to it, to complain of.
    """
    host = master_addr
    with suppress(OSError, UnicodeError):
        host = str(socket.getaddrinfo(master_addr, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    return {env.MS_SCHED_HOST: host, env.MS_SCHED_PORT: str(master_port)}


def patience_s(lived_s: float) -> float:
    """Return for how many seconds ranks may still fail of what a scheduler has failed of that lived for `lived_s`.

    They began at one moment with it, and may do as slowly what it did.
    """
    from launcher.supervise.diagnosis.root_cause import ALIKE_S  # noqa: PLC0415 - as the collector

    return min(max(lived_s, MIN_ALIKE_S), ALIKE_S)


class Scheduler:
    """The scheduler of one attempt; of a run, or on a server, that has none, one that never lives."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._pid: int | None = None  # Invariant: not reaped yet, so the pid is its own
        self._complaints: Complaints | None = None  # of the child, should it not become its program
        self._killed = False
        self._ended: SchedulerEnded | None = None  # where it failed
        self._ended_ns = 0  # since 1970
        self._began_s = time.monotonic()
        self._lived_s = 0.0
        self._is_command = False  # that of the ranks, which has started it: it may fail of what they fail of
        self._log, self._log_offset = Path(), 0  # where the present attempt's part of it begins

    @property
    def processes(self) -> Collection[int]:
        """The scheduler's pid while it lives: no leftover of ranks."""
        return () if self._pid is None else (self._pid,)

    @property
    def is_ending(self) -> bool:
        """True if the scheduler was killed, and has not gone yet."""
        return self._killed and self._pid is not None

    def start(
        self,
        spec: RunSpec,
        ranks: Collection[RankSpec],
        inherited: Mapping[str, str],
        variables: Mapping[str, str],
        attempt: int = 0,
    ) -> None:
        """Start the scheduler if rank 0 is one of `ranks`; their `variables` of this attempt are laid over those of its spec.

        One that cannot be started has failed.
        """
        rank_0 = next((rank for rank in ranks if rank.global_rank == 0), None)
        if spec.supervision.scheduler is None or rank_0 is None:
            return
        self._is_command = spec.supervision.scheduler == rank_0.argv
        environment = overlaid(inherited, {**rank_0.env, **variables})
        try:
            is_alone = len(ranks) == len(spec.ranks)
            program = _program(
                spec.supervision.scheduler, spec, environment, is_alone=is_alone, record=self._event_log.record
            )
            self._log, self._log_offset = program.log, begin_log(program.log, attempt)
            self._complaints = Complaints()
            self._pid = spawn(program, self._complaints)
        except OSError as error:
            self._fail(EXIT_NOT_EXECUTABLE, f"{error.filename or 'no process could be made'}: {error.strerror}")
        else:
            found = stat(self._pid)
            started = found.started if found else 0
            self._event_log.record(SchedulerStarted(self._pid, started, self._log_offset))

    def note_ends(self, statuses: Mapping[int, int]) -> bool:
        """Take note of processes that have been reaped, by pid; return whether it has failed now."""
        if self._pid is None or self._pid not in statuses:
            return False
        pid, self._pid = self._pid, None
        status = statuses[pid]
        if self._killed:
            return False
        if status == 0:  # all ranks have left it, as far as it knows
            self._event_log.record(SchedulerEnded(pid, status))
            return False
        self._fail(status, self._complaints.reason_of(pid) if self._complaints else None, pid)
        return True

    @property
    def has_failed(self) -> bool:
        return self._ended is not None

    @property
    def is_missed(self) -> bool:
        """True if the scheduler has failed, and ranks have had time to fail of the same by themselves."""
        if self._ended is None:
            return False
        from launcher.supervise.diagnosis.evidence import FROM_OUTSIDE  # noqa: PLC0415 - as the collector

        if self._ended.reason is not None or -self._ended.status in FROM_OUTSIDE:
            return True
        return time.monotonic() >= self._began_s + self._lived_s + patience_s(self._lived_s)

    def failure(self) -> SchedulerFailure | None:
        """Return how the scheduler failed, with what its log tells of that; None where it has not."""
        if self._ended is None:
            return None
        from launcher.supervise.diagnosis.scheduler_failure import read_scheduler_failure  # noqa: PLC0415 - as the collector

        ended = self._ended
        return read_scheduler_failure(
            ended.status,
            self._ended_ns,
            self._log,
            self._log_offset,
            lived_s=self._lived_s,
            is_command=self._is_command,
            reason=ended.reason,
        )

    def pause(self, *, pauses: bool) -> None:
        """Stop the scheduler with the ranks, which could not answer it, or continue it."""
        self._signal(signal.SIGSTOP if pauses else signal.SIGCONT)

    def kill(self) -> None:
        """End the scheduler: no rank needs it any more. May be called at any time."""
        self._killed = True
        self._signal(signal.SIGKILL)

    def close(self) -> bool:
        """End the scheduler, and wait until it has gone; return whether it was there."""
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
        """Signal the process group: its first process may be a shell that has started the scheduler itself."""
        if self._pid is not None:
            signal_rank(self._pid, number)

    def _fail(self, status: int, reason: str | None = None, pid: int | None = None) -> None:
        self._ended = SchedulerEnded(pid, status, reason)
        self._lived_s = time.monotonic() - self._began_s
        self._ended_ns = self._event_log.record(self._ended)


def _program(
    argv: tuple[str, ...],
    spec: RunSpec,
    of_rank_0: Mapping[str, str],
    *,
    is_alone: bool,
    record: Callable[[Trouble], object] = lambda _trouble: None,
) -> Program:
    """Return what to start, and write its environment. `is_alone`: all ranks are on this server.

    Raises:
        OSError: its directory cannot be made.
    """
    run_dir = RunDir(spec.run_dir)
    # A machine may know its own name by a loopback address, at which ranks of other servers do not reach it.
    listens_at = of_rank_0[env.MS_SCHED_HOST] if is_alone else EVERY_ADDRESS
    own = {env.MS_ROLE: ROLE, env.MS_SCHED_HOST: listens_at, **dict.fromkeys(_OF_RANKS_ALONE)}
    environment = overlaid(of_rank_0, own)
    run_dir.scheduler.mkdir(exist_ok=True)
    path = run_dir.scheduler / "env.log"
    try:
        write_environment(path, environment)
    except OSError as error:  # it starts all the same, as a rank does
        record(Trouble(f"cannot write {path}: {error.strerror}"))
    return Program(argv, environment, spec.cwd, run_dir.scheduler_log)


def start_scheduler(spec: RunSpec, environment: Mapping[str, str]) -> None:
    """Start the scheduler beside this process, which is to become rank 0 and has that environment. Call it last.

    A child of this process starts it and sees to its end: nobody else would, since engines know of their ranks alone.

    Raises:
        OSError: it cannot be started.
    """
    assert spec.supervision.scheduler is not None, "the run has one"
    is_alone = len({rank.server_index for rank in spec.ranks}) == 1
    program = _program(spec.supervision.scheduler, spec, environment, is_alone=is_alone)
    rank_0 = os.getpid()
    if os.fork() == 0:
        try:
            _see_to_its_end(program, rank_0)
        finally:
            os._exit(0)


def _see_to_its_end(program: Program, rank_0: int) -> None:
    """Start the scheduler, and kill it once rank 0 has ended and the others have had time to leave it."""
    _use_as_output(program.log)  # the engine waits until nobody holds the pipes of its rank any more
    for number in _FORWARDED_BY_ENGINES:  # to the process group of their rank, whose program may act on them
        signal.signal(number, signal.SIG_IGN)
    complaints = Complaints()
    try:
        pid = spawn(program, complaints)
    except OSError as error:
        os.write(2, f"no process could be made: {error.strerror}\n".encode())
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


def _use_as_output(log: Path) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, standard in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
