"""Backup network cards of A3 devices: the two dies of one NPU may stand in for each other."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.diagnostics import Severity
from launcher.rank_table.formats import SERVER_LISTS
from launcher.rank_table.ip import is_unspecified, packed_address, what_it_is_instead
from launcher.rank_table.rows import DeviceRow, Table, read_decimal, split_addresses, text_at
from launcher.rank_table.rules.identity import MAX_PORT

KEY, PORT_KEY = "backup_device_ip", "backup_device_port"
DIES = 2  # of one NPU: devices 0 and 1, 2 and 3, ...


# A warning: HCCL looks at these keys only on an A3 and with two environment variables set, and is silent otherwise.
@rule("RT426", "a backup card that cannot stand in", severity=Severity.WARNING, formats=SERVER_LISTS, ascend_only=True)
def backup_unusable(table: Table) -> Iterator[Finding]:
    """backup_device_ip is the address of the other die of the same NPU, and two devices never share a backup.

    HCCL reads it on an A3 where operators are unfolded on the AI CPU and retried between super pods, and then refuses
    addresses that are none, the device's own, those of other NPUs, and ports outside 1 to 65535.
    """
    devices = [device for device in table.devices if KEY in device.fields] if KEY in table.keys else []
    owners = {address: device for device in table.devices for address in device.addresses} if devices else {}
    taken: set[str] = set()
    for device in devices:
        addresses = split_addresses(text_at(device.fields, KEY))
        fault = _address_fault(device, addresses, owners, taken)
        taken.update(addresses)
        if fault is not None:
            hint = f"write the device_ip of the other die of its NPU, or leave {KEY} out"
            yield Finding(device.at(KEY), fault, hint)
        elif addresses and PORT_KEY in device.fields and not _is_port(device.fields[PORT_KEY]):
            message = f"{PORT_KEY} is no port from 1 to {MAX_PORT} in quotes"
            yield Finding(device.at(PORT_KEY), message, f'write "16667", or leave {PORT_KEY} out')


def _address_fault(
    device: DeviceRow, addresses: tuple[str, ...], owners: dict[str, DeviceRow], taken: set[str]
) -> str | None:
    if not isinstance(device.fields[KEY], str):
        return f"{KEY} must be a string"
    for address in addresses:
        owner = owners.get(address)
        packed = packed_address(address)
        if packed is None or is_unspecified(packed):
            return f'{KEY} "{address[:45]}" is {what_it_is_instead(address, "device")}'
        if address in taken:
            return f"{KEY} {address[:45]} is the backup of two devices"
        if owner is device:
            return f"{KEY} {address[:45]} is the device's own address"
        if owner is not None and not _are_one_npu(device, owner):
            return f"{KEY} {address[:45]} belongs to a device of another NPU"
    return None


def _are_one_npu(device: DeviceRow, other: DeviceRow) -> bool:
    if device.device_id is None or other.device_id is None:
        return True  # unknown; the number that cannot be read is reported
    return device.server == other.server and device.device_id // DIES == other.device_id // DIES


def _is_port(written: object) -> bool:
    return isinstance(written, str) and 1 <= (read_decimal(written) or 0) <= MAX_PORT
