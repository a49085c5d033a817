"""Information from the kernel about this machine: processes, open files, disk space, cgroups and accelerators.

The launcher, the agent, the fork server and ranks read /proc directly and do not import psutil. The import would
delay every start, and a psutil.py in the working directory could break supervision. `ps`, `status` and `top` use this
module too; only the doctor uses psutil.

Without /proc, functions about processes return None or empty results. No driver is called, so nothing can hang.
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
_MAX_GENERATIONS = 64  # depth of the process tree below a leader
_PF_EXITING = 0x4
FULL_BELOW_BYTES = 64 << 10  # a full disk may still have a few free pages
DEVICE_FILES = Path("/dev")
_DAVINCI = re.compile(r"davinci([0-9]{1,6})")  # Ascend devices, without davinci_manager
_NVIDIA = re.compile(r"nvidia([0-9]{1,6})")  # without nvidiactl and nvidia-uvm
_OCTAL = re.compile(r"\\([0-7]{3})")  # escaped spaces and similar characters in the mount table
SPARE = 64  # descriptors for everything else that is open
_LISTENS = "0A"  # socket state in /proc/net/tcp
_READS_STDIN = ("0 0x0 ", "63 0x0 ")  # the call `read(0, ...)` in /proc/PID/syscall, on x86_64 and aarch64


class Mount(NamedTuple):
    """A mounted file system, or a mounted subtree of one."""

    device: str  # "major:minor"
    root: str  # the mounted subtree
    point: str  # the mount point
    kind: str  # "ext4", "cgroup2", ...
    options: frozenset[str]  # of the file system


class Stat(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    started: int  # clock ticks since boot; unique together with the pid until the next boot
    flags: int = 0  # kernel flags, PF_* in linux/sched.h
    ticks: int = 0  # processor time of all its threads, SC_CLK_TCK per second
    reaped_ticks: int = 0  # processor time of reaped children
    pages: int = 0  # resident

    @property
    def living(self) -> bool:
        """True unless the process is a zombie that waits to be reaped."""
        return self.state not in "ZX"

    @property
    def exiting(self) -> bool:
        """True once the process is exiting: signals no longer reach it, and its memory may be freed."""
        return not self.living or bool(self.flags & _PF_EXITING)

    @property
    def stopped(self) -> bool:
        return self.state in "Tt"


@frozen
class ProcessId:
    """The identity of a process across machines and boots. A pid is not enough, because pids are reused."""

    pid: int
    started: int
    host: str
    boot: str

    @property
    def is_local(self) -> bool:
        """True if the process was started on this machine since its last boot. Otherwise `lives` is meaningless."""
        return (self.host, self.boot) == (socket.gethostname(), boot_id())

    @property
    def lives(self) -> bool:
        """True if the process is running on this machine."""
        found = stat(self.pid) if self.is_local else None
        return found is not None and found.started == self.started and found.living


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a process, or None if the process or /proc does not exist."""
    found = stat(pid)
    return None if found is None else ProcessId(pid, found.started, socket.gethostname(), boot_id())


def stat(pid: int) -> Stat | None:
    """Read /proc/PID/stat. Return None if the process or /proc does not exist."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - fast, for thousands of processes
            _, _, rest = file.read(4096).rpartition(b") ")  # the name may contain any character
    except OSError:
        return None
    fields = rest.split()
    parent, session, started, flags = (int(fields[at]) for at in (1, 3, 19, 6))
    user, system, of_reaped_user, of_reaped_system, pages = (int(fields[at]) for at in (11, 12, 13, 14, 21))
    ticks, reaped_ticks = user + system, of_reaped_user + of_reaped_system
    return Stat(pid, fields[0].decode(), parent, session, started, flags, ticks, reaped_ticks, pages)


def every_process() -> Iterator[Stat]:
    """Yield all processes in the order of /proc. Processes that start or end meanwhile may be missing."""
    with suppress(FileNotFoundError):
        for name in os.listdir(PROC):  # noqa: PTH208 - fast, for thousands of names
            if name.isdecimal() and (found := stat(int(name))):
                yield found


def status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status, or {} if the process or /proc does not exist."""
    with suppress(OSError):
        text = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        return {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}
    return {}


