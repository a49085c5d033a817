"""Rules for v1.0 and v1.2: server_count, server names, ports, backup network cards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.rank_table.catalogue import Addition, Finding, Severity, rule, warning
from launcher.rank_table.ip import is_loopback, is_unspecified, packed_address, what_it_is_instead, why_no_address
from launcher.rank_table.model import DeviceRow, Table, read_decimal, split_addresses, text_at
from launcher.rank_table.rules.shared import MAX_PORT, count_differs, repeated
from launcher.rank_table.table_format import SERVER_LISTS

NAME_LIMIT = 256  # characters of a name that are checked
# A character that no name contains, or an address of four parts, some of which consist only of x, y, z or w.
_PLACEHOLDER = re.compile(r"[*<>{}$?]|^(?=[^.]*(?:\.[^.]*){3}$)(?:.*\.)?([xyzw])\1*(?:\.|$)", re.IGNORECASE)
# Four parts, the first a number and at most one not a number; or two colons.
_LIKE_ADDRESS = re.compile(
    r"[0-9]+(?:\.[0-9]+){2,}$|[0-9]+\.(?:[^.]*\.[0-9]+\.[0-9]+|[0-9]+\.[^.]*\.[0-9]+|[0-9]+\.[0-9]+\.[^.]*)$|[0-9a-fA-F]*:.*:"
)
# A name with a domain of letters that do not look like digits; and a hardware address.
_OTHER_NAME = re.compile(r".*\.(?![lIoO]+$)[A-Za-z]{2}[\w-]*$|(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$")
VNIC_PORT = "device_vnic_port"
PORTS = frozenset({"device_port", VNIC_PORT, "host_port"})
BACKUP_KEY, BACKUP_PORT_KEY = "backup_device_ip", "backup_device_port"
DIES = 2  # of one NPU: devices 0 and 1, 2 and 3, ...


@rule("RT312", "server_count differs from the number of servers", formats=SERVER_LISTS)
def server_count_differs(table: Table) -> Iterator[Finding]:
    """`server_count` must be the length of `server_list`, written as a string. HCCL refuses the table otherwise."""
    servers = table.fields.get("server_list")
    found = len(servers) if isinstance(servers, list) else None
    yield from count_differs((), table.fields, "server_count", found, "server", listed="server_list")


@warning("RT407", "server_count is missing", formats=SERVER_LISTS)
def server_count_missing(table: Table) -> Iterator[Finding]:
    """If `server_count` is missing, HCCL counts the servers. But HCCL's documentation and other readers require it."""
    servers = table.fields.get("server_list")
    if "server_count" not in table.fields and isinstance(servers, list):
        missing = Addition("server_count", f'"{len(servers)}"', before="server_list")
        yield Finding((), "server_count is missing", f'add "server_count": {missing.value}', addition=missing)


@warning("RT408", "a placeholder as the name of a server", formats=SERVER_LISTS)
def name_is_placeholder(table: Table) -> Iterator[Finding]:
    """A server_id such as 10.*.*.*, xx.xx.xx.xx or <ip> is a placeholder from a tutorial, not an address.

    HCCL accepts any text as server_id. Other programs may expect an address, and fail if they find a placeholder.
    """
    for server in table.servers:
        if server.server_id and _PLACEHOLDER.search(server.server_id[:NAME_LIMIT]):
            message = f'server_id "{server.name}" is a placeholder'
            yield Finding(server.at("server_id"), message, "write the server's own address or name")


@warning("RT413", "a server_id that looks like an invalid address", formats=SERVER_LISTS)
def name_is_mistyped_address(table: Table) -> Iterator[Finding]:
    """HCCL accepts any text as server_id, even "10.277.0.10", which is a mistyped address and not a host name."""
    for server in table.servers:
        name = (server.server_id or "")[:NAME_LIMIT]
        is_other = _PLACEHOLDER.search(name) or _OTHER_NAME.match(name)
        if _LIKE_ADDRESS.match(name) and packed_address(name) is None and not is_other:
            message = f'server_id "{name[:64]}" looks like an address, but is not valid{why_no_address(name)}'
            yield Finding(server.at("server_id"), message, "write the server's own address or name")


@warning("RT409", "a loopback address as server_id", formats=SERVER_LISTS)
def name_is_loopback(table: Table) -> Iterator[Finding]:
    """On every server, 127.x.x.x and localhost refer to that server itself. So they do not identify a server.

    Programs that generate tables write these names if a host name resolves to a loopback address.
    """
    for server in table.servers if len(table.servers) > 1 else ():
        if server.server_id and is_loopback(server.server_id):
            message = f'server_id "{server.name}" refers to the local machine, but this table has several servers'
            yield Finding(server.at("server_id"), message, "write an address that other servers can reach")


