"""Rules about the table as a whole: its status, servers, ranks, device ids, and the limits of chips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from launcher.core.records import HOST_RANK
from launcher.rank_table.catalogue import Finding, rule, warning
from launcher.rank_table.model import (
    COMPLETED,
    NUMBERS,
    SERVER_ID_LIMIT,
    DeviceRow,
    ServerRow,
    Table,
    read_decimal,
    text_at,
)
from launcher.rank_table.profile import CHIPS
from launcher.rank_table.rules.shared import name_unusable, repeated
from launcher.rank_table.table_format import (
    LISTS,
    RANKED,
    SERVER_LISTS,
    STRINGS,
    VERSIONS,
    Format,
    groups_are_servers,
    list_of_another,
)

A2, HALF = "a2", 8  # devices of a module; a server has one or two
A5 = "a5"  # has its own HCCL library, which reads only v2.0
COUNTS = frozenset({1, 2, 4, 8})
UNCOUNTED = frozenset({Format.V1_1, Format.V2_0})  # HCCL does not check the sets of devices of these formats
QUARTETS = {frozenset(map(int, ids)) for ids in ("0123", "4567", "0145", "0246", "0347", "1256", "1357", "2367")}


@rule("RT311", "the table is not completed", hccl_code="EI0004", formats=STRINGS)
def status_not_completed(table: Table) -> Iterator[Finding]:
    """Cloud services write a table in steps, and set its `status` to "completed" when it is final.

    HCCL reads the file again every second until the status is "completed", and fails after 30 minutes. tlaunch does not
    wait.
    """
    status = text_at(table.fields, "status")
    if status is not None and status != COMPLETED:
        message = f'status is "{status[:40]}", so HCCL would wait up to 30 minutes for "{COMPLETED}", then fail'
        hint = f'write "{COMPLETED}" when the table is final, or wait until the program that writes it is done'
        yield Finding(("status",), message, hint)


@rule("RT313", "a server without a usable name", formats=STRINGS - {Format.V1_1})
def server_id_unusable(table: Table) -> Iterator[Finding]:
    """A server_id may be any name of 1 to 64 bytes. It need not be an address."""
    hint, empty_hint = "write a shorter, unique name", "write the server's address or name"
    for server in table.servers:
        yield from name_unusable(server.at("server_id"), server.server_id, SERVER_ID_LIMIT, hint, empty_hint=empty_hint)


@rule("RT314", "a server_id used twice", formats=SERVER_LISTS | {Format.V1_1})
def server_id_repeated(table: Table) -> Iterator[Finding]:
    """server_id identifies a server and must be unique. List all devices of a server in one entry."""
    for server, earlier in repeated((server.server_id, server) for server in table.servers if server.server_id):
        message = f'{server.word("server_id")} "{server.name}" is used twice'
        hint = "write the other server's own address, or put the devices of one server into one entry"
        yield Finding(server.at("server_id"), message, hint, earlier.at("server_id"))


@rule("RT351", "a version that does not match the table's list", formats=frozenset(VERSIONS.values()))
def version_of_another_format(table: Table) -> Iterator[Finding]:
    """`version` determines the format of a table. HCCL expects a different list in each format.

    Versions "1.0" and "1.2" need `server_list`, "1.1" needs `node_list`, and "2.0" needs `rank_list`. A table with
    `group_list` has no version.
    """
    found = list_of_another(table.fields, table.format)
    if found is not None and groups_are_servers(table.fields):
        message = "group_list contains servers and devices, but HCCL expects them in server_list (format v1.0)"
        hint = "rename group_list to server_list, devices to device, group_count to server_count"
        yield Finding(("group_list",), message, hint, at_key=True)
        return
    if found is None or "version" not in table.fields:
        return
    versions = {
        "node_list": "1.1",
        "rank_list": "2.0",
        "server_list": "1.2" if "super_pod_list" in table.fields else "1.0",
    }
    message = f'version "{table.fields["version"]}" needs {LISTS[table.format]}, but this table has {found}'
    hint = f'write "{versions[found]}"' if found in versions else "remove version: a table with group_list has none"
    yield Finding(("version",), message, hint)


@rule("RT301", "a rank id outside 0 .. n-1", formats=RANKED)
def rank_outside(table: Table) -> Iterator[Finding]:
    """The n devices of a table must have the ranks 0 to n - 1, numbered over the whole file without gaps.

    HCCL sorts the devices by rank, and refuses the table unless the device at each position i has rank i.
    """
    last = len(table.devices) - 1
    # If entries could not be read, the remaining ranks may be right, and a hint would renumber a valid table.
    for device, earlier, free in _misplaced(table) if table.complete else ():
        if earlier is None:
            message = f"rank_id {device.global_rank} is outside 0 .. {last} ({last + 1} device{'s' * (last > 0)} in this table)"
            yield Finding(device.at("rank_id"), message, _write(table, free))


@rule("RT302", "a rank id used twice", formats=RANKED)
def rank_repeated(table: Table) -> Iterator[Finding]:
    """Every device needs its own rank. If two devices share a rank, HCCL treats them as one process."""
    for device, earlier, free in _misplaced(table):
        if earlier is not None:
            message = f"rank_id {device.global_rank} is used twice"
            hint = f"{_write(table, free)}, in one of the two entries" if table.complete else None
            yield Finding(device.at("rank_id"), message, hint, earlier.at("rank_id"))


def _misplaced(table: Table) -> Iterator[tuple[DeviceRow, DeviceRow | None, int | None]]:
    """Yield each device whose rank must change, the device that already has its rank, if any, and an unused rank.

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
        elif not 0 <= device.global_rank < count:  # negative only in v2.0
            misplaced.append((device, None))
    if misplaced:
        free = (rank for rank in range(count) if rank not in holder)
        yield from ((device, earlier, next(free, None)) for device, earlier in misplaced)


