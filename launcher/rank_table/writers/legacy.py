"""The two formats without a version: a lab's table, with ranks, and a cloud's table, where they follow from the order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.keys import LAB_NETWORK_CARDS, LAB_TABLE_OPTIONS, usual_board
from launcher.rank_table.writers.text import block, dump, listing, member, one_line


def write_lab(cluster: Cluster) -> str:
    """One instance per device. HCCL does not check the board: it is the generic one where the cluster names none."""
    board = _board(cluster)
    members = [
        member("deploy_mode", "lab"),
        *(member(key, board[key]) for key in LAB_TABLE_OPTIONS),
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


def _board(cluster: Cluster) -> Mapping[str, Any]:
    """What the cluster says about its board and network cards, and what is usual for the rest."""
    board = {**usual_board(max(len(server.devices) for server in cluster.servers)), **dict(cluster.options)}
    return {**board, LAB_NETWORK_CARDS: _cards(board[LAB_NETWORK_CARDS])}


def _cards(text: str) -> Any:
    """The list that `text` holds as JSON, or `text` itself where a table wrote something else."""
    try:
        cards = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return cards if isinstance(cards, list) else text


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
