"""Every process below this one: reap it, ask it to end, kill it.

Because agents are subreapers, a descendant can neither leave the tree by a double fork nor by a session of its own;
and "no child is left" means "nothing is left". The head may have children that are none of the run's: `bystanders`.
Nothing is imported when something has to be ended: that is no time to find out what an import does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress

from launcher.core.proc import PROC, Stat, every_process

FIRST_KILL_AGAIN_S = 0.02
LAST_KILL_AGAIN_S = 1.0
KILL_PATIENCE_S = 10.0  # a process that is still there so long after SIGKILL waits inside the kernel


class _Bystanders:
    """Descendants of this process from before the run (`sh -c 'other & exec tlaunch'`), and theirs.

    An orphan among them comes to this process like one of the run's. Its session tells them apart: the agent starts
    in one of its own, and no process can enter a session that is there already.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._processes: set[tuple[int, int]] = set()
        self._sessions: set[int] = set()

    def note(self) -> None:
        before = _below()
        self._processes = {(process.pid, process.started) for process in before}
        self._sessions = {os.getsid(0), *(process.session for process in before)}

    def __contains__(self, process: Stat) -> bool:
        return (process.pid, process.started) in self._processes or process.session in self._sessions


_bystanders = _Bystanders()  # of this process, like its being a subreaper


def spare_bystanders() -> None:
    """Leave whatever is below this process now, and the rest of its session, out of all that follows.

    Call before the fork of an agent.
    """
    _bystanders.note()


def forget_bystanders() -> None:
    """Forget the launcher's bystanders in an agent: they are not below it, and their pids may be used again."""
    _bystanders.forget()


class NothingLeft(Exception):  # noqa: N818 - not an error: it ends a loop
    """There is no child, so there is no descendant either (where subreapers exist)."""


def reap() -> Iterator[tuple[int, int]]:
    """Collect every child that has ended: pid, and status as in subprocess. Does not block.

    Raises:
        NothingLeft: at the end, when there is no child at all.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            raise NothingLeft from None
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def something_left() -> bool:
    """Reap, and look whether anything but bystanders is left.

    The look is exact, since only this reaps this process's children: whatever is below one of them is found below
    it, if only below its zombie.
    """
    try:
        for _ in reap():
            pass
    except NothingLeft:
        return False
    return not PROC.is_dir() or bool(_below(_bystanders))


def descendants(spared: Collection[int] = ()) -> list[int]:
    """Return the pid of every living process below this one, without bystanders, and without `spared` and what is below them.

    Empty if there is no /proc.
    """
    return [process.pid for process in _below(_bystanders, spared) if process.living]


def _below(bystanders: _Bystanders | None = None, spared: Collection[int] = ()) -> list[Stat]:
    """Every process below this one, zombies too, but none that is left out or below one that is."""
    if _childless():  # the usual answer before a run; a look at every process of a large server takes its time
        return []
    children: dict[int, list[Stat]] = {}
    for process in every_process():
        if process.pid not in spared and (bystanders is None or process not in bystanders):
            children.setdefault(process.parent, []).append(process)
    found = children.pop(os.getpid(), [])
    for process in found:  # grows meanwhile
        found += children.pop(process.pid, [])
    return found


def _childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def signal_group(leader: int, number: int) -> bool:
    """Signal the process group that `leader`, a child not reaped yet, leads. False where there is none (yet)."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_rank(leader: int, number: int) -> None:
    """Signal a rank's process group; where it does not lead one yet, the rank alone."""
    if not signal_group(leader, number):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(leader, number)


def signal_everything(leaders: Iterable[int], number: int, spared: Collection[int] = ()) -> None:
    """Signal the groups of `leaders`, then every other descendant that is not spared.

    Groups first: that is one atomic step for each, and needs no look around. A stopped process is continued, since it
    could not act on the signal otherwise.
    """
    reached = {leader for leader in leaders if signal_group(leader, number)}
    for leader in reached:
        signal_group(leader, signal.SIGCONT)
    for pid in descendants(spared):
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) not in reached:
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)


class Ending:
    """The one rule by which processes are ended: SIGTERM, `grace_s` seconds, then SIGKILL until nothing is left.

    It never waits: its owner sleeps until `timeout_s` has passed or a child has ended, reaps, and calls `step`.
    `spared` processes live on, until somebody empties that set. `kill_group` may kill many at once (a cgroup).
    """

    def __init__(
        self,
        grace_s: float,
        leaders: Callable[[], Iterable[int]],
        *,
        on_kill: Callable[[int], object] = lambda _count: None,
        kill_group: Callable[[], object] = lambda: None,
        spared: Collection[int] = (),
    ) -> None:
        self._leaders = leaders
        self._on_kill = on_kill
        self._kill_group = kill_group
        self.spared = spared
        self._kill_again_s = FIRST_KILL_AGAIN_S
        self._killing_since: float | None = None
        self._deadline = time.monotonic() + grace_s
        self.killed = 0
        signal_everything(leaders(), signal.SIGTERM, spared)

    @property
    def timeout_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    @property
    def in_vain(self) -> bool:
        """True if something has outlived SIGKILL for so long that waiting for it makes no sense."""
        return self._killing_since is not None and time.monotonic() - self._killing_since > KILL_PATIENCE_S

    def end_too(self, pid: int) -> None:
        """End a rank that appeared only now, like the rest."""
        signal_rank(pid, signal.SIGTERM)

    def kill_now(self) -> None:
        """Let no grace period pass."""
        if self._killing_since is None:
            self._deadline = time.monotonic()

    def hurry(self, grace_s: float) -> None:
        """Let no more of the grace period pass than that."""
        if self._killing_since is None:
            self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def step(self) -> None:
        """Kill whatever is left if it is time to. New descendants may appear meanwhile, hence again and again."""
        if self.timeout_s > 0:
            return
        if self._killing_since is None:
            self._killing_since = time.monotonic()
            self.killed = len(descendants(self.spared))
            self._on_kill(self.killed)
        self._kill_group()
        signal_everything(self._leaders(), signal.SIGKILL, self.spared)
        self._deadline = time.monotonic() + self._kill_again_s
        self._kill_again_s = min(2 * self._kill_again_s, LAST_KILL_AGAIN_S)
