"""The job as templates see it, and the nodes that a Slurm job asks for: any, or those that a rank table names. Pure.

A rank table with addresses holds on its own servers only: HCCL uses these addresses, and a job on other nodes would be
refused when it starts. So the job waits for these nodes, by name. A table that only names servers and counts their devices
holds on other nodes, too: its job takes whichever Slurm has, and does not wait for one that has died.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from launcher import __version__
from launcher.core import env
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Layout, RankSpec, Server
from launcher.core.text import counted
from launcher.engines.assemble import Request, draft, used_cluster
from launcher.engines.other_launchers import Leftovers, leftovers
from launcher.engines.variables import Origin, Variable
from launcher.logs.terminal import escaped
from launcher.rank_table.hostfiles import MAX_COUNT, counted_cluster
from launcher.rank_table.ip import address_family


@frozen
class Nodes:
    """The nodes that a job asks for, beside their number."""

    names: tuple[str, ...] = ()  # that Slurm knows; empty: it is not asked for nodes by name
    devices_per_node: int | None = None  # of any nodes; None: the job reads its rank table, or is not Slurm's
    note: str = ""  # for the user; may be empty
    whole_memory: bool = False  # all that the nodes have, which --exclusive alone does not give


def unnamed_cluster(nodes: int, devices: int) -> Cluster:
    """Return a cluster of so many unnamed nodes.

    Raises:
        UsageError: more devices than any cluster has.
    """
    if nodes * devices > MAX_COUNT:
        raise UsageError(
            f"--nodes {nodes} with --devices {devices} each make {nodes * devices:,} ranks, more than the "
            f"{MAX_COUNT:,} of a cluster",
            hint="--devices counts those of one node",
        )
    return counted_cluster([(f"node{index}", devices) for index in range(nodes)])


def nodes_for(cluster: Cluster, used: Cluster, *, pinned: bool, chosen_by_hand: bool) -> Nodes:
    """Return the nodes for a job of `cluster`, whose ranks are on `used`.

    pinned: the table's own servers are wanted in any case. chosen_by_hand: an option for sbatch names nodes already.

    Raises:
        UsageError: nodes are wanted by name that Slurm has no names for.
    """
    if cluster.source is None:
        if pinned:
            raise UsageError(
                "--pin-nodes keeps a job on the servers of its rank table, and there is none",
                hint="add --rank-table, or name nodes: --sbatch=--nodelist=n1,n2",
            )
        return Nodes(devices_per_node=len(cluster.servers[0].devices))
    kept = _why_kept(cluster)
    table, count = escaped(cluster.source.name), len(used.servers)
    # Slurm calls n1.example.org n1.
    names = tuple(server.server_id.partition(".")[0] for server in used.servers)
    listed = escaped(",".join(names))
    if kept is None and not pinned:
        note = (
            f"any {counted(count, 'node')} will do: of {table} only the numbers of servers and devices count; --pin-nodes asks "
            f"for {listed}"
        )
        return Nodes((), len(cluster.servers[0].devices), "" if chosen_by_hand else note)
    if any(address_family(server.server_id) for server in used.servers):
        return _by_address(used, table, pinned=pinned, chosen_by_hand=chosen_by_hand)
    if pinned or chosen_by_hand:
        return Nodes(names)
    note = f"the job waits for {listed} even if one of them is down: {kept}"
    return Nodes(names, None, f"{note}; without a table --nodes {count} --devices N takes any")


def _by_address(used: Cluster, table: str, *, pinned: bool, chosen_by_hand: bool) -> Nodes:
    if chosen_by_hand:
        return Nodes()
    first, count = escaped(used.servers[0].server_id), len(used.servers)
    hint = "--sbatch=--nodelist=NAMES says which nodes they are"
    if pinned:
        raise UsageError(
            f"--pin-nodes: {table} calls a server {first}, and Slurm is asked for nodes by their names", hint=hint
        )
    note = f"warning: the job asks for any {counted(count, 'node')}, and will end with 3 where they are not those of {table}"
    return Nodes((), None, f"{note}, which Slurm does not know by {first}; {hint}")


def _why_kept(cluster: Cluster) -> str | None:
    """Return what in the table holds on its own servers alone, or None."""
    counts = {len(server.devices) for server in cluster.servers}
    if len(counts) > 1:
        return f"its servers have {min(counts)} to {max(counts)} devices"
    for server in cluster.servers:
        if has := _of_this_server(server):
            return escaped(f"server {server.server_id} has {has}")
    return None


def _of_this_server(server: Server) -> str | None:
    if address_family(server.server_id):
        return "an address for a name"
    own = {"host_ip": server.host_ip, "host_nic_ip": server.host_nic_ip, "super_pod_id": server.super_pod_id}
    own |= {name: value for name, value in server.options if name.endswith("_ip")}
    if found := next((f"{name} {value}" for name, value in own.items() if value), None):
        return found
    first = server.devices[0].global_rank
    for index, device in enumerate(server.devices):
        if device.device_ip:
            return f"device_ip {device.device_ip}"
        if device.super_device_id or device.options:
            return f"more to say of device {device.device_id}"
        if (device.device_id, device.global_rank) != (index, first + index):
            return (
                f"rank {device.global_rank} on device {device.device_id}, which is another one where ranks are counted"
            )
    return None


# Known when the ranks start, or of one server or rank: templates give them themselves.
_NOT_SHARED = frozenset({
    env.TLAUNCH_RUN_DIR, env.TLAUNCH_RUN_ID, env.MASTER_ADDR, env.MASTER_PORT, env.RANK_TABLE_FILE,
    env.OMP_NUM_THREADS, env.PYTHONUNBUFFERED, env.RANK, env.RANK_ID, env.DEVICE_ID, env.LOCAL_RANK,
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
}


@frozen
class JobServer:
    index: int  # GROUP_RANK of its ranks
    name: str
    is_address: bool
    ranks: tuple[RankSpec, ...]  # in the order of local ranks


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
    mindspore: str = "auto"


@frozen
class Job:
    """The values of what `VARIABLES` describes; those of `wishes` are variables of their own."""

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
        secrets=tuple(name for name, value in request.user_env.items() if env.masked(name, value) != value),
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
    """Yield the servers of the ranks, each with its own, in the order of the table."""
    in_order = sorted(ranks, key=lambda rank: (rank.server_index, rank.local_rank))
    for index, group in groupby(in_order, key=lambda rank: rank.server_index):
        here = tuple(group)
        yield JobServer(index, here[0].server_id, address_family(here[0].server_id) is not None, here)


def _shared(variables: Iterable[Variable]) -> dict[str, str]:
    """Return those of a rank's variables that all ranks of a job have in common, but the ones of `--env`."""
    return {
        one.name: one.value
        for one in variables
        if one.value is not None and one.name not in _NOT_SHARED and one.origin is not Origin.OPTION
    }


def with_workers(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with its servers named like the workers of the MPIJob `name`, in the order of their ranks."""
    in_order = sorted(cluster.servers, key=lambda server: server.devices[0].global_rank)
    named = (replace(server, server_id=f"{name}-worker-{index}.{name}") for index, server in enumerate(in_order))
    return replace(cluster, servers=tuple(named))
