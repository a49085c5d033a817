"""v2.0: a flat list of ranks, each with its place in every layer of the network. Numbers are JSON integers here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.formats.writing import (
    Reason,
    Rows,
    Target,
    devices_of,
    no_host_ranks,
    parsed,
    picked,
    table_text,
)
from launcher.rank_table.table_format import RANK_LAYERS, RANK_NUMBERS, RANK_OPTIONS, RANK_TABLE_OPTIONS


def write_v2_0(cluster: Cluster) -> str:
    """Write the ranks server by server, so that the order of the servers survives."""
    options = picked(cluster.options, RANK_TABLE_OPTIONS)
    head = {"version": "2.0", "status": "completed", **options, "rank_count": cluster.device_count}
    return table_text({**head, "rank_list": Rows(map(_rank, devices_of(cluster)))})


def _rank(device: Device) -> dict[str, Any]:
    options = dict(device.options)
    numbers = {key: int(options[key]) for key in RANK_NUMBERS if key in options}
    layers = {key: parsed(options[key]) for key in RANK_LAYERS if key in options}
    return {"rank_id": device.global_rank, "device_id": device.device_id, **numbers, **layers}


def network_layers_for_all(cluster: Cluster) -> Iterator[Reason]:
    """Refuse ranks without layers, which cannot be made up: they describe how the machines are cabled."""
    hint = "only a v2.0 table describes the layers of the network; have it made where the devices are"
    for server in cluster.servers:
        for device in server.devices:
            if wrong := _layer_fault(server, device):
                yield Reason(f"rank {device.global_rank}: {wrong}", hint)
                return  # the first is enough: all ranks have them, or none


def _layer_fault(server: Server, device: Device) -> str | None:
    options = dict(device.options)
    missing = [key for key in ("local_id", "level_list") if key not in options]
    if missing:
        return f"it has no {' and no '.join(missing)}"
    for key in RANK_NUMBERS:
        if key in options and not (options[key].isascii() and options[key].isdecimal()):
            return f"{key} {options[key][:20]!r} is no whole number"
    levels = parsed(options["level_list"])
    first = levels[0] if isinstance(levels, list) and levels else None
    instance = first.get("net_instance_id") if isinstance(first, dict) else None
    if instance != server.server_id:
        return f"its first layer is {str(instance)[:60]!r}, and its server {server.server_id[:60]!r}"
    return None


V2_0 = Target(
    "v2.0", write_v2_0, frozenset({*RANK_OPTIONS, *RANK_TABLE_OPTIONS}), (no_host_ranks, network_layers_for_all)
)
