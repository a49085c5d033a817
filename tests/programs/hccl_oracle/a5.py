"""rank_table_info/*.cc of the library for A5: v2.0. Its std::string counts bytes, its numbers have 32 bits."""

from __future__ import annotations

import re
import socket
from typing import Any

from .reading import U32, need


def number_of(holder: Any, key: str, *, default: int | None = None) -> int:
    """json_parser.cc GetJsonPropertyUInt: any JSON number or bool is converted, fractions are cut off."""
    if default is not None and key not in holder:
        return default
    value = holder.get(key) if isinstance(holder, dict) else None
    need(isinstance(value, int | float), f"json_parser.cc GetJsonPropertyUInt: {key}")
    assert value is not None
    need(default is not None or 0 <= int(value) <= U32, f"json_parser.cc GetJsonPropertyUInt: {key} out of range")
    return int(value) & U32


def string_of(holder: Any, key: str, *, default: str | None = None) -> str:
    """json_parser.cc GetJsonProperty."""
    if default is not None and key not in holder:
        return default
    value = holder.get(key) if isinstance(holder, dict) else None
    need(isinstance(value, str), f"json_parser.cc GetJsonProperty: {key}")
    return str(value)


def array_of(holder: Any, key: str) -> list[Any]:
    """json_parser.cc GetJsonPropertyList: there, and an array, which may be empty."""
    value = holder.get(key) if isinstance(holder, dict) else None
    need(isinstance(value, list), f"json_parser.cc GetJsonPropertyList: {key}")
    return list(value or ())


def rank_table_info(document: Any) -> None:
    """rank_table_info.cc Deserialize, Check, InsertToRank."""
    version = string_of(document, "version")
    need(string_of(document, "detour", default="") in ("true", "false", ""), "rank_table_info.cc Deserialize: detour")
    count = number_of(document, "rank_count")
    ranks = [new_rank_info(entry) for entry in array_of(document, "rank_list")]
    need(version == "2.0", "rank_table_info.cc Check: version")
    need(1 <= count <= 65536 and count == len(ranks), "rank_table_info.cc Check: rank_count")
    need(sorted(rank[0] for rank in ranks) == list(range(count)), "rank_table_info.cc Check: rank_id")
    backups = [replaced for _, local, replaced, _ in ranks if local == 64]
    need(len(backups) < 2, "rank_table_info.cc Check: multiple replaced ranks")
    locals_ = {local for _, local, _, _ in ranks if local != 64}
    need(locals_.isdisjoint(backups), "rank_table_info.cc Check: local_id beside its replacement")
    sizes: dict[tuple[int, str], int] = {}
    for *_, levels in ranks:
        for layer, instance, addresses in levels:
            need(sizes.setdefault((layer, instance), addresses) == addresses, "rank_table_info.cc CheckAndInsert")


def new_rank_info(rank: Any) -> tuple[int, int, int, list[tuple[int, str, int]]]:
    """new_rank_info.cc Deserialize: the rank, its local_id, whom it replaces, and its layers.

    The bound of device_id is that of every release and of the documentation. Sources of August 2026 say 512.
    """
    rank_id, local_id = number_of(rank, "rank_id"), number_of(rank, "local_id")
    need(local_id <= 64, "new_rank_info.cc Deserialize: local_id")
    replaced = number_of(rank, "replaced_local_id") if local_id == 64 else local_id
    need(local_id != 64 or replaced <= 63, "new_rank_info.cc Deserialize: replaced_local_id")
    need(number_of(rank, "device_id") <= 64, "new_rank_info.cc CheakDeviceIdAndDevicePort: device_id")
    for key in ("device_port", "host_port"):
        need(1 <= number_of(rank, key, default=16666) <= 65535, f"new_rank_info.cc Deserialize: {key}")
    levels = array_of(rank, "level_list")
    need(len(levels) <= 8, "new_rank_info.cc CheakLevelJsonsSize")
    found = [rank_level_info(level) for level in levels]
    layers = [level[0] for level in found]
    need(layers == sorted(set(layers)), "new_rank_info.cc Deserialize: levels are not in sequence")
    if "control_plane" in rank:
        plane = rank["control_plane"]
        address_of_kind(plane, "control_plane.cc Deserialize")
        need(1 <= number_of(plane, "listen_port") <= 65536, "control_plane.cc Deserialize: listen_port")
    return rank_id, local_id, replaced, found


