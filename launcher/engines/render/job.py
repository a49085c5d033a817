"""The job of ranks, as templates see it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
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

# Every variable of a template. `tlaunch render --list` shows it; tests hold it to `Job`.
VARIABLES: Mapping[str, str] = {
    "version": "of tlaunch",
    "flavor": "--flavor, or the kind's first",
    "name": "of the run, without its time",
    "layout": "layout.dp, .mp, .pp, .micro_batches, .world_size",
    "servers": "in the table's order: .index, .name (no machine's with --nodes), .is_address, "
    ".ranks: .global_rank, .local_rank, .device_id",
    "blocks": "ranks in order, as runs on one server: .name, .count",
    "table": "the rank table's path; none with --devices",
    "table_text": "its content; of an MPIJob with the names of the workers",
    "reduced_table": "the table cut to the ranks of this job; none where no device stays idle",
    "command": "the words of COMMAND",
    "scheduler": "the words that start MindSpore's scheduler beside rank 0; none where ranks need none",
    "mindspore": "--mindspore",
    "cwd": "where ranks start",
    "runs_dir": "where run directories are made",
    "variables": "what all ranks get: names and values",
    "user_env": "--env: names and values",
    "secrets": "the names among them that look secret, or whose values do",
    "leftovers": "variables of other launchers: each with .names (patterns) and .signs",
    "master_addr": "the server of rank 0",
    "master_index": "its index",
    "master_port": "--master-port; none where it was not given",
    "grace_s": "--grace, in whole seconds",
    "tlaunch": "the path of tlaunch",
    "image": "--image",
    "resource": "--resource: what a device is called by Kubernetes or Slurm",
    "time_limit": "--time-limit",
    "warn_before_s": "--warn-before",
    "restarts": "--restarts",
    "sbatch": "--sbatch, a list",
    "any_nodes": "of slurm: whether the job's nodes are Slurm's choice, and no rank table is read when it starts",
    "devices_per_node": "of slurm: how many devices each of such nodes has; else none",
    "nodelist": "of slurm: the nodes that the job waits for by name, a list",
    "whole_memory": "of slurm: whether the job asks for all memory of its nodes",
    "cpus_per_device": "--cpus-per-device; none where whole nodes are asked for",
    "dp": "--dp; none where it follows from the number of devices",
    "claim": "--pvc: .name, .mount; or none",
    "secret_env": "--env-from-secret, a list: .variable, .secret, .key",
    "run_options": "of slurm: words for `tlaunch run`, --max-restarts for instance",
    "max_losses": "of slurm: how often in a row the job is queued again since a server was lost",
}


@frozen
class JobServer:
    index: int  # GROUP_RANK of its ranks
    name: str
    is_address: bool
    ranks: tuple[RankSpec, ...]  # ordered by local rank


@frozen
class Block:
    """Consecutive ranks on one server."""

    name: str
    count: int


@frozen
class Claim:
    """A PersistentVolumeClaim, and its mount point in containers."""

    name: str
    mount: str


@frozen
class SecretVariable:
    """A variable whose value comes from a Kubernetes Secret."""

    variable: str
    secret: str
    key: str


@frozen
class Wishes:
    """The options that only job files have."""

    flavor: str = ""
    tlaunch: str = "tlaunch"
    image: str | None = None
    resource: str | None = None
    time_limit: str | None = None
    warn_before_s: int = 0
    restarts: int = 0
    sbatch: tuple[str, ...] = ()
    cpus_per_device: int | None = None
    claim: Claim | None = None
    secret_env: tuple[SecretVariable, ...] = ()
    run_options: tuple[str, ...] = ()
    mindspore: str = "auto"
    max_losses: int = 5  # as Slurm's own MaxBatchRequeue


@frozen
class Job:
    """The values described by `VARIABLES`; the fields of `wishes` become variables of their own."""

    wishes: Wishes
    version: str
    name: str
    layout: Layout
    servers: tuple[JobServer, ...]
    blocks: tuple[Block, ...]
    table: str | None
    table_text: str | None
    reduced_table: str | None
    command: tuple[str, ...]
    scheduler: tuple[str, ...] | None
    cwd: str
    runs_dir: str
    variables: Mapping[str, str]
    user_env: Mapping[str, str]
    secrets: tuple[str, ...]
    leftovers: tuple[Leftovers, ...]
    master_addr: str
    master_index: int
    master_port: int | None
    grace_s: int
    any_nodes: bool
    devices_per_node: int | None
    nodelist: tuple[str, ...]
    whole_memory: bool
    dp: int | None

    def as_variables(self) -> dict[str, Any]:
        return {name: getattr(self if hasattr(self, name) else self.wishes, name) for name in VARIABLES}


def job_of(
    request: Request,
    name: str,
    wishes: Wishes,
    nodes: Nodes,
    *,
    dp: int | None,
    master_port: int | None,
    table_text: str | None,
    reduced_table: str | None,
) -> Job:
    """Return the job that `tlaunch run` would start, for templates. It does not depend on this machine's environment."""
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
    """Return the variables that all ranks of a job have in common, without those from `--env`."""
    return {
        one.name: one.value
        for one in variables
        if one.value is not None and one.name not in _NOT_SHARED and one.origin is not Origin.OPTION
    }


def with_workers(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with its servers renamed to the workers of the MPIJob `name`, in rank order."""
    in_order = sorted(cluster.servers, key=lambda server: server.devices[0].global_rank)
    named = (replace(server, server_id=f"{name}-worker-{index}.{name}") for index, server in enumerate(in_order))
    return replace(cluster, servers=tuple(named))
