"""This machine as the kernel shows it: processes, open files, full disks, the control group, accelerators.

The launcher, the agent, the fork server and ranks read processes here and do not import psutil: the import would delay every start, and a
psutil.py in the working directory could break supervision. `ps`, `status` and `top` share this reading. The doctor uses psutil.

Where there is no /proc, answers about processes are None or empty. No driver is asked, so nothing can hang.
"""

from __future__ import annotations

import os
import re
import resource
import select
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from stat import S_IWUSR
from typing import Literal, NamedTuple

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_GENERATIONS = 64  # of processes below a leader
_PF_EXITING = 0x4
FULL_BELOW_BYTES = 64 << 10  # a page or two may be left of a full disk
DEVICE_FILES = Path("/dev")
_DAVINCI = re.compile(r"davinci([0-9]{1,6})")  # Ascend; davinci_manager is no device
_NVIDIA = re.compile(r"nvidia([0-9]{1,6})")  # nvidiactl and nvidia-uvm are no devices
_OCTAL = re.compile(r"\\([0-7]{3})")  # spaces and the like in the table of mounts
SPARE = 64  # for everything else that is open
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp


class Mount(NamedTuple):
    """A mounted file system, or a part of one."""

    device: str  # "major:minor"
    root: str  # the part of the file system that is mounted
    point: str  # the directory that shows it
    kind: str  # "ext4", "cgroup2", ...
    options: frozenset[str]  # of the file system


