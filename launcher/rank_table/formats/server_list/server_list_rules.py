"""Rules for v1.0 and v1.2 alone: server_count, names of servers, ports, backup network cards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.rank_table.catalogue import Addition, Finding, Severity, rule, warning
from launcher.rank_table.ip import is_loopback, is_unspecified, packed_address, what_it_is_instead, why_no_address
from launcher.rank_table.model import (
    DeviceRow,
    Table,
    read_decimal,
    split_addresses,
    text_at,
)
from launcher.rank_table.rules.shared import MAX_PORT, count_differs, repeated
from launcher.rank_table.table_format import SERVER_LISTS

NAME_LIMIT = 256  # characters of a name that are looked at
# A sign that no name has, or an address of four parts of which one or more is made of x, y, z or w alone.
_PLACEHOLDER = re.compile(r"[*<>{}$?]|^(?=[^.]*(?:\.[^.]*){3}$)(?:.*\.)?([xyzw])\1*(?:\.|$)", re.IGNORECASE)
# Four parts of which the first is a number and at most one is none; or two colons.
_LIKE_ADDRESS = re.compile(
    r"[0-9]+(?:\.[0-9]+){2,}$|[0-9]+\.(?:[^.]*\.[0-9]+\.[0-9]+|[0-9]+\.[^.]*\.[0-9]+|[0-9]+\.[0-9]+\.[^.]*)$|[0-9a-fA-F]*:.*:"
)
# A name with a domain of letters, unless they look like digits; and a hardware address.
_OTHER_NAME = re.compile(r".*\.(?![lIoO]+$)[A-Za-z]{2}[\w-]*$|(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$")
VNIC_PORT = "device_vnic_port"
PORTS = frozenset({"device_port", VNIC_PORT, "host_port"})
BACKUP_KEY, BACKUP_PORT_KEY = "backup_device_ip", "backup_device_port"
DIES = 2  # of one NPU: devices 0 and 1, 2 and 3, ...


@rule("RT312", "server_count differs from the number of servers", formats=SERVER_LISTS)
def server_count_differs(table: Table) -> Iterator[Finding]:
    """`server_count` repeats the length of `server_list`, as a string; HCCL refuses a table where they differ."""
    servers = table.fields.get("server_list")
    found = len(servers) if isinstance(servers, list) else None
    yield from count_differs((), table.fields, "server_count", found, "server", listed="server_list")


@warning("RT407", "server_count is missing", formats=SERVER_LISTS)
def server_count_missing(table: Table) -> Iterator[Finding]:
    """HCCL counts the servers itself where `server_count` is missing, but its documentation and other readers ask for it."""
    servers = table.fields.get("server_list")
    if "server_count" not in table.fields and isinstance(servers, list):
        missing = Addition("server_count", f'"{len(servers)}"', before="server_list")
        yield Finding((), "server_count is missing", f'add "server_count": {missing.value}', addition=missing)


@warning("RT408", "a placeholder as the name of a server", formats=SERVER_LISTS)
def name_is_placeholder(table: Table) -> Iterator[Finding]:
    """Tutorials print 10.*.*.*, xx.xx.xx.xx or <ip> where an address belongs.

    HCCL takes any text as server_id, so such a table works on one server, but not for readers who look for an address.
    """
    for server in table.servers:
        if server.server_id and _PLACEHOLDER.search(server.server_id[:NAME_LIMIT]):
            message = f'server_id "{server.server_id[:64]}" is a placeholder'
            yield Finding(server.at("server_id"), message, "write the server's own address or name")


@warning("RT413", "a server_id that looks like an address and is none", formats=SERVER_LISTS)
def name_is_mistyped_address(table: Table) -> Iterator[Finding]:
    """Any text may be a server_id, so HCCL takes "10.277.0.10", too. No host has such a name: it is a typing error."""
    for server in table.servers:
        name = (server.server_id or "")[:NAME_LIMIT]
        is_other = _PLACEHOLDER.search(name) or _OTHER_NAME.match(name)
        if _LIKE_ADDRESS.match(name) and packed_address(name) is None and not is_other:
            message = f'server_id "{name[:64]}" looks like an address, and is none{why_no_address(name)}'
            yield Finding(server.at("server_id"), message, "write the server's own address or name")


@warning("RT409", "a server named by an address that every server has", formats=SERVER_LISTS)
def name_is_loopback(table: Table) -> Iterator[Finding]:
    """127.x.x.x and localhost mean "this server" on each of them.

    Generators write them where a host's name leads to itself; no reader can tell which server such an entry means.
    """
    for server in table.servers if len(table.servers) > 1 else ():
        if server.server_id and is_loopback(server.server_id):
            message = f'server_id "{server.server_id[:64]}" means each server itself, and this table has several'
            yield Finding(server.at("server_id"), message, "write the address that the other servers reach it by")


@warning("RT424", "a device_ip that leads to no other server", formats=SERVER_LISTS, ascend_only=True)
def address_leads_nowhere(table: Table) -> Iterator[Finding]:
    """127.x.x.x and ::1 are addresses, so HCCL's parser takes them, but no other server reaches a device there."""
    nowhere = {address for address in table.packed_addresses if is_loopback(address)}
    for device in table.devices if nowhere and len(table.servers) > 1 else ():
        for address in device.addresses:
            if address in nowhere:
                message = f"device_ip {address[:45]} leads to no other server"
                hint = "write the address that `hccn_tool -i ID -ip -g` shows on that server"
                yield Finding(device.at("device_ip"), message, hint)


