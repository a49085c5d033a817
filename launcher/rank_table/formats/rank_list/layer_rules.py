"""Rules for v2.0: the network layers of each rank, and their addresses."""

from __future__ import annotations

import string
from collections.abc import Iterator
from itertools import pairwise

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.formats.rank_list.rank_list_reader import DRAFT_KEYS, addresses, is_draft, levels
from launcher.rank_table.ip import address_family
from launcher.rank_table.model import DeviceRow, Fields, Table, integer_at, text_at
from launcher.rank_table.positions import Pointer
from launcher.rank_table.rules.shared import counted_addresses, name_unusable
from launcher.rank_table.schema import shown
from launcher.rank_table.table_format import Format

V2_0 = frozenset({Format.V2_0})
LEVEL_LIMIT = 8  # layers are 0 .. 7
ADDRESS_LIMIT = 24  # per rank and layer
NAME_LIMIT = 1024  # bytes of net_instance_id and plane_id
PORT_LIMIT, PORT_NAME_LIMIT = 16, 32
BACKUP_LIMIT = 16  # backup addresses of one address
NET_TYPES = ("TOPO_FILE_DESC", "CLOS", "1DMESH", "2DMESH", "A3_SERVER", "A2_AX_SERVER")
ADDRESS_KINDS = {"EID": "an EID of 32 hexadecimal digits", "IPV4": "an IPv4 address", "IPV6": "an IPv6 address"}
EID_DIGITS = 32
_TODAY = {
    "level": 'write "net_layer", with the same number',
    "id": 'write "net_instance_id", with the same name',
    "fabric_type": 'write "net_type": "TOPO_FILE_DESC" for INNER, else "CLOS"',
    "rank_addr_type": 'remove it, and write "addr_type" into each entry of rank_addr_list',
    "rank_addrs": 'write "rank_addr_list": [{"addr_type": "EID", "addr": "...", "ports": ["0/1"]}]',
}


@rule("RT377", "too many layers", formats=V2_0)
def levels_many(table: Table) -> Iterator[Finding]:
    """`level_list` of a rank may have at most one entry for each of the network layers 0 to 7."""
    for device in table.devices:
        written = device.fields.get("level_list")
        if isinstance(written, list) and len(written) > LEVEL_LIMIT:
            message = f"level_list has {len(written)} entries, but HCCL allows {LEVEL_LIMIT}"
            yield Finding(device.at("level_list"), message, "write one entry for each layer, 0 to 7")


@rule("RT378", "a layer that does not exist", formats=V2_0)
def layer_outside(table: Table) -> Iterator[Finding]:
    """net_layer is the number of a network layer, from 0 (the layer inside a server) to 7."""
    for device in table.devices:
        for pointer, layer in _layers(device):
            if not 0 <= layer < LEVEL_LIMIT:
                message = f"net_layer {shown(layer)} is outside 0 .. {LEVEL_LIMIT - 1}"
                yield Finding((*pointer, "net_layer"), message, "number the layers from 0, the layer inside the server")


@rule("RT379", "layers out of order", formats=V2_0)
def layers_unordered(table: Table) -> Iterator[Finding]:
    """The entries of level_list must be sorted by net_layer, and each layer may have only one entry."""
    for device in table.devices:
        for (_, before), (pointer, layer) in pairwise(_sound_layers(device)):
            if layer <= before:
                message = f"net_layer {layer} comes after net_layer {before} in level_list"
                yield Finding((*pointer, "net_layer"), message, "sort level_list by net_layer, with each layer once")


@rule("RT391", "a rank without layer 0", formats=V2_0)
def layer_zero_missing(table: Table) -> Iterator[Finding]:
    """Network layer 0 determines which ranks share a server. HCCL refuses a rank without an entry for layer 0."""
    for device in table.devices:
        layers = _sound_layers(device)
        if layers and layers[0][1] > 0 and all(one[1] < other[1] for one, other in pairwise(layers)):
            pointer, layer = layers[0]
            message = f"the first entry of level_list has net_layer {layer}, not 0"
            yield Finding((*pointer, "net_layer"), message, "start with net_layer 0, the network inside the server")


@rule("RT380", "a network without a usable name", formats=V2_0)
def instance_unusable(table: Table) -> Iterator[Finding]:
    """net_instance_id names the network to which a rank belongs in a layer. It must have 1 to 1024 bytes."""
    for pointer, level in _all_levels(table):
        name = text_at(level, "net_instance_id")
        if name is not None and not 1 <= len(name.encode()) <= NAME_LIMIT:
            message = f"net_instance_id has {len(name.encode())} bytes, but HCCL allows 1 to {NAME_LIMIT}"
            yield Finding((*pointer, "net_instance_id"), message, "write a name that all ranks of this network share")