class Stat(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    started: int  # clock ticks since boot; with the pid, this names one process until the next boot
    flags: int = 0  # the kernel's own, PF_* of linux/sched.h
    ticks: int = 0  # of processor time that all its threads have used, SC_CLK_TCK a second
    reaped_ticks: int = 0  # of its children that have been reaped
    pages: int = 0  # resident

    @property
    def living(self) -> bool:
        """False for a zombie, which only waits to be reaped."""
        return self.state not in "ZX"

    @property
    def exiting(self) -> bool:
        """True once the process is ending: no signal will reach it, and its memory may have been freed."""
        return not self.living or bool(self.flags & _PF_EXITING)

    @property
    def stopped(self) -> bool:
        return self.state in "Tt"


@frozen
class ProcessId:
    """The identity of a process across machines and boots: pids alone are used again."""

    pid: int
    started: int
    host: str
    boot: str

    @property
    def is_local(self) -> bool:
        """True for a process of this machine since its last boot: `lives` is meaningful only then."""
        return (self.host, self.boot) == (socket.gethostname(), boot_id())

    @property
    def lives(self) -> bool:
        """True if the process still runs on this machine."""
        found = stat(self.pid) if self.is_local else None
        return found is not None and found.started == self.started and found.living


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a process, or None if there is no such process or no /proc."""
    found = stat(pid)
    return None if found is None else ProcessId(pid, found.started, socket.gethostname(), boot_id())


def stat(pid: int) -> Stat | None:
    """Return /proc/PID/stat, or None if there is no such process or no /proc."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - for scans of thousands of processes
            _, _, rest = file.read(4096).rpartition(b") ")  # a name may hold anything
    except OSError:
        return None
    fields = rest.split()
    parent, session, started, flags = (int(fields[at]) for at in (1, 3, 19, 6))
    user, system, of_reaped_user, of_reaped_system, pages = (int(fields[at]) for at in (11, 12, 13, 14, 21))
    ticks, reaped_ticks = user + system, of_reaped_user + of_reaped_system
    return Stat(pid, fields[0].decode(), parent, session, started, flags, ticks, reaped_ticks, pages)


def every_process() -> Iterator[Stat]:
    """Yield all processes in the order of the listing, without those that end meanwhile."""
    with suppress(FileNotFoundError):
        for name in os.listdir(PROC):  # noqa: PTH208 - a scan of thousands of names, and no use for paths
            if name.isdecimal() and (found := stat(int(name))):
                yield found


def status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status; none if there is no such process or no /proc."""
    with suppress(OSError):
        text = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        return {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}
    return {}


def catches(pid: int, number: int) -> bool:
    """Return True if the process has a handler for signal `number`; without one the signal may end it."""
    return bool(int(status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def has_open(pid: int, descriptor: int) -> bool:
    """Return whether a process has the file of this process's `descriptor` open for writing.

    Its other files are not touched: they may be on a file system that does not answer. Reading a link never waits.
    """
    path, wanted = os.readlink(f"{PROC}/self/fd/{descriptor}"), os.fstat(descriptor)  # noqa: PTH115
    with suppress(OSError):
        for name in os.listdir(PROC / str(pid) / "fd"):  # noqa: PTH208 - many names, and no use for paths
            link = f"{PROC}/{pid}/fd/{name}"
            with suppress(OSError):
                is_written = os.lstat(link).st_mode & S_IWUSR
                if is_written and os.readlink(link) == path and os.path.samestat(os.stat(link), wanted):  # noqa: PTH115, PTH116
                    return True
    return False


def open_links(pid: int) -> Iterator[str]:
    """Yield what the open descriptors of a process lead to: paths, and sockets as "socket:[INODE]"."""
    directory = f"{PROC}/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 - many names, and no use for paths
            with suppress(OSError):
                yield os.readlink(f"{directory}/{name}")  # noqa: PTH115


def tcp_sockets() -> dict[str, tuple[int, bool]]:
    """Return the TCP sockets by their links, as `open_links` yields them: the local port, and whether the socket listens."""
    found = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError), open(PROC / "net" / name, encoding="ascii") as file:  # noqa: PTH123
            next(file)
            for line in file:
                fields = line.split()
                if fields[9] != "0":  # no process has it open any more
                    port = int(fields[1].rpartition(":")[2], 16)
                    found[f"socket:[{fields[9]}]"] = (port, fields[3] == _LISTENS)
    return found


@cache
def boot_id() -> str:
    """Return an id that changes with every boot; empty if the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@frozen
class Usage:
    """The use of the machine by a process and its descendants together."""

    ticks: int  # of processor time since their start, of those that were reaped too; grows
    rss_bytes: int  # of those that live; pages that they share count for each

    @property
    def cpu_s(self) -> float:
        return self.ticks / TICKS_PER_S


def usage_of(leaders: Collection[int]) -> dict[int, Usage]:
    """Return the usage of each leader by pid: of itself, its descendants, and orphans in the session that it leads.

    Leaders that have gone are missing; without /proc, all are. One scan serves all leaders.
    """
    processes = {process.pid: process for process in every_process()}
    # The listing may pass over a process while others come and go.
    missed = (stat(leader) for leader in leaders if leader not in processes)
    processes |= {process.pid: process for process in missed if process}
    found: dict[int, list[Stat]] = {leader: [] for leader in leaders if leader in processes}
    for process in processes.values():
        if (leader := _leader_of(process.pid, processes, found)) is not None:
            found[leader].append(process)
    return {
        leader: Usage(
            sum(process.ticks + process.reaped_ticks for process in members),
            sum(process.pages for process in members) * PAGE_BYTES,
        )
        for leader, members in found.items()
    }


def core_wait_s(pid: int | Literal["thread-self"]) -> float | None:
    """Return for how long a process's main thread, or this thread, could run and had no core; None if that is not known.

    Source: Documentation/scheduler/sched-stats.rst of Linux.
    """
    try:
        with open(f"{PROC}/{pid}/schedstat", "rb", buffering=0) as file:  # noqa: PTH123 - for every rank at every look
            return int(file.read(256).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # of kernels that do not count it, there is no such file
        return None


def _leader_of(pid: int, processes: Mapping[int, Stat], leaders: Collection[int]) -> int | None:
    for _ in range(_MAX_GENERATIONS):  # a pid that was used again during the scan could close a circle
        if pid in leaders:
            return pid
        if pid not in processes:
            return None
        if processes[pid].session in leaders:
            return processes[pid].session
        pid = processes[pid].parent
    return None


# --- this process and its machine ---


def is_readable(descriptor: int, within_s: float = 0.0) -> bool:
    """Return True if `descriptor` has data or is at its end. Blocks for `within_s` seconds at most."""
    poll = select.poll()  # select.select knows no descriptor from 1024 on
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def own_limit() -> int:
    """Return how many descriptors this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def limit_to(files: int) -> None:
    """Set the limit back to `files`, which this process had before. Children that are started from now on get it too."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def make_room(files: int) -> bool:
    """Raise this process's limit, if need be, so that it can have `files` files open. Return True if it can.

    Children inherit the limit: call it when none is to be started any more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed >= wanted
    return True


def make_room_for_servers(count: int) -> None:
    """Raise the limit, as `make_room` does, to hold a connection to each of `count` servers.

    Raises:
        UnreadableError: the system does not allow so many.
    """
    if not make_room(count):
        raise UnreadableError(
            f"{count} servers need as many connections, and this machine allows {own_limit()} files",
            hint="ulimit -Hn shows the limit, which root can raise",
        )


def is_full(directory: Path) -> bool:
    """Return True if no bytes or no files can be added there, so that logs and failure files may be missing."""
    try:
        there = os.statvfs(directory)
    except OSError:
        return False
    no_inode = there.f_files > 0 and there.f_favail == 0  # some file systems do not count them
    return no_inode or there.f_bavail * there.f_frsize < FULL_BELOW_BYTES


def mounts(proc: Path = PROC) -> list[Mount]:
    """Return what is mounted where, for this process; what covers another stands after it. Empty where it is unknown."""
    try:
        table = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in table:  # id, parent, device, part, point, options, ..., " - ", type, source, options of the file system
        (_, _, device, root, point), (kind, *_, options) = (fields.split()[:5] for fields in line.split(" - ", 1))
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), point)
        found.append(Mount(device, root, point, kind, frozenset(options.split(","))))
    return found


def own_directory() -> Path | None:
    """Return the mounted directory of this process's version 2 group, or None if it has none that can be seen."""
    try:
        groups = (PROC / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    mounted = next((mount for mount in mounts() if mount.kind == "cgroup2"), None)
    own = next((line[3:] for line in groups if line.startswith("0::")), None)
    if mounted is None or own is None:
        return None
    inside = os.path.relpath(own, mounted.root)
    return None if inside.startswith("..") else Path(mounted.point) / inside


def davinci_ids(directory: Path = DEVICE_FILES) -> tuple[int, ...]:
    """Return the ids of the Ascend devices of this machine, ascending; empty without any."""
    return _numbers(_DAVINCI, directory)


def nvidia_ids(directory: Path = DEVICE_FILES) -> tuple[int, ...]:
    """Return the minor numbers of NVIDIA's devices that this process may open, ascending; empty without any."""
    return _numbers(_NVIDIA, directory)


def _numbers(pattern: re.Pattern[str], directory: Path) -> tuple[int, ...]:
    found = directory.iterdir() if directory.is_dir() else ()
    return tuple(sorted(int(match[1]) for path in found if (match := pattern.fullmatch(path.name))))
