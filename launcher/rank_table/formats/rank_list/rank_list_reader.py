"""Read v2.0 (A5): a flat list of ranks, each with its position in every network layer. Numbers are JSON integers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from launcher.core.records import Cluster, Device
from launcher.rank_table.model import DeviceRow, Fields, ServerRow, Table, cluster_of, integer_at, options_at, text_at
from launcher.rank_table.positions import Pointer
from launcher.rank_table.schema import MAY_BE_MISSING, Shape, Shapes, needed
from launcher.rank_table.table_format import RANK_LAYERS, RANK_NUMBERS, Format, list_of_another

LEVEL_WORDS = {"server_id": "net_instance_id"}
_MAX_NUMBER = 0xFFFFFFFF  # HCCL keeps all numbers in 32 bits
_ADDRESS = '{"addr_type": "EID", "addr": "...", "ports": ["0/1"]}'
_LEVEL = (
    '{"net_layer": 0, "net_instance_id": "...", "net_type": "TOPO_FILE_DESC", "net_attr": "", '
    f'"rank_addr_list": [{_ADDRESS}]}}'
)
# Keys of drafts of this format, and their final names.
DRAFT_KEYS = {
    "level": "net_layer",
    "id": "net_instance_id",
    "fabric_type": "net_type",
    "rank_addr_type": "addr_type",
    "rank_addrs": "rank_addr_list",
}
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class AddressShape(Shape):
    addr_type: str = needed('"EID", "IPV4" or "IPV6"')
    addr: str = needed('"...", the address of these ports')
    ports: list[Any] = needed('["0/1"], die and port')
    plane_id: str = ""
    backup_addr: Any = None  # checked by a rule


class ControlPlaneShape(Shape):
    addr_type: str = needed('"EID", "IPV4" or "IPV6"')
    addr: str = needed('"...", the address to listen on')
    listen_port: int = needed("60000")


class LevelShape(Shape):
    net_layer: int = needed("0 inside a server, more for the layers above")
    net_instance_id: str = needed('"...", the name of the network')
    rank_addr_list: list[Any] = needed(f"[{_ADDRESS}]")
    net_type: str = ""  # defaults to CLOS
    net_attr: str = ""
    pcie_fallback: bool = False


class RankShape(Shape):
    rank_id: int = needed("0 to n-1, without quotes")
    device_id: int = needed("0, the id that the driver shows, without quotes")
    local_id: int = needed("0 to 63, the number of the device on its server, without quotes")
    level_list: list[Any] = needed(f"[{_LEVEL}]")
    replaced_local_id: Any = None  # used only for the backup device, for which a rule requires it
    device_port: int = 16666
    host_port: int = 16666
    control_plane: dict[str, Any] = MAY_BE_MISSING


class TableShape(Shape):
    version: str = needed('"2.0"')
    rank_count: int = needed("the number of entries of rank_list, without quotes")
    rank_list: list[Any] = needed(f'[{{"rank_id": 0, "device_id": 0, "local_id": 0, "level_list": [{_LEVEL}]}}]')
    status: Any = "completed"  # read by graph mode, not by HCCL
    detour: str = ""


def read(document: Fields, shapes: Shapes) -> Table:
    """Read a v2.0 rank table, and add its structural errors to `shapes`."""
    by_name: dict[str | None, list[DeviceRow]] = {}
    if list_of_another(document, Format.V2_0) is None:
        shapes.check(TableShape, (), document)
        for pointer, fields in shapes.entries((), document, "rank_list"):
            shapes.check(RankShape, pointer, fields)
            _check_network(pointer, fields, shapes)
            rows = by_name.setdefault(text_at(_lowest_level(fields), "net_instance_id"), [])
            number = rows[0].server if rows else len(by_name) - 1
            device_id, rank = _number(fields, "device_id"), _number(fields, "rank_id")
            rows.append(DeviceRow(number, pointer, fields, device_id, rank, ()))
    servers = []
    for name, rows in by_name.items():
        pointer = (*rows[0].pointer, "level_list", 0)
        level = _lowest_level(rows[0].fields)
        servers.append(ServerRow(rows[0].server, pointer, level, name, None, tuple(rows), LEVEL_WORDS))
    options = options_at(document, frozenset({"detour"}))
    return Table(Format.V2_0, document, tuple(servers), options=options)


def cluster(table: Table) -> Cluster:
    """Convert a valid v2.0 rank table to a cluster. Ranks in the same layer 0 network form a server."""
    return cluster_of(table, _device)


def _device(row: DeviceRow) -> Device:
    numbers = [(key, str(row.fields[key])) for key in RANK_NUMBERS if key in row.fields]
    layers = [(key, _canonical(row.fields[key])) for key in RANK_LAYERS if key in row.fields]
    return Device(row.device_id or 0, row.global_rank or 0, options=tuple(sorted(numbers + layers)))


def _check_network(pointer: Pointer, rank: Fields, shapes: Shapes) -> None:
    for at, level in shapes.entries(pointer, rank, "level_list"):
        if is_draft(level):
            continue
        shapes.check(LevelShape, at, level)
        if level.get("rank_addr_list"):  # a layer without addresses is allowed
            for place, address in shapes.entries(at, level, "rank_addr_list"):
                shapes.check(AddressShape, place, address)
    control_plane = rank.get("control_plane")
    if isinstance(control_plane, dict):
        shapes.check(ControlPlaneShape, (*pointer, "control_plane"), control_plane)


def _lowest_level(rank: Fields) -> Fields:
    value = rank.get("level_list")
    first = value[0] if isinstance(value, list) and value else None
    return first if isinstance(first, dict) else {}


def _number(fields: Fields, key: str) -> int | None:
    number = integer_at(fields, key)
    return number if number is not None and abs(number) <= _MAX_NUMBER else None


def levels(row: DeviceRow) -> Iterator[tuple[Pointer, Fields]]:
    """Yield each object in the level_list of a rank, with its JSON pointer."""
    return _objects(row.pointer, row.fields, "level_list")


def addresses(pointer: Pointer, level: Fields) -> Iterator[tuple[Pointer, Fields]]:
    """Yield each object in the rank_addr_list of a layer, with its JSON pointer."""
    return _objects(pointer, level, "rank_addr_list")


def is_draft(level: Fields) -> bool:
    """Return True if a layer uses the key names of a v2.0 draft instead of the final names."""
    return "net_layer" not in level and not level.keys().isdisjoint(DRAFT_KEYS)


def _objects(pointer: Pointer, fields: Fields, key: str) -> Iterator[tuple[Pointer, Fields]]:
    value = fields.get(key)
    if isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, dict):
                yield (*pointer, key, index), entry