def rank_level_info(level: Any) -> tuple[int, str, int]:
    """rank_level_info.cc Deserialize: the layer, its instance, and how many addresses it has."""
    layer, instance = number_of(level, "net_layer"), string_of(level, "net_instance_id")
    need(layer <= 7, "rank_level_info.cc Deserialize: net_layer")
    need(1 <= len(instance.encode()) <= 1024, "rank_level_info.cc Deserialize: net_instance_id")
    string_of(level, "net_attr", default="")
    need(isinstance(level.get("pcie_fallback", False), bool), "rank_level_info.cc Deserialize: pcie_fallback")
    known = ("TOPO_FILE_DESC", "CLOS", "1DMESH", "2DMESH", "A3_SERVER", "A2_AX_SERVER")
    need(string_of(level, "net_type", default="CLOS") in known, "rank_level_info.cc Deserialize: net_type")
    addresses = array_of(level, "rank_addr_list")
    for one in addresses:
        address_info(one)
    need(len(addresses) <= 24, "rank_level_info.cc Deserialize: rank_addr_list")
    return layer, instance, len(addresses)


def address_info(one: Any) -> None:
    """address_info.cc Deserialize, ParseBackupAddrs."""
    kind = address_of_kind(one, "address_info.cc Deserialize")
    if "backup_addr" in one:
        backups = one["backup_addr"]
        need(isinstance(backups, list) and len(backups) <= 16, "address_info.cc ParseBackupAddrs: no list, or too long")
        good = all(isinstance(backup, str) and kind != "EID" and is_of_kind(kind, backup) for backup in backups)
        need(good, "address_info.cc ParseAddrByType: backup_addr")
    plane = string_of(one, "plane_id", default="0")
    need(len(plane.encode()) <= 1024, "address_info.cc Deserialize: plane_id")
    ports = array_of(one, "ports")
    good = all(isinstance(each, str) and 1 <= len(each.encode()) <= 32 for each in ports)
    need(good and 1 <= len(set(ports)) <= 16, "address_info.cc DeserializePorts")


def address_of_kind(holder: Any, where: str) -> str:
    """The addr_type of an object whose addr is one."""
    kind, written = string_of(holder, "addr_type"), string_of(holder, "addr")
    need(kind in ("EID", "IPV4", "IPV6"), f"{where}: addr_type")
    need(is_of_kind(kind, written), f"{where}: addr")
    return kind


_GROUP, _PART = r"[\da-fA-F]{1,4}", r"(25[0-5]|2[0-4]\d|[01]?\d\d?)"
_QUAD = rf"({_PART}\.){{3}}{_PART}"
_IPV6 = [rf"({_GROUP}:){{6}}{_QUAD}", rf"({_GROUP}:){{7}}{_GROUP}"]
_IPV6 += [rf"({_GROUP}:){{{n}}}:({_GROUP}:){{0,{4 - n}}}{_QUAD}" for n in range(1, 5)]
_IPV6 += [rf"::({_GROUP}:){{0,4}}{_QUAD}", rf"({_GROUP}:){{6}}:"]
_IPV6 += [rf"({_GROUP}:){{{n}}}((:{_GROUP}){{1,{6 - n}}}|:)" for n in range(1, 6)] + [rf":((:{_GROUP}){{1,6}}|:)"]


def is_of_kind(kind: str, text: str) -> bool:
    """ip_address.h IsEID; IsIPv4 or IsIPv6, and then InitBinaryAddr."""
    if not 1 <= len(text.encode()) <= 256:
        return False
    if kind == "EID":
        return re.fullmatch("[0-9a-fA-F]{32}", text) is not None
    if kind == "IPV4":
        parts = text.split(".")
        plain = all(re.fullmatch("0|[1-9][0-9]{0,2}", part, re.ASCII) and int(part) < 256 for part in parts)
        return len(parts) == 4 and plain
    if not any(re.fullmatch(pattern, text, re.ASCII) for pattern in _IPV6):
        return False
    try:
        return bool(socket.inet_pton(socket.AF_INET6, text))
    except OSError:
        return False
