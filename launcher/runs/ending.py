"""Stop a run from another shell: ask its launcher or agent to end it. If both are gone, end the remaining ranks."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from launcher.core.errors import TlaunchError, UnreadableError
from launcher.core.frozen import frozen
from launcher.core.machine.owner import ROOT, called, uids_of_process
from launcher.core.machine.proc import ProcessId, every_process, is_readable, stat
from launcher.core.records import DEFAULT_GRACE_S
from launcher.logs.terminal import escaped
from launcher.runs.owner import is_of_owner
from launcher.runs.progress import State
from launcher.runs.record import read_recorded
from launcher.runs.status import RunState, RunStatusReader

LOOK_S = 0.5  # between two polls of files; the end of a process is noticed at once
HEARD_S = 2.0  # how long a launcher may take to forward SIGTERM; after that the agent is signalled directly


@frozen
class Orphan:
    """A rank that is still alive after its agent has ended, and the rank's process group."""

    process: ProcessId
    group: int | None  # None if the group may contain other processes
    watcher: int | None  # the parent shell of a rank started by run.sh: leads the group, reports the exit status
    uids: frozenset[int] | None  # users whose processes in the group belong to the run; None: all users

    @classmethod
    def of(cls, process: ProcessId, owner: int | None) -> Orphan:
        """Create an Orphan from the living process of a rank. `owner` is the uid of the run's owner."""
        group, found = _group(process.pid), stat(process.pid)
        watcher = group if found is not None and group == found.parent else None
        uids = None if owner == ROOT else uids_of_process(process.pid)
        return cls(process, group if group == process.pid else watcher, watcher, uids)

    def living(self) -> list[ProcessId]:
        """Return the living processes of the rank and its process group."""
        host, boot = self.process.host, self.process.boot
        others = [
            ProcessId(found.pid, found.started, host, boot)
            for found in (every_process() if self.group is not None else ())
            if found.living
            and found.pid not in (self.process.pid, self.watcher)
            and _group(found.pid) == self.group
            and (self.uids is None or self.uids & uids_of_process(found.pid))
        ]
        return [self.process, *others] if self.process.lives else others


def _group(pid: int) -> int | None:
    with suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return None


class StopOutcome(str, Enum):
    ENDED = "ended"  # it was running, and all its processes have ended
    NOT_RUNNING = "not running"  # there was no process to end
    STILL_ENDING = "still ending"  # signalled, but not over within the timeout
    OUT_OF_REACH = "out of reach"  # on another machine, or of another engine or version: nothing was done


@frozen
class Stopped:
    outcome: StopOutcome
    state: RunState  # after the request
    orphans: tuple[int, ...] = ()  # global ranks that were alive without launcher and agent; sent SIGTERM
    killed: tuple[int, ...] = ()  # orphans that had to be killed
    grace_s: float = DEFAULT_GRACE_S  # grace period of the orphans


class ForeignProcessError(TlaunchError):
    """A run's files name a process of another user. The process was not signalled."""

    def __init__(self, process: ProcessId, state: RunState) -> None:
        users = sorted(uids_of_process(process.pid))
        whose = "different users" if state.owner is None else called(state.owner)
        super().__init__(
            f"run {escaped(state.name)} of {whose} names process {process.pid}, which belongs to "
            f"{called(users[0] if users else None)}: it was not signalled",
            hint=f"inspect the process with `ps -fp {process.pid}`",
        )


def stop(watch: RunStatusReader, *, kill: bool, timeout_s: float | None) -> Stopped:
    """Stop the run and wait up to `timeout_s` seconds until its agent has ended. `kill` skips the grace period.

    The agent ends its ranks and writes the report. If launcher and agent are gone, `stop` ends the ranks. A second
    request is harmless. Raises PermissionError or ForeignProcessError for a process that is not the run owner's.
    """
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    # A run that is starting gets a moment to write the agent's first event.
    state = _look_until(lambda now: now.progress.agent is not None or now.state is not State.STARTING, watch, deadline)
    if state.state in {State.ELSEWHERE, State.UNWATCHED, State.UNKNOWN}:
        return Stopped(StopOutcome.OUT_OF_REACH, state)
    if not _ask_launcher(state, kill=kill):
        return _end_orphans(watch, watch.look(), deadline, kill=kill)
    if not kill and not _is_ending(_look_until(_is_ending, watch, deadline)):
        _ask(state.progress.agent, signal.SIGTERM, state)
    gone = _wait(watch, deadline)
    return Stopped(StopOutcome.ENDED if gone else StopOutcome.STILL_ENDING, watch.look())


def _look_until(reached: Callable[[RunState], bool], watch: RunStatusReader, deadline: float) -> RunState:
    """Poll the run until `reached` returns True, but at most for `HEARD_S` seconds. Return the last state."""
    limit = min(deadline, time.monotonic() + HEARD_S)
    while not reached(state := watch.look()) and time.monotonic() < limit:
        time.sleep(LOOK_S / 20)
    return state


def _is_ending(state: RunState) -> bool:
    stopping = state.progress.current.ending.stopping
    return state.state.over or (stopping is not None and not stopping.restarts)


