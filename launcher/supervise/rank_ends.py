"""Determines the order in which ranks exited, and whether the out-of-memory killer killed one.

Three sources show if SIGKILL came from the OOM killer, the most reliable first. The kernel updates them before it sends
the signal, so they are up to date when a rank is dead.

* The kernel's log names the killed process. Only root can read it, unless the system allows everyone to. Its pids match
  ours only outside containers.
* /proc/vmstat counts OOM kills on the machine. If the count has not changed, there was none.
* Control groups count the kills of their members. Version 2 has memory.events, which includes all groups below; version
  1 has memory.oom_control, for the group only. Ranks may share a group, so each kill is attributed once.

For a zombie, /proc still shows its version 2 group, but "/" as its version 1 group. So a rank that changes its group
after its start is found only by the log or by version 2.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.machine.proc import PROC, is_readable, mounts, stat

# Maximum delay until an exit is noticed on a busy machine, even if the agent polls continuously.
LATE_S = 1.0
ALIKE_S = 5.0  # a bug in every rank makes all ranks fail within this time, because they start at different times
# Signals sent by other processes, which give no information about the program.
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
KERNEL_LOG = Path("/dev/kmsg")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # the inode of the initial namespace; the kernel's log contains its pids
_RECORD_BYTES = 8192  # each read returns one complete record or fails
_MAX_RECORDS = 100_000
_KILLED = re.compile(rb"(?:oom-kill:.*,pid=|Killed process )(?P<pid>\d{1,9})")
_COUNTERS = {"v2": "memory.events", "v1": "memory.oom_control"}


class ExitOrder:
    """Determines the order in which child processes exit. epoll returns their pidfds in this order.

    `waitpid` does not give the order: of several exited children it returns the one forked first. Each watched child
    needs a descriptor, so children beyond half the limit of descriptors are not watched. Without pidfds, no child is.
    """

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._highest = sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2
        self._epoll: select.epoll | None = None  # None without pidfds or free descriptors
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._epoll = select.epoll()
        self._pids: dict[int, int] = {}  # by pidfd
        self._late: set[int] = set()  # pids that had exited before the watch started, so their order is unknown
        self._ended: list[int] = []  # not returned yet

    def fileno(self) -> int:
        """Return a descriptor that is readable when a child has exited, or -1 if children cannot be watched."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def watch(self, pid: int) -> None:
        if self._epoll is None:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # an old kernel, or no descriptor left
            return
        if descriptor > self._highest:
            os.close(descriptor)
            return
        try:
            self._epoll.register(descriptor, select.EPOLLIN)
        except OSError:  # the user's limit of epoll watches is reached
            os.close(descriptor)
            return
        self._pids[descriptor] = pid
        if is_readable(descriptor):
            self._late.add(pid)

    def sort(self, pids: Iterable[int]) -> tuple[list[int], bool]:
        """Sort the pids of exited children by order of exit. Also return whether the complete order is known.

        Children of unknown order come last. The order of a single child is known, because children reaped later have
        exited later.
        """
        self.collect()
        given = list(pids)
        known = [pid for pid in self._ended if pid in given]
        self._ended = [pid for pid in self._ended if pid not in known]
        return known + [pid for pid in given if pid not in known], len(given) in {1, len(known)}

    def close(self) -> None:
        for descriptor in self._pids:
            os.close(descriptor)
        self._pids.clear()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def collect(self) -> list[int]:
        """Return the pids of the children that have exited since the last call, in order of exit."""
        found: list[int] = []
        if self._epoll is None or not self._pids:
            return found
        for descriptor, _ in self._epoll.poll(0, len(self._pids)):
            self._epoll.unregister(descriptor)
            os.close(descriptor)
            pid = self._pids.pop(descriptor)
            found.append(pid)
            if pid not in self._late or not self._ended:
                self._ended.append(pid)
            self._late.discard(pid)
        return found


@frozen
class _Mount:
    version: str  # "v1" (the memory hierarchy) or "v2"
    root: str  # the mounted part of the hierarchy
    point: Path


