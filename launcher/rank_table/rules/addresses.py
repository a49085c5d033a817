"""Rules about network addresses of devices and servers."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.ip import UNSET_ADDRESS, address_family, what_it_is_instead
from launcher.rank_table.model import DeviceRow, Table
from launcher.rank_table.rules.shared import counted_addresses, other_families
from launcher.rank_table.table_format import SERVER_LISTS, STRINGS, Format


@rule("RT331", "an invalid address", formats=STRINGS, ascend_only=True)
def address_invalid(table: Table) -> Iterator[Finding]:
    """device_ip and host_ip must be IPv4 or IPv6 addresses. A device_ip may be a list, separated by commas.

    On a single server, device_ip may be empty or missing, but even there it must not be a placeholder such as 10.*.*.*.
    The addresses 0.0.0.0 and :: are not allowed either, because HCCL treats 0.0.0.0 as unset.
    """
    for server in table.servers:
        if server.host_ip is not None and address_family(server.host_ip) is None:
            hint = "write the address of the server's network card, or remove host_ip"
            message = f'"{server.host_ip[:45]}" is {what_it_is_instead(server.host_ip, "network card")}'
            yield Finding(server.at("host_ip"), message, hint)
    families = table.address_families
    if None not in families.values():
        return
    for device in table.devices:
        for address in device.addresses:
            if families[address] is None:
                message = f'"{address[:45]}" is {what_it_is_instead(address, "device")}'
                yield Finding(device.at("device_ip"), message, _where_to_look(table, device, address))


def _where_to_look(table: Table, device: DeviceRow, address: str) -> str:
    number = "ID" if device.device_id is None else device.device_id
    hint = f"write the address that `hccn_tool -i {number} -ip -g` shows"
    if address == UNSET_ADDRESS:
        # Copied from hccn_tool: it would print the same again.
        command = f"hccn_tool -i {number} -ip -s address ADDRESS netmask NETMASK"
        hint = f"the device has no address: set one with `{command}`, and write it here"
    if table.format is Format.V1_1:
        return f'{hint}, or "" to use node_addr'
    return hint + (', or "" on a single server' if len(table.servers) == 1 else "")


@rule("RT332", "a device_ip used twice", formats=STRINGS - {Format.V1_1})
def address_repeated(table: Table) -> Iterator[Finding]:
    """Each device has its own network card, so no address may occur twice in the file. This is true for any hardware.

    HCCL compares the addresses as text, so it accepts two spellings of one IPv6 address.
    """
    if sum(table.address_counts.elements()) == len(table.packed_addresses):
        return
    first: dict[str, DeviceRow] = {}
    for device in table.devices:
        for address in device.addresses:
            earlier = first.get(address)
            if earlier is None:
                first[address] = device
            elif table.address_families[address] is not None:  # another rule reports placeholders
                message = f"{device.word('device_ip')} {address[:45]} is used twice"
                hint = "write this device's own address, as `hccn_tool -i ID -ip -g` shows it"
                if not table.chip.is_ascend:
                    hint = "write this device's own address, or remove device_ip"
                yield Finding(device.at("device_ip"), message, hint, earlier.at("device_ip"))


@rule("RT333", "a device without the required device_ip", formats=SERVER_LISTS, ascend_only=True)
def address_missing(table: Table) -> Iterator[Finding]:
    """If devices communicate between servers through their own network cards, each device needs its card's address.

    device_ip is optional on a single server, and in a single super pod, whose servers have direct links. HCCL can also
    use the servers' network cards. Then every server needs a host_ip, and device_ip is optional, except on an A2.
    """
    # HCCL's parser accepts more: an empty text on a 910, and anything on an A3, because it reads the devices before the
    # super pods. Such a table fails later, when the first two servers connect, so it is reported now.
    chip, joined, servers = table.chip, "servers", len(table.servers)
    if table.format is Format.V1_2 and chip.reads_super_pods:
        joined, servers = "super pods", len(table.pods)
    if (
        servers <= 1
        or (table.is_without_ascend and not (chip.is_ascend or table.packed_addresses))
        or (table.uses_host_nics and not chip.needs_device_ip)
    ):
        return
    hint = "write the address that `hccn_tool -i ID -ip -g` shows on that server for each of its devices"
    for server in table.servers if table.address_counts[0] else ():
        if server.has_host_ip and not chip.needs_device_ip:
            continue
        without = [device for device in server.devices if not device.addresses and not _no_string(device)]
        if without:
            needed = f"HCCL needs it between the {servers} {joined} of this table"
            which = "this device has" if len(without) == 1 else f"{len(without)} devices have"
            key = without[0].word("device_ip")
            at = without[0].at(key if key in without[0].fields else None)
            yield Finding(at, f'{which} no {key} on server "{server.name}": {needed}', hint)


def _no_string(device: DeviceRow) -> bool:
    return not isinstance(device.fields.get(device.word("device_ip"), ""), str)


@rule("RT334", "devices with different numbers of addresses", formats=SERVER_LISTS, ascend_only=True)
def address_counts_differ(table: Table) -> Iterator[Finding]:
    """All devices must have the same number of addresses. An unset device_ip counts as one address."""
    if not table.devices or set(table.address_counts) <= {0, 1} or len(table.address_counts) == 1:
        return
    expected = max(1, len(table.devices[0].addresses))
    for device in table.devices:
        found = max(1, len(device.addresses))
        if found != expected and not _no_string(device):
            at = device.at("device_ip" if device.word("device_ip") in device.fields else None)
            message = f"this device has {counted_addresses(found)}, but the first device of the table has {expected}"
            yield Finding(at, message, f"write {counted_addresses(expected)} into device_ip, separated by commas")


@rule("RT335", "IPv4 and IPv6 in one table", hccl_code="EI0001", formats=STRINGS - {Format.V1_1}, ascend_only=True)
def address_families_mixed(table: Table) -> Iterator[Finding]:
    """With several servers, all device_ip must be IPv4, or all must be IPv6. The same applies to host_ip."""
    if len(table.servers) < 2:
        return
    hosts = ((server.at("host_ip"), address_family(server.host_ip)) for server in table.servers if server.host_ip)
    yield from other_families(hosts)
    families = table.address_families
    if len(set(families.values())) > 1:
        used = ((device, address) for device in table.devices for address in device.addresses)
        yield from other_families((device.at("device_ip"), families[address]) for device, address in used)


@rule("RT336", "a server without host_ip in a table that uses host addresses", formats=SERVER_LISTS, ascend_only=True)
def host_address_missing(table: Table) -> Iterator[Finding]:
    """If HCCL uses the servers' own network cards, every server needs a host_ip.

    HCCL uses these cards in two cases: if rank 0 has no device_ip but its server has a host_ip, and if any device has
    "host" as net_position.
    """
    reason = None
    if "net_position" in table.keys and any(device.fields.get("net_position") == "host" for device in table.devices):
        reason = 'a device has "host" as net_position'
    if table.uses_host_nics and not table.chip.needs_device_ip:
        reason = "rank 0 has no device_ip but its server has a host_ip"
    for server in table.servers if reason else ():
        if not server.has_host_ip and server.host_ip != "":
            message = f'{reason}, so HCCL uses the host_ip of every server, but server "{server.name}" has none'
            yield Finding(server.at(), message, 'add "host_ip", with the address of the server\'s network card')
