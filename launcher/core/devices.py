"""Names of devices: SERVER/DEVICE, SERVER for all its devices, or DEVICE if there is only one server."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.core.errors import UsageError
from launcher.core.records import Server
from launcher.core.text import ranges, some_of

MAX_NAMES = 8  # of servers, in a hint


def device_name(global_rank: int, servers: Sequence[Server]) -> str:
    """Return the name of the device with this rank in the rank table, such as `10.0.0.1/3`."""
    for server in servers:
        for device in server.devices:
            if device.global_rank == global_rank:
                return f"{server.server_id}/{device.device_id}"
    raise ValueError(f"no device has rank {global_rank}")


def devices_named(name: str, servers: Sequence[Server]) -> frozenset[int]:
    """Return the rank of the device with this name. For the name of a server, return the ranks of all its devices."""
    for server in servers:
        named = {f"{server.server_id}/{device.device_id}": device.global_rank for device in server.devices}
        if name in named:
            return frozenset({named[name]})
        if name == server.server_id:
            return frozenset(named.values())
        if len(servers) == 1 and f"{server.server_id}/{name}" in named:
            return frozenset({named[f"{server.server_id}/{name}"]})
    forms = "DEVICE_ID or SERVER/DEVICE_ID" if len(servers) == 1 else "SERVER/DEVICE_ID"
    meant = [server for server in servers if len(servers) == 1 or name.startswith(f"{server.server_id}/")]
    if meant:
        ids = ranges(device.device_id for device in meant[0].devices)
        there = f"server {meant[0].server_id} has device ids {ids}"
    else:
        there = f"the servers are {some_of([server.server_id for server in servers], MAX_NAMES)}"
    hint = f"use {forms}, or SERVER for all its devices; {there}"
    raise UsageError(f"there is no device {name!r}", hint=hint)
