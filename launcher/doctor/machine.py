"""The machine as this process may use it: space, limits, memory, processors, what is installed."""

from __future__ import annotations

import errno
import os
import resource
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from launcher import __version__
from launcher.core.engine_rank import SLURM, read_engine_rank
from launcher.core.mpi_library import MpiLibrary, is_of_open_mpi_4, library_of_python, variables_for, why_apart
from launcher.core.system import own_directory
from launcher.doctor.facts import Folder, Limit

PACKAGES = ("torch", "torch_npu", "mpi4py", "numpy")
LIMITS = ("nofile", "nproc", "memlock", "core", "stack", "as", "fsize")
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


def mpi_library(environment: Mapping[str, str]) -> MpiLibrary | None:
    """What mpi4py of this Python loads. Another process loads it, and none where mpi4py is not installed."""
    with suppress(PackageNotFoundError, ValueError):
        version("mpi4py")
        return library_of_python((sys.executable,), environment, Path("/"))
    return None


def mpi_trouble(library: MpiLibrary | None, environment: Mapping[str, str]) -> str | None:
    """Where an mpirun has started this process: why a program that imports mpi4py would not learn its ranks."""
    engine = read_engine_rank(environment, os.getpid())
    if library is None or engine is None or engine.engine == SLURM:
        return None
    why = why_apart(library, environment)
    words = f"mpi4py loads {library.name} ({library.path}), which does not go with {engine.engine}'s mpirun"
    return None if why is None else f"{words}: {why}"


def mpi_variables(library: MpiLibrary | None, environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What a program that imports mpi4py would get so as not to hang; nothing where the user has decided."""
    if library is None:
        return ()
    needed = variables_for(library, by_open_mpi_4=is_of_open_mpi_4(environment))
    return tuple((name, value) for name, value in needed.items() if name not in environment)


def folder(path: Path) -> Folder:
    """A file without a name is made there to see whether that can be."""
    there, missing = _nearest(path)
    trouble = _why_no_file(there) or (_why_no_directory(missing) if missing else None)
    space = _space(there)
    return Folder(
        str(path),
        exists=missing is None,
        writable=trouble is None,
        trouble=trouble,
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


def _nearest(path: Path) -> tuple[Path, Path | None]:
    """The directory itself or the nearest parent that is one, and what would have to be made in it first."""
    missing = None
    for each in (path.absolute(), *path.absolute().parents):
        if os.path.isdir(each):  # noqa: PTH112 - Path.is_dir raises where it may not look
            return each, missing
        missing = each
    return Path("/"), missing


def _why_no_file(directory: Path) -> str | None:
    """Why no file can be made there, in the system's words; None: it can."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _why_no_directory(path: Path) -> str | None:
    """As before; a file may be in the way, or a link that leads nowhere."""
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    return os.strerror(errno.ENOTDIR)


def _limit(number: int) -> tuple[int | None, int | None]:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number))
    return soft, hard