class OomWatch:
    """Detects OOM kills by comparing the kernel's counters with their values at the start of each rank."""

    def __init__(self, proc: Path = PROC, kernel_log: Path = KERNEL_LOG) -> None:
        self._proc = proc
        self._mounts = _memory_mounts(proc)
        self._log = _KernelLog(proc, kernel_log, self._total())
        # By pid: the groups that contain it, the innermost first, and OOM kills on the machine before it started.
        self._noted: dict[int, tuple[tuple[Path, ...], int | None]] = {}
        self._ascribed: dict[Path, int] = {}  # by group: earlier kills plus attributed ones
        self._killed: set[int] = set()

    def note(self, pid: int) -> None:
        """Save the counters of OOM kills for a process that has just started."""
        self._killed.discard(pid)
        groups = tuple(self._groups(pid))
        for group in groups:
            if group not in self._ascribed and (count := _count(group)) is not None:
                self._ascribed[group] = count
        self._noted[pid] = groups, self._total()

    def killed(self, pid: int) -> bool | None:
        """Return True if the out-of-memory killer killed the process `pid`, or None if this is unknown.

        Call it before the process is reaped, or right after. May be called again.
        """
        if pid in self._killed:
            return True
        noted_groups, noted_total = self._noted.get(pid, ((), None))
        total = self._total()
        if not _perhaps(pid) or (total is not None and total == noted_total):
            return False
        groups = tuple(self._groups(pid)) or noted_groups
        named = pid in self._log.killed()
        if not named and self._log.is_complete(total):
            return False
        if self._ascribe(groups) or named:
            self._killed.add(pid)
            return True
        version_2 = any(group.name == _COUNTERS["v2"] and _count(group) is not None for group in groups)
        return False if version_2 else None

    def close(self) -> None:
        self._log.close()

    def _ascribe(self, groups: tuple[Path, ...]) -> bool:
        """Attribute one counted OOM kill to a process in `groups`. Return False if no unattributed kill is left."""
        counts = {group: count for group in groups if (count := _count(group)) is not None}
        if not any(count > self._ascribed.get(group, 0) for group, count in counts.items()):
            return False
        for group, count in counts.items():
            self._ascribed[group] = min(count, self._ascribed.get(group, 0) + 1)
        return True

    def _groups(self, pid: int) -> Iterator[Path]:
        """Yield the files that count OOM kills in the control groups of the process `pid`."""
        lines = _lines(self._proc / str(pid) / "cgroup")
        for mount in self._mounts:
            if mount.version == "v1":
                found = stat(pid) if self._proc == PROC else None
                if found is None or not found.living:
                    continue
            yield from _counters(mount, lines)

    def _total(self) -> int | None:
        return _count(self._proc / "vmstat")


class _KernelLog:
    """Reads the pids of OOM-killed processes from the kernel log, starting at the creation of this object."""

    def __init__(self, proc: Path, path: Path, first_total: int | None) -> None:
        self._first_total = first_total
        self._descriptor: int | None = None
        self._pids: set[int] = set()
        self._whole = False  # no record was missed
        with suppress(OSError):
            if (proc / "self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)
                self._whole = True

    def killed(self) -> set[int]:
        if self._descriptor is None:
            return self._pids
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except OSError as error:
                self._whole = self._whole and error.errno == errno.EAGAIN
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten; the next read continues after them
                break
            if not record:
                break
            self._pids.update(int(found["pid"]) for found in _KILLED.finditer(record))
        return self._pids

    def is_complete(self, total: int | None) -> bool:
        """Return True if the kernel log shows every OOM kill that the machine has counted."""
        if total is None or self._first_total is None:
            return False
        return self._whole and len(self._pids) >= total - self._first_total

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _perhaps(pid: int) -> bool:
    """Return True if the process died of SIGKILL, or if this is unknown."""
    with suppress(OSError, AttributeError):  # not a child, or already reaped; a system without waitid
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return end is not None and end.si_code != os.CLD_EXITED and end.si_status == signal.SIGKILL
    return True


def _memory_mounts(proc: Path) -> tuple[_Mount, ...]:
    """Return the mount points of memory control groups, at most one for each cgroup version."""
    found: dict[str, _Mount] = {}
    for mount in mounts(proc):
        is_v1 = mount.kind == "cgroup" and "memory" in mount.options
        if is_v1 or mount.kind == "cgroup2":
            version = "v1" if is_v1 else "v2"
            found.setdefault(version, _Mount(version, mount.root, Path(mount.point)))
    return tuple(found[version] for version in sorted(found))


def _counters(mount: _Mount, lines: list[str]) -> Iterator[Path]:
    """Yield the files that count OOM kills in a process's control groups, given the lines of its /proc/PID/cgroup.

    In version 2 a group also counts the kills in its subgroups, so the files of all groups above are included.
    """
    is_v2, inside = mount.version == "v2", ".."
    for number, controllers, path in (line.split(":", 2) for line in lines):
        is_wanted = number == "0" if is_v2 else "memory" in controllers.split(",")
        if is_wanted:
            inside = os.path.relpath(path, mount.root)
            break
    if inside.startswith(".."):
        return
    directory = mount.point / inside
    above = [parent for parent in directory.parents if mount.point in {parent, *parent.parents}]
    for group in [directory, *(above if is_v2 else [])]:
        if (counter := group / _COUNTERS[mount.version]).exists():
            yield counter


def _count(counter: Path) -> int | None:
    found = next((line.split()[1] for line in _lines(counter) if line.startswith("oom_kill ")), None)
    return int(found) if found else None


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return []
