"""End a run from another shell: ask its launcher, wait for its agent, and never signal another process by mistake."""

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

LOOK_S = 0.5  # between two looks of a wait at files; a process that ends is noticed at once
HEARD_S = 2.0  # a head passes SIGTERM on at once; one that hangs or ignores it is passed over then


@frozen
class Orphan:
    """A rank, and the process group that is its own: what runs there belongs to it, also after its end."""

    process: ProcessId
    group: int | None  # None where others may be in its group
    watcher: int | None  # leads the group of a rank of a run.sh; it reports how that ended, and ends with it
    uids: frozenset[int] | None  # users whose processes in the group are the run's; None: all users'

    @classmethod
    def of(cls, process: ProcessId, owner: int | None) -> Orphan:
        """Return the rank whose own process this living one is, of a run of this owner."""
        group, found = _group(process.pid), stat(process.pid)
        uids = None if owner == ROOT else uids_of_process(process.pid)
        if group == process.pid:
            return cls(process, group, None, uids)
        if found is not None and group == found.parent:
            return cls(process, group, group, uids)
        return cls(process, None, None, uids)

    def living(self) -> list[ProcessId]:
        """Return the living processes of the rank and its group."""
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
    ENDED = "ended"  # it ran, and nothing of it runs any more
    NOT_RUNNING = "not running"  # there was nothing to end
    STILL_ENDING = "still ending"  # asked, but the time to wait is over
    OUT_OF_REACH = "out of reach"  # of another machine, engine or version: nothing was done


@frozen
class Stopped:
    """The outcome of a request to end a run."""

    outcome: StopOutcome
    state: RunState  # afterwards
    orphans: tuple[int, ...] = ()  # global ranks that lived without launcher and agent, and were asked to end
    killed: tuple[int, ...] = ()  # those of them that had to be killed
    grace_s: float = DEFAULT_GRACE_S  # that orphans had


class ForeignProcessError(TlaunchError):
    """A run's files name a process that does not belong to the run's owner. It was not signalled."""

    def __init__(self, process: ProcessId, state: RunState) -> None:
        users = sorted(uids_of_process(process.pid))
        whose = "different users" if state.owner is None else called(state.owner)
        super().__init__(
            f"run {escaped(state.name)} of {whose} names process {process.pid}, which belongs to "
            f"{called(users[0] if users else None)}: it was not signalled",
            hint=f"`ps -fp {process.pid}` shows it",
        )


def stop(watch: RunStatusReader, *, kill: bool, timeout_s: float | None) -> Stopped:
    """Ask the run to end (`kill`: without grace) and wait until its agent has gone, `timeout_s` at most.

    The agent ends ranks by its one rule and writes the report; ranks without an agent are ended by the same rule here.
    Asking twice is harmless.

    Raises:
        PermissionError: the run belongs to another user.
        ForeignProcessError: the run's files name a process that does not belong to the run's owner.
    """
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    # A run that is being started gets a moment in which its agent writes its first event.
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
    """Look at the run until `reached`, for HEARD_S at most. Return its last state."""
    limit = min(deadline, time.monotonic() + HEARD_S)
    while not reached(state := watch.look()) and time.monotonic() < limit:
        time.sleep(LOOK_S / 20)
    return state


def _is_ending(state: RunState) -> bool:
    stopping = state.progress.current.ending.stopping
    return state.state.over or (stopping is not None and not stopping.restarts)


def send(process: ProcessId, number: int) -> bool:
    """Signal exactly this process, continued if it was stopped; False if it has gone, whatever has its pid now.

    Raises:
        PermissionError: it belongs to another user.
    """
    with _handle(process) as descriptor:
        if descriptor is None or not process.lives:  # looked at after the handle was taken: both mean one process
            return False
        for each in (number, signal.SIGCONT):
            if descriptor >= 0 and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(descriptor, each)
            else:
                os.kill(process.pid, each)
    return True


def _end_orphans(watch: RunStatusReader, state: RunState, deadline: float, *, kill: bool) -> Stopped:
    """End ranks of a lost run that outlived launcher and agent, though the kernel should have ended them."""
    living = {look.global_rank: look.process for look in state.ranks if look.process and look.process.lives}
    if not living or state.state is not State.LOST:
        return Stopped(StopOutcome.NOT_RUNNING, state)
    for global_rank, process in living.items():
        _check_owner(process, state, state.run_dir.train_log(global_rank))
    orphans = {global_rank: Orphan.of(process, state.owner) for global_rank, process in living.items()}
    grace_s = 0.0
    if not kill:
        try:
            grace_s = read_recorded(watch.run_dir).grace_s
        except UnreadableError:
            grace_s = DEFAULT_GRACE_S
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
    """Signal the launcher, or the agent where that has gone; return False where both have gone."""
    agent, head = state.progress.agent, state.progress.head
    if not kill:
        return _ask(head, signal.SIGTERM, state) or _ask(agent, signal.SIGTERM, state)
    if _ask(agent, signal.SIGQUIT, state):
        return True
    # A launcher without an agent is ending what that left.
    if not _ask(head, signal.SIGINT, state):
        return False
    time.sleep(LOOK_S / 5)  # two signals of one number that come at once count as one
    _ask(head, signal.SIGINT, state)
    return True


def _ask(process: ProcessId | None, number: int, state: RunState) -> bool:
    """Signal the run's launcher or agent; return False if it has gone."""
    if process is None or not process.lives:
        return False
    _check_owner(process, state, state.run_dir.events)
    with suppress(ProcessLookupError):  # gone since we looked
        return send(process, number)
    return False


def _check_owner(process: ProcessId, state: RunState, file: Path) -> None:
    """Refuse a living process that is not the run's owner's. `file`: one of the run's that it writes to.

    Raises:
        PermissionError: the run belongs to another user.
        ForeignProcessError: the process does.
    """
    if is_of_owner(process, state.owner, file) or not process.lives:
        return
    if os.geteuid() not in {ROOT, state.owner}:
        raise PermissionError
    raise ForeignProcessError(process, state)


def _wait(watch: RunStatusReader, deadline: float) -> bool:
    """Wait until the run is over and its agent has gone, or the deadline. Return True if it has gone."""
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
            time.sleep(left_s / 10)  # its head is still at work


def _wait_for_end(process: ProcessId, limit_s: float) -> None:
    """Return as soon as it has gone, after `limit_s` at the latest."""
    with _handle(process) as descriptor:
        if descriptor is None or descriptor < 0:
            time.sleep(min(limit_s, LOOK_S / 10))
        elif process.lives:
            is_readable(descriptor, limit_s)


@contextmanager
def _handle(process: ProcessId) -> Iterator[int | None]:
    """Yield a descriptor of one process, whatever becomes of its pid; None if there is no such pid, -1 without support."""
    if not hasattr(os, "pidfd_open"):
        yield -1
        return
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    except OSError:  # a kernel before 5.3, or a sandbox that forbids it
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
