"""Read v1.0 and v1.2: servers with their devices. All scalars are strings. v1.2 adds super pods."""

from __future__ import annotations

from typing import Any

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.model import (
    DeviceRow,
    Fields,
    PodRow,
    ServerRow,
    Table,
    options_at,
    read_decimal,
    split_addresses,
    text_at,
)
from launcher.rank_table.schema import MAY_BE_MISSING, Shape, Shapes, needed
from launcher.rank_table.table_format import DEVICE_OPTIONS, SERVER_OPTIONS, VERSIONS, Format, list_of_another

_DEVICE_OPTIONS, _SERVER_OPTIONS = frozenset(DEVICE_OPTIONS), frozenset(SERVER_OPTIONS)


class DeviceShape(Shape):
    device_id: str = needed('"0", the id that the driver shows')
    rank_id: str = needed('"0" to "n-1", counted over all servers')
    device_ip: str = ""  # may be missing on a single server
    device_port: str = ""
    device_vnic_port: Any = None  # HCCL reads it only together with a device_port: checked by a rule
    host_port: str = ""
    net_position: str = ""
    net_protocol: str = ""
    backup_device_ip: Any = None
    backup_device_port: Any = None
    super_device_id: Any = None  # HCCL reads it in v1.2


class PodDeviceShape(DeviceShape):
    super_device_id: str = ""  # optional if the table has no super_pod_list


class ServerShape(Shape):
    server_id: str = needed('"...", the address or name of the server')
    device: list[Any] = needed('[{"device_id": "0", "device_ip": "...", "rank_id": "0"}]')
    host_ip: str = ""
    host_nic_ip: Any = None
    container_ip: Any = None
    hardware_type: Any = None
    pod_ip: Any = None
    server_index: Any = None
    server_ip: Any = None
    # Written by MindCluster and MindIE; not used by HCCL or tlaunch.
    server_name: Any = None
    server_sn: Any = None
    super_pod_id: Any = None
    pod_name: Any = None
    container_ids: Any = None


class TableShape(Shape):
    version: str = needed('"1.0"')
    status: str = needed('"completed"')
    server_list: list[Any] = needed('[{"server_id": "...", "device": [...]}]')
    server_count: str = ""  # if missing, HCCL counts the servers
    super_pod_list: Any = None  # a rule reports that it needs v1.2
    total: Any = None  # written by MindCluster and MindIE
    IsMindIEEPJob: Any = None


class PodTableShape(TableShape):
    version: str = needed('"1.2"')
    super_pod_list: list[Any] = MAY_BE_MISSING  # if missing, each server is its own super pod


class PodShape(Shape):
    super_pod_id: str = needed('"...", the number of the super pod or any name')
    server_list: list[Any] = needed('[{"server_id": "..."}]')


class PodServerShape(Shape):
    server_id: str = needed('"...", as in the table\'s server_list')
    server_index: Any = None


def read(document: Fields, shapes: Shapes) -> Table:
    """Read a v1.0 or v1.2 rank table, and add its structural errors to `shapes`.

    If the table has another format's list, a rule about versions reports that.
    """
    found = VERSIONS.get(str(document.get("version")), Format.V1_0)
    has_pods = found is Format.V1_2
    if list_of_another(document, found):
        return Table(found, document, ())
    shapes.check(PodTableShape if has_pods else TableShape, (), document)
    device_shape = PodDeviceShape if has_pods else DeviceShape
    servers: list[ServerRow] = []
    for pointer, fields in shapes.entries((), document, "server_list"):
        shapes.check(ServerShape, pointer, fields)
        devices = []
        for at, entry in shapes.entries(pointer, fields, "device"):
            shapes.check(device_shape, at, entry)
            device_id, global_rank = read_decimal(entry.get("device_id")), read_decimal(entry.get("rank_id"))
            addresses = split_addresses(entry.get("device_ip"))
            devices.append(DeviceRow(len(servers), at, entry, device_id, global_rank, addresses))
        server_id, host_ip = text_at(fields, "server_id"), text_at(fields, "host_ip")
        servers.append(ServerRow(len(servers), pointer, fields, server_id, host_ip, tuple(devices)))
    pods = []
    for pointer, fields in shapes.entries((), document, "super_pod_list") if has_pods else ():
        shapes.check(PodShape, pointer, fields)
        members = []
        for at, entry in shapes.entries(pointer, fields, "server_list"):
            shapes.check(PodServerShape, at, entry)
            members.append((at, text_at(entry, "server_id")))
        pods.append(PodRow(pointer, text_at(fields, "super_pod_id"), tuple(members)))
    return Table(found, document, tuple(servers), pods=tuple(pods))


def cluster(table: Table) -> Cluster:
    """Convert a valid v1.0 or v1.2 rank table to a cluster."""
    return Cluster(tuple(_server(server, table) for server in table.servers), options=table.options)


def _server(row: ServerRow, table: Table) -> Server:
    devices = []
    for one in sorted(row.devices, key=lambda device: device.global_rank or 0):
        device_ip, super_device_id = text_at(one.fields, "device_ip"), text_at(one.fields, "super_device_id")
        options = () if _DEVICE_OPTIONS.isdisjoint(one.fields) else options_at(one.fields, _DEVICE_OPTIONS)
        ids = one.device_id or 0, one.global_rank or 0
        devices.append(Device(*ids, device_ip or None, super_device_id or None, options))
    server_id = row.server_id or ""
    pod = table.pod_of_server.get(server_id)
    return Server(
        server_id,
        tuple(devices),
        text_at(row.fields, "host_nic_ip"),
        row.host_ip or None,
        None if pod is None else pod.super_pod_id,
        options=options_at(row.fields, _SERVER_OPTIONS),
    )
