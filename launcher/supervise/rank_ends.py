"""How ranks ended, according to the kernel: the order of their ends, and kills by the out-of-memory (OOM) killer.

SIGKILL does not show its sender. Three sources show OOM kills, the most reliable first. The kernel updates all of them
before it sends the signal, so they are up to date once a rank is dead.

* The kernel's log names the killed process. Only root can read it, unless the system allows all users. Its pids are
  valid only outside of containers.
* /proc/vmstat counts the OOM kills of the machine. If the number has not changed, there was none.
* Control groups count kills of their members. Version 2 counts all groups below too (memory.events), version 1 only the
  group itself (memory.oom_control). Several ranks may share a group, so each kill is assigned to one rank.

A zombie still has its version 2 group in /proc, but its version 1 group is shown as "/". A rank that moves to another
group after its start is therefore found only in the log or with version 2.
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

# On a busy machine, even an idle agent may notice an end this late.
LATE_S = 1.0
KERNEL_LOG = Path("/dev/kmsg")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # inode of the machine's initial pid namespace; the kernel's log uses its pids
_RECORD_BYTES = 8192  # a read returns one full record, or fails
_MAX_RECORDS = 100_000
_KILLED = re.compile(rb"(?:oom-kill:.*,pid=|Killed process )(?P<pid>\d{1,9})")
_COUNTERS = {"v2": "memory.events", "v1": "memory.oom_control"}


class ExitOrder:
    """The order in which child processes end. Children are watched from their start.

    The kernel reports ready members of an epoll set in order of arrival. `waitpid` does not: of several ended
    children it returns the one forked first. Each watched child needs a descriptor, so at most half of the descriptor
    limit is used. Without pidfds no child is watched.
    """

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._highest = sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2
        self._epoll: select.epoll | None = None  # None without pidfds or free descriptors
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._epoll = select.epoll()
        self._pids: dict[int, int] = {}  # by pidfd
        self._late: set[int] = set()  # pids that had already ended when the watch began, so their order is unknown
        self._ended: list[int] = []  # not returned by `sort` yet

    def fileno(self) -> int:
        """Readable when a watched child has ended; -1 if no child can be watched."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def watch(self, pid: int) -> None:
        """Watch the child `pid`, which has not been reaped."""
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
        """Return the ended children in order, unknown ones last, and True if the order is completely known.

        The order of a single child is always known, because children that are reaped later have ended later.
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
        """Return the pids that have ended since the last call, in order. Includes reaped ones."""
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
    root: str  # the mounted subtree of the hierarchy
    point: Path


@frozen
class _Noted:
    groups: tuple[Path, ...]  # counter files of its groups, innermost first
    total: int | None  # OOM kills on the machine before it started


class OomWatch:
    """A detector of OOM kills, by counters and their values at the start of ranks. Never blocks or raises."""

    def __init__(self, proc: Path = PROC, kernel_log: Path = KERNEL_LOG) -> None:
        self._proc = proc
        self._mounts = _memory_mounts(proc)
        self._log = _KernelLog(proc, kernel_log, self._total())
        self._noted: dict[int, _Noted] = {}
        self._ascribed: dict[Path, int] = {}  # by group: kills before the start, plus kills assigned to ranks
        self._killed: set[int] = set()

    def note(self, pid: int) -> None:
        """Record that `pid` has started. Forgets an earlier process with the same pid."""
        self._killed.discard(pid)
        groups = tuple(self._groups(pid))
        for group in groups:
            if group not in self._ascribed and (count := _count(group)) is not None:
                self._ascribed[group] = count
        self._noted[pid] = _Noted(groups, self._total())

    def killed(self, pid: int) -> bool | None:
        """Return True if the OOM killer ended `pid`, which died of SIGKILL; None if unknown.

        Call it before the process is reaped or directly afterwards. May be called again.
        """
        if pid in self._killed:
            return True
        noted, total = self._noted.get(pid) or _Noted((), None), self._total()
        if not _perhaps(pid) or (total is not None and total == noted.total):
            return False
        groups = tuple(self._groups(pid)) or noted.groups
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
        """Assign one unassigned kill of these groups. Return False if there is none."""
        counts = {group: count for group in groups if (count := _count(group)) is not None}
        if not any(count > self._ascribed.get(group, 0) for group, count in counts.items()):
            return False
        for group, count in counts.items():
            self._ascribed[group] = min(count, self._ascribed.get(group, 0) + 1)
        return True

    def _groups(self, pid: int) -> Iterator[Path]:
        """Yield the counter files for `pid`. Empty if it has gone, or is a zombie in a version 1 group."""
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
    """The OOM kills in the kernel's log since this object was created."""

    def __init__(self, proc: Path, path: Path, first_total: int | None) -> None:
        self._first_total = first_total
        self._descriptor: int | None = None
        self._pids: set[int] = set()
        self._whole = False  # True while no record was missed
        with suppress(OSError):
            if (proc / "self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)
                self._whole = True

    def killed(self) -> set[int]:
        """Return the pids of all kills so far."""
        for _ in range(_MAX_RECORDS if self._descriptor is not None else 0):
            assert self._descriptor is not None
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except OSError as error:
                self._whole = self._whole and error.errno == errno.EAGAIN
                if error.errno != errno.EPIPE:
                    break
                continue  # records were overwritten; the next read returns the remaining ones
            if not record:
                break
            self._pids.update(int(found["pid"]) for found in _KILLED.finditer(record))
        return self._pids

    def is_complete(self, total: int | None) -> bool:
        """Return True if the log has shown all kills, given the machine's current count `total`."""
        if total is None or self._first_total is None:
            return False
        return self._whole and len(self._pids) >= total - self._first_total

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _perhaps(pid: int) -> bool:
    """Return False if a child that waits to be reaped did not die of SIGKILL. Return True for all other processes."""
    with suppress(OSError, AttributeError):  # not a child, or already reaped; no waitid on this system
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return end is not None and end.si_code != os.CLD_EXITED and end.si_status == signal.SIGKILL
    return True


def _memory_mounts(proc: Path) -> tuple[_Mount, ...]:
    """Return the mounts of control groups that count memory, one per version."""
    found: dict[str, _Mount] = {}
    for mount in mounts(proc):
        of_v1 = mount.kind == "cgroup" and "memory" in mount.options
        if of_v1 or mount.kind == "cgroup2":
            version = "v1" if of_v1 else "v2"
            found.setdefault(version, _Mount(version, mount.root, Path(mount.point)))
    return tuple(found[version] for version in sorted(found))


def _counters(mount: _Mount, lines: list[str]) -> Iterator[Path]:
    """Yield the counter files of a process from the lines of /proc/<pid>/cgroup. Empty if its group is not visible.

    Version 2 groups count their subgroups' kills, so the counters of all parent groups follow.
    """
    fields = (line.split(":", 2) for line in lines)
    paths = (
        path
        for number, controllers, path in fields
        if (number == "0" if mount.version == "v2" else "memory" in controllers.split(","))
    )
    path = next(paths, None)
    inside = ".." if path is None else os.path.relpath(path, mount.root)
    if inside.startswith(".."):
        return
    directory = mount.point / inside
    above = [parent for parent in directory.parents if mount.point in {parent, *parent.parents}]
    for group in [directory, *(above if mount.version == "v2" else [])]:
        if (counter := group / _COUNTERS[mount.version]).exists():
            yield counter


def _count(counter: Path) -> int | None:
    found = next((line.split()[1] for line in _lines(counter) if line.startswith("oom_kill ")), None)
    return int(found) if found else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
