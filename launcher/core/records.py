"""Plain, frozen records that packages hand to each other. No behaviour beyond what follows from the fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from launcher.core.frozen import frozen

DEFAULT_GRACE_S = 15.0
LAST_WORDS_S = 1.0  # to kill what is left and report, before the batch system kills the reporter


Console = Literal["rank0", "collapse", "all", "none", "status"]
CONSOLES: tuple[Console, ...] = ("rank0", "collapse", "all", "none", "status")

HOST_RANK = -1  # the device_id of a rank that computes on the host itself, in heterogeneous (v1.1) tables
Options = tuple[tuple[str, str], ...]  # keys and values as a table writes them, sorted by key


@frozen
class Device:
    """One accelerator (or one CPU process slot) and the rank that a table gives it."""

    device_id: int  # physical id on its server, as the driver counts; HOST_RANK for a rank that has no device
    global_rank: int
    device_ip: str | None = None  # as written in the table; None where a table has none
    super_device_id: str | None = None  # the device's number in its super pod
    options: Options = ()  # what else the table says about it: ports, backup addresses, network layers


@frozen
class Server:
    server_id: str  # as written: often an address, but any name is allowed
    devices: tuple[Device, ...]  # Invariant: not empty in a cluster, ascending by global_rank
    host_nic_ip: str | None = None
    host_ip: str | None = None  # where HCCL talks over the servers' own network cards
    super_pod_id: str | None = None
    options: Options = ()  # what else the table says about it: container_ip, hardware_type


@frozen
class Cluster:
    """The contents of a rank table. Invariant: the global ranks of all devices are exactly 0 .. n-1."""

    servers: tuple[Server, ...]
    source: Path | None = field(default=None, compare=False)  # the table's file; None when made from --devices
    options: Options = ()  # what else the table says about the whole: collective_id, mode

    @property
    def device_count(self) -> int:
        return sum(len(server.devices) for server in self.servers)

    @property
    def first_server(self) -> int:
        return next(index for index, server in enumerate(self.servers) if server.devices[0].global_rank == 0)

    @classmethod
    def local(cls, device_count: int, server_id: str = "127.0.0.1") -> Cluster:
        """Return a cluster of this machine alone, with `device_count` devices numbered as the ranks are."""
        return cls((Server(server_id, tuple(Device(index, index) for index in range(device_count))),))


@frozen
class Layout:
    """The parallel degree of each axis. Rank arithmetic is in `launcher.mesh`.

    Data parallel (dp) copies the model, model parallel (mp) splits every layer, pipeline parallel (pp) splits the
    stack of layers into stages.
    """

    dp: int = 1
    mp: int = 1
    pp: int = 1
    micro_batches: int = 1  # how many parts each data-parallel rank cuts its batch into

    @property
    def world_size(self) -> int:
        return self.dp * self.mp * self.pp

    def __str__(self) -> str:
        """Return the layout as people write it: dp=2 mp=2 pp=2."""
        return f"dp={self.dp} mp={self.mp} pp={self.pp}"


@frozen
class DeviceAssignment:
    """The devices of one attempt of an elastic run: rank i is on the device to which the rank table gives `devices[i]`."""

    devices: tuple[int, ...]  # Invariant: ascending, layout.world_size of them
    layout: Layout
    # Devices that are there when it begins, and that the layout has no use for.
    spare: tuple[int, ...] = field(default=(), compare=False)


def full_assignment(layout: Layout) -> DeviceAssignment:
    """Return the allotment in which every rank is on the device that the rank table gives it."""
    return DeviceAssignment(tuple(range(layout.world_size)), layout)


@frozen
class Elastic:
    """The devices that an elastic run may use, each called by the rank that the whole rank table gives it."""

    servers: tuple[int, ...]  # the index of each device's server
    layouts: tuple[Layout | None, ...]  # layouts[n]: for n devices; None where none fits so few
    excluded: tuple[int, ...] = ()  # at the beginning


@frozen
class RankSpec:
    """One process to start: who it is, what it runs, and what tlaunch adds to its environment."""

    global_rank: int
    local_rank: int  # index among the ranks of its server, by ascending global rank
    server_id: str
    server_index: int
    device_id: int
    argv: tuple[str, ...]
    env: Mapping[str, str | None]  # laid over the inherited environment; None takes a variable away
    device_ip: str | None = None
    cpus: tuple[int, ...] | None = None  # the only cores that it may use; None: those of the launcher


@frozen
class Supervision:
    """The rules by which an agent supervises its ranks."""

    grace_s: float = DEFAULT_GRACE_S  # between SIGTERM and SIGKILL, if `grace_from` leaves so much
    max_restarts: int = 0
    hang_timeout_s: float | None = None  # without progress for so long, a rank hangs; None: no hang is looked for
    forward_signals: tuple[int, ...] = ()  # handed to every rank's process instead of acting on the run
    preload: tuple[str, ...] | None = None  # imported once, before ranks are forked; None: every rank starts afresh
    killed_at_s: float | None = None  # wall clock: when a batch system kills whatever is left of its job; None: never
    kill_wait_s: float | None = None  # what that system lets pass between its own SIGTERM and SIGKILL
    elastic: Elastic | None = None  # None: every attempt has the same devices
    scheduler: tuple[str, ...] | None = None  # MindSpore's command, to run beside rank 0; None: there is none

    @property
    def may_restart(self) -> bool:
        return self.max_restarts > 0 or self.elastic is not None

    def grace_from(self, now_s: float) -> float:
        """Return the grace period of an end that begins at `now_s` (wall clock): no longer than the batch system leaves.

        A `killed_at_s` that has passed was postponed, and no longer limits it.
        """
        if self.killed_at_s is None or self.killed_at_s <= now_s:
            return self.grace_s
        return min(self.grace_s, max(0.0, self.killed_at_s - now_s - LAST_WORDS_S))

    @property
    def grace_on_request_s(self) -> float:
        """The grace period of an end that the batch system asks for by SIGTERM."""
        return (
            self.grace_s if self.kill_wait_s is None else min(self.grace_s, max(0.0, self.kill_wait_s - LAST_WORDS_S))
        )


@frozen
class ResumedFrom:
    """The checkpoint that a run goes on from: the newest that was there when it began. Ranks pass over one that is damaged."""

    checkpoint: Path  # absolute
    step: int  # after which it was saved
    run: str | None = None  # the name of the run that saved it; None where it stands elsewhere


@frozen
class RunSpec:
    """Everything that a run is, decided before any process starts: dry-run prints it, run.json keeps it."""

    name: str  # of the run directory, e.g. 20261121-053712-transformer
    run_dir: Path  # absolute
    cluster: Cluster
    layout: Layout
    ranks: tuple[RankSpec, ...]  # Invariant: ranks[i].global_rank == i
    cwd: Path  # absolute: every rank starts here
    master_addr: str
    master_port: int  # of the first attempt; a restart takes another one, unless the user chose it
    supervision: Supervision = field(default_factory=Supervision)
    console: Console = "rank0"  # what of the ranks' lines is shown during the run
    engine: str | None = None  # the user's own mpirun or srun that started the ranks: they have no agent
    continues: ResumedFrom | None = None
    progress_regex: str | None = None  # what finds step, loss, ... in lines of ranks; None: forms that are known
