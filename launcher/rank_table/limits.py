"""What a format cannot express, one small function each: why a cluster is refused, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from launcher.core.records import HOST_RANK, Cluster, Device, Server
from launcher.rank_table.hostfiles import is_host_name
from launcher.rank_table.ip import address_family
from launcher.rank_table.keys import RANK_NUMBERS
from launcher.rank_table.writers import a5

_DEVICES_OF_A_910 = 8
_PARTS_OF_A_SERVER = (1, 2, 4, 8)


class Reason(NamedTuple):
    message: str
    hint: str


Limit = Callable[[Cluster], Iterator[Reason]]


def no_host_ranks(cluster: Cluster) -> Iterator[Reason]:
    ranks = [device.global_rank for device in _devices(cluster) if device.device_id == HOST_RANK]
    if ranks:
        few = _some("rank", ranks)
        yield Reason(f"{few} run on the host itself (device_id -1), which only v1.1 has", "convert it to v1.1")


def one_rank_per_device(cluster: Cluster) -> Iterator[Reason]:
    """In v2.0 a spare device may have the id of the one that it stands in for."""
    for server in cluster.servers:
        ids = sorted(device.device_id for device in server.devices if device.device_id != HOST_RANK)
        twice = next((one for one, other in pairwise(ids) if one == other), None)
        if twice is not None:
            message = f"device {twice} of {server.server_id[:60]!r} has two ranks"
            yield Reason(message, "give each device one rank first")
            return


def servers_are_addresses(cluster: Cluster) -> Iterator[Reason]:
    names = [server.server_id for server in cluster.servers if address_family(server.server_id) is None]
    if names:
        message = f"node_addr is an IP address, and {_some('server_id', [f'{name[:60]!r}' for name in names])} is none"
        yield Reason(message, "write the servers' addresses as server_id first")


def one_family_of_addresses(cluster: Cluster) -> Iterator[Reason]:
    """Of the nodes, and of the ranks, which use their node's address where they have none of their own."""
    nodes = {address_family(server.server_id) for server in cluster.servers}
    ranks = {address_family(device.device_ip or server.server_id) for server, device in _pairs(cluster)}
    for what, families in (("servers", nodes), ("ranks", ranks)):
        if families >= {4, 6} and len(cluster.servers) > 1:
            yield Reason(f"the {what} have addresses of IPv4 and of IPv6", "write all of them in one family first")
            return


def super_pods_for_all(cluster: Cluster) -> Iterator[Reason]:
    without = [server.server_id for server in cluster.servers if server.super_pod_id is None]
    if without and len(without) < len(cluster.servers):
        message = f"{len(without)} of {len(cluster.servers)} servers are in no super pod: {without[0][:60]!r}"
        yield Reason(message, "put every server into one, or --drop super_pod")


def one_address_each(cluster: Cluster) -> Iterator[Reason]:
    several = [device for device in _devices(cluster) if device.device_ip is not None and "," in device.device_ip]
    if several:
        message = f"a device has one address, and rank {several[0].global_rank} has {several[0].device_ip!r:.60}"
        yield Reason(message, "only v1.0 and v1.2 take several, with commas between them")


def network_layers_for_all(cluster: Cluster) -> Iterator[Reason]:
    """Layers cannot be made up: they say how the machines are cabled."""
    hint = "only a v2.0 table describes the layers of the network; have it made where the devices are"
    for server in cluster.servers:
        for device in server.devices:
            if wrong := _layer_fault(server, device):
                yield Reason(f"rank {device.global_rank}: {wrong}", hint)
                return  # the first tells enough: they are there for all or for none


def devices_of_a_910(cluster: Cluster) -> Iterator[Reason]:
    beyond = sorted({device.device_id for device in _devices(cluster) if device.device_id >= _DEVICES_OF_A_910})
    if beyond:
        message = f"it was made for the 910, whose devices are 0 to 7, and there is {_some('device_id', beyond)}"
        yield Reason(message, "v1.0 has a place for them")