def _write(table: Table, free: int | None) -> str:
    if free is None:
        return "number the ranks from 0 without gaps"
    written = str(free) if table.format is Format.V2_0 else f'"{free}"'
    return f"write {written}, which no device has"


@rule("RT321", "a number that cannot be read", formats=STRINGS)
def number_unreadable(table: Table) -> Iterator[Finding]:
    """device_id and rank_id must be non-negative decimal numbers of at most 32 bits, written as strings."""
    keys = NUMBERS if table.format in RANKED else NUMBERS[:1]
    for device in table.devices:
        if device.device_id is not None and (device.global_rank is not None or len(keys) == 1):
            continue
        for key, number in zip(keys, (device.device_id, device.global_rank), strict=False):
            written = device.written(key)
            if isinstance(written, str) and number is None:
                message = f'{key} is "{written[:20]}", not a decimal number'
                yield Finding(device.at(key), message, 'write digits only, as in "0"')


@rule("RT322", "a device_id out of range for the hardware", formats=STRINGS, ascend_only=True)
def device_id_outside(table: Table) -> Iterator[Finding]:
    """device_id is the physical id of an accelerator on its server. The allowed ids depend on the hardware."""
    limit = _device_id_limit(table)
    for device in table.devices:
        if device.device_id is not None and device.device_id >= limit:
            message = f"device_id {device.device_id} is outside 0 .. {limit - 1}, the ids of {table.chip.title}"
            yield Finding(device.at("device_id"), message, "write the id that the driver shows, which starts at 0")


def _device_id_limit(table: Table) -> int:
    """Return the chip's limit for device ids. HCCL applies the limit of a 910 to legacy-cloud tables on any chip."""
    limit = table.chip.device_id_limit
    return min(limit, CHIPS["910"].device_id_limit) if table.format is Format.CLOUD and table.chip.is_ascend else limit


@rule("RT323", "a device_id used twice on one server", formats=STRINGS - {Format.V1_1})
def device_id_repeated(table: Table) -> Iterator[Finding]:
    """Each device of a server may have only one entry in the table, because two ranks cannot share a device."""
    for server in table.servers:
        ids = {device.device_id for device in server.devices}
        if len(ids) == len(server.devices):
            continue
        known = ((one.device_id, one) for one in server.devices if one.device_id not in (None, HOST_RANK))
        free = (number for number in range(_device_id_limit(table)) if number not in ids)
        for device, earlier in repeated(known):
            message = f"device_id {device.device_id} is used twice on this server"
            unused = next(free, None)
            hint = "remove the entry" if unused is None else f'write "{unused}", or the intended id'
            yield Finding(device.at("device_id"), message, hint, earlier.at("device_id"))


@rule("RT207", "a format that this chip does not read", ascend_only=True)
def format_not_read(table: Table) -> Iterator[Finding]:
    """On an A5, HCCL reads only v2.0 tables. On all other chips, HCCL reads every format except v2.0.

    HCCL has one library for A5 and another for all earlier chips, and each refuses the other's tables. This fault is
    common after an upgrade to A5, when an old v1.0 table is still in use.
    """
    chip, is_newest = table.chip, table.format is Format.V2_0
    if chip.name == "auto" or not chip.is_ascend or (chip.name == A5) == is_newest:
        return
    read = "only v2.0" if chip.name == A5 else "every format except v2.0"
    message = f"{chip.title} reads {read}, but this is a {table.format.title}"
    hint = f"write the table in v{'2.0' if chip.name == A5 else '1.0'}, or check it for another --chip"
    yield Finding(("version",) if "version" in table.fields else (), message, hint)


