"""Read the formats without a version: legacy-lab, with ranks, and legacy-cloud, whose ranks follow from the order.

Both contain groups of instances with devices. An instance names its server, so several instances may share one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from launcher.core.records import Cluster, Device
from launcher.rank_table.catalogue import Finding
from launcher.rank_table.model import (
    DeviceRow,
    Fields,
    GroupRow,
    InstanceRow,
    ServerRow,
    Table,
    cluster_of,
    read_decimal,
    text_at,
)
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import CHIP_INFOS, CHIPS
from launcher.rank_table.schema import Shape, Shapes, needed, shown
from launcher.rank_table.table_format import LAB_TABLE_OPTIONS, Format

_DEVICES = '[{"device_id": "0", "device_ip": "..."}]'
_NO_ADDRESS = '"...", the address of its network card, or "" if it has none'
_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class TableShape(Shape):
    version: Any = None  # not allowed in these formats; reported by _read
    status: str = needed('"completed"')
    group_count: str = needed('"1", the number of groups')
    group_list: list[Any] = needed('[{"group_name": "", ...}]')


class LabShape(TableShape):
    para_plane_nic_location: str = needed('"device"')
    deploy_mode: Any = None  # HCCL only requires that the key exists
    board_id: Any = None
    chip_info: Any = None
    para_plane_nic_name: Any = None
    para_plane_nic_num: Any = None


class GroupShape(Shape):
    group_name: str = needed('"", or a name that no other group has')
    instance_count: str = needed('"1", the number of instances')
    instance_list: list[Any] = needed(f'[{{"server_id": "...", "devices": {_DEVICES}}}]')


class LabGroupShape(GroupShape):
    device_num: str = needed('"1", the number of devices')
    server_num: str = needed('"1", the number of servers')
    server_list: Any = None  # for the servers' network cards, which HCCL does not support


class CloudGroupShape(GroupShape):
    device_count: str = needed('"1", the number of devices')


class LabInstanceShape(Shape):
    rank_id: str = needed('"0" to "n-1", counted over all groups')
    server_id: str = needed('"...", the address or name of the server')
    devices: list[Any] = needed(_DEVICES)


class PodShape(Shape):
    pod_name: str = needed('"...", the name of the pod')
    server_id: str = needed('"...", the address or name of the server')
    devices: list[Any] = needed(_DEVICES)


class DeviceShape(Shape):
    device_id: str = needed('"0", the id that the driver shows')
    device_ip: str = needed(_NO_ADDRESS)
    device_port: Any = None


class LonePodDeviceShape(Shape):
    """A device in a group with only one pod. HCCL does not read the address of this device."""

    device_id: str = needed('"0", the id that the driver shows')
    device_ip: Any = None


class _Form(NamedTuple):
    format: Format
    table: type[Shape]
    group: type[Shape]
    instance: type[Shape]
    server_words: Mapping[str, str]  # key names for positions


_LAB = _Form(Format.LAB, LabShape, LabGroupShape, LabInstanceShape, {"device": "server_id"})
_CLOUD = _Form(Format.CLOUD, TableShape, CloudGroupShape, PodShape, {"device": "devices"})


def read_lab(document: Fields, shapes: Shapes) -> Table:
    """Read a rank table in the legacy-lab format, and add its structural errors to `shapes`."""
    named = CHIP_INFOS.get(text_at(document, "chip_info") or "", "auto")
    return replace(_read(_LAB, document, shapes), chip=CHIPS[named])


def read_cloud(document: Fields, shapes: Shapes) -> Table:
    """Read a rank table in the legacy-cloud format, which lists no ranks, and add its structural errors to `shapes`."""
    return _read(_CLOUD, document, shapes)


def lab_cluster(table: Table) -> Cluster:
    """Convert a valid rank table in the legacy-lab format to a cluster."""
    # Unusual values for the board and its network cards: strings unchanged, other values as JSON text.
    values = {key: table.fields[key] for key in LAB_TABLE_OPTIONS if table.fields.get(key) is not None}
    texts = {key: value if isinstance(value, str) else _compact(value) for key, value in values.items()}
    devices = max(len(server.devices) for server in table.servers)
    cards = ",".join(f'"eth{index}"' for index in range(devices))
    usual = dict(zip(LAB_TABLE_OPTIONS, ("0x0000", "910", "device", f"[{cards}]", str(devices)), strict=True))
    options = tuple(sorted(texts.items() - usual.items()))
    return replace(cluster_of(table, lambda row: _device(row, row.global_rank or 0)), options=options)


def cloud_cluster(table: Table) -> Cluster:
    """Convert a valid rank table in the legacy-cloud format to a cluster. Number the ranks as HCCL does.

    Worked example: servers "10.0.0.9" with devices 1 0 and "10.0.0.10" with device 0, in this order. As text
    "10.0.0.10" comes first, so its device is rank 0, and devices 0 and 1 of "10.0.0.9" are ranks 1 and 2.
    """
    ranks: dict[Pointer, int] = {}
    for server in sorted(table.servers, key=lambda server: server.server_id or ""):
        for device in sorted(server.devices, key=lambda device: device.device_id or 0):
            ranks[device.pointer] = len(ranks)
    return cluster_of(table, lambda row: _device(row, ranks[row.pointer]))


def _device(row: DeviceRow, rank: int) -> Device:
    return Device(row.device_id or 0, rank, text_at(row.fields, "device_ip") or None)


def _read(form: _Form, document: Fields, shapes: Shapes) -> Table:
    shapes.check(form.table, (), document)
    if "version" in document:  # not a string, or the format would be another one
        message = f"version must be a string, not {shown(document['version'])}"
        shapes.note("RT205", Finding(("version",), message, "remove it: a table with group_list has none"))
    # By name, or by the instance if it has none: each server without its devices, and its devices.
    servers: dict[str | Pointer, tuple[ServerRow, list[DeviceRow]]] = {}
    groups = []
    for group_at, group in shapes.entries((), document, "group_list"):
        shapes.check(form.group, group_at, group)
        instances = group.get("instance_list")
        has_addresses = form is _LAB or (isinstance(instances, list) and len(instances) > 1)
        rows = []
        for at, fields in shapes.entries(group_at, group, "instance_list"):
            shapes.check(form.instance, at, fields)
            server_id = text_at(fields, "server_id")
            new = ServerRow(len(servers), at, fields, server_id, None, (), form.server_words)
            server, of_server = servers.setdefault(at if server_id is None else server_id, (new, []))
            devices = list(_devices(server.number, at, fields, shapes, has_addresses=has_addresses))
            of_server += [_ranked(server.number, at, fields, devices)] if form is _LAB else devices
            rows.append(InstanceRow(at, fields, server_id, len(devices)))
        groups.append(GroupRow(group_at, group, tuple(rows)))
    full = tuple(server._replace(devices=tuple(devices)) for server, devices in servers.values())
    return Table(form.format, document, full, groups=tuple(groups))


def _devices(
    server: int, pointer: Pointer, instance: Fields, shapes: Shapes, *, has_addresses: bool
) -> Iterator[DeviceRow]:
    for at, fields in shapes.entries(pointer, instance, "devices"):
        shapes.check(DeviceShape if has_addresses else LonePodDeviceShape, at, fields)
        # Unlike in other formats, HCCL does not split the address at commas.
        device_ip = text_at(fields, "device_ip") if has_addresses else None
        addresses = (device_ip,) if device_ip else ()
        yield DeviceRow(server, at, fields, read_decimal(fields.get("device_id")), None, addresses)


def _ranked(server: int, pointer: Pointer, instance: Fields, devices: Sequence[DeviceRow]) -> DeviceRow:
    """Return the device of an instance in a rank table of the legacy-lab format, with the rank of the instance.

    An instance keeps its rank even if its device list is faulty, so that the ranks do not look faulty as well.
    """
    first = devices[0] if devices else DeviceRow(server, pointer, {}, None, None, ())
    rank = instance.get("rank_id")
    fields = {**first.fields, "rank_id": rank}
    return first._replace(fields=fields, global_rank=read_decimal(rank), rank_pointer=pointer)
