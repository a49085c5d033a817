"""The two formats without a version: a lab's table, with ranks, and a cloud's table, where they follow from the order."""

from __future__ import annotations

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.writers.text import block, dump, listing, member, one_line


def write_lab(cluster: Cluster) -> str:
    """One instance per device. The board is the generic one: HCCL does not check it when it reads the table."""
    interfaces = [f"eth{index}" for index in range(max(len(server.devices) for server in cluster.servers))]
    members = [
        member("deploy_mode", "lab"),
        member("board_id", "0x0000"),
        member("chip_info", "910"),
        member("para_plane_nic_location", "device"),
        member("para_plane_nic_name", interfaces),
        member("para_plane_nic_num", str(len(interfaces))),
        member("group_count", "1"),
        f'"group_list": {listing([_lab_group(cluster)], 2)}',
        member("status", "completed"),
    ]
    return f"{block(members, 0)}\n"


def write_cloud(cluster: Cluster) -> str:
    """One instance per server, called like it; a process finds its ranks by that name."""
    group = [
        member("group_name", ""),
        member("instance_count", str(len(cluster.servers))),
        member("device_count", str(cluster.device_count)),
        f'"instance_list": {listing((_cloud_instance(server) for server in cluster.servers), 6)}',
    ]
    members = [
        member("status", "completed"),
        member("group_count", "1"),
        f'"group_list": {listing([block(group, 4)], 2)}',
    ]
    return f"{block(members, 0)}\n"


def _lab_group(cluster: Cluster) -> str:
    count = str(cluster.device_count)
    instances = [_lab_instance(server, device) for server in cluster.servers for device in server.devices]
    group = [
        member("group_name", ""),
        member("device_num", count),
        member("server_num", str(len(cluster.servers))),
        member("instance_count", count),
        f'"instance_list": {listing(instances, 6)}',
    ]
    return block(group, 4)


def _lab_instance(server: Server, device: Device) -> str:
    return dump({"devices": [_device(device)], "rank_id": str(device.global_rank), "server_id": server.server_id})


def _cloud_instance(server: Server) -> str:
    devices = listing((one_line(_device(device)) for device in server.devices), 10)
    members = [
        member("pod_name", server.server_id),
        member("server_id", server.server_id),
        f'"devices": {devices}',
    ]
    return block(members, 8)


def _device(device: Device) -> dict[str, str]:
    """device_ip has to be there; without an address it is empty, and HCCL reads it only where it needs one."""
    return {"device_id": str(device.device_id), "device_ip": device.device_ip or ""}