def equal_parts_of_servers(cluster: Cluster) -> Iterator[Reason]:
    unequal = list(equal_servers(cluster))
    first = cluster.servers[0]
    if not unequal and len(first.devices) not in _PARTS_OF_A_SERVER:
        message = f"each server gives 1, 2, 4 or 8 devices, and {first.server_id[:60]!r} has {len(first.devices)}"
        yield Reason(message, "v1.0 takes any number")
    yield from unequal


def equal_servers(cluster: Cluster) -> Iterator[Reason]:
    first = cluster.servers[0]
    for server in cluster.servers:
        if len(server.devices) != len(first.devices):
            message = (
                f"all servers need equally many devices: {first.server_id[:60]!r} has {len(first.devices)}, "
                f"{server.server_id[:60]!r} has {len(server.devices)}"
            )
            yield Reason(message, "v1.0 and rankfile take any number")
            return


def ranks_follow_names(cluster: Cluster) -> Iterator[Reason]:
    """A cloud's table has no ranks: they are counted in the order of server_id as text, then of device_id."""
    in_order = sorted(_pairs(cluster), key=lambda pair: (pair[0].server_id, pair[1].device_id))
    for expected, (server, device) in enumerate(in_order):
        if device.global_rank != expected:
            message = (
                f"ranks follow from the order of server_id as text, then device_id: device {device.device_id} of "
                f"{server.server_id[:60]!r} would become rank {expected}, and is rank {device.global_rank}"
            )
            yield Reason(message, "legacy-lab and v1.0 write the ranks down")
            return


def ranks_follow_the_file(cluster: Cluster) -> Iterator[Reason]:
    """Hosts and counts say nothing but this: rank after rank, device after device, from the first host to the last."""
    expected = 0
    for server in cluster.servers:
        for slot, device in enumerate(server.devices):
            if device.global_rank != expected:
                yield Reason(_other(server, device, f"rank {expected}"), "a rankfile writes the ranks down")
                return
            if device.device_id != slot:
                yield Reason(_other(server, device, f"device {slot}"), "a rankfile writes the devices down")
                return
            expected += 1


def plain_host_names(cluster: Cluster) -> Iterator[Reason]:
    for server in cluster.servers:
        if not is_host_name(server.server_id):
            message = f"{server.server_id[:60]!r} cannot be the name of a host"
            yield Reason(message, "write the servers' names or addresses as server_id first")
            return


def _layer_fault(server: Server, device: Device) -> str | None:
    options = dict(device.options)
    missing = [key for key in ("local_id", "level_list") if key not in options]
    if missing:
        return f"it has no {' and no '.join(missing)}"
    for key in RANK_NUMBERS:
        if key in options and not (options[key].isascii() and options[key].isdecimal()):
            return f"{key} {options[key][:20]!r} is no whole number"
    instance = _first_instance(options["level_list"])
    if instance != server.server_id:
        return f"its first layer is {str(instance)[:60]!r}, and its server {server.server_id[:60]!r}"
    return None


def _first_instance(level_list: str) -> object:
    levels = a5.parsed(level_list)
    first = levels[0] if isinstance(levels, list) and levels else None
    return first.get("net_instance_id") if isinstance(first, dict) else None


def _other(server: Server, device: Device, counted: str) -> str:
    who = f"rank {device.global_rank}, device {device.device_id} of {server.server_id[:60]!r}"
    return f"ranks and devices are counted from host to host, and {who} would become {counted}"


def _pairs(cluster: Cluster) -> Iterator[tuple[Server, Device]]:
    return ((server, device) for server in cluster.servers for device in server.devices)


def _devices(cluster: Cluster) -> Iterator[Device]:
    return (device for _, device in _pairs(cluster))


def _some(what: str, values: list[int] | list[str]) -> str:
    """In words, the first few: "rank 3", "ranks 3, 4, 5 and 9 more"."""
    few = ", ".join(map(str, values[:3]))
    more = f" and {len(values) - 3} more" if len(values) > 3 else ""
    return f"{what}{'s' if len(values) > 1 else ''} {few}{more}"
