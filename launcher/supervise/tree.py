"""Reaps, terminates and kills all descendants of this process, by signals or a control group (cgroup).

Agents are subreapers, so descendants cannot leave the tree by a double fork or a new session. If no child is left, no
descendant is left. Processes that were there before the run are `bystanders`. Nothing is imported during the shutdown
of processes, because an import could fail or block.
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
KILL_PATIENCE_S = 10.0  # a process that survives SIGKILL for this time waits inside the kernel
_MEMBERS = "cgroup.procs"
_PREFIX = "tlaunch-"  # followed by the pid namespace and the pid of an agent
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_FORGOTTEN_AFTER_S = 60.0  # younger groups may be in use by an agent in a container that is not visible


# Descendants of this process from before the run (`sh -c 'other & exec tlaunch'`), by pid and start time, and their
# sessions. Their orphans become children of this process, as do orphans of the run. The session distinguishes them: the
# agent starts in a new session, and no process can join an existing one. Per process, like the subreaper setting.
_bystanders: set[tuple[int, int]] = set()
_sessions: set[int] = set()


def spare_bystanders() -> None:
    """Make this module ignore all current descendants of this process and all other processes in its session.

    Call it before the agent is forked.
    """
    forget_bystanders()
    before = _below()
    _bystanders.update((process.pid, process.started) for process in before)
    _sessions.update((os.getsid(0), *(process.session for process in before)))


def forget_bystanders() -> None:
    """Undo `spare_bystanders`. Agents call this, because new processes may reuse the pids of excluded ones."""
    _bystanders.clear()
    _sessions.clear()


class NothingLeft(Exception):  # noqa: N818 - signals the end of a loop, not an error
    """This process has no child processes. If subreapers are supported, it then has no descendants."""


def reap() -> Iterator[tuple[int, int]]:
    """Reap all children that have exited. Yield the pid of each one and its exit status (as in `subprocess`).

    Raises NothingLeft if this process has no children.
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
    """Reap the children that have exited, and return True if any process of the run is left.

    The result is exact, because only this function reaps children. Processes below an ended child are still found
    below its zombie.
    """
    try:
        for _ in reap():
            pass
    except NothingLeft:
        return False
    return not PROC.is_dir() or bool(_below())


def descendants(spared: Collection[int] = ()) -> list[int]:
    """Return the pids of all living descendants of this process, except those in `spared`.

    Bystanders are excluded too, as are the descendants of excluded processes. Without /proc, the list is empty.
    """
    return [process.pid for process in _below(spared) if process.living]


def _below(spared: Collection[int] = ()) -> list[Stat]:
    """Return all descendants of this process, including zombies, except processes in `spared`."""
    try:  # Usually there is no child before a run, and a scan of all processes takes time on a large server.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    children: dict[int, list[Stat]] = {}
    for process in every_process():
        is_bystander = (process.pid, process.started) in _bystanders or process.session in _sessions
        if not is_bystander and process.pid not in spared:
            children.setdefault(process.parent, []).append(process)
    found = children.pop(os.getpid(), [])
    for process in found:  # grows during the loop
        found += children.pop(process.pid, [])
    return found


def signal_group(leader: int, number: int) -> bool:
    """Send a signal to the process group of a child. Return False if the group does not exist."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_rank(leader: int, number: int) -> None:
    """Send a signal to a rank's process group, or only to the rank if it does not lead a group yet."""
    if not signal_group(leader, number):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(leader, number)


