"""Every process below this one: reap it, ask it to end, kill it, by signals or by a control group of the run's own.

Because agents are subreapers, a descendant can neither leave the tree by a double fork nor by a session of its own;
and "no child is left" means "nothing is left". The launcher may have children that are not the run's: `bystanders`.
Nothing is imported when something has to be ended: that is no time to find out what an import does.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core.machine.proc import PROC, Stat, every_process, own_directory

FIRST_KILL_AGAIN_S = 0.02
LAST_KILL_AGAIN_S = 1.0
KILL_PATIENCE_S = 10.0  # a process that is still there that long after SIGKILL waits inside the kernel
_MEMBERS = "cgroup.procs"
_PREFIX = "tlaunch-"  # then the namespace of pids and the pid of an agent
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_FORGOTTEN_AFTER_S = 60.0  # younger ones may be about to be used, by an agent that a container hides from us


class _Bystanders:
    """Descendants of this process from before the run (`sh -c 'other & exec tlaunch'`), and theirs.

    An orphan among them comes to this process like one of the run's. Its session tells them apart: the agent starts
    in one of its own, and no process can enter a session that is there already.
    """

    def __init__(self) -> None:
        self.processes: set[tuple[int, int]] = set()
        self.sessions: set[int] = set()

    def __contains__(self, process: Stat) -> bool:
        return (process.pid, process.started) in self.processes or process.session in self.sessions


_bystanders = _Bystanders()  # of this process, like its being a subreaper


def spare_bystanders() -> None:
    """Leave whatever is below this process now, and the rest of its session, out of all that follows.

    Call before the fork of an agent.
    """
    before = _below()
    _bystanders.processes = {(process.pid, process.started) for process in before}
    _bystanders.sessions = {os.getsid(0), *(process.session for process in before)}


def forget_bystanders() -> None:
    """Forget the launcher's bystanders in an agent: they are not below it, and their pids may be used again."""
    _bystanders.processes, _bystanders.sessions = set(), set()


class NothingLeft(Exception):  # noqa: N818 - not an error: it ends a loop
    """There is no child, so there is no descendant either (if subreapers exist)."""


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
    """Return every process below this one, zombies too, but none that is left out or below one that is."""
    try:  # No child is the usual answer before a run, and a look at every process of a large server takes its time.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    children: dict[int, list[Stat]] = {}
    for process in every_process():
        if process.pid not in spared and (bystanders is None or process not in bystanders):
            children.setdefault(process.parent, []).append(process)
    found = children.pop(os.getpid(), [])
    for process in found:  # grows meanwhile
        found += children.pop(process.pid, [])
    return found