@rule("RT381", "an unknown net_type", formats=V2_0)
def net_type_unknown(table: Table) -> Iterator[Finding]:
    """net_type is TOPO_FILE_DESC if the driver's topology file describes the links, or CLOS for a Clos network."""
    for pointer, level in _all_levels(table):
        written = text_at(level, "net_type")
        if written is not None and written not in NET_TYPES:
            known = written.strip().upper()
            hint = f'write "{known}"' if known in NET_TYPES else 'write "TOPO_FILE_DESC" in layer 0, "CLOS" above'
            yield Finding((*pointer, "net_type"), f'net_type "{written[:20]}" is unknown to HCCL', hint)


@rule("RT382", "an unknown addr_type", formats=V2_0)
def address_kind_unknown(table: Table) -> Iterator[Finding]:
    """addr_type states what kind of address `addr` is: "EID", "IPV4" or "IPV6", in upper case."""
    for pointer, address in _all_addresses(table):
        written = address.get("addr_type")
        if isinstance(written, str) and written not in ADDRESS_KINDS:
            hint = f'write "{_kind_of(text_at(address, "addr")) or "EID"}"'
            yield Finding((*pointer, "addr_type"), f'addr_type "{written[:20]}" is unknown to HCCL', hint)


@rule("RT383", "an address that is not of its addr_type", formats=V2_0)
def address_of_other_kind(table: Table) -> Iterator[Finding]:
    """`addr` must be an address of type addr_type. An EID has 32 hexadecimal digits, as in `hccn_tool`."""
    for pointer, address in _all_addresses(table):
        kind, written = text_at(address, "addr_type"), text_at(address, "addr")
        if kind in ADDRESS_KINDS and written is not None and not _is_of_kind(kind, written):
            other = _kind_of(written)
            hint = f"write {ADDRESS_KINDS[kind]}" + (f', or "{other}" as addr_type' if other else "")
            yield Finding((*pointer, "addr"), f'"{written[:45]}" is not {ADDRESS_KINDS[kind]}', hint)


@rule("RT392", "backup addresses that cannot be used", formats=V2_0)
def backup_addresses_unusable(table: Table) -> Iterator[Finding]:
    """backup_addr lists up to 16 addresses of type addr_type. HCCL uses them if the link of `addr` fails.

    An address of type EID cannot have a backup address. Older versions of HCCL ignore backup_addr.
    """
    for pointer, level in _all_levels(table):
        for place, address in addresses(pointer, level):
            if "backup_addr" in address:
                yield from _faulty_backups((*place, "backup_addr"), address)


@rule("RT384", "too many addresses", formats=V2_0)
def addresses_many(table: Table) -> Iterator[Finding]:
    """A rank may have at most 24 addresses in each network layer."""
    for pointer, level in _all_levels(table):
        count = _address_count(level)
        if count > ADDRESS_LIMIT:
            message = f"rank_addr_list has {count} entries, but HCCL allows {ADDRESS_LIMIT}"
            yield Finding((*pointer, "rank_addr_list"), message, "remove some addresses")


@rule("RT385", "ranks of one network with different numbers of addresses", formats=V2_0)
def address_counts_uneven(table: Table) -> Iterator[Finding]:
    """Within a layer, all ranks with the same net_instance_id must have the same number of addresses."""
    first: dict[tuple[int | None, str], tuple[int, Pointer]] = {}
    for pointer, level in _all_levels(table):
        name, layer, count = text_at(level, "net_instance_id"), integer_at(level, "net_layer"), _address_count(level)
        if name is None or not 0 <= count <= ADDRESS_LIMIT:
            continue
        expected, earlier = first.setdefault((layer, name), (count, pointer))
        if count != expected:
            found, wanted = counted_addresses(count), counted_addresses(expected)
            message = f'this rank has {found} in network "{name[:64]}", but the first rank of it has {wanted}'
            hint = f"write {wanted} for every rank with this net_instance_id"
            yield Finding((*pointer, "rank_addr_list"), message, hint, (*earlier, "rank_addr_list"))


@rule("RT386", "ports that HCCL cannot use", formats=V2_0)
def ports_unusable(table: Table) -> Iterator[Finding]:
    """Each address must have 1 to 16 ports of its device. Each port is a string of 1 to 32 bytes, such as "0/1"."""
    for pointer, level in _all_levels(table):
        for place, address in addresses(pointer, level):
            ports = address.get("ports")
            if isinstance(ports, list):
                yield from _faulty_ports((*place, "ports"), ports)


@rule("RT387", "a plane_id that is too long", formats=V2_0)
def plane_long(table: Table) -> Iterator[Finding]:
    """plane_id is the name of a network plane. It may have at most 1024 bytes."""
    for pointer, address in _all_addresses(table):
        name = text_at(address, "plane_id")
        yield from name_unusable((*pointer, "plane_id"), name, NAME_LIMIT, "write a shorter name")


