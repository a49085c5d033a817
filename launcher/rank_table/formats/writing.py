"""Writers of tables for each format, and the limits of each format.

Equal clusters give equal bytes on every node: keys are in a fixed order, each device has one line, and the text ends in
a newline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from launcher.core.frozen import frozen
from launcher.core.records import HOST_RANK, Cluster, Device, Options, Server
from launcher.core.text import some_of
from launcher.rank_table.hostfiles import is_host_name
from launcher.rank_table.table_format import (
    DEVICE_OPTIONS,
    RANK_LAYERS,
    RANK_NUMBERS,
    RANK_OPTIONS,
    RANK_TABLE_OPTIONS,
    SERVER_OPTIONS,
    SUPER_POD,
)

PLAIN = ("hostfile", "rankfile", "nodelist")


def dump(value: Any) -> str:
    """Return `value` as JSON on one line, without escaping non-ASCII characters.

    Text with a lone surrogate is escaped: JSON allows it, but UTF-8 does not.
    """
    text = json.dumps(value, ensure_ascii=False)
    if text.isascii():
        return text
    return json.dumps(value) if any("\ud800" <= char <= "\udfff" for char in text) else text


class Rows(NamedTuple):
    """A list to write as JSON with one line per entry, for example the devices of a server."""

    entries: Iterable[Mapping[str, Any]]


def table_text(table: Mapping[str, Any]) -> str:
    """Return a table as JSON text, with one line per entry of `Rows`. Members with the value None are omitted."""
    return f"{_laid_out(table, 0)}\n"


def _laid_out(value: Any, indent: int) -> str:
    if isinstance(value, Rows):
        brackets, items = "[]", (_laid_out(entry, indent + 2) for entry in value.entries)
    elif not isinstance(value, dict):
        return dump(value)
    else:
        members = {key: inner for key, inner in value.items() if inner is not None}
        if Rows not in map(type, members.values()):
            return dump(members)
        brackets, items = "{}", (f'"{key}": {_laid_out(inner, indent + 2)}' for key, inner in members.items())
    lines = ",\n".join(f"{' ' * (indent + 2)}{item}" for item in items)
    return f"{brackets[0]}\n{lines}\n{' ' * indent}{brackets[1]}"


def picked(options: Options, keys: Iterable[str]) -> dict[str, str]:
    """Return only the options named in `keys`, in the order of `keys`."""
    known = dict(options)
    return {key: known[key] for key in keys if key in known}


def parsed(text: str) -> Any:
    """Parse an option value as JSON. Return None if it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Reason(NamedTuple):
    message: str
    hint: str


Limit = Callable[[Cluster], Iterator[Reason]]


def no_host_ranks(cluster: Cluster) -> Iterator[Reason]:
    ranks = [device.global_rank for device in devices_of(cluster) if device.device_id == HOST_RANK]
    if ranks:
        message = f"rank{'s' if len(ranks) > 1 else ''} {some_of(list(map(str, ranks)), 3)} run on the host (device_id -1), which only v1.1 allows"
        yield Reason(message, "keep the v1.1 table, or remove these ranks")


def one_rank_per_device(cluster: Cluster) -> Iterator[Reason]:
    """Yield an error if two ranks of a server have the same device id. Only v2.0 allows this, for a spare device."""
    for server in cluster.servers:
        ids = sorted(device.device_id for device in server.devices if device.device_id != HOST_RANK)
        twice = next((one for one, other in pairwise(ids) if one == other), None)
        if twice is not None:
            message = f"device {twice} of {server.server_id[:60]!r} has two ranks"
            yield Reason(message, "first assign one rank to each device")
            return


def equal_servers(cluster: Cluster) -> Iterator[Reason]:
    first = cluster.servers[0]
    for server in cluster.servers:
        if len(server.devices) != len(first.devices):
            message = (
                f"all servers need the same number of devices, but {first.server_id[:60]!r} has {len(first.devices)} "
                f"and {server.server_id[:60]!r} has {len(server.devices)}"
            )
            yield Reason(message, "use v1.0 or rankfile, which allow different numbers")
            return


