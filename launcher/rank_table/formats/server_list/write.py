"""v1.0, and v1.2, which adds super pods to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.core.records import Cluster, Server
from launcher.rank_table.formats.writing import DEVICE_LIMITS, Reason, Rows, Target, picked, table_text
from launcher.rank_table.table_format import DEVICE_OPTIONS, SERVER_OPTIONS, SUPER_POD


def write_v1_0(cluster: Cluster) -> str:
    return _table(cluster, "1.0", {})


def write_v1_2(cluster: Cluster) -> str:
    """Write a v1.2 table. Without super_pod_list HCCL treats each server as a super pod of its own."""
    pods: dict[
        str, list[dict[str, str]]
    ] = {}  # in the order of their first server, each with its servers in file order
    for server in cluster.servers:
        if server.super_pod_id is not None:
            pods.setdefault(server.super_pod_id, []).append({"server_id": server.server_id})
    entries = [{"super_pod_id": name, "server_list": Rows(members)} for name, members in pods.items()]
    return _table(cluster, "1.2", {"super_pod_list": Rows(entries)} if entries else {})


def _table(cluster: Cluster, version: str, more: dict[str, Rows]) -> str:
    servers = Rows(map(_server, cluster.servers))
    head = {"version": version, "server_count": str(len(cluster.servers)), "server_list": servers}
    return table_text({**head, **more, "status": "completed"})


def _server(server: Server) -> dict[str, Any]:
    devices = (
        {
            "device_id": str(device.device_id),
            "device_ip": device.device_ip,
            "super_device_id": device.super_device_id,
            **picked(device.options, DEVICE_OPTIONS),
            "rank_id": str(device.global_rank),
        }
        for device in server.devices
    )
    return {
        "server_id": server.server_id,
        "device": Rows(devices),
        "host_ip": server.host_ip,
        "host_nic_ip": server.host_nic_ip,
        **picked(server.options, SERVER_OPTIONS),
    }


def super_pods_for_all(cluster: Cluster) -> Iterator[Reason]:
    without = [server.server_id for server in cluster.servers if server.super_pod_id is None]
    if without and len(without) < len(cluster.servers):
        message = f"{len(without)} of {len(cluster.servers)} servers are in no super pod: {without[0][:60]!r}"
        yield Reason(message, "put every server into one, or --drop super_pod")


_KEYS = frozenset({"device_ip", "super_device_id", "host_ip", "host_nic_ip", *DEVICE_OPTIONS, *SERVER_OPTIONS})
V1_0 = Target("v1.0", write_v1_0, _KEYS, DEVICE_LIMITS)
V1_2 = Target("v1.2", write_v1_2, _KEYS | SUPER_POD, (*DEVICE_LIMITS, super_pods_for_all))