@warning("RT425", "a host_port used twice on one server", formats=SERVER_LISTS, ascend_only=True)
def host_port_repeated(table: Table) -> Iterator[Finding]:
    """The processes of one server listen at their host_port, so each needs its own. HCCL's parser does not look."""
    for server in table.servers if "host_port" in table.keys else ():
        ports = ((read_decimal(device.fields.get("host_port")), device) for device in server.devices)
        for device, earlier in repeated((port, device) for port, device in ports if port is not None):
            message = f"host_port {read_decimal(device.fields['host_port'])} is used twice on this server"
            hint = "write a port that no other device of this server has"
            yield Finding(device.at("host_port"), message, hint, earlier.at("host_port"))


@rule("RT324", "a port that cannot be used", formats=SERVER_LISTS, ascend_only=True)
def port_unusable(table: Table) -> Iterator[Finding]:
    """Ports are strings from "1" to "65535"; "0", which means any port elsewhere, is refused by HCCL.

    HCCL looks at device_vnic_port only where the device has a device_port.
    """
    for device in () if PORTS.isdisjoint(table.keys) else table.devices:
        for key in PORTS & device.fields.keys():
            written = device.fields[key]
            if key == VNIC_PORT and "device_port" not in device.fields:
                continue
            hint = f'write "16666", or leave {key} out'
            if not isinstance(written, str):
                if key == VNIC_PORT:  # the types of the others are the shape's
                    yield Finding(device.at(key), f"{key} must be a string beside a device_port", hint)
            elif not 1 <= (read_decimal(written) or 0) <= MAX_PORT:
                yield Finding(device.at(key), f'{key} is "{written[:20]}", not a port from 1 to {MAX_PORT}', hint)


# A warning: HCCL looks at these keys only on an A3 and with two environment variables set, and is silent otherwise.
@rule("RT426", "a backup card that cannot stand in", severity=Severity.WARNING, formats=SERVER_LISTS, ascend_only=True)
def backup_unusable(table: Table) -> Iterator[Finding]:
    """backup_device_ip is the address of the other die of the same NPU, and two devices never share a backup.

    HCCL reads it on an A3 where operators are unfolded on the AI CPU and retried between super pods, and then refuses
    addresses that are none, the device's own, those of other NPUs, and ports outside 1 to 65535.
    """
    devices = [device for device in table.devices if BACKUP_KEY in device.fields] if BACKUP_KEY in table.keys else []
    owners = {address: device for device in table.devices for address in device.addresses} if devices else {}
    taken: set[str] = set()
    for device in devices:
        addresses = split_addresses(text_at(device.fields, BACKUP_KEY))
        fault = _address_fault(device, addresses, owners, taken)
        taken.update(addresses)
        if fault is not None:
            hint = f"write the device_ip of the other die of its NPU, or leave {BACKUP_KEY} out"
            yield Finding(device.at(BACKUP_KEY), fault, hint)
        elif (
            addresses
            and BACKUP_PORT_KEY in device.fields
            and not 1 <= (read_decimal(device.fields[BACKUP_PORT_KEY]) or 0) <= MAX_PORT
        ):
            message = f"{BACKUP_PORT_KEY} is not a port from 1 to {MAX_PORT} in quotes"
            yield Finding(device.at(BACKUP_PORT_KEY), message, f'write "16667", or leave {BACKUP_PORT_KEY} out')


def _address_fault(
    device: DeviceRow, addresses: tuple[str, ...], owners: dict[str, DeviceRow], taken: set[str]
) -> str | None:
    if not isinstance(device.fields[BACKUP_KEY], str):
        return f"{BACKUP_KEY} must be a string"
    for address in addresses:
        owner = owners.get(address)
        packed = packed_address(address)
        if packed is None or is_unspecified(packed):
            return f'{BACKUP_KEY} "{address[:45]}" is {what_it_is_instead(address, "device")}'
        if address in taken:
            return f"{BACKUP_KEY} {address[:45]} is the backup of two devices"
        if owner is device:
            return f"{BACKUP_KEY} {address[:45]} is the device's own address"
        # An id that cannot be read is reported as that.
        if owner is None or device.device_id is None or owner.device_id is None:
            continue
        if device.server != owner.server or device.device_id // DIES != owner.device_id // DIES:
            return f"{BACKUP_KEY} {address[:45]} belongs to a device of another NPU"
    return None