def plain_host_names(cluster: Cluster) -> Iterator[Reason]:
    for server in cluster.servers:
        if not is_host_name(server.server_id):
            message = f"{server.server_id[:60]!r} is not a valid host name"
            yield Reason(message, "first write the servers' names or addresses as server_id")
            return


def devices_of(cluster: Cluster) -> Iterator[Device]:
    return (device for server in cluster.servers for device in server.devices)


@frozen
class Target:
    """A file format to which a cluster can be converted. `keys` names the optional keys that `write` supports."""

    name: str  # `Format.value`, or the name of a file for another launcher
    write: Callable[[Cluster], str]
    keys: frozenset[str] = frozenset()  # optional keys that it can hold
    limits: tuple[Limit, ...] = ()
    advice: Callable[[Cluster], Iterator[str]] = lambda _: iter(())  # remarks about the result
    is_table: bool = True  # False: it holds only hosts and slots, for another launcher


DEVICE_LIMITS = (no_host_ranks, one_rank_per_device)


def write_v1_0(cluster: Cluster) -> str:
    return _table(cluster, "1.0", {})


def write_v1_2(cluster: Cluster) -> str:
    """Write a v1.2 table. Without super_pod_list, HCCL treats each server as its own super pod."""
    pods: dict[str, list[dict[str, str]]] = {}  # in the order of their first server; servers in file order
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
        yield Reason(message, "assign every server to one, or use --drop super_pod")


_KEYS = frozenset({"device_ip", "super_device_id", "host_ip", "host_nic_ip", *DEVICE_OPTIONS, *SERVER_OPTIONS})
V1_0 = Target("v1.0", write_v1_0, _KEYS, DEVICE_LIMITS)
V1_2 = Target("v1.2", write_v1_2, _KEYS | SUPER_POD, (*DEVICE_LIMITS, super_pods_for_all))


def write_v2_0(cluster: Cluster) -> str:
    """Write a v2.0 table. Ranks are listed server by server, to keep the order of the servers."""
    options = picked(cluster.options, RANK_TABLE_OPTIONS)
    head = {"version": "2.0", "status": "completed", **options, "rank_count": cluster.device_count}
    return table_text({**head, "rank_list": Rows(map(_a5_rank, devices_of(cluster)))})


def _a5_rank(device: Device) -> dict[str, Any]:
    options = dict(device.options)
    numbers = {key: int(options[key]) for key in RANK_NUMBERS if key in options}
    layers = {key: parsed(options[key]) for key in RANK_LAYERS if key in options}
    return {"rank_id": device.global_rank, "device_id": device.device_id, **numbers, **layers}


def network_layers_for_all(cluster: Cluster) -> Iterator[Reason]:
    """Yield an error if the network layers of a rank are missing or invalid."""
    hint = "generate the v2.0 table on the servers, since other formats do not describe the network layers"
    for server in cluster.servers:
        for device in server.devices:
            if wrong := _layer_fault(server, device):
                yield Reason(f"rank {device.global_rank}: {wrong}", hint)
                return  # the first one is enough


def _layer_fault(server: Server, device: Device) -> str | None:
    options = dict(device.options)
    missing = [key for key in ("local_id", "level_list") if key not in options]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    for key in RANK_NUMBERS:
        if key in options and not (options[key].isascii() and options[key].isdecimal()):
            return f"{key} {options[key][:20]!r} is not a whole number"
    levels = parsed(options["level_list"])
    first = levels[0] if isinstance(levels, list) and levels else None
    instance = first.get("net_instance_id") if isinstance(first, dict) else None
    if instance != server.server_id:
        return f"its first layer is {str(instance)[:60]!r}, but its server is {server.server_id[:60]!r}"
    return None


_V2_0_KEYS = frozenset({*RANK_OPTIONS, *RANK_TABLE_OPTIONS})
V2_0 = Target("v2.0", write_v2_0, _V2_0_KEYS, (no_host_ranks, network_layers_for_all))
