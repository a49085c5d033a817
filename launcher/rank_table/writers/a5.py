"""v2.0: a flat list of ranks, each with its place in every layer of the network. Numbers are JSON integers here."""

from __future__ import annotations

import json
from typing import Any

from launcher.core.records import Cluster, Device
from launcher.rank_table.keys import RANK_LAYERS, RANK_NUMBERS, RANK_TABLE_OPTIONS
from launcher.rank_table.writers.text import block, listing, member, one_line, picked, present


def write_v2_0(cluster: Cluster) -> str:
    """Ranks server by server, so that the order of the servers survives."""
    ranks = listing((_rank(device) for server in cluster.servers for device in server.devices), 2)
    members = [
        member("version", "2.0"),
        member("status", "completed"),
        *present(picked(cluster.options, RANK_TABLE_OPTIONS)),
        member("rank_count", cluster.device_count),
        f'"rank_list": {ranks}',
    ]
    return f"{block(members, 0)}\n"


def parsed(text: str) -> Any:
    """The value that an option holds as JSON text; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _rank(device: Device) -> str:
    options = dict(device.options)
    numbers = {key: int(options[key]) for key in RANK_NUMBERS if key in options}
    layers = {key: parsed(options[key]) for key in RANK_LAYERS if key in options}
    return one_line({"rank_id": device.global_rank, "device_id": device.device_id, **numbers, **layers})