def signal_group(leader: int, number: int) -> bool:
    """Signal the process group that `leader`, a child not reaped yet, leads. Return False if there is none (yet)."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_rank(leader: int, number: int) -> None:
    """Signal a rank's process group, or the rank alone if it does not lead one yet."""
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
    `spared` processes live on, until that set is emptied. `kill_group` may kill many at once (a cgroup).
    """

    def __init__(
        self,
        grace_s: float | None,
        leaders: Callable[[], Iterable[int]],
        *,
        on_kill: Callable[[int], object] = lambda _count: None,
        kill_group: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin at once, unless `grace_s` is None: then with `begin`. Until that, requests to hurry are ignored."""
        self._leaders = leaders
        self._on_kill = on_kill
        self._kill_group = kill_group
        self._kill_again_s = FIRST_KILL_AGAIN_S
        self._killing_since: float | None = None
        self._deadline: float | None = None  # None: not begun
        self.spared: Collection[int] = ()
        self.killed = 0
        if grace_s is not None:
            self.begin(grace_s)

    def begin(self, grace_s: float) -> None:
        self._deadline = time.monotonic() + grace_s
        signal_everything(self._leaders(), signal.SIGTERM, self.spared)

    @property
    def has_started(self) -> bool:
        return self._deadline is not None

    @property
    def timeout_s(self) -> float | None:
        """Seconds until something is due; None before the end has begun."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def is_unkillable(self) -> bool:
        """True if something has outlived SIGKILL for longer than waiting for it makes sense."""
        return self._killing_since is not None and time.monotonic() - self._killing_since > KILL_PATIENCE_S

    def hurry(self, grace_s: float = 0.0) -> None:
        """Let no more of the grace period pass than `grace_s` seconds from now on."""
        if self._deadline is not None and self._killing_since is None:
            self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def step(self) -> None:
        """Kill whatever is left if it is time to. New descendants may appear meanwhile, hence again and again."""
        if self.timeout_s is None or self.timeout_s > 0:
            return
        if self._killing_since is None:
            self._killing_since = time.monotonic()
            self.killed = len(descendants(self.spared))
            self._on_kill(self.killed)
        self._kill_group()
        signal_everything(self._leaders(), signal.SIGKILL, self.spared)
        self._deadline = time.monotonic() + self._kill_again_s
        self._kill_again_s = min(2 * self._kill_again_s, LAST_KILL_AGAIN_S)


class RunGroup:
    """A control group of the run's own, a child of the launcher's version 2 group. Without effect if none can be made.

    It kills all its members in one atomic step, also what forks faster than signals can follow.

    Processes are born into the group of their parent. A kernel takes about 10 ms for one that moves, and keeps all
    others from forking meanwhile: so the agent moves, once, and its ranks do not; before a kill it steps out.
    """

    def __init__(self, agent_pid: int) -> None:
        self._directory: Path | None = None
        name, parent = _group_name(agent_pid), own_directory()
        if parent is not None and os.access(parent / _MEMBERS, os.W_OK):
            inside = parent.name == name  # this process is in it already
            directory = parent if inside else parent / name
            if not inside:
                _remove_forgotten(parent)
            with suppress(OSError):
                directory.mkdir(exist_ok=True)
                self._directory = directory
        self._let_out: set[int] = set()

    def take_in(self, pid: int) -> None:
        """Have a process, and all that it starts from now on, belong to the group."""
        if self._directory is not None and not (pid == os.getpid() and own_directory() == self._directory):
            _move(pid, self._directory)

    def let_out(self, pid: int) -> bool:
        """Have `kill` spare a process, but not what it has started. Return False if that cannot be."""
        if self._directory is None or pid in self._let_out:
            return True
        if not _move(pid, self._directory.parent):
            return False
        self._let_out.add(pid)
        return True

    def take_back(self) -> None:
        """Have all processes that were let out belong to the group again."""
        for pid in self._let_out:
            self.take_in(pid)
        self._let_out.clear()

    def kill(self) -> None:
        """Send SIGKILL to every member at once (Linux 5.14 and later)."""
        if self._directory is not None:
            with suppress(OSError):
                (self._directory / "cgroup.kill").write_text("1", encoding="ascii")

    def remove(self) -> None:
        """Remove the group once it is empty, with the groups that ranks have made in it."""
        if self._directory is not None:
            _remove(self._directory)


def _group_name(agent_pid: int | str) -> str:
    """Return the name of an agent's group, which no agent in another container has that sees the same groups."""
    try:
        namespace = _PID_NAMESPACE.stat().st_ino
    except OSError:
        namespace = 0
    return f"{_PREFIX}{namespace}-{agent_pid}"


def _remove_forgotten(parent: Path) -> None:
    """Remove groups of agents that were killed together with their launchers, or whose launchers were killed after them.

    Agents of other containers are not seen from here; their groups stay.
    """
    ours = _group_name("")
    for group in parent.glob(f"{ours}*"):
        with suppress(OSError, ValueError):
            os.kill(int(group.name.removeprefix(ours)), 0)
            continue
        with suppress(OSError):
            if time.time() - group.stat().st_mtime > _FORGOTTEN_AFTER_S:
                _remove(group)


def _remove(directory: Path) -> None:
    """Remove a group with those inside it. The kernel keeps every group that has members."""
    inside = sorted((path for path in directory.rglob("*") if path.is_dir()), reverse=True)
    for group in (*inside, directory):
        with suppress(OSError):
            group.rmdir()


def _move(pid: int, directory: Path) -> bool:
    try:
        (directory / _MEMBERS).write_text(str(pid), encoding="ascii")
    except OSError as error:
        return error.errno == errno.ESRCH  # it has ended, and is in no group
    return True
