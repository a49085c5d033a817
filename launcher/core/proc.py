"""Processes as Linux shows them in /proc. On other systems every answer is None or empty."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from launcher.core.frozen import frozen

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_GENERATIONS = 64  # of processes below a leader
_PF_EXITING = 0x4


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
    def here(self) -> bool:
        """True for a process of this machine since its last boot: `lives` is meaningful only then."""
        return (self.host, self.boot) == (socket.gethostname(), boot_id())

    @property
    def lives(self) -> bool:
        """True if the process still runs on this machine."""
        found = stat(self.pid) if self.here else None
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


def catches(pid: int, number: int) -> bool:
    """Return True if the process has a handler for signal `number`; without one the signal may end it."""
    try:
        status = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@cache
def boot_id() -> str:
    """Return an id that changes with every boot; empty if the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@frozen
class Usage:
    """What a process and its descendants use together."""

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
