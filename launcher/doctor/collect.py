"""Collect the facts of this server: installed software, disk space, limits, memory, processors, network.

Packages are not imported to find their versions, because importing torch takes seconds. These functions do not raise.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from launcher import __version__
from launcher.core.codec import digest_of_file
from launcher.core.machine.engine_rank import (
    SLURM,
    MpiLibrary,
    is_of_open_mpi_4,
    library_of_python,
    read_engine_rank,
    variables_for,
    why_apart,
)
from launcher.core.machine.proc import boot_id, davinci_ids, nvidia_ids, own_directory
from launcher.doctor import network_facts as network
from launcher.doctor.facts import Facts, Folder, Limit, Request
from launcher.doctor.network_facts import RESOLVE_S, resolve

PACKAGES = ("torch", "torch_npu", "mpi4py", "numpy")
LIMITS = ("nofile", "nproc", "memlock", "core", "stack", "as", "fsize")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only inspected
_NETWORK = Path("/proc/self/ns/net")


def collect(request: Request) -> Facts:
    """Collect facts about this server. This takes up to `RESOLVE_S` seconds, unless a file system does not respond."""
    hostname = socket.gethostname()
    ephemeral = network.ephemeral_ports()
    memory = psutil.virtual_memory()
    environment = {**os.environ, **dict(request.variables)}
    mpi = mpi_library(environment)
    resolved = resolve((*request.names, hostname), RESOLVE_S)
    table_digest = table_trouble = None
    if request.table is not None:
        try:  # a digest of the parsed content, like HCCL's
            table_digest = digest_of_file(request.table)
        except OSError as error:
            table_trouble = error.strerror or str(error)
    looked_at = {
        "cwd": "", "runs_dir": request.runs_dir, "temporary": tempfile.gettempdir(), "shared_memory": str(SHARED_MEMORY),
    }  # fmt: skip
    return Facts(
        hostname=hostname,
        machine=identity(),
        user=os.getuid(),
        versions=(*versions(), *((("MPI", mpi.name),) if mpi else ())),
        executable=sys.executable,
        mpi_trouble=mpi_trouble(mpi, environment),
        mpi_variables=mpi_variables(mpi, environment),
        table_digest=table_digest,
        table_trouble=table_trouble,
        folders=tuple((purpose, folder(Path(request.cwd, path))) for purpose, path in looked_at.items()),
        limits=limits(),
        interfaces=network.interfaces(),
        default_interface=network.default_interface(),
        interface_variables=network.interface_variables(environment),
        ranks_interface=network.ranks_interface(request.called, resolved),
        resolved=tuple(resolved.values()),
        ports=tuple(map(network.try_port, request.ports)),
        first_ephemeral_port=ephemeral[0] if ephemeral else None,
        last_ephemeral_port=ephemeral[1] if ephemeral else None,
        ascend_devices=davinci_ids(),
        nvidia_devices=nvidia_ids(),
        rdma_devices=network.rdma_devices(),
        cpu_count=os.cpu_count() or 1,
        usable_cpus=usable_cpus(),
        cpu_limit=cpu_limit(),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        memory_limit_bytes=memory_limit(),
    )


def identity() -> str:
    """Return an identifier of the current boot of the machine and the network namespace of this process."""
    try:
        return f"{boot_id()} {_NETWORK.readlink()}" if boot_id() else ""
    except OSError:
        return ""


def versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of packages that are installed for this Python."""
    found = {"tlaunch": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        with suppress(PackageNotFoundError, ValueError):
            found[package] = version(package)
    return tuple(found.items())


def mpi_library(environment: Mapping[str, str]) -> MpiLibrary | None:
    """Return the MPI library that mpi4py loads in a child process, or None if mpi4py is not installed."""
    with suppress(PackageNotFoundError, ValueError):
        version("mpi4py")
        return library_of_python((sys.executable,), environment, Path("/"))
    return None


def mpi_trouble(library: MpiLibrary | None, environment: Mapping[str, str]) -> str | None:
    """Return the reason why mpi4py does not work with the mpirun that started this process, or None if it works."""
    engine = read_engine_rank(environment, os.getpid())
    if library is None or engine is None or engine.engine == SLURM:
        return None
    why = why_apart(library, environment)
    words = f"mpi4py loads {library.name} ({library.path}), which does not work with {engine.engine}'s mpirun"
    return None if why is None else f"{words}: {why}"


def mpi_variables(library: MpiLibrary | None, environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the environment variables that prevent mpi4py from hanging, except those that the user has set."""
    if library is None:
        return ()
    needed = variables_for(library, by_open_mpi_4=is_of_open_mpi_4(environment))
    return tuple((name, value) for name, value in needed.items() if name not in environment)


def folder(path: Path) -> Folder:
    """Return the state and disk space of a directory. A temporary file is created to test for write access."""
    missing, there = None, path.absolute()  # the part of the path to create, and the existing parent
    while not os.path.isdir(there) and there.parent != there:  # noqa: PTH112 - Path.is_dir raises without permission
        missing, there = there, there.parent
    trouble = _why_no_file(there) or (_why_no_directory(missing) if missing else None)
    space: os.statvfs_result | None = None
    with suppress(OSError):
        space = os.statvfs(there)
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
    found = {name: resource.getrlimit(number) for name, number in numbers.items() if number is not None}
    none = resource.RLIM_INFINITY
    return tuple(
        Limit(name, None if soft == none else soft, None if hard == none else hard)
        for name, (soft, hard) in found.items()
    )


def memory_limit() -> int | None:
    """Return the lowest memory limit of this process's control groups in bytes, or None if there is none."""
    return min((int(text) for text in _cgroup_limit("memory.max") if text.isdecimal()), default=None)


def cpu_limit() -> float | None:
    """Return the lowest CPU limit of this process's control groups, such as 1.5, or None if there is none."""
    quotas = [text.split() for text in _cgroup_limit("cpu.max")]
    return min((int(quota) / int(period) for quota, period in quotas if quota.isdecimal()), default=None)


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cgroup_limit(name: str) -> list[str]:
    """Return the contents of the file `name` in this process's control group and its visible parents."""
    own = own_directory()
    texts = []
    for group in () if own is None else (own, *own.parents):
        with suppress(OSError, ValueError):
            texts.append((group / name).read_text(encoding="ascii").strip())
    return texts


def _why_no_file(directory: Path) -> str | None:
    """Try to create a file in the directory. Return the system's error message, or None on success."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _why_no_directory(path: Path) -> str | None:
    """Return the reason why the directory cannot be created, such as a parent that is a file, or None if it can be."""
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    return os.strerror(errno.ENOTDIR)
