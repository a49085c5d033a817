"""v1.0, and v1.2, which adds super pods to it."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.records import Cluster, Server
from launcher.rank_table.formats.writing import (
    DEVICE_LIMITS,
    Reason,
    Target,
    block,
    dump,
    listing,
    member,
    one_line,
    picked,
    present,
)
from launcher.rank_table.table_format import DEVICE_OPTIONS, SERVER_OPTIONS, SUPER_POD


def write_v1_0(cluster: Cluster) -> str:
    return _table(cluster, "1.0", [])


def write_v1_2(cluster: Cluster) -> str:
    """Write a v1.2 table. Without super_pod_list HCCL treats each server as a super pod of its own."""
    pods: dict[str, list[str]] = {}  # in the order of their first server, each with its servers in file order
    for server in cluster.servers:
        if server.super_pod_id is not None:
            pods.setdefault(server.super_pod_id, []).append(server.server_id)
    blocks = []
    for name, members in pods.items():
        servers = listing((dump({"server_id": server_id}) for server_id in members), 6)
        blocks.append(block([member("super_pod_id", name), f'"server_list": {servers}'], 4))
    return _table(cluster, "1.2", [f'"super_pod_list": {listing(blocks, 2)}'] if pods else [])


def _table(cluster: Cluster, version: str, more: list[str]) -> str:
    servers = listing((_server(server) for server in cluster.servers), 2)
    members = [
        member("version", version),
        member("server_count", str(len(cluster.servers))),
        f'"server_list": {servers}',
        *more,
        member("status", "completed"),
    ]
    return f"{block(members, 0)}\n"


def _server(server: Server) -> str:
    fields = (
        {
            "device_id": str(device.device_id),
            "device_ip": device.device_ip,
            "super_device_id": device.super_device_id,
            **picked(device.options, DEVICE_OPTIONS),
            "rank_id": str(device.global_rank),
        }
        for device in server.devices
    )
    devices = listing(map(one_line, fields), 6)
    addresses = {"host_ip": server.host_ip, "host_nic_ip": server.host_nic_ip}
    members = [
        member("server_id", server.server_id),
        f'"device": {devices}',
        *present(addresses),
        *present(picked(server.options, SERVER_OPTIONS)),
    ]
    return block(members, 4)


def super_pods_for_all(cluster: Cluster) -> Iterator[Reason]:
    without = [server.server_id for server in cluster.servers if server.super_pod_id is None]
    if without and len(without) < len(cluster.servers):
        message = f"{len(without)} of {len(cluster.servers)} servers are in no super pod: {without[0][:60]!r}"
        yield Reason(message, "put every server into one, or --drop super_pod")


_KEYS = frozenset({"device_ip", "super_device_id", "host_ip", "host_nic_ip", *DEVICE_OPTIONS, *SERVER_OPTIONS})
V1_0 = Target("v1.0", write_v1_0, _KEYS, DEVICE_LIMITS)
V1_2 = Target("v1.2", write_v1_2, _KEYS | SUPER_POD, (*DEVICE_LIMITS, super_pods_for_all))
