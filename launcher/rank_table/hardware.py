"""Saying in a table that it is for CPU or GPU, so that nobody asks for addresses of Ascend devices."""

from __future__ import annotations

from dataclasses import replace

from launcher.core.records import Cluster, Server
from launcher.rank_table.targets import TARGETS

_KEY = "hardware_type"
_NOTE = (
    'no device has a device_ip, so the servers are marked as hardware_type "cpu": the table is for CPU or GPU; for Ascend '
    "devices write every device_ip, and leave hardware_type out"
)


def marked_without_ascend(cluster: Cluster, target_name: str) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster as HCCL could never use it, said by its servers, and a note; the same one where HCCL might.

    Between servers HCCL needs addresses, of the devices or of all servers. A server's own hardware_type stays.
    """
    if _KEY not in TARGETS[target_name].keys or len(cluster.servers) < 2 or _has_addresses(cluster):
        return cluster, ()
    servers = tuple(_marked(server) for server in cluster.servers)
    return (cluster, ()) if servers == cluster.servers else (replace(cluster, servers=servers), (_NOTE,))


def _has_addresses(cluster: Cluster) -> bool:
    if all(server.host_ip for server in cluster.servers):
        return True
    return any(device.device_ip for server in cluster.servers for device in server.devices)


def _marked(server: Server) -> Server:
    if _KEY in dict(server.options):
        return server
    return replace(server, options=tuple(sorted((*server.options, (_KEY, "cpu")))))