# A warning: an environment variable, or cards without direct links, make such a table valid.
@warning("RT428", "different devices in the two halves of an A2 server", formats=STRINGS - {Format.V1_1})
def halves_unlike(table: Table) -> Iterator[Finding]:
    """An A2 server with sixteen devices has two modules of eight devices. Device i is linked to device i + 8.

    If a single-server table uses both modules, HCCL requires the same positions in both, for example devices 0 and 8.
    With HCCL_INTRA_ROCE_ENABLE=1, modules communicate over the network, and HCCL accepts any positions.
    """
    if table.chip.name != A2 or len(table.servers) != 1:
        return
    ids = sorted({device.device_id for device in table.devices if device.device_id is not None})
    low, high = [one for one in ids if one < HALF], [one for one in ids if one >= HALF]
    if low and high and low != [one - HALF for one in high]:
        lower, upper, wanted = (", ".join(map(str, each)) for each in (low, high, [one + HALF for one in low]))
        message = f"an A2 server has devices {lower} of one module and {upper} of the other, not pairs i and i + 8"
        hint = f"use devices {wanted} instead of {upper}, or set HCCL_INTRA_ROCE_ENABLE=1 to connect modules by network"
        yield Finding(table.servers[0].at("device"), message, hint)


@rule("RT341", "a number of devices that a 910 server cannot use", ascend_only=True)
def device_count_odd(table: Table) -> Iterator[Finding]:
    """A job must use 1, 2, 4 or 8 devices of each 910 server."""
    for server in _servers(table):
        if (count := len(server.devices)) not in COUNTS:
            fewer = max(usable for usable in COUNTS if usable < count)
            more = min((usable for usable in COUNTS if usable > count), default=None)
            hint = f"remove {count - fewer} of these devices to use {fewer}"
            hint += "" if more is None else f", or add {more - count} to use {more}"
            message = f'server "{server.name}" has {count} devices, but a job uses 1, 2, 4 or 8 of a 910 server'
            yield Finding(server.at("device"), message, hint)


@rule("RT342", "servers with different numbers of devices", ascend_only=True)
def device_counts_differ(table: Table) -> Iterator[Finding]:
    """On 910 and 300I, a job must use the same number of devices on each server. Other chips allow different numbers.

    HCCL does not check v1.1 tables, because their ranks may run on host CPUs. If a legacy-lab table states the number
    of devices, tlaunch compares each server with it. Otherwise, tlaunch expects the most frequent number.
    """
    servers = _counted(table) if table.chip.equal_servers and table.format not in UNCOUNTED else ()
    counts = Counter(len(server.devices) for server in servers)
    if len(counts) < 2:
        return
    expected, holders = counts.most_common(1)[0]
    said = f"{holders} of {len(servers)} servers have" if holders > 1 else "the first server has"
    if (stated := _stated_count(table)) in counts:
        expected, said = stated, "device_num and server_num say"
    for server in servers:
        if (found := len(server.devices)) != expected:
            message = f'{said} {expected} device{"s" * (expected > 1)}, but server "{server.name}" has {found}'
            hint = f"add {expected - found} here" if found < expected else f"remove {found - expected} here"
            yield Finding(server.at("device"), message, f"{hint}: all servers need the same number of devices")


def _stated_count(table: Table) -> int:
    """Return the number of devices per server as stated in a legacy-lab rank table, or 0 if it is not stated."""
    if table.format is not Format.LAB or len(table.groups) != 1:
        return 0
    devices, servers = (read_decimal(table.groups[0].fields.get(key)) or 0 for key in ("device_num", "server_num"))
    return devices // servers if servers and devices % servers == 0 else 0


@rule("RT343", "four devices that a 910 server cannot join", ascend_only=True)
def quartet_unconnected(table: Table) -> Iterator[Finding]:
    """If a job uses four devices of a 910 server, they must form a ring: 0 to 3, 4 to 7, or i, j, i + 4 and j + 4."""
    for server in _servers(table):
        ids = frozenset(device.device_id for device in server.devices if device.device_id is not None)
        if len(server.devices) == 4 and len(ids) == 4 and max(ids) < 8 and ids not in QUARTETS:
            message = f"devices {', '.join(map(str, sorted(ids)))} of a 910 server are not linked in a ring"
            yield Finding(server.at("device"), message, "use devices 0 1 2 3, 4 5 6 7, or pairs such as 0 1 4 5")


def _servers(table: Table) -> tuple[ServerRow, ...]:
    return _counted(table) if table.chip.is_910 and table.format not in UNCOUNTED else ()


def _counted(table: Table) -> tuple[ServerRow, ...]:
    """Return the servers that have devices. If devices may be missing from the table, return no servers."""
    return tuple(server for server in table.servers if server.devices) if table.servers_are_complete else ()
