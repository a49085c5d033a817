"""Devices by the names that people give them: SERVER/DEVICE, all of a SERVER, or DEVICE where there is one server."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.core.errors import UsageError
from launcher.core.records import Server


def device_name(global_rank: int, servers: Sequence[Server]) -> str:
    """Return the name of the device to which the servers' rank table gives this rank."""
    for server in servers:
        for device in server.devices:
            if device.global_rank == global_rank:
                return f"{server.server_id}/{device.device_id}"
    raise ValueError(f"no device has rank {global_rank}")


def devices_named(name: str, servers: Sequence[Server]) -> frozenset[int]:
    """Return the ranks that the servers' rank table gives to the devices of that name.

    Raises:
        UsageError: there is none.
    """
    for server in servers:
        named = {f"{server.server_id}/{device.device_id}": device.global_rank for device in server.devices}
        if name in named:
            return frozenset({named[name]})
        if name == server.server_id:
            return frozenset(named.values())
        if len(servers) == 1 and f"{server.server_id}/{name}" in named:
            return frozenset({named[f"{server.server_id}/{name}"]})
    ids = ", ".join(server.server_id for server in servers[:8])
    raise UsageError(
        f"there is no device {name!r}", hint=f"name one SERVER/DEVICE_ID, or all of a SERVER; the servers are {ids}"
    )
