"""The nodes that a Slurm job requests: any nodes, or those named in a rank table. Pure.

A rank table with addresses is valid only on its own servers: HCCL uses the addresses, and a job on other nodes would be
refused at the start. Such a job waits for these nodes by name. A table that only names servers and counts their devices
is valid on any nodes. Its job takes free nodes and does not wait for one that is down.
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
    names: tuple[str, ...] = ()  # as Slurm names them; empty: no nodes are requested by name
    devices_per_node: int | None = None  # of any nodes; None: the job reads its rank table, or is not a Slurm job
    note: str = ""  # for the user; may be empty
    whole_memory: bool = False  # all memory of the nodes, which --exclusive does not include


def unnamed_cluster(nodes: int, devices: int) -> Cluster:
    """Return a cluster of `nodes` nodes with placeholder names. Raises UsageError if it has too many devices."""
    if nodes * devices > MAX_COUNT:
        raise UsageError(
            f"a cluster can have at most {MAX_COUNT:,} ranks, but --nodes {nodes} with --devices {devices} "
            f"makes {nodes * devices:,} ranks",
            hint="set --devices to the number of devices per node",
        )
    return counted_cluster([(f"node{index}", devices) for index in range(nodes)])


def nodes_for(cluster: Cluster, used: Cluster, *, pinned: bool, chosen_by_hand: bool) -> Nodes:
    """Return the nodes to request for a job that uses the servers `used` of `cluster`.

    pinned: always request the table's own servers. chosen_by_hand: an option for sbatch already names nodes.
    Raises UsageError if nodes must be requested by name, but their Slurm names are unknown.
    """
    if cluster.source is None:
        if pinned:
            raise UsageError(
                "--pin-nodes pins a job to the servers in its rank table, but no rank table is given",
                hint="add --rank-table, or name the nodes, for example with --sbatch=--nodelist=n1,n2",
            )
        return Nodes(devices_per_node=len(cluster.servers[0].devices))
    kept = _why_kept(cluster)
    table, count = escaped(cluster.source.name), len(used.servers)
    # Slurm's name of n1.example.org is n1.
    names = tuple(server.server_id.partition(".")[0] for server in used.servers)
    listed = escaped(",".join(names))
    if kept is None and not pinned:
        note = (
            f"the job runs on any {counted(count, 'node')}: it uses only the numbers of servers and devices in {table}; to run "
            f"on {listed}, add --pin-nodes"
        )
        return Nodes((), len(cluster.servers[0].devices), "" if chosen_by_hand else note)
    if any(address_family(server.server_id) for server in used.servers):
        return _by_address(used, table, pinned=pinned, chosen_by_hand=chosen_by_hand)
    if pinned or chosen_by_hand:
        return Nodes(names)
    note = f"the job runs only on {listed}, and waits while one of them is down, because in {table} {kept}"
    return Nodes(names, None, f"{note}; for any nodes, use --nodes {count} --devices N and no table")


def pods_note(cluster: Cluster) -> str:
    """Return a warning if the table has addresses, else "". Kubernetes may place pods on other machines."""
    found = next((f"{name} {value}" for server in cluster.servers for name, value in _addresses(server)), None)
    if found is None:
        return ""
    return (
        f"warning: the rank table has {escaped(found)}, but Kubernetes may place the pod of that server on another node; "
        "bind the pods to nodes in the job file, or remove the addresses from the table"
    )


def _by_address(used: Cluster, table: str, *, pinned: bool, chosen_by_hand: bool) -> Nodes:
    if chosen_by_hand:
        return Nodes()
    first, count = escaped(used.servers[0].server_id), len(used.servers)
    hint = "name the nodes: --sbatch=--nodelist=NAMES"
    if pinned:
        raise UsageError(f"--pin-nodes: {table} calls a server {first}, but Slurm needs node names", hint=hint)
    note = f"warning: the job requests any {counted(count, 'node')}, and exits with 3 if they are not the servers of {table}"
    return Nodes((), None, f"{note}: Slurm needs node names, but {table} has addresses, such as {first}; {hint}")


def _why_kept(cluster: Cluster) -> str | None:
    """Return the reason why the table is valid only for the servers that it lists, or None if it fits any servers."""
    counts = {len(server.devices) for server in cluster.servers}
    if len(counts) > 1:
        return f"its servers have {min(counts)} to {max(counts)} devices"
    for server in cluster.servers:
        if has := _of_this_server(server):
            return escaped(f"server {server.server_id} has {has}")
    return None


def _of_this_server(server: Server) -> str | None:
    if address_family(server.server_id):
        return "an address instead of a name"
    own = (*_addresses(server), ("super_pod_id", server.super_pod_id))
    if found := next((f"{name} {value}" for name, value in own if value), None):
        return found
    first = server.devices[0].global_rank
    for index, device in enumerate(server.devices):
        if device.super_device_id or device.options:
            return f"settings for device {device.device_id}"
        if (device.device_id, device.global_rank) != (index, first + index):
            return f"rank {device.global_rank} on device {device.device_id}, but ranks counted from 0 would use another device"
    return None


def _addresses(server: Server) -> Iterator[tuple[str, str]]:
    """Yield all addresses of a server and its devices, as pairs (key in the table, address)."""
    given = (("host_ip", server.host_ip), ("host_nic_ip", server.host_nic_ip), *server.options)
    yield from ((name, value) for name, value in given if name.endswith("_ip") and value)
    yield from (("device_ip", device.device_ip) for device in server.devices if device.device_ip)
