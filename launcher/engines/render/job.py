"""The job as templates see it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from launcher import __version__
from launcher.core import env
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Layout
from launcher.engines.assemble import Draft, Request, draft, used_cluster
from launcher.engines.render.nodes import Nodes
from launcher.engines.stale_env import Leftovers, leftovers
from launcher.engines.variables import Origin
from launcher.rank_table.ip import address_family

# Known when the ranks start, or a server's own: templates give them themselves.
_AT_START = (
    env.TLAUNCH_RUN_DIR,
    env.TLAUNCH_RUN_ID,
    env.MASTER_ADDR,
    env.MASTER_PORT,
    env.RANK_TABLE_FILE,
    env.OMP_NUM_THREADS,
    env.PYTHONUNBUFFERED,
)
_OF_ONE_RANK = (
    env.RANK,
    env.RANK_ID,
    env.DEVICE_ID,
    env.LOCAL_RANK,
    env.LOCAL_WORLD_SIZE,
    env.GROUP_RANK,
    env.TLAUNCH_HEARTBEAT_FILE,
)

_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

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
}


@frozen
class JobRank:
    global_rank: int
    local_rank: int
    device_id: int


@frozen
class JobServer:
    index: int  # GROUP_RANK of its ranks
    name: str
    is_address: bool
    ranks: tuple[JobRank, ...]


@frozen
class Block:
    """Ranks that follow each other on one server."""

    name: str
    count: int


@frozen
class Claim:
    """A PersistentVolumeClaim, and where containers see it."""

    name: str
    mount: str


@frozen
class SecretVariable:
    """A variable whose value a Secret of Kubernetes has."""

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


@frozen
class Job:
    """Field by field what `VARIABLES` tells of."""

    version: str
    flavor: str
    name: str
    layout: Layout
    servers: tuple[JobServer, ...]
    blocks: tuple[Block, ...]
    table: str | None
    table_text: str | None
    reduced_table: str | None
    command: tuple[str, ...]
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
    tlaunch: str
    image: str | None
    resource: str | None
    time_limit: str | None
    warn_before_s: int
    restarts: int
    sbatch: tuple[str, ...]
    any_nodes: bool
    devices_per_node: int | None
    nodelist: tuple[str, ...]
    whole_memory: bool
    cpus_per_device: int | None
    dp: int | None
    claim: Claim | None
    secret_env: tuple[SecretVariable, ...]
    run_options: tuple[str, ...]

    def as_variables(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in VARIABLES}


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
        version=__version__,
        flavor=wishes.flavor,
        name=name,
        layout=request.layout,
        servers=tuple(_servers(ranks)),
        blocks=tuple(_blocks(ranks)),
        table=None if source is None else str(source.absolute()),
        table_text=table_text,
        reduced_table=reduced_table if used != request.cluster else None,
        command=request.argv,
        cwd=str(request.cwd),
        runs_dir=str(request.runs_dir),
        variables=_shared(ranks[0]),
        user_env=request.user_env,
        secrets=tuple(
            name
            for name, value in request.user_env.items()
            # A shell can export it.
            if env.masked(name, value) != value and _SHELL_NAME.fullmatch(name)
        ),
        leftovers=tuple(leftovers()),
        master_addr=ranks[0].rank.env[env.MASTER_ADDR] or "",
        master_index=ranks[0].rank.server_index,
        master_port=master_port,
        grace_s=-int(-request.supervision.grace_s // 1),
        tlaunch=wishes.tlaunch,
        image=wishes.image,
        resource=wishes.resource,
        time_limit=wishes.time_limit,
        warn_before_s=wishes.warn_before_s,
        restarts=wishes.restarts,
        sbatch=wishes.sbatch,
        any_nodes=nodes.devices_per_node is not None,
        devices_per_node=nodes.devices_per_node,
        nodelist=nodes.names,
        whole_memory=nodes.whole_memory,
        cpus_per_device=wishes.cpus_per_device,
        dp=dp,
        claim=wishes.claim,
        secret_env=wishes.secret_env,
        run_options=wishes.run_options,
    )


def with_workers(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with its servers named like the workers of the MPIJob `name`, in the order of their ranks."""
    in_order = sorted(cluster.servers, key=lambda server: server.devices[0].global_rank)
    named = (replace(server, server_id=f"{name}-worker-{index}.{name}") for index, server in enumerate(in_order))
    return replace(cluster, servers=tuple(named))


def _servers(ranks: tuple[Draft, ...]) -> Iterator[JobServer]:
    in_order = sorted((one.rank for one in ranks), key=lambda rank: (rank.server_index, rank.local_rank))
    for index, group in groupby(in_order, key=lambda rank: rank.server_index):
        here = list(group)
        placed = tuple(JobRank(rank.global_rank, rank.local_rank, rank.device_id) for rank in here)
        name = here[0].server_id
        yield JobServer(index, name, address_family(name) is not None, placed)


def _blocks(ranks: tuple[Draft, ...]) -> Iterator[Block]:
    for _, group in groupby((one.rank for one in ranks), key=lambda rank: rank.server_index):
        here = list(group)
        yield Block(here[0].server_id, len(here))


def _shared(first: Draft) -> dict[str, str]:
    left_out = {*_AT_START, *_OF_ONE_RANK}
    return {
        one.name: one.value
        for one in first.variables
        if one.value is not None and one.name not in left_out and one.origin is not Origin.OPTION
    }
