"""Device ids and the other numbers that a table writes as strings."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.table import DeviceRow, Table, read_decimal, text_at

NUMBERS = ("device_id", "rank_id")
PORTS = frozenset({"device_port", "device_vnic_port", "host_port"})
LARGEST_PORT = 65535


@rule("RT321", "a number that cannot be read")
def number_unreadable(table: Table) -> Iterator[Finding]:
    """device_id and rank_id are non-negative decimal numbers of at most 32 bits, written as strings."""
    for device in table.devices:
        if device.device_id is None or device.global_rank is None:
            yield from _unreadable(device)


def _unreadable(device: DeviceRow) -> Iterator[Finding]:
    for key in NUMBERS:
        written = text_at(device.fields, key)
        if written is not None and read_decimal(written) is None:
            message = f'{key} is "{written[:20]}", not a decimal number'
            yield Finding(device.at(key), message, 'write digits only, as in "0"')


@rule("RT322", "a device_id that the hardware does not have")
def device_id_outside(table: Table) -> Iterator[Finding]:
    """A device_id is the physical id of an accelerator on its server, so the hardware bounds it."""
    limit = table.chip.device_id_limit
    for device in table.devices:
        if device.device_id is not None and device.device_id >= limit:
            message = f"device_id {device.device_id} is outside 0 .. {limit - 1} ({table.chip.title})"
            yield Finding(device.at("device_id"), message, "write the id that the driver shows; it starts at 0")


@rule("RT323", "a device_id used twice on one server")
def device_id_repeated(table: Table) -> Iterator[Finding]:
    """Each device of a server stands in the table once; two ranks cannot share one."""
    for server in table.servers:
        first: dict[int, DeviceRow] = {}
        for device in server.devices:
            if device.device_id is None:
                continue
            earlier = first.setdefault(device.device_id, device)
            if earlier is not device:
                message = f"device_id {device.device_id} is used twice on this server"
                hint = _free_id(table, first)
                yield Finding(device.at("device_id"), message, hint, earlier.at("device_id"))


def _free_id(table: Table, taken: dict[int, DeviceRow]) -> str:
    server = next(iter(taken.values())).server
    used = {device.device_id for device in table.devices if device.server == server}
    free = next((number for number in range(table.chip.device_id_limit) if number not in used), None)
    return "remove the entry" if free is None else f'write "{free}" or the id that was meant'


@rule("RT324", "a port that cannot be used")
def port_unusable(table: Table) -> Iterator[Finding]:
    """Ports are strings from "1" to "65535"; "0", which means any port elsewhere, is refused by HCCL."""
    for device in table.devices:
        for key in device.fields.keys() & PORTS:
            written = text_at(device.fields, key)
            if written is not None and not 1 <= (read_decimal(written) or 0) <= LARGEST_PORT:
                message = f'{key} is "{written[:20]}", not a port from 1 to {LARGEST_PORT}'
                yield Finding(device.at(key), message, f'write "16666", or leave {key} out')
