"""Read the formats without a version: legacy-lab, with ranks, and legacy-cloud, whose ranks follow from the order.

Both contain groups of instances with devices. An instance names its server, so several instances may share one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.catalogue import Finding
from launcher.rank_table.model import (
    DeviceRow,
    Fields,
    GroupRow,
    GroupTable,
    InstanceRow,
    ServerRow,
    Table,
    read_decimal,
    text_at,
)
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import CHIP_INFOS, CHIPS, Chip, Profile
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
    """A device in a group with a single pod, whose address HCCL does not read."""

    device_id: str = needed('"0", the id that the driver shows')
    device_ip: Any = None


class _Form(NamedTuple):
    """The shapes of one of the formats."""

    format: Format
    table: type[Shape]
    group: type[Shape]
    instance: type[Shape]
    server_words: Mapping[str, str]  # key names for positions


_LAB = _Form(Format.LAB, LabShape, LabGroupShape, LabInstanceShape, {"device": "server_id"})


_CLOUD = _Form(Format.CLOUD, TableShape, CloudGroupShape, PodShape, {"device": "devices"})


def read_lab(document: Fields, shapes: Shapes, profile: Profile) -> Table:
    """Return the rows of a legacy-lab table; shape faults go to `shapes`."""
    named = CHIP_INFOS.get(text_at(document, "chip_info") or "")
    chip = CHIPS[named] if named is not None and profile.chip == "auto" else profile.hardware
    return _read(_LAB, document, shapes, chip, profile.consumer)


def read_cloud(document: Fields, shapes: Shapes, profile: Profile) -> Table:
    """Return the rows of a legacy-cloud table, without ranks; shape faults go to `shapes`."""
    return _read(_CLOUD, document, shapes, profile.hardware, profile.consumer)


def lab_cluster(table: Table) -> Cluster:
    """Return the cluster of a table without errors."""
    # Unusual values for the board and its network cards: strings unchanged, other values as JSON text.
    values = {key: table.fields[key] for key in LAB_TABLE_OPTIONS if table.fields.get(key) is not None}
    texts = {key: value if isinstance(value, str) else _compact(value) for key, value in values.items()}
    devices = max(len(server.devices) for server in table.servers)
    cards = ",".join(f'"eth{index}"' for index in range(devices))
    usual = dict(zip(LAB_TABLE_OPTIONS, ("0x0000", "910", "device", f"[{cards}]", str(devices)), strict=True))
    ranks = {device.pointer: device.global_rank or 0 for device in table.devices}
    return Cluster(_servers(table, ranks), options=tuple(sorted(texts.items() - usual.items())))


def cloud_cluster(table: Table) -> Cluster:
    """Return the cluster of a table without errors, with ranks numbered as by HCCL.

    Worked example: servers "10.0.0.9" with devices 1 0 and "10.0.0.10" with device 0, in this order. As text
    "10.0.0.10" comes first, so its device is rank 0, and devices 0 and 1 of "10.0.0.9" are ranks 1 and 2.
    """
    ranks: dict[Pointer, int] = {}
    for server in sorted(table.servers, key=lambda server: server.server_id or ""):
        for device in sorted(server.devices, key=lambda device: device.device_id or 0):
            ranks[device.pointer] = len(ranks)
    return Cluster(_servers(table, ranks))


def _servers(table: Table, ranks: Mapping[Pointer, int]) -> tuple[Server, ...]:
    servers = []
    for row in table.servers:
        devices = [
            Device(device.device_id or 0, ranks[device.pointer], text_at(device.fields, "device_ip") or None)
            for device in row.devices
        ]
        servers.append(Server(row.server_id or "", tuple(sorted(devices, key=lambda device: device.global_rank))))
    return tuple(servers)


def _read(form: _Form, document: Fields, shapes: Shapes, chip: Chip, consumer: str) -> GroupTable:
    shapes.check(form.table, (), document)
    if "version" in document:  # not a string, or the format would be another one
        message = f"version must be a string, not {shown(document['version'])}"
        shapes.note("RT205", Finding(("version",), message, "remove it: a table with group_list has none"))
    rows = _Rows(form, shapes)
    entries = shapes.entries((), document, "group_list")
    groups = tuple(rows.group(pointer, fields) for pointer, fields in entries)
    return GroupTable(form.format, document, rows.servers(), chip, consumer, groups=groups)


class _Rows:
    """A collector of servers during the walk over groups, instances and devices. Servers with one name are merged."""

    def __init__(self, form: _Form, shapes: Shapes) -> None:
        self._form = form
        self._shapes = shapes
        self._numbers: dict[str, int] = {}  # indexes of the named servers
        self._servers: list[tuple[ServerRow, list[DeviceRow]]] = []  # rows without devices, and their devices

    def group(self, pointer: Pointer, fields: Fields) -> GroupRow:
        """Return the row of a group, and record the servers of its instances."""
        self._shapes.check(self._form.group, pointer, fields)
        instances = fields.get("instance_list")
        has_addresses = self._form is _LAB or (isinstance(instances, list) and len(instances) > 1)
        rows = (
            self._instance(at, instance, has_addresses=has_addresses)
            for at, instance in self._shapes.entries(pointer, fields, "instance_list")
        )
        return GroupRow(pointer, fields, tuple(rows))

    def servers(self) -> tuple[ServerRow, ...]:
        """Return all servers, in the order of their first use in the table."""
        return tuple(server._replace(devices=tuple(devices)) for server, devices in self._servers)

    def _instance(self, pointer: Pointer, fields: Fields, *, has_addresses: bool) -> InstanceRow:
        self._shapes.check(self._form.instance, pointer, fields)
        server_id = text_at(fields, "server_id")
        number = self._server_number(server_id, pointer, fields)
        devices = []
        for at, entry in self._shapes.entries(pointer, fields, "devices"):
            self._shapes.check(DeviceShape if has_addresses else LonePodDeviceShape, at, entry)
            # Unlike in other formats, HCCL does not split the address at commas.
            device_ip = text_at(entry, "device_ip") if has_addresses else None
            device_id = read_decimal(entry.get("device_id"))
            devices.append(DeviceRow(number, at, entry, device_id, None, (device_ip,) if device_ip else ()))
        if self._form is _LAB:
            # An instance has one rank, even if its device list is faulty, so that this does not look like a fault of the
            # ranks. The rank is in the object of the instance.
            first = devices[0] if devices else DeviceRow(number, pointer, {}, None, None, ())
            rank = fields.get("rank_id")
            ranked = first._replace(global_rank=read_decimal(rank), words={}, rank_pointer=pointer)
            self._servers[number][1].append(ranked._replace(fields={**first.fields, "rank_id": rank}))
        else:
            self._servers[number][1].extend(devices)
        return InstanceRow(pointer, fields, server_id, len(devices))

    def _server_number(self, server_id: str | None, pointer: Pointer, fields: Fields) -> int:
        number = len(self._servers) if server_id is None else self._numbers.setdefault(server_id, len(self._servers))
        if number == len(self._servers):
            row = ServerRow(number, pointer, fields, server_id, None, (), self._form.server_words)
            self._servers.append((row, []))
        return number
