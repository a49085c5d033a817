"""Network addresses of devices and servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import lru_cache

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.table import DeviceRow, Table

FAMILY_NAMES = {4: "IPv4", 6: "IPv6"}


@lru_cache(maxsize=4096)
def address_family(address: str) -> int | None:
    """4, 6, or None where HCCL would not read an address: two colons make it IPv6, a zone after % is allowed."""
    bare, percent, zone = address.partition("%")
    if percent and not zone:
        return None
    version = 6 if bare.count(":") >= 2 else 4
    try:
        socket.inet_pton(socket.AF_INET6 if version == 6 else socket.AF_INET, bare)
    except (OSError, ValueError):  # ValueError: a NUL or a character outside ASCII
        return None
    return version


@rule("RT331", "an address that is none")
def address_invalid(table: Table) -> Iterator[Finding]:
    """device_ip and host_ip hold IPv4 or IPv6 addresses, device_ip also several with commas between them.

    Placeholders such as 10.*.*.* are refused even on a single server, where the key may be empty or left out.
    """
    for server in table.servers:
        if server.host_ip is not None and address_family(server.host_ip) is None:
            hint = "write the address of the server's network card, or leave host_ip out"
            yield Finding(server.at("host_ip"), f'"{server.host_ip[:45]}" is not an IP address', hint)
    hint = "write the address that `hccn_tool -i ID -ip -g` shows"
    if len(table.servers) == 1:
        hint += ', or "" on a single server'
    for device in table.devices:
        for address in device.addresses:
            if address_family(address) is None:
                yield Finding(device.at("device_ip"), f'"{address[:45]}" is not an IP address', hint)


@rule("RT332", "a device_ip used twice")
def address_repeated(table: Table) -> Iterator[Finding]:
    """Each device has a network card and an address of its own; HCCL compares them as text over the whole file."""
    first: dict[str, DeviceRow] = {}
    for device in table.devices:
        for address in device.addresses:
            earlier = first.get(address)
            if earlier is None:
                first[address] = device
            elif address_family(address) is not None:  # a placeholder is refused as such, once is enough
                message = f"device_ip {address[:45]} is used twice"
                hint = "write this device's own address, as `hccn_tool -i ID -ip -g` shows it"
                yield Finding(device.at("device_ip"), message, hint, earlier.at("device_ip"))


@rule("RT333", "a device without device_ip although there are several servers")
def address_missing(table: Table) -> Iterator[Finding]:
    """Between servers, devices talk over their own network cards, so every device needs its address.

    A single server needs none. A cluster may also talk over the servers' cards: then every server has a host_ip.
    """
    if len(table.servers) < 2 or table.uses_host_nics:
        return
    hint = "write the address that `hccn_tool -i ID -ip -g` shows on that server"
    for server in table.servers:
        for device in server.devices:
            if device.addresses or server.host_ip or _no_string(device):
                continue
            message = f"device_ip is needed between servers, and this table has {len(table.servers)}"
            yield Finding(device.at("device_ip" if "device_ip" in device.fields else None), message, hint)


def _no_string(device: DeviceRow) -> bool:
    return not isinstance(device.fields.get("device_ip", ""), str)


@rule("RT334", "devices with different numbers of addresses", hccl_code=None)
def address_counts_differ(table: Table) -> Iterator[Finding]:
    """When one device has two addresses, every device has two. An unset device_ip counts as one."""
    if not table.devices:
        return
    expected = max(1, len(table.devices[0].addresses))
    for device in table.devices:
        found = max(1, len(device.addresses))
        if found != expected and not _no_string(device):
            at = device.at("device_ip" if "device_ip" in device.fields else None)
            message = f"this device has {_addresses(found)}, the first one of the table {expected}"
            yield Finding(at, message, f"write {_addresses(expected)}, with commas between them")


def _addresses(count: int) -> str:
    return "1 address" if count == 1 else f"{count} addresses"


@rule("RT335", "IPv4 and IPv6 in one table", hccl_code="EI0001")
def address_families_mixed(table: Table) -> Iterator[Finding]:
    """All devices of a cluster of several servers use the same kind of address."""
    if len(table.servers) < 2:
        return
    known = ((device, address_family(device.addresses[0])) for device in table.devices if device.addresses)
    first: int | None = None
    for device, family in known:
        first = first or family
        if family is not None and family != first:
            message = f"this address is {FAMILY_NAMES[family]}, the first of the table is {FAMILY_NAMES[first or 4]}"
            yield Finding(device.at("device_ip"), message, f"write an {FAMILY_NAMES[first or 4]} address")


@rule("RT336", "a server without host_ip although the table uses host addresses", hccl_code=None)
def host_address_missing(table: Table) -> Iterator[Finding]:
    """When rank 0 has no device_ip but its server a host_ip, HCCL uses the servers' cards, and every server has one."""
    if not table.uses_host_nics:
        return
    for server in table.servers:
        if "host_ip" not in server.fields:
            message = "rank 0 has no device_ip, so the servers' own addresses are used, and this server has none"
            yield Finding(server.at(), message, 'add "host_ip": the address of its network card')
