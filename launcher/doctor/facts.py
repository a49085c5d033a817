"""The facts that a server reports, as plain records that `core.codec` converts to and from JSON.

The rules in launcher/doctor/rules judge the facts. `core.codec` ignores fields of newer versions and fills in defaults
for missing fields, so that servers with different versions can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from launcher.core.frozen import frozen


@frozen
class Request:
    """The checks that the launcher requests from a server."""

    names: tuple[str, ...] = ()  # names of all servers in the table, to resolve
    called: tuple[str, ...] = ()  # this server's own names; empty for a single server
    ports: tuple[int, ...] = ()  # ports that the run needs on this server
    table: str | None = None  # absolute path of the rank table; None without one
    cwd: str = "."  # working directory of ranks
    runs_dir: str = "runs"  # parent of the run directory
    variables: tuple[tuple[str, str], ...] = ()  # additional environment variables of ranks


@frozen
class Interface:
    name: str
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    up: bool = True


@frozen
class Folder:
    """A directory and its disk space. If it does not exist, the values describe its nearest existing parent."""

    path: str
    exists: bool = True
    writable: bool = True  # tested by creating a file
    trouble: str | None = None  # the system's error message if it is not writable
    total_bytes: int | None = None
    free_bytes: int | None = None  # for this user
    total_inodes: int | None = None  # 0 if the file system does not count them
    free_inodes: int | None = None


@frozen
class Resolved:
    """The addresses to which a name resolves on this server."""

    name: str
    addresses: tuple[str, ...] = ()  # empty: unknown, or no answer in time
    seconds: float = 0.0
    answered: bool = True  # False after a timeout


@frozen
class Limit:
    """A resource limit in the units of `ulimit`. None means unlimited."""

    name: str  # nofile, nproc, memlock, ...
    soft: int | None = None
    hard: int | None = None


@frozen
class Port:
    number: int
    trouble: str | None = None  # why it cannot be used; None if it can


@frozen
class Facts:
    """The facts of a server at one point in time. Memory and disk space are in bytes."""

    hostname: str
    machine: str = ""  # equal only for the same system and network namespace
    user: int = 0
    versions: tuple[tuple[str, str], ...] = ()  # of installed software: tlaunch, python, torch, ...
    executable: str = ""  # of Python
    mpi_trouble: str | None = None  # why mpi4py cannot join the job of this mpirun; None if it can
    mpi_variables: tuple[
        tuple[str, str], ...
    ] = ()  # variables that keep ranks with mpi4py from hanging under this mpirun
    table_digest: str | None = None  # None: no table was requested, or it is missing
    table_trouble: str | None = None  # why it cannot be read
    folders: tuple[tuple[str, Folder], ...] = ()  # by purpose: cwd, runs_dir, temporary, shared_memory
    limits: tuple[Limit, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    default_interface: str | None = None  # of the default route
    ranks_interface: str | None = None  # the interface that tlaunch sets for ranks; None: any
    interface_variables: tuple[tuple[str, str], ...] = ()  # variables set on this server that choose an interface
    resolved: tuple[Resolved, ...] = ()  # the requested names, and the hostname
    ports: tuple[Port, ...] = ()
    first_ephemeral_port: int | None = None
    last_ephemeral_port: int | None = None
    ascend_devices: tuple[int, ...] = ()
    nvidia_devices: tuple[int, ...] = ()
    rdma_devices: tuple[str, ...] = ()
    cpu_count: int = 0
    usable_cpus: int = 0  # by affinity
    cpu_limit: float | None = None  # of the control group, in cpus
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_limit_bytes: int | None = None  # of the control groups, the lowest
    clock_offset_s: float | None = None  # relative to the launcher's clock; set by the launcher

    def version(self, name: str) -> str | None:
        return dict(self.versions).get(name)

    def folder(self, purpose: str) -> Folder | None:
        return dict(self.folders).get(purpose)

    def limit(self, name: str) -> Limit | None:
        return next((limit for limit in self.limits if limit.name == name), None)

    def resolution(self, name: str) -> Resolved | None:
        """Return the addresses to which `name` resolves on this server, or None if they were not requested."""
        return self._resolutions.get(name)

    @cached_property
    def _resolutions(self) -> Mapping[str, Resolved]:
        """The resolved names as a dictionary, because rules look up hundreds of names on each server."""
        return {one.name: one for one in reversed(self.resolved)}
