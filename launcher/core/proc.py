"""Processes as Linux shows them in /proc. On other systems every answer is None or empty."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from launcher.core.frozen import frozen

PROC = Path("/proc")
_PF_EXITING = 0x4


class Stat(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    started: int  # clock ticks since boot; with the pid, this names one process until the next boot
    flags: int = 0  # the kernel's own, PF_* of linux/sched.h
    ticks: int = 0  # of processor time that all its threads have used, SC_CLK_TCK a second

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
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    _, _, rest = text.partition(b" (")
    fields = rest[rest.rindex(b")") + 1 :].split()  # a name may hold anything
    return Stat(
        pid,
        fields[0].decode(),
        int(fields[1]),
        int(fields[3]),
        int(fields[19]),
        int(fields[6]),
        int(fields[11]) + int(fields[12]),
    )


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


def boot_id() -> str:
    """Return an id that changes with every boot; empty if the system has none."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