def signal_everything(leaders: Iterable[int], number: int, spared: Collection[int] = ()) -> None:
    """Send a signal to the process groups of `leaders`, then to all other descendants except `spared`.

    A group is signalled atomically and without a scan, so groups come first. Stopped processes are continued, so they
    can handle the signal.
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
    """Shuts down processes: sends SIGTERM, waits for a grace period, then sends SIGKILL until none is left.

    It never blocks. Its owner sleeps until `timeout_s` has passed or a child has ended, reaps, and calls `step`.
    Processes in `spared` are kept until that set is emptied. `kill_group` may kill a whole cgroup before each SIGKILL.
    """

    def __init__(
        self,
        grace_s: float | None,
        leaders: Callable[[], Iterable[int]],
        *,
        on_kill: Callable[[int], object] = lambda _count: None,
        kill_group: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the shutdown at once, or wait for a call of `begin` if `grace_s` is None."""
        self._leaders = leaders
        self._on_kill = on_kill
        self._kill_group = kill_group
        self._kill_again_s = FIRST_KILL_AGAIN_S
        self._killing_since: float | None = None
        self._deadline: float | None = None  # None: not started
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
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def is_unkillable(self) -> bool:
        """True if processes have survived SIGKILL for more than `KILL_PATIENCE_S` seconds."""
        return self._killing_since is not None and time.monotonic() - self._killing_since > KILL_PATIENCE_S

    def hurry(self, grace_s: float = 0.0) -> None:
        """Shorten the rest of the grace period to at most `grace_s` seconds."""
        if self._deadline is not None and self._killing_since is None:
            self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def step(self) -> None:
        """Kill the remaining processes if the grace period is over. Call this repeatedly until none is left."""
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
    """A control group (cgroup v2) for the processes of a run. If the group cannot be created, methods do nothing.

    It kills all its members atomically, even processes that fork faster than signals can reach them.

    Processes start in the group of their parent. Moving a process takes the kernel about 10 ms, during which no other
    process can fork. Therefore only the agent moves, once, and its ranks inherit the group. The agent leaves it
    before a kill.
    """

    def __init__(self, agent_pid: int) -> None:
        self._directory: Path | None = None
        self._let_out: set[int] = set()
        name, parent = _group_name(agent_pid), own_directory()
        if parent is None or not os.access(parent / _MEMBERS, os.W_OK):
            return
        if parent.name == name:  # this process is already in it
            self._directory = parent
            return
        _remove_forgotten(parent)
        with suppress(OSError):
            (parent / name).mkdir(exist_ok=True)
            self._directory = parent / name

    def take_in(self, pid: int) -> None:
        """Move a process into the group. Child processes that the process starts later also belong to the group."""
        if self._directory is not None and not (pid == os.getpid() and own_directory() == self._directory):
            _move(pid, self._directory)

    def let_out(self, pid: int) -> bool:
        """Move a process, but not its child processes, out of the group. Return False if that fails."""
        if self._directory is None or pid in self._let_out:
            return True
        if not _move(pid, self._directory.parent):
            return False
        self._let_out.add(pid)
        return True

    def take_back(self) -> None:
        for pid in self._let_out:
            self.take_in(pid)
        self._let_out.clear()

    def kill(self) -> None:
        """Send SIGKILL to all members at once (Linux 5.14 and later)."""
        if self._directory is not None:
            with suppress(OSError):
                (self._directory / "cgroup.kill").write_text("1", encoding="ascii")

    def remove(self) -> None:
        """Remove the group and its subgroups, except groups that still have members."""
        if self._directory is not None:
            _remove(self._directory)


def _group_name(agent_pid: int | str) -> str:
    """Return the name of an agent's control group, which is unique even among containers."""
    namespace = 0
    with suppress(OSError):
        namespace = _PID_NAMESPACE.stat().st_ino
    return f"{_PREFIX}{namespace}-{agent_pid}"


def _remove_forgotten(parent: Path) -> None:
    """Remove the control groups that killed agents have left behind.

    Agents of other containers are not visible, so their groups are kept.
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
    """Remove a control group and its subgroups, except groups that still have members."""
    inside = sorted((path for path in directory.rglob("*") if path.is_dir()), reverse=True)
    for group in (*inside, directory):
        with suppress(OSError):
            group.rmdir()


def _move(pid: int, directory: Path) -> bool:
    try:
        (directory / _MEMBERS).write_text(str(pid), encoding="ascii")
    except OSError as error:
        return error.errno == errno.ESRCH  # it has ended, so it is in no group
    return True