@warning("RT424", "a loopback address as device_ip", formats=SERVER_LISTS, ascend_only=True)
def address_leads_nowhere(table: Table) -> Iterator[Finding]:
    """HCCL's parser accepts loopback addresses such as 127.0.0.1, but other servers cannot connect to them."""
    nowhere = {address for address in table.packed_addresses if is_loopback(address)}
    for device in table.devices if nowhere and len(table.servers) > 1 else ():
        for address in device.addresses:
            if address in nowhere:
                message = f"device_ip {address[:45]} is a loopback address, which other servers cannot reach"
                hint = "write the address that `hccn_tool -i ID -ip -g` shows on that server"
                yield Finding(device.at("device_ip"), message, hint)


@warning("RT425", "a host_port used twice on one server", formats=SERVER_LISTS, ascend_only=True)
def host_port_repeated(table: Table) -> Iterator[Finding]:
    """Each device of a server needs its own host_port, because a process listens on it. HCCL does not check this."""
    for server in table.servers if "host_port" in table.keys else ():
        ports = ((read_decimal(device.fields.get("host_port")), device) for device in server.devices)
        for device, earlier in repeated((port, device) for port, device in ports if port is not None):
            message = f"host_port {read_decimal(device.fields['host_port'])} is used twice on this server"
            hint = "write a port that no other device of this server has"
            yield Finding(device.at("host_port"), message, hint, earlier.at("host_port"))


@rule("RT324", "a port that cannot be used", formats=SERVER_LISTS, ascend_only=True)
def port_unusable(table: Table) -> Iterator[Finding]:
    """A port is a string from "1" to "65535". HCCL does not accept "0", which means any free port in other programs.

    HCCL reads device_vnic_port only if the device has a device_port.
    """
    for device in () if PORTS.isdisjoint(table.keys) else table.devices:
        for key in PORTS & device.fields.keys():
            written = device.fields[key]
            if key == VNIC_PORT and "device_port" not in device.fields:
                continue
            hint = f'write "16666", or remove {key}'
            if not isinstance(written, str):
                if key == VNIC_PORT:  # the schema checks the other keys
                    yield Finding(device.at(key), f"{key} must be a string if there is a device_port", hint)
            elif not 1 <= (read_decimal(written) or 0) <= MAX_PORT:
                yield Finding(device.at(key), f'{key} is "{written[:20]}", not a port from 1 to {MAX_PORT}', hint)


# A warning: HCCL reads these keys only on an A3 and if two environment variables are set.
@rule(
    "RT426", "a backup address that cannot be used", severity=Severity.WARNING, formats=SERVER_LISTS, ascend_only=True
)
def backup_unusable(table: Table) -> Iterator[Finding]:
    """backup_device_ip is the address of the other die of the same NPU. No two devices may share a backup address.

    HCCL reads the key only on an A3, if operators run on the AI CPU and are retried between super pods. HCCL then
    refuses an invalid address, the device's own address, an address of another NPU, and a port outside 1 to 65535.
    """
    devices = [device for device in table.devices if BACKUP_KEY in device.fields] if BACKUP_KEY in table.keys else []
    owners = {address: device for device in table.devices for address in device.addresses} if devices else {}
    taken: set[str] = set()
    for device in devices:
        addresses = split_addresses(text_at(device.fields, BACKUP_KEY))
        fault = _address_fault(device, addresses, owners, taken)
        taken.update(addresses)
        if fault is not None:
            hint = f"write the device_ip of the other die of its NPU, or remove {BACKUP_KEY}"
            yield Finding(device.at(BACKUP_KEY), fault, hint)
        elif (
            addresses
            and BACKUP_PORT_KEY in device.fields
            and not 1 <= (read_decimal(device.fields[BACKUP_PORT_KEY]) or 0) <= MAX_PORT
        ):
            message = f"{BACKUP_PORT_KEY} is not a port from 1 to {MAX_PORT} in quotes"
            yield Finding(device.at(BACKUP_PORT_KEY), message, f'write "16667", or remove {BACKUP_PORT_KEY}')


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
        # Another rule reports invalid ids.
        if owner is None or device.device_id is None or owner.device_id is None:
            continue
        if device.server != owner.server or device.device_id // DIES != owner.device_id // DIES:
            return f"{BACKUP_KEY} {address[:45]} belongs to a device of another NPU"
    return None