@rule("RT389", "a key of a draft of v2.0", formats=V2_0)
def draft_key(table: Table) -> Iterator[Finding]:
    """Drafts of format v2.0 name some keys differently. HCCL ignores the draft names. Each name is reported once."""
    uses: dict[str, tuple[Pointer, int]] = {}
    for pointer, level in _all_levels(table):
        for key in level.keys() & DRAFT_KEYS.keys() if is_draft(level) else ():
            first, count = uses.get(key, (pointer, 0))
            uses[key] = first, count + 1
    for key, (pointer, count) in uses.items():
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        message = f"{key} is from a draft of format v2.0; HCCL ignores it and reads {DRAFT_KEYS[key]}{more}"
        yield Finding((*pointer, key), message, _TODAY[key], at_key=True)


def _layers(device: DeviceRow) -> list[tuple[Pointer, int]]:
    """Return the layers of a rank, or an empty list if there are more than HCCL allows."""
    found = [
        (pointer, layer) for pointer, level in levels(device) if (layer := integer_at(level, "net_layer")) is not None
    ]
    return found if len(found) <= LEVEL_LIMIT else []


def _sound_layers(device: DeviceRow) -> list[tuple[Pointer, int]]:
    """Return the layers of a rank, or an empty list if any layer is invalid."""
    found = _layers(device)
    written = device.fields.get("level_list")
    is_whole = isinstance(written, list) and len(written) == len(found)
    return found if is_whole and all(0 <= layer < LEVEL_LIMIT for _, layer in found) else []


def _all_levels(table: Table) -> Iterator[tuple[Pointer, Fields]]:
    return (level for device in table.devices for level in levels(device))


def _all_addresses(table: Table) -> Iterator[tuple[Pointer, Fields]]:
    """Yield the addresses of all ranks, both in network layers and in control planes."""
    for device in table.devices:
        for pointer, level in levels(device):
            yield from addresses(pointer, level)
        control_plane = device.fields.get("control_plane")
        if isinstance(control_plane, dict):
            yield (*device.pointer, "control_plane"), control_plane


def _address_count(level: Fields) -> int:
    written = level.get("rank_addr_list")
    return len(written) if isinstance(written, list) else -1


def _is_of_kind(kind: str | None, address: str) -> bool:
    if kind == "EID":
        return len(address) == EID_DIGITS and not address.strip(string.hexdigits)
    if "%" in address:
        return False
    if kind == "IPV4":
        return address_family(address) == 4
    # In HCCL, :: stands for at least two groups; other parsers allow one.
    groups = sum(bool(group) for group in address.split(":")) + ("." in address)
    return address_family(address) == 6 and ("::" not in address or groups <= 6)


def _kind_of(address: str | None) -> str | None:
    return None if address is None else next((kind for kind in ADDRESS_KINDS if _is_of_kind(kind, address)), None)


def _faulty_backups(pointer: Pointer, address: Fields) -> Iterator[Finding]:
    written, kind = address["backup_addr"], text_at(address, "addr_type")
    leave_out = "or remove backup_addr"
    if not isinstance(written, list):
        yield Finding(pointer, f"backup_addr must be a list, not {shown(written)}", f"write a list, {leave_out}")
    elif len(written) > BACKUP_LIMIT:
        message = f"backup_addr has {len(written)} entries, but HCCL allows {BACKUP_LIMIT}"
        yield Finding(pointer, message, "remove some addresses")
    elif written and kind == "EID":
        yield Finding(pointer, "an address of type EID cannot have a backup_addr", "remove backup_addr")
    elif kind in ADDRESS_KINDS:
        for index, one in enumerate(written):
            if not isinstance(one, str) or not _is_of_kind(kind, one):
                message = f"a backup_addr must be {ADDRESS_KINDS[kind]}, as its addr_type says, not {shown(one)}"
                yield Finding((*pointer, index), message, f"write {ADDRESS_KINDS[kind]}, {leave_out}")


def _faulty_ports(pointer: Pointer, ports: list[object]) -> Iterator[Finding]:
    if not 1 <= len(ports) <= PORT_LIMIT and not 1 <= len(set(map(repr, ports))) <= PORT_LIMIT:
        message = f"an address must have 1 to {PORT_LIMIT} ports, but this one has {len(ports)}"
        yield Finding(pointer, message, 'write each port as die/port, as in ["0/1"]')
        return
    for index, port in enumerate(ports):
        length = len(port.encode()) if isinstance(port, str) else 0
        if not 1 <= length <= PORT_NAME_LIMIT:
            written = f"of {length}" if length else shown(port)
            message = f"a port must be a string of 1 to {PORT_NAME_LIMIT} bytes, not {written}"
            yield Finding((*pointer, index), message, 'write die/port, as in "0/1"')
