"""The job that starts the ranks, as templates see it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import groupby
from typing import Any

from launcher import __version__
from launcher.core import env
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Layout, RankSpec
from launcher.engines.assemble import Request, draft, used_cluster
from launcher.engines.leftover_variables import Leftovers, leftovers
from launcher.engines.render.nodes import Nodes
from launcher.engines.variables import Origin, Variable
from launcher.preload.masking import masked
from launcher.rank_table.ip import address_family

# Known only when the ranks start, or only per server or rank: templates set these themselves.
_NOT_SHARED = frozenset({
    env.TLAUNCH_RUN_DIR, env.TLAUNCH_RUN_ID, env.TORCHELASTIC_RUN_ID, env.MASTER_ADDR, env.MASTER_PORT, env.RANK_TABLE_FILE,
    env.OMP_NUM_THREADS, env.GOMP_SPINCOUNT, env.PYTHONUNBUFFERED, env.RANK, env.RANK_ID, env.DEVICE_ID, env.LOCAL_RANK,
    env.LOCAL_WORLD_SIZE, env.GROUP_RANK, env.TLAUNCH_HEARTBEAT_FILE, env.MS_SCHED_HOST, env.MS_SCHED_PORT, env.MS_NODE_ID,
})  # fmt: skip


@frozen
class JobServer:
    index: int  # GROUP_RANK of its ranks
    name: str
    is_address: bool
    ranks: tuple[RankSpec, ...]  # ordered by local rank


@frozen
class Block:
    name: str
    count: int


@frozen
class Claim:
    """A PersistentVolumeClaim, and its mount point in containers."""

    name: str
    mount: str


@frozen
class SecretVariable:
    variable: str
    secret: str
    key: str


@frozen
class JobOptions:
    flavor: str = ""
    tlaunch: str = "tlaunch"
    image: str | None = None
    resource: str | None = None  # what Kubernetes or Slurm calls a device
    time_limit: str | None = None
    warn_before_s: int = 0
    restarts: int = 0
    sbatch: tuple[str, ...] = ()
    cpus_per_device: int | None = None  # None: whole nodes
    claim: Claim | None = None
    secret_env: tuple[SecretVariable, ...] = ()
    run_options: tuple[str, ...] = ()  # of slurm: words for `tlaunch run`
    mindspore: str = "auto"
    max_losses: int = 5  # requeues in a row after a lost server, as Slurm's own MaxBatchRequeue


@frozen
class Job:
    """The variables that a job template can use. The fields of `wishes` are variables, too."""

    wishes: JobOptions
    version: str
    name: str  # of the run, without its time
    layout: Layout
    servers: tuple[JobServer, ...]  # in the order of the table
    blocks: tuple[Block, ...]  # in the order of ranks
    table: str | None  # the path of the rank table
    table_text: str | None  # of an MPIJob: with the names of the workers
    reduced_table: str | None  # the table of this job's ranks; None if no device stays idle
    command: tuple[str, ...]
    scheduler: tuple[str, ...] | None  # the command of MindSpore's scheduler
    cwd: str
    runs_dir: str
    variables: Mapping[str, str]  # of all ranks
    user_env: Mapping[str, str]  # --env
    secrets: tuple[str, ...]  # the names in user_env that look secret, or whose values do
    leftovers: tuple[Leftovers, ...]  # variables of other launchers
    master_addr: str  # the server of rank 0
    master_index: int  # its index
    master_port: int | None
    grace_s: int
    any_nodes: bool  # of slurm: it chooses the nodes, and the job reads no rank table
    devices_per_node: int | None  # of such nodes
    nodelist: tuple[str, ...]  # of slurm: the nodes that the job waits for by name
    whole_memory: bool  # of slurm
    dp: int | None  # None: it follows from the number of devices

    def as_variables(self) -> dict[str, Any]:
        return {field.name: getattr(record, field.name) for record in (self, self.wishes) for field in fields(record)}


def job_of(
    request: Request,
    name: str,
    wishes: JobOptions,
    nodes: Nodes,
    *,
    dp: int | None,
    master_port: int | None,
    table_text: str | None,
    reduced_table: str | None,
) -> Job:
    """Return the template variables for a job. They do not depend on this machine's environment."""
    elsewhere = replace(request, inherited_env={}, bind="none")
    ranks = draft(elsewhere, name=name, master_port=master_port or 0)
    used = used_cluster(request.cluster, request.layout.world_size)
    source = request.cluster.source
    return Job(
        wishes=wishes,
        version=__version__,
        name=name,
        layout=request.layout,
        servers=tuple(_servers(one.rank for one in ranks)),
        blocks=tuple(Block(name, sum(1 for _ in same)) for name, same in groupby(one.rank.server_id for one in ranks)),
        table=None if source is None else str(source.absolute()),
        table_text=table_text,
        reduced_table=reduced_table if used != request.cluster else None,
        command=request.argv,
        scheduler=request.supervision.scheduler,
        cwd=str(request.cwd),
        runs_dir=str(request.runs_dir),
        variables=_shared(ranks[0].variables),
        user_env=request.user_env,
        secrets=tuple(name for name, value in request.user_env.items() if masked(name, value) != value),
        leftovers=tuple(leftovers()),
        master_addr=ranks[0].rank.env[env.MASTER_ADDR] or "",
        master_index=ranks[0].rank.server_index,
        master_port=master_port,
        grace_s=-int(-request.supervision.grace_s // 1),
        any_nodes=nodes.devices_per_node is not None,
        devices_per_node=nodes.devices_per_node,
        nodelist=nodes.names,
        whole_memory=nodes.whole_memory,
        dp=dp,
    )


def _servers(ranks: Iterable[RankSpec]) -> Iterator[JobServer]:
    """Yield the servers that have ranks, each with its ranks, in the order of the table."""
    in_order = sorted(ranks, key=lambda rank: (rank.server_index, rank.local_rank))
    for index, group in groupby(in_order, key=lambda rank: rank.server_index):
        here = tuple(group)
        yield JobServer(index, here[0].server_id, address_family(here[0].server_id) is not None, here)


def _shared(variables: Iterable[Variable]) -> dict[str, str]:
    """Return the variables that are the same on all ranks, except variables from `--env`."""
    return {
        one.name: one.value
        for one in variables
        if one.value is not None and one.name not in _NOT_SHARED and one.origin is not Origin.OPTION
    }


def with_workers(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with its servers renamed, in rank order, to the workers of the MPIJob `name`."""
    in_order = sorted(cluster.servers, key=lambda server: server.devices[0].global_rank)
    named = (replace(server, server_id=f"{name}-worker-{index}.{name}") for index, server in enumerate(in_order))
    return replace(cluster, servers=tuple(named))
