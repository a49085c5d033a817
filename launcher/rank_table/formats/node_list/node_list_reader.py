"""Read v1.1: nodes whose ranks use devices, or run as processes on the host. All scalars are strings."""

from __future__ import annotations

from functools import partial
from typing import Any

from launcher.core.records import HOST_RANK, Cluster, Device
from launcher.rank_table.model import (
    DeviceRow,
    Fields,
    ServerRow,
    Table,
    cluster_of,
    options_at,
    read_decimal,
    read_signed,
    text_at,
)
from launcher.rank_table.positions import Pointer
from launcher.rank_table.schema import Shape, Shapes, needed
from launcher.rank_table.table_format import NO_SUPER_DEVICE, NODE_TABLE_OPTIONS, SUB_VERSION, Format, list_of_another

TABLE_OPTIONS = frozenset(NODE_TABLE_OPTIONS)
RANK_WORDS = {"device_ip": "rank_ip"}
NODE_WORDS = {"server_id": "node_addr", "device": "ranks"}
_RANKS = '[{"rank_id": "0", "device_id": "0", "rank_ip": ""}]'


class RankShape(Shape):
    rank_id: str = needed('"0" to "n-1", counted over all nodes')
    device_id: str = ""  # a rank without a device computes on the host
    rank_ip: str = ""  # the node's address if unset
    port: str = ""
    sdid: Any = None  # like bind_device_id, used only with heterog_sub_version
    bind_device_id: Any = None


class SuperPodRankShape(Shape):
    """A rank entry in a super pod rank table, marked by the key heterog_sub_version."""

    rank_id: str = needed('"0" to "n-1", counted over all nodes')
    device_id: str = needed('"0", the id that the driver shows, or "-1" for a rank on the host')
    rank_ip: str = needed('"..." or "" to use node_addr')
    port: str = needed('"0" to let HCCL choose')
    sdid: str = needed('"...", the device\'s number in its super pod, or "-1"')
    bind_device_id: Any = None  # a rule requires it for host ranks


class NodeShape(Shape):
    node_addr: str = needed('"...", the address of the node')
    ranks: list[Any] = needed(_RANKS)


class TableShape(Shape):
    version: str = needed('"1.1"')
    status: str = needed('"completed"')
    collective_id: str = needed('"...", any name for this job')
    node_list: list[Any] = needed(f'[{{"node_addr": "...", "ranks": {_RANKS}}}]')
    mode: str = "tcp"
    heterog_sub_version: str = "1.2"
    master_ip: Any = None
    master_port: Any = None


def read(document: Fields, shapes: Shapes) -> Table:
    """Read a v1.1 rank table, and add its structural errors to `shapes`."""
    servers: list[ServerRow] = []
    if list_of_another(document, Format.V1_1) is None:
        shapes.check(TableShape, (), document)
        rank_shape = SuperPodRankShape if SUB_VERSION in document else RankShape
        for pointer, fields in shapes.entries((), document, "node_list"):
            shapes.check(NodeShape, pointer, fields)
            devices = []
            for at, entry in shapes.entries(pointer, fields, "ranks"):
                shapes.check(rank_shape, at, entry)
                devices.append(_device_row(len(servers), at, entry))
            name = text_at(fields, "node_addr")
            servers.append(ServerRow(len(servers), pointer, fields, name, None, tuple(devices), NODE_WORDS))
    options = options_at(document, TABLE_OPTIONS)
    return Table(Format.V1_1, document, tuple(servers), options=options)


def cluster(table: Table) -> Cluster:
    """Convert a valid v1.1 rank table to a cluster."""
    return cluster_of(table, partial(_device, in_super_pods=SUB_VERSION in table.fields))


def _device(row: DeviceRow, *, in_super_pods: bool) -> Device:
    """Return the device of a rank. The port is omitted if it is 0, because HCCL then chooses a port."""
    super_device = text_at(row.fields, "sdid") if in_super_pods else None
    is_bound = in_super_pods and row.device_id == HOST_RANK
    bound = text_at(row.fields, "bind_device_id") if is_bound else None
    port = text_at(row.fields, "port")
    options = (("bind_device_id", bound), ("device_port", port if read_decimal(port) else None))
    return Device(
        HOST_RANK if row.device_id is None else row.device_id,
        row.global_rank or 0,
        row.addresses[0] if row.addresses else None,
        None if super_device == NO_SUPER_DEVICE else super_device,
        tuple((key, text) for key, text in options if text),
    )


def _device_row(server: int, pointer: Pointer, fields: Fields) -> DeviceRow:
    device_id = read_signed(text_at(fields, "device_id")) if "device_id" in fields else HOST_RANK
    if device_id is not None and device_id < HOST_RANK:
        device_id = None
    rank_ip = text_at(fields, "rank_ip")
    addresses = (rank_ip,) if rank_ip else ()
    return DeviceRow(server, pointer, fields, device_id, read_decimal(fields.get("rank_id")), addresses, RANK_WORDS)
