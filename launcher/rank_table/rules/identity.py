"""Device ids and the other numbers that a table writes as strings."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.records import HOST_RANK
from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.chips import CHIPS
from launcher.rank_table.formats import RANKED, SERVER_LISTS, STRINGS, Format
from launcher.rank_table.rows import DeviceRow, ServerRow, Table, read_decimal

NUMBERS = ("device_id", "rank_id")
VNIC_PORT = "device_vnic_port"
PORTS = frozenset({"device_port", VNIC_PORT, "host_port"})
MAX_PORT = 65535


@rule("RT321", "a number that cannot be read", formats=STRINGS)
def number_unreadable(table: Table) -> Iterator[Finding]:
    """device_id and rank_id are non-negative decimal numbers of at most 32 bits, written as strings."""
    has_ranks = table.format in RANKED
    for device in table.devices:
        if device.device_id is None or (device.global_rank is None and has_ranks):
            yield from _unreadable(device, NUMBERS if has_ranks else NUMBERS[:1])


def _unreadable(device: DeviceRow, keys: tuple[str, ...]) -> Iterator[Finding]:
    for key, number in zip(keys, (device.device_id, device.global_rank), strict=False):
        written = device.written(key)
        if isinstance(written, str) and number is None:
            message = f'{key} is "{written[:20]}", not a decimal number'
            yield Finding(device.at(key), message, 'write digits only, as in "0"')


def odd_numbers(table: Table) -> Iterator[tuple[DeviceRow, str, str, int]]:
    """Ids and ranks that HCCL reads although they are not written plainly: the device, the key, its text, the number."""
    for device in table.devices:
        fields = device.fields
        # Nearly always the same text as HCCL's number gives: this loop runs over every device of every table.
        if fields.get("device_id") == str(device.device_id) and fields.get("rank_id") == str(device.global_rank):
            continue
        for key, number in zip(NUMBERS, (device.device_id, device.global_rank), strict=True):
            written = device.written(key)
            if number is not None and isinstance(written, str) and written != str(number):
                yield device, key, written, number


@rule("RT322", "a device_id that the hardware does not have", formats=STRINGS, ascend_only=True)
def device_id_outside(table: Table) -> Iterator[Finding]:
    """A device_id is the physical id of an accelerator on its server, so the hardware bounds it."""
    limit = _device_id_limit(table)
    for device in table.devices:
        if device.device_id is not None and device.device_id >= limit:
            message = f"device_id {device.device_id} is outside 0 .. {limit - 1} ({table.chip.title})"
            yield Finding(device.at("device_id"), message, "write the id that the driver shows; it starts at 0")


def _device_id_limit(table: Table) -> int:
    """Whatever the chip, HCCL takes no id beyond those of a 910 from a cloud's table."""
    limit = table.chip.device_id_limit
    return min(limit, CHIPS["910"].device_id_limit) if table.format is Format.CLOUD and table.chip.is_ascend else limit


@rule("RT323", "a device_id used twice on one server", formats=STRINGS - {Format.V1_1})
def device_id_repeated(table: Table) -> Iterator[Finding]:
    """Each device of a server stands in the table once; two ranks cannot share one."""
    for server in table.servers:
        if len({device.device_id for device in server.devices}) == len(server.devices):
            continue
        first: dict[int, DeviceRow] = {}
        free = _free_ids(table, server)
        for device in server.devices:
            if device.device_id is None or device.device_id == HOST_RANK:
                continue
            earlier = first.setdefault(device.device_id, device)
            if earlier is not device:
                message = f"device_id {device.device_id} is used twice on this server"
                unused = next(free, None)
                hint = "remove the entry" if unused is None else f'write "{unused}" or the id that was meant'
                yield Finding(device.at("device_id"), message, hint, earlier.at("device_id"))


def _free_ids(table: Table, server: ServerRow) -> Iterator[int]:
    """Those that no device has, each once; the devices are looked through at the first request."""
    used = {device.device_id for device in server.devices}
    yield from (number for number in range(_device_id_limit(table)) if number not in used)


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
