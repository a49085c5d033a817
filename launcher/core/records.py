"""Immutable records that packages exchange. They have no behaviour except simple derived values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from launcher.core.frozen import frozen

DEFAULT_GRACE_S = 15.0
LAST_WORDS_S = 1.0  # time to kill the remaining ranks and report before the batch system kills the launcher


Console = Literal["rank0", "collapse", "all", "none", "status"]
CONSOLES: tuple[Console, ...] = ("rank0", "collapse", "all", "none", "status")

HOST_RANK = -1  # device_id of a rank that computes on the host, in heterogeneous (v1.1) tables
Options = tuple[tuple[str, str], ...]  # keys and values as written in the table, sorted by key


@frozen
class Device:
    """One accelerator (or one CPU process slot) and its rank in the rank table."""

    device_id: int  # physical id on its server, as numbered by the driver; HOST_RANK without a device
    global_rank: int
    device_ip: str | None = None  # as written in the table; None if the table has none
    super_device_id: str | None = None  # the device's number in its super pod
    options: Options = ()  # other keys in the table: ports, backup addresses, network layers


@frozen
class Server:
    server_id: str  # as written: often an address, but any name is allowed
    devices: tuple[Device, ...]  # Invariant: not empty in a cluster, ascending by global_rank
    host_nic_ip: str | None = None
    host_ip: str | None = None  # the host network card address that HCCL uses
    super_pod_id: str | None = None
    options: Options = ()  # other keys in the table: container_ip, hardware_type


@frozen
class Cluster:
    """The contents of a rank table. Invariant: the global ranks of all devices are exactly 0 .. n-1."""

    servers: tuple[Server, ...]
    source: Path | None = field(default=None, compare=False)  # the table's file; None when made from --devices
    options: Options = ()  # other top-level keys in the table: collective_id, mode

    @property
    def device_count(self) -> int:
        return sum(len(server.devices) for server in self.servers)

    @property
    def first_server(self) -> int:
        return next(index for index, server in enumerate(self.servers) if server.devices[0].global_rank == 0)

    @classmethod
    def local(cls, device_count: int, server_id: str = "127.0.0.1") -> Cluster:
        """Return a cluster of this machine with `device_count` devices. Their ids are equal to their ranks."""
        return cls((Server(server_id, tuple(Device(index, index) for index in range(device_count))),))


@frozen
class Layout:
    """The degrees of data, model and pipeline parallelism. Rank arithmetic is in `launcher.mesh`.

    Data parallel (dp) copies the model, model parallel (mp) splits every layer, pipeline parallel (pp) splits the
    stack of layers into stages.
    """

    dp: int = 1
    mp: int = 1
    pp: int = 1
    micro_batches: int = 1  # each data-parallel rank splits its batch into this number of parts

    @property
    def world_size(self) -> int:
        return self.dp * self.mp * self.pp

    def __str__(self) -> str:
        return f"dp={self.dp} mp={self.mp} pp={self.pp}"


@frozen
class DeviceAssignment:
    """The devices that one attempt of an elastic run uses. Rank i uses device `devices[i]` of the rank table."""

    devices: tuple[int, ...]  # Invariant: ascending, layout.world_size of them
    layout: Layout
    # Devices that were available at the start of the attempt and that the layout does not use.
    spare: tuple[int, ...] = field(default=(), compare=False)


def full_assignment(layout: Layout) -> DeviceAssignment:
    """Return the assignment that gives every rank the device with the same rank in the rank table."""
    return DeviceAssignment(tuple(range(layout.world_size)), layout)


@frozen
class Elastic:
    """The devices that an elastic run may use. A device is identified by its rank in the full rank table."""

    servers: tuple[int, ...]  # the index of each device's server
    layouts: tuple[Layout | None, ...]  # layouts[n]: for n devices; None if no layout fits
    excluded: tuple[int, ...] = ()  # devices excluded at the start of the run


@frozen
class RankSpec:
    """One process to start: its rank, its command and the variables that tlaunch sets."""

    global_rank: int
    local_rank: int  # index among the ranks of its server, by ascending global rank
    server_id: str
    server_index: int
    device_id: int
    argv: tuple[str, ...]
    env: Mapping[str, str | None]  # overrides the inherited environment; None removes a variable
    device_ip: str | None = None
    cpus: tuple[int, ...] | None = None  # the cores that the rank may use; None: the launcher's


@frozen
class Supervision:
    """The settings of an agent that supervises ranks."""

    grace_s: float = DEFAULT_GRACE_S  # between SIGTERM and SIGKILL; `grace_from` may shorten it
    max_restarts: int = 0
    hang_timeout_s: float | None = None  # a rank without progress for this time hangs; None: do not detect hangs
    time_limit_s: float | None = None  # of the run, from the start of its first attempt; None: no limit
    forward_signals: tuple[int, ...] = ()  # forwarded to every rank's process; they do not stop the run
    preload: tuple[str, ...] | None = None  # imported once before ranks are forked; None: start every rank separately
    killed_at_s: float | None = None  # wall clock time at which the batch system kills the job; None: never
    kill_wait_s: float | None = None  # the batch system's delay between its SIGTERM and SIGKILL
    elastic: Elastic | None = None  # None: every attempt uses the same devices
    scheduler: tuple[str, ...] | None = None  # command of MindSpore's scheduler, started next to rank 0

    @property
    def may_restart(self) -> bool:
        return self.max_restarts > 0 or self.elastic is not None

    def grace_from(self, now_s: float) -> float:
        """Return the grace period of a shutdown that starts at `now_s`. It ends before a batch system kills the job."""
        if self.killed_at_s is None or self.killed_at_s <= now_s:
            return self.grace_s
        return min(self.grace_s, max(0.0, self.killed_at_s - now_s - LAST_WORDS_S))

    @property
    def grace_on_request_s(self) -> float:
        """The grace period after a SIGTERM from the batch system."""
        return (
            self.grace_s if self.kill_wait_s is None else min(self.grace_s, max(0.0, self.kill_wait_s - LAST_WORDS_S))
        )


@frozen
class ResumedFrom:
    """The newest checkpoint at the start of a run, from which the run resumes. Ranks skip it if it is damaged."""

    checkpoint: Path  # absolute
    step: int  # the step after which the checkpoint was saved
    run: str | None = None  # the run that saved it; None if the checkpoint is outside any run


@frozen
class RunSpec:
    """The full description of a run, fixed before any process starts. `--dry-run` prints it and run.json stores it."""

    name: str  # of the run directory, e.g. 20261121-053712-transformer
    run_dir: Path  # absolute
    cluster: Cluster
    layout: Layout
    ranks: tuple[RankSpec, ...]  # Invariant: ranks[i].global_rank == i
    cwd: Path  # absolute: the working directory of every rank
    master_addr: str
    master_port: int  # of the first attempt; a restart uses another port unless the user chose this one
    supervision: Supervision = field(default_factory=Supervision)
    console: str = "rank0"  # the lines that are shown during the run: a Console, or ranks such as 0,3-5
    engine: str | None = None  # the user's own mpirun or srun that started the ranks; these have no agent
    continues: ResumedFrom | None = None
    progress_regex: str | None = None  # finds step, loss, ... in the output of ranks; None: the built-in patterns
    stdin: int | None = None  # the rank that reads the launcher's stdin; the other ranks read /dev/null
    offers_stdin: bool = True  # the same command could use --stdin
