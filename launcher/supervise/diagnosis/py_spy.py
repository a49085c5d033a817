"""Finds the state of a process that has no handler for the stack signal, by py-spy or from /proc."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import subprocess
from contextlib import suppress

from launcher.core.machine.proc import PROC, Stat, stat
from launcher.supervise.diagnosis.stack_parser import RankStack, Sources, parse_py_spy, understood

PY_SPIES_AT_ONCE = 8
PIECE_BYTES = 1 << 16
DEEPEST = 8  # shells that wait for shells
_CALLS_FOR_CHILDREN = ("wait4", "waitid")

# System calls in which programs commonly wait, by number.
_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 23: "select", 34: "pause", 35: "nanosleep", 42: "connect",
        43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock",
        74: "fsync", 75: "fdatasync", 130: "rt_sigsuspend", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
        247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 63: "read", 64: "write", 72: "pselect6", 73: "ppoll",
        82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
        133: "rt_sigsuspend", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg",
        212: "recvmsg", 242: "accept4", 260: "wait4",
    },
}  # fmt: skip


def seen_from_outside(found: Stat) -> RankStack:
    """Describe the state of a living process from its files in /proc, without a Python stack."""
    if found.stopped:
        return RankStack("stopped", "stopped by a debugger" if found.state == "t" else "stopped (SIGSTOP)")
    if found.state == "D":
        where = _kernel_function(found.pid)
        return RankStack("uninterruptible", f"stuck inside the kernel{f', in {where}' if where else ''} (state D)")
    last, awaited = waited_for(found), ""
    if last.pid != found.pid:
        awaited = f" for {_read(last.pid, 'comm') or 'a process that has ended'}, which is {_waits(last)}"
    return RankStack("silent", f"no Python stack, {_waits(found)}{awaited}")


def waited_for(found: Stat) -> Stat:
    """Return the child process that `found` is waiting for. If `found` is not waiting for a child, return `found`."""
    for _ in range(DEEPEST):
        if _system_call(found.pid) not in _CALLS_FOR_CHILDREN:
            break
        pids = map(int, _read(found.pid, f"task/{found.pid}/children").split())
        living = [child for child in map(stat, pids) if child is not None and child.living]
        if not living:
            break
        found = max(living, key=lambda child: child.started)
    return found


def working_directory(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"{PROC}/{pid}/cwd")  # noqa: PTH115
    return ""


class PySpy:
    """A running `py-spy dump`, which reads the stacks of another process without pausing it."""

    _running = 0

    @classmethod
    def useful(cls, pid: int) -> bool:
        """Return True if `pid` is a Python process and py-spy is installed and has permission to inspect it."""
        try:
            program = os.path.basename(os.readlink(f"{PROC}/{pid}/exe"))  # noqa: PTH115, PTH119
        except OSError:
            return False
        if not program.startswith("python") or shutil.which("py-spy") is None:
            return False
        # With ptrace_scope other than 0, only root may inspect processes that are not its children.
        return os.geteuid() == 0 or _read("sys", "kernel/yama/ptrace_scope") in {"", "0"}

    def __init__(self, pid: int, sources: Sources) -> None:
        """Start py-spy. Raise BlockingIOError if too many py-spy processes are running."""
        if PySpy._running >= PY_SPIES_AT_ONCE:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._pid = pid
        self._sources = sources
        self._text = bytearray()
        argv = ["py-spy", "dump", "--json", "--nonblocking", "--pid", str(pid)]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(argv, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._open = True
        PySpy._running += 1

    def step(self, found: Stat) -> RankStack | None:
        with suppress(BlockingIOError):
            while piece := os.read(self._output.fileno(), PIECE_BYTES):
                self._text += piece
            dump = parse_py_spy(bytes(self._text), self._pid)
            cwd = working_directory(self._pid)
            return understood(dump, self._sources, cwd) if dump else seen_from_outside(found)
        return None

    def close(self) -> None:
        if self._open:
            self._open = False
            PySpy._running -= 1
            self._process.kill()
            self._process.wait()
            self._output.close()


def _waits(found: Stat) -> str:
    if found.state == "R":
        return "computing"
    where = _system_call(found.pid) or _kernel_function(found.pid)
    return f"waiting in {where}" if where else "waiting"


def _system_call(pid: int) -> str | None:
    number, _, _ = _read(pid, "syscall").partition(" ")
    return _CALLS.get(platform.machine(), {}).get(int(number)) if number.isdecimal() else None


def _kernel_function(pid: int) -> str | None:
    name = _read(pid, "wchan")
    return name if name not in {"", "0"} else None


def _read(process: int | str, name: str) -> str:
    """Return the text of a file in /proc, or an empty string if the file cannot be read."""
    with suppress(OSError):
        return (PROC / str(process) / name).read_text(encoding="utf-8", errors="replace").strip()
    return ""
