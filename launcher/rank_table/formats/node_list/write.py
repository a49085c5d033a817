"""v1.1: nodes whose ranks are devices or processes on the host itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from launcher.core.records import HOST_RANK, Cluster, Device
from launcher.rank_table.formats.server_list.write import write_v1_2
from launcher.rank_table.formats.writing import (
    Reason,
    Rows,
    Target,
    devices_of,
    few_of,
    one_address_each,
    one_rank_per_device,
    pairs_of,
    picked,
    table_text,
)
from launcher.rank_table.ip import address_family
from launcher.rank_table.table_format import NO_SUPER_DEVICE, NODE_RANK_OPTIONS, NODE_TABLE_OPTIONS

SUPER_POD_VERSION = "1.2"  # of heterog_sub_version: the only one there is
AUTOMATIC_PORT = "0"


def completed_v1_1(cluster: Cluster) -> Cluster:
    """Return the cluster with what only v1.1 demands: a collective_id, and the version of the ranks' keys.

    The collective_id follows from the content, so that every node makes the same one.
    """
    options = dict(cluster.options)
    if "collective_id" not in options:
        digest = hashlib.sha256(write_v1_2(cluster).encode("utf-8", errors="surrogatepass")).hexdigest()
        options["collective_id"] = f"tlaunch-{digest[:16]}"
    if any(
        device.super_device_id is not None or picked(device.options, ["bind_device_id"])
        for device in devices_of(cluster)
    ):
        options["heterog_sub_version"] = SUPER_POD_VERSION
    return Cluster(cluster.servers, cluster.source, tuple(sorted(options.items())))


def write_v1_1(cluster: Cluster) -> str:
    complete = "heterog_sub_version" in dict(cluster.options)
    nodes = (
        {"node_addr": server.server_id, "ranks": Rows(_rank(device, complete=complete) for device in server.devices)}
        for server in cluster.servers
    )
    options = picked(cluster.options, NODE_TABLE_OPTIONS)
    return table_text({"version": "1.1", **options, "node_list": Rows(nodes), "status": "completed"})


def _rank(device: Device, *, complete: bool) -> dict[str, Any]:
    """Return the keys of a rank. With heterog_sub_version every key has to be there, also where it is empty."""
    options = picked(device.options, NODE_RANK_OPTIONS)
    return {
        "rank_id": str(device.global_rank),
        "device_id": str(device.device_id),
        "rank_ip": device.device_ip or ("" if complete else None),
        "port": options.get("device_port") or (AUTOMATIC_PORT if complete else None),
        "sdid": device.super_device_id or (NO_SUPER_DEVICE if complete else None),
        "bind_device_id": options.get("bind_device_id") if device.device_id == HOST_RANK else None,
    }


def servers_are_addresses(cluster: Cluster) -> Iterator[Reason]:
    names = [server.server_id for server in cluster.servers if address_family(server.server_id) is None]
    if names:
        message = (
            f"node_addr is an IP address, and {few_of('server_id', [f'{name[:60]!r}' for name in names])} is not one"
        )
        yield Reason(message, "write the servers' addresses as server_id first")


def one_family_of_addresses(cluster: Cluster) -> Iterator[Reason]:
    """Refuse IPv4 beside IPv6 among the nodes, and among the ranks, which use their node's address by default."""
    nodes = {address_family(server.server_id) for server in cluster.servers}
    ranks = {address_family(device.device_ip or server.server_id) for server, device in pairs_of(cluster)}
    for what, families in (("servers", nodes), ("ranks", ranks)):
        if families >= {4, 6} and len(cluster.servers) > 1:
            yield Reason(f"the {what} have addresses of IPv4 and of IPv6", "write all of them in one family first")
            return


V1_1 = Target(
    "v1.1",
    write_v1_1,
    frozenset({"device_ip", "super_device_id", *NODE_RANK_OPTIONS, *NODE_TABLE_OPTIONS}),
    (one_rank_per_device, servers_are_addresses, one_address_each, one_family_of_addresses),
    completed_v1_1,
)
