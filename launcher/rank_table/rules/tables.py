"""Rules about a table as a whole, its servers, their ranks and device ids."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.records import HOST_RANK
from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.model import (
    COMPLETED,
    NUMBERS,
    SERVER_ID_LIMIT,
    DeviceRow,
    Table,
    text_at,
)
from launcher.rank_table.profile import CHIPS
from launcher.rank_table.rules.shared import name_unusable, repeated
from launcher.rank_table.table_format import LISTS, RANKED, SERVER_LISTS, STRINGS, VERSIONS, Format, list_of_another


@rule("RT311", "the table is not completed", hccl_code="EI0004", formats=STRINGS)
def status_not_completed(table: Table) -> Iterator[Finding]:
    """A table is written in steps on clouds, and `status` says when it is done.

    HCCL reads the file again once a second until it says "completed", for up to 30 minutes, and then gives up.
    tlaunch does not wait.
    """
    status = text_at(table.fields, "status")
    if status is not None and status != COMPLETED:
        message = f'status is "{status[:40]}": HCCL would wait up to 30 minutes for "{COMPLETED}"'
        hint = f'write "{COMPLETED}" when the table is final, or wait until the program that writes it is done'
        yield Finding(("status",), message, hint)


@rule("RT313", "a server without a usable name", formats=STRINGS - {Format.V1_1})
def server_id_unusable(table: Table) -> Iterator[Finding]:
    """A server_id is any name of 1 to 64 characters; it need not be an address."""
    hint, empty_hint = "write a shorter name; it only has to be unique", "write the server's address or name"
    for server in table.servers:
        yield from name_unusable(server.at("server_id"), server.server_id, SERVER_ID_LIMIT, hint, empty_hint=empty_hint)


@rule("RT314", "a server_id used twice", formats=SERVER_LISTS | {Format.V1_1})
def server_id_repeated(table: Table) -> Iterator[Finding]:
    """HCCL distinguishes servers by server_id, compared as text. All devices of a server stand in one entry."""
    for server, earlier in repeated((server.server_id, server) for server in table.servers if server.server_id):
        message = f'{server.word("server_id")} "{(server.server_id or "")[:64]}" is used twice'
        hint = "write the other server's own address, or put the devices of one server into one entry"
        yield Finding(server.at("server_id"), message, hint, earlier.at("server_id"))


@rule("RT351", "a version whose servers are written in another way", formats=frozenset(VERSIONS.values()))
def version_of_another_format(table: Table) -> Iterator[Finding]:
    """HCCL decides by `version` how to read a table, and looks for the list that belongs to it.

    With 1.0 and 1.2 that is `server_list`, with 1.1 `node_list`, with 2.0 `rank_list`. A table with `group_list` has no
    version at all.
    """
    found = list_of_another(table.fields, table.format)
    if found is None or "version" not in table.fields:
        return
    versions = {
        "node_list": "1.1",
        "rank_list": "2.0",
        "server_list": "1.2" if "super_pod_list" in table.fields else "1.0",
    }
    message = f'version "{table.fields["version"]}" asks for {LISTS[table.format]}, and this table has {found}'
    hint = f'write "{versions[found]}"' if found in versions else "leave version out: a table of group_list has none"
    yield Finding(("version",), message, hint)


@rule("RT301", "a rank id outside 0 .. n-1", formats=RANKED)
def rank_outside(table: Table) -> Iterator[Finding]:
    """Ranks are counted over the whole file, from 0, without a gap.

    HCCL sorts the devices by rank and refuses the table when the rank at position i is not i.
    """
    last = len(table.devices) - 1
    # Where entries could not be read, ranks beyond the rest are right, and any hint would renumber a sound table.
    for device, earlier, free in _misplaced(table) if table.complete else ():
        if earlier is None:
            message = f"rank_id {device.global_rank} is outside 0 .. {last} ({last + 1} device{'s' * (last > 0)} in this table)"
            yield Finding(device.at("rank_id"), message, _write(table, free))


@rule("RT302", "a rank id used twice", formats=RANKED)
def rank_repeated(table: Table) -> Iterator[Finding]:
    """Two devices with one rank would be one process for HCCL, and some other rank would be missing."""
    for device, earlier, free in _misplaced(table):
        if earlier is not None:
            message = f"rank_id {device.global_rank} is used twice"
            hint = f"{_write(table, free)}, in one of the two places" if table.complete else None
            yield Finding(device.at("rank_id"), message, hint, earlier.at("rank_id"))


def _misplaced(table: Table) -> Iterator[tuple[DeviceRow, DeviceRow | None, int | None]]:
    """Yield the devices whose rank must change: the device, the one that has its rank, and a rank that is free.

    Worked example: ranks 0 2 2 7 on four devices. The second 2 and the 7 are misplaced, and 1 and 3 are free.
    """
    if table.ranks_are_sound:
        return
    count = len(table.devices)
    holder: dict[int, DeviceRow] = {}
    misplaced: list[tuple[DeviceRow, DeviceRow | None]] = []
    for device in table.devices:
        if device.global_rank is None:
            continue
        earlier = holder.setdefault(device.global_rank, device)
        if earlier is not device:
            misplaced.append((device, earlier))
        elif not 0 <= device.global_rank < count:  # negative only where ranks are numbers
            misplaced.append((device, None))
    if misplaced:
        free = (rank for rank in range(count) if rank not in holder)
        yield from ((device, earlier, next(free, None)) for device, earlier in misplaced)


def _write(table: Table, free: int | None) -> str:
    if free is None:
        return "number the devices from 0"
    written = str(free) if table.format is Format.V2_0 else f'"{free}"'
    return f"write {written}, which no device has"


@rule("RT321", "a number that cannot be read", formats=STRINGS)
def number_unreadable(table: Table) -> Iterator[Finding]:
    """device_id and rank_id are non-negative decimal numbers of at most 32 bits, written as strings."""
    keys = NUMBERS if table.format in RANKED else NUMBERS[:1]
    for device in table.devices:
        if device.device_id is not None and (device.global_rank is not None or len(keys) == 1):
            continue
        for key, number in zip(keys, (device.device_id, device.global_rank), strict=False):
            written = device.written(key)
            if isinstance(written, str) and number is None:
                message = f'{key} is "{written[:20]}", not a decimal number'
                yield Finding(device.at(key), message, 'write digits only, as in "0"')


@rule("RT322", "a device_id that the hardware does not have", formats=STRINGS, ascend_only=True)
def device_id_outside(table: Table) -> Iterator[Finding]:
    """A device_id is the physical id of an accelerator on its server, so the hardware bounds it."""
    limit = _device_id_limit(table)
    for device in table.devices:
        if device.device_id is not None and device.device_id >= limit:
            message = f"device_id {device.device_id} is outside 0 .. {limit - 1} ({table.chip.title})"
            yield Finding(device.at("device_id"), message, "write the id that the driver shows; it starts at 0")


def _device_id_limit(table: Table) -> int:
    """Return the limit of the chip. From a cloud's table HCCL takes no id beyond those of a 910, whatever the chip."""
    limit = table.chip.device_id_limit
    return min(limit, CHIPS["910"].device_id_limit) if table.format is Format.CLOUD and table.chip.is_ascend else limit


@rule("RT323", "a device_id used twice on one server", formats=STRINGS - {Format.V1_1})
def device_id_repeated(table: Table) -> Iterator[Finding]:
    """Each device of a server stands in the table once; two ranks cannot share one."""
    for server in table.servers:
        ids = {device.device_id for device in server.devices}
        if len(ids) == len(server.devices):
            continue
        known = ((one.device_id, one) for one in server.devices if one.device_id not in (None, HOST_RANK))
        free = (number for number in range(_device_id_limit(table)) if number not in ids)
        for device, earlier in repeated(known):
            message = f"device_id {device.device_id} is used twice on this server"
            unused = next(free, None)
            hint = "remove the entry" if unused is None else f'write "{unused}" or the id that was meant'
            yield Finding(device.at("device_id"), message, hint, earlier.at("device_id"))