def send(process: ProcessId, number: int) -> bool:
    """Send a signal and then SIGCONT to a process. Return False if the process is gone. Raises OSError."""
    with _handle(process) as descriptor:
        if descriptor is None or not process.lives:  # checked after opening the handle: both refer to the same process
            return False
        for each in (number, signal.SIGCONT):
            if descriptor >= 0 and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(descriptor, each)
            else:
                os.kill(process.pid, each)
    return True


def _end_orphans(watch: RunStatusReader, state: RunState, deadline: float, *, kill: bool) -> Stopped:
    """End the living ranks of a run whose launcher and agent are gone: SIGTERM, then SIGKILL after the grace period."""
    living = {look.global_rank: look.process for look in state.ranks if look.process and look.process.lives}
    if not living or state.state is not State.LOST:
        return Stopped(StopOutcome.NOT_RUNNING, state)
    for global_rank, process in living.items():
        _check_owner(process, state, state.run_dir.train_log(global_rank))
    orphans = {global_rank: Orphan.of(process, state.owner) for global_rank, process in living.items()}
    grace_s = 0.0
    if not kill:
        grace_s = DEFAULT_GRACE_S
        with suppress(UnreadableError):
            grace_s = read_recorded(watch.run_dir).grace_s
        _ask_all(orphans, signal.SIGTERM)
        _wait_for_ends(orphans, min(deadline, time.monotonic() + grace_s))
    stubborn = [global_rank for global_rank, each in orphans.items() if each.process.lives]
    if kill or time.monotonic() < deadline:
        _ask_all(orphans, signal.SIGKILL)
        _wait_for_ends(orphans, deadline)
    else:
        stubborn = []
    outcome = StopOutcome.STILL_ENDING if any(each.living() for each in orphans.values()) else StopOutcome.ENDED
    return Stopped(outcome, watch.look(), tuple(orphans), tuple(stubborn), grace_s)


def _ask_all(orphans: Mapping[int, Orphan], number: int) -> None:
    for each in orphans.values():
        for process in each.living():
            with suppress(ProcessLookupError):  # gone since we looked
                send(process, number)


def _wait_for_ends(orphans: Mapping[int, Orphan], deadline: float) -> None:
    for each in orphans.values():
        while (living := each.living()) and (left_s := deadline - time.monotonic()) > 0:
            _wait_for_end(living[0], min(LOOK_S, left_s))


def _ask_launcher(state: RunState, *, kill: bool) -> bool:
    """Ask the launcher or the agent to end the run. Return False if both are gone. `kill` skips the grace period."""
    agent, head = state.progress.agent, state.progress.head
    if not kill:
        return _ask(head, signal.SIGTERM, state) or _ask(agent, signal.SIGTERM, state)
    if _ask(agent, signal.SIGQUIT, state):
        return True
    # A launcher without an agent is ending the agent's remaining processes.
    return _ask(head, signal.SIGQUIT, state)


def _ask(process: ProcessId | None, number: int, state: RunState) -> bool:
    """Send signal `number` to the run's launcher or agent; return False if that process is gone."""
    if process is None or not process.lives:
        return False
    _check_owner(process, state, state.run_dir.events)
    with suppress(ProcessLookupError):  # gone since we looked
        return send(process, number)
    return False


def _check_owner(process: ProcessId, state: RunState, file: Path) -> None:
    """Raise an error if a living process does not belong to the run's owner.

    Raises PermissionError if the run belongs to another user than the caller, and otherwise ForeignProcessError.
    """
    if is_of_owner(process, state.owner, file) or not process.lives:
        return
    if os.geteuid() not in {ROOT, state.owner}:
        raise PermissionError
    raise ForeignProcessError(process, state)


def _wait(watch: RunStatusReader, deadline: float) -> bool:
    """Wait until the run is over and its agent has ended. Return False if the deadline passes first."""
    while True:
        state = watch.look()
        agent = state.progress.agent
        living = agent is not None and agent.lives
        if state.state.over and not living:
            return True
        left_s = min(LOOK_S, deadline - time.monotonic())
        if left_s <= 0:
            return False
        if agent is not None and living:
            _wait_for_end(agent, left_s)
        else:
            time.sleep(left_s / 10)  # the launcher is still working


def _wait_for_end(process: ProcessId, limit_s: float) -> None:
    with _handle(process) as descriptor:
        if descriptor is None or descriptor < 0:
            time.sleep(min(limit_s, LOOK_S / 10))
        elif process.lives:
            is_readable(descriptor, limit_s)


@contextmanager
def _handle(process: ProcessId) -> Iterator[int | None]:
    """Yield a pidfd of a process, None if the process does not exist, or -1 if pidfds are not supported."""
    descriptor: int | None = -1  # if it is not Linux, a kernel before 5.3, or a sandbox that forbids it
    try:
        descriptor = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
    except ProcessLookupError:
        descriptor = None
    except OSError:
        pass
    try:
        yield descriptor
    finally:
        if descriptor is not None and descriptor >= 0:
            os.close(descriptor)