def catches(pid: int, number: int) -> bool:
    """Return True if the process has a handler for signal `number`. Without a handler, the signal may terminate it."""
    return bool(int(status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def has_open(pid: int, descriptor: int) -> bool:
    """Return True if process `pid` has a file open for writing. The file is given by a `descriptor` of this process.

    Links to other files of `pid` are not followed: their file system may not respond, and following them would block.
    """
    path, wanted = os.readlink(f"{PROC}/self/fd/{descriptor}"), os.fstat(descriptor)  # noqa: PTH115
    with suppress(OSError):
        for name in os.listdir(PROC / str(pid) / "fd"):  # noqa: PTH208 - fast, for many names
            link = f"{PROC}/{pid}/fd/{name}"
            with suppress(OSError):
                is_written = os.lstat(link).st_mode & S_IWUSR
                if is_written and os.readlink(link) == path and os.path.samestat(os.stat(link), wanted):  # noqa: PTH115, PTH116
                    return True
    return False


def open_links(pid: int) -> Iterator[str]:
    """Yield the targets of a process's open descriptors: paths, and sockets as "socket:[INODE]"."""
    directory = f"{PROC}/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 - fast, for many names
            with suppress(OSError):
                yield os.readlink(f"{directory}/{name}")  # noqa: PTH115


def tcp_sockets() -> dict[str, tuple[int, bool]]:
    """Map each TCP socket, such as "socket:[4711]", to a tuple (local port, True if it listens)."""
    found = {}
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError), open(PROC / "net" / name, encoding="ascii") as file:  # noqa: PTH123
            next(file)
            for line in file:
                fields = line.split()
                if fields[9] != "0":  # 0: not open in any process
                    port = int(fields[1].rpartition(":")[2], 16)
                    found[f"socket:[{fields[9]}]"] = (port, fields[3] == _LISTENS)
    return found


@cache
def boot_id() -> str:
    """Return an id that changes with every boot, or "" if the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@frozen
class Usage:
    ticks: int  # processor time since their start, including reaped processes; never decreases
    rss_bytes: int  # of living processes; shared pages count once per process

    @property
    def cpu_s(self) -> float:
        return self.ticks / TICKS_PER_S


def usage_of(leaders: Collection[int]) -> dict[int, Usage]:
    """Return the resource usage of each living leader, including its descendants and the orphans of its session."""
    processes = {process.pid: process for process in every_process()}
    # The listing may miss a process while others start and end.
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
    """Return the seconds that a thread has waited for a core, or None if the kernel does not count them."""
    try:
        with open(f"{PROC}/{pid}/schedstat", "rb", buffering=0) as file:  # noqa: PTH123 - fast, for every rank
            return int(file.read(256).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # the kernel does not count it
        return None


def waits_at_stdin(leader: int) -> bool:
    """Return True if a thread in the session of this process waits for data on its stdin."""
    for process in every_process():
        if process.session == leader:
            for thread in Path(f"{PROC}/{process.pid}/task").glob("*/syscall"):
                with suppress(OSError):  # it has ended, or the kernel does not show it
                    if thread.read_text(encoding="ascii").startswith(_READS_STDIN):
                        return True
    return False


def _leader_of(pid: int, processes: Mapping[int, Stat], leaders: Collection[int]) -> int | None:
    for _ in range(_MAX_GENERATIONS):  # a pid that was reused during the scan could create a cycle
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
    """Return True if `descriptor` has data or is at end of file. Blocks for at most `within_s` seconds."""
    poll = select.poll()  # select.select does not support descriptors from 1024
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def in_background(terminal: int) -> bool:
    """Return True if this process must not read from its controlling terminal, the descriptor `terminal`."""
    with suppress(OSError):  # not this session's terminal
        return os.tcgetpgrp(terminal) != os.getpgrp()
    return False


def own_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def limit_to(files: int) -> None:
    """Set the limit of open files to `files`. Child processes that are started later inherit the limit."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def make_room(files: int) -> bool:
    """Increase the limit of open files so that `files` more can be opened. Return False if the system forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed >= wanted
    return True


def make_room_for_servers(count: int) -> None:
    """Increase the limit of open files to fit `count` connections. Raises UnreadableError if it cannot be increased."""
    if not make_room(count):
        raise UnreadableError(
            f"{count} servers need {count} connections, but the limit of open files is {own_limit()}",
            hint="run `ulimit -Hn` to see the limit; root can raise it",
        )


def is_full(directory: Path) -> bool:
    """Return True if the file system is out of space or inodes. Logs and failure files may then be missing."""
    try:
        there = os.statvfs(directory)
    except OSError:
        return False
    no_inode = there.f_files > 0 and there.f_favail == 0  # some file systems report 0 inodes in total
    return no_inode or there.f_bavail * there.f_frsize < FULL_BELOW_BYTES


def mounts(proc: Path = PROC) -> list[Mount]:
    """Return the mounts that this process sees, or [] if unknown. A mount that hides another one comes later."""
    try:
        table = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in table:  # id, parent, device, root, mount point, options, ..., " - ", type, source, file system options
        (_, _, device, root, point), (kind, *_, options) = (fields.split()[:5] for fields in line.split(" - ", 1))
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), point)
        found.append(Mount(device, root, point, kind, frozenset(options.split(","))))
    return found


def own_directory() -> Path | None:
    """Return the directory of this process's cgroup (version 2), or None if cgroups are not mounted."""
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
    return _numbers(_DAVINCI, directory)


def nvidia_ids(directory: Path = DEVICE_FILES) -> tuple[int, ...]:
    return _numbers(_NVIDIA, directory)


def _numbers(pattern: re.Pattern[str], directory: Path) -> tuple[int, ...]:
    found = directory.iterdir() if directory.is_dir() else ()
    return tuple(sorted(int(match[1]) for path in found if (match := pattern.fullmatch(path.name))))
