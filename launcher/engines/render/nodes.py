"""The nodes that a Slurm job asks for: any, or those that a rank table names. Pure.

A rank table with addresses holds on its own servers only: HCCL uses these addresses, and a job on other nodes would be
refused when it starts. So the job waits for these nodes, by name. A table that only names servers and counts their devices
holds on other nodes, too: its job takes whichever Slurm has, and does not wait for one that has died.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Server
from launcher.core.text import counted
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


def pods_note(cluster: Cluster) -> str:
    """Return a warning if the table has addresses of certain machines, since Kubernetes places pods on any; else empty."""
    found = next((f"{name} {value}" for server in cluster.servers for name, value in _addresses(server)), None)
    if found is None:
        return ""
    return (
        f"warning: the rank table has {escaped(found)}, and Kubernetes may place the pod of that server on another node; "
        "bind the pods to nodes in the job file, or leave the addresses out of the table"
    )


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
    own = (*_addresses(server), ("super_pod_id", server.super_pod_id))
    if found := next((f"{name} {value}" for name, value in own if value), None):
        return found
    first = server.devices[0].global_rank
    for index, device in enumerate(server.devices):
        if device.super_device_id or device.options:
            return f"more to say of device {device.device_id}"
        if (device.device_id, device.global_rank) != (index, first + index):
            return (
                f"rank {device.global_rank} on device {device.device_id}, which is another one where ranks are counted"
            )
    return None


def _addresses(server: Server) -> Iterator[tuple[str, str]]:
    """Yield the addresses of a server and of its devices, with their names in the table."""
    given = (("host_ip", server.host_ip), ("host_nic_ip", server.host_nic_ip), *server.options)
    yield from ((name, value) for name, value in given if name.endswith("_ip") and value)
    yield from (("device_ip", device.device_ip) for device in server.devices if device.device_ip)
