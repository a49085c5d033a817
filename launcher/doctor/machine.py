"""The machine as this process may use it: space, limits, memory, processors, what is installed."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from launcher import __version__
from launcher.core.control_group import own_directory
from launcher.doctor.facts import Folder, Limit

PACKAGES = ("torch", "torch_npu", "mpi4py", "numpy")
LIMITS = ("nofile", "nproc", "memlock", "core", "stack", "as")
_SYSTEM = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_MEMORY = Path("/proc/meminfo")
_KIB = 1024


def identity() -> str:
    """Alike for two processes only if the same start of the same kernel gave them the same network."""
    try:
        return f"{_SYSTEM.read_text(encoding='ascii').strip()} {_NETWORK.readlink()}"
    except OSError:
        return ""


def versions() -> tuple[tuple[str, str], ...]:
    """Of what is installed for this Python. Nothing is imported: torch alone would take seconds."""
    found = {"tlaunch": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        with suppress(PackageNotFoundError, ValueError):
            found[package] = version(package)
    return tuple(found.items())


def table_digest(path: Path) -> str:
    """Alike for files that HCCL takes for the same table: white space and the order of keys do not matter to it.

    Raises:
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    with suppress(ValueError, RecursionError):
        content = json.dumps(json.loads(content), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def folder(path: Path) -> Folder:
    """A file without a name is made there to see whether that can be."""
    there = next((parent for parent in (path, *path.absolute().parents) if parent.is_dir()), Path("/"))
    space = _space(there)
    return Folder(
        str(path),
        exists=path.is_dir(),
        writable=_takes_files(there) and (there == path or not os.path.lexists(path)),
        total_bytes=None if space is None else space.f_blocks * space.f_frsize,
        free_bytes=None if space is None else space.f_bavail * space.f_frsize,
        total_inodes=None if space is None else space.f_files,
        free_inodes=None if space is None else space.f_favail,
    )


def limits() -> tuple[Limit, ...]:
    numbers = {name: getattr(resource, f"RLIMIT_{name.upper()}", None) for name in LIMITS}
    return tuple(Limit(name, *_limit(number)) for name, number in numbers.items() if number is not None)


def memory() -> tuple[int | None, int | None]:
    """All of the machine's, and what could be taken without swapping."""
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
    except OSError:
        return None, None
    found = {name: int(rest.split()[0]) * _KIB for name, _, rest in (line.partition(":") for line in lines)}
    return found.get("MemTotal"), found.get("MemAvailable")


def memory_limit() -> int | None:
    """The tightest of the control groups that this process is in; None where none limits it."""
    return min((int(text) for text in _told_by_groups("memory.max") if text.isdecimal()), default=None)


def cpu_limit() -> float | None:
    """In cpus: 1.5 is one and a half of them all the time."""
    quotas = [text.split() for text in _told_by_groups("cpu.max")]
    return min((int(quota) / int(period) for quota, period in quotas if quota.isdecimal()), default=None)


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _told_by_groups(name: str) -> list[str]:
    """What this process's control group and those around it say, as far as they are to be seen."""
    own = own_directory()
    told = []
    for group in () if own is None else (own, *own.parents):
        with suppress(OSError, ValueError):
            told.append((group / name).read_text(encoding="ascii").strip())
    return told


def _space(path: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(path)
    except OSError:
        return None


def _takes_files(path: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def _limit(number: int) -> tuple[int | None, int | None]:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number))
    return soft, hard
