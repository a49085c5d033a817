"""The two formats without a version: a lab's table, with ranks, and a cloud's table, where they follow from the order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from launcher.core.records import Cluster, Device
from launcher.rank_table.formats.writing import (
    DEVICE_LIMITS,
    Reason,
    Rows,
    Target,
    devices_of,
    equal_servers,
    few_of,
    one_address_each,
    pairs_of,
    parsed,
    table_text,
)
from launcher.rank_table.table_format import LAB_NETWORK_CARDS, LAB_TABLE_OPTIONS, usual_board

_DEVICES_OF_A_910 = 8
_PARTS_OF_A_SERVER = (1, 2, 4, 8)


def write_lab(cluster: Cluster) -> str:
    """Write one instance per device. HCCL does not check the board: it is a generic one where the cluster names none."""
    board: dict[str, Any] = {
        **usual_board(max(len(server.devices) for server in cluster.servers)),
        **dict(cluster.options),
    }
    cards = parsed(board[LAB_NETWORK_CARDS])
    if isinstance(cards, list):  # a table may have written something else
        board[LAB_NETWORK_CARDS] = cards
    count = str(cluster.device_count)
    instances = (
        {"devices": [_device(device)], "rank_id": str(device.global_rank), "server_id": server.server_id}
        for server, device in pairs_of(cluster)
    )
    counts = {"device_num": count, "server_num": str(len(cluster.servers)), "instance_count": count}
    described = {key: board[key] for key in LAB_TABLE_OPTIONS}
    return table_text({"deploy_mode": "lab", **described, **_one_group(counts, instances), "status": "completed"})


def write_cloud(cluster: Cluster) -> str:
    """Write one instance per server, called like it; a process finds its ranks by that name."""
    instances = (
        {"pod_name": server.server_id, "server_id": server.server_id, "devices": Rows(map(_device, server.devices))}
        for server in cluster.servers
    )
    counts = {"instance_count": str(len(cluster.servers)), "device_count": str(cluster.device_count)}
    return table_text({"status": "completed", **_one_group(counts, instances)})


def _one_group(counts: dict[str, str], instances: Iterable[dict[str, Any]]) -> dict[str, Any]:
    group = {"group_name": "", **counts, "instance_list": Rows(instances)}
    return {"group_count": "1", "group_list": Rows([group])}


def _device(device: Device) -> dict[str, str]:
    """Return a device's fields. HCCL asks for device_ip; it is empty where there is no address."""
    return {"device_id": str(device.device_id), "device_ip": device.device_ip or ""}


def devices_of_a_910(cluster: Cluster) -> Iterator[Reason]:
    beyond = sorted({device.device_id for device in devices_of(cluster) if device.device_id >= _DEVICES_OF_A_910})
    if beyond:
        message = f"it was made for the 910, whose devices are 0 to 7, and there is {few_of('device_id', beyond)}"
        yield Reason(message, "v1.0 has a place for them")


def equal_parts_of_servers(cluster: Cluster) -> Iterator[Reason]:
    unequal = list(equal_servers(cluster))
    first = cluster.servers[0]
    if not unequal and len(first.devices) not in _PARTS_OF_A_SERVER:
        message = f"each server gives 1, 2, 4 or 8 devices, and {first.server_id[:60]!r} has {len(first.devices)}"
        yield Reason(message, "v1.0 takes any number")
    yield from unequal


def ranks_follow_names(cluster: Cluster) -> Iterator[Reason]:
    """Refuse ranks out of order: a cloud's table has none, they follow server_id as text, then device_id."""
    in_order = sorted(pairs_of(cluster), key=lambda pair: (pair[0].server_id, pair[1].device_id))
    for expected, (server, device) in enumerate(in_order):
        if device.global_rank != expected:
            message = (
                f"ranks follow from the order of server_id as text, then device_id: device {device.device_id} of "
                f"{server.server_id[:60]!r} would become rank {expected}, and is rank {device.global_rank}"
            )
            yield Reason(message, "legacy-lab and v1.0 write the ranks down")
            return


_LIMITS = (*DEVICE_LIMITS, devices_of_a_910, one_address_each)
LAB = Target("legacy-lab", write_lab, frozenset({"device_ip", *LAB_TABLE_OPTIONS}), (*_LIMITS, equal_parts_of_servers))
CLOUD = Target("legacy-cloud", write_cloud, frozenset({"device_ip"}), (*_LIMITS, ranks_follow_names))
