"""The facts that a server reports: plain records, which `core.codec` carries through JSON.

launcher/doctor/rules judges them. `core.codec` leaves out fields of a later version and gives defaults to those that an
older one does not write, so that servers with different versions can still be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from launcher.core.frozen import frozen


@frozen
class Request:
    """The things that a server is asked to look at."""

    names: tuple[str, ...] = ()  # that servers of the table go by, this one's included; each is resolved
    called: tuple[str, ...] = ()  # this one's own names; empty if there is no other server
    ports: tuple[int, ...] = ()  # which a listener of the run would take on this server
    table: str | None = None  # absolute path of the rank table; None: the run has none
    cwd: str = "."  # where ranks would start
    runs_dir: str = "runs"  # where the run directory would be made
    variables: tuple[tuple[str, str], ...] = ()  # that ranks would get besides what is set there


@frozen
class Interface:
    name: str
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    up: bool = True


@frozen
class Folder:
    """A directory, and the file system that it is on (that of its nearest parent where it does not exist)."""

    path: str
    exists: bool = True
    writable: bool = True  # as a file that was made there showed; in the nearest parent where it does not exist
    trouble: str | None = None  # why it is not, in the system's words
    total_bytes: int | None = None
    free_bytes: int | None = None  # for this user
    total_inodes: int | None = None  # 0 where the file system does not count them
    free_inodes: int | None = None


@frozen
class Resolved:
    """The addresses of a name on this server."""

    name: str
    addresses: tuple[str, ...] = ()  # empty: unknown, or no answer in time
    seconds: float = 0.0
    answered: bool = True  # in time


@frozen
class Limit:
    """A limit as `ulimit` prints it; None: unlimited."""

    name: str  # nofile, nproc, memlock, ...
    soft: int | None = None
    hard: int | None = None


@frozen
class Port:
    number: int
    trouble: str | None = None  # why it cannot be taken; None: it can


@frozen
class Facts:
    """One server at one moment. Amounts of memory and space are bytes."""

    hostname: str
    machine: str = ""  # the same for two answers only if they come from one system with one network
    user: int = 0
    versions: tuple[tuple[str, str], ...] = ()  # of what is installed: tlaunch, python, torch, ...
    executable: str = ""  # of Python
    mpi_trouble: str | None = None  # which MPI mpi4py loads that cannot join the job of the mpirun around; None: it can
    mpi_variables: tuple[tuple[str, str], ...] = ()  # that ranks of mpi4py get so as not to hang under this mpirun
    table_digest: str | None = None  # None: no table was asked for, or it is not there
    table_trouble: str | None = None  # why it cannot be read
    folders: tuple[tuple[str, Folder], ...] = ()  # by purpose: cwd, runs_dir, temporary, shared_memory
    limits: tuple[Limit, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    default_interface: str | None = None  # of the default route
    ranks_interface: str | None = None  # by which ranks would reach other servers, unless the user says; None: by any
    interface_variables: tuple[tuple[str, str], ...] = ()  # set here, of those that choose an interface
    resolved: tuple[Resolved, ...] = ()  # the names asked for, and the own hostname
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
    memory_limit_bytes: int | None = None  # of the control group, the tightest above it
    clock_offset_s: float | None = None  # ahead of the head's, which writes it in

    def version(self, name: str) -> str | None:
        return dict(self.versions).get(name)

    def folder(self, purpose: str) -> Folder | None:
        return dict(self.folders).get(purpose)

    def limit(self, name: str) -> Limit | None:
        return next((limit for limit in self.limits if limit.name == name), None)

    def resolution(self, name: str) -> Resolved | None:
        """Return what was found for `name`; None if it was not asked for."""
        return self._resolutions.get(name)

    @cached_property
    def _resolutions(self) -> Mapping[str, Resolved]:
        """The names that were asked for, by name: every rule looks up every name of perhaps 500 servers."""
        return {one.name: one for one in reversed(self.resolved)}
