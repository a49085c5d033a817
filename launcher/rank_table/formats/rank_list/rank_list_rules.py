"""Rules for v2.0: counts, limits of numbers, the backup device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.rank_table.catalogue import Finding, rule, warning
from launcher.rank_table.model import COMPLETED, DeviceRow, Table, integer_at, text_at
from launcher.rank_table.positions import Pointer
from launcher.rank_table.rules.shared import clipped, count_differs, repeated
from launcher.rank_table.table_format import Format

V2_0 = frozenset({Format.V2_0})
RANK_LIMIT = 65536
BACKUP = 64  # the local_id of the spare device that replaces a broken one
BOUNDS = {
    "rank_id": (-0xFFFFFFFF, 0xFFFFFFFF),  # other rules check the ranks
    "device_id": (0, 64),  # as documented; unreleased sources of HCCL allow 512
    "local_id": (0, BACKUP),
    "device_port": (1, 65535),
    "host_port": (1, 65535),
}
LISTEN_PORT = {"listen_port": (1, 65535)}
DETOURS = ("true", "false", "")


@rule("RT371", "rank_count differs from the number of ranks", formats=V2_0)
def rank_count_differs(table: Table) -> Iterator[Finding]:
    """`rank_count` must be the length of `rank_list`, as a number. HCCL allows at most 65536 ranks."""
    ranks = table.fields.get("rank_list")
    count = len(ranks) if isinstance(ranks, list) else 0
    if count <= RANK_LIMIT:
        yield from count_differs((), table.fields, "rank_count", count, "rank", listed="rank_list", in_quotes=False)
    elif integer_at(table.fields, "rank_count") is not None:
        message = f"rank_list has {count} entries, but HCCL allows {RANK_LIMIT}"
        yield Finding(("rank_list",), message, f"remove {count - RANK_LIMIT} of them")


@rule("RT372", "a number of a rank out of bounds", formats=V2_0)
def number_outside(table: Table) -> Iterator[Finding]:
    """device_id must be 0 to 64, local_id 0 to 63 (64 for the backup device), and a port 1 to 65535."""
    for device in table.devices:
        yield from _outside(device.pointer, device.fields, BOUNDS)
        control_plane = device.fields.get("control_plane")
        if isinstance(control_plane, dict):
            yield from _outside((*device.pointer, "control_plane"), control_plane, LISTEN_PORT)


@rule("RT373", "a second backup device", formats=V2_0)
def backup_repeated(table: Table) -> Iterator[Finding]:
    """local_id 64 marks the backup device, which replaces a broken device. A table may have only one backup device."""
    for device, first in repeated((BACKUP, device) for device in _backups(table)):
        message = f"local_id {BACKUP} marks the backup device, but two devices have it"
        hint = "keep one backup device, and write the other device's own local_id, 0 to 63"
        yield Finding(device.at("local_id"), message, hint, first.at("local_id"))


@rule("RT374", "a backup device that replaces no device", formats=V2_0)
def replaced_missing(table: Table) -> Iterator[Finding]:
    """The backup device (local_id 64) must state in replaced_local_id which device it replaces, from 0 to 63."""
    for device in _backups(table):
        replaced = integer_at(device.fields, "replaced_local_id")
        hint = "the local_id, 0 to 63, of the device that this one replaces"
        if "replaced_local_id" not in device.fields:
            message = f"local_id {BACKUP} is the backup device, but it has no replaced_local_id"
            yield Finding(device.at(), message, f'add "replaced_local_id": {hint}')
        elif replaced is None:
            yield Finding(device.at("replaced_local_id"), "replaced_local_id must be an integer", f"write {hint}")
        elif not 0 <= replaced < BACKUP:
            message = f"replaced_local_id {clipped(replaced)} is outside 0 .. {BACKUP - 1}"
            yield Finding(device.at("replaced_local_id"), message, f"write {hint}")


@rule("RT375", "a replaced device that still has a rank", formats=V2_0)
def replaced_present(table: Table) -> Iterator[Finding]:
    """The backup device replaces a broken device. The broken device must not have a rank in the table.

    HCCL refuses the table if any rank, even on another server, has the local_id of the broken device.
    """
    backups = tuple(_backups(table))
    holders = {integer_at(row.fields, "local_id"): row for row in reversed(table.devices)} if backups else {}
    for device in backups:
        replaced = integer_at(device.fields, "replaced_local_id")
        holder = holders.get(replaced)
        if replaced is not None and replaced != BACKUP and holder is not None:
            message = f"the backup device replaces local_id {clipped(replaced)}, but a rank still uses that local_id"
            hint = "write the local_id of the broken device, and remove that device's rank"
            yield Finding(device.at("replaced_local_id"), message, hint, holder.at("local_id"))


@warning("RT376", "a local_id used twice on one server", formats=V2_0)
def local_id_repeated(table: Table) -> Iterator[Finding]:
    """local_id identifies a device within a server. HCCL treats all ranks in a layer 0 network as one server.

    HCCL accepts a table with a repeated local_id, but finds no link between the two ranks. device_id may be repeated,
    because a layer 0 network can connect devices of several machines.
    """
    for server in table.servers:
        ids = [integer_at(device.fields, "local_id") for device in server.devices]
        used = set(ids)
        free = (number for number in range(BACKUP) if number not in used)
        known = zip(ids, server.devices, strict=True) if server.server_id is not None else ()
        for device, earlier in repeated(pair for pair in known if pair[0] not in (None, BACKUP)):
            local_id = integer_at(device.fields, "local_id") or 0
            message = f'local_id {clipped(local_id)} is used twice on server "{server.name}"'
            unused = next(free, None)
            hint = "remove the entry" if unused is None else f"write {unused}, or the intended local_id"
            yield Finding(device.at("local_id"), message, hint, earlier.at("local_id"))


@rule("RT388", "a detour that HCCL does not know", formats=V2_0)
def detour_unknown(table: Table) -> Iterator[Finding]:
    """`detour` allows indirect paths between devices that have no direct link. It is "true" or "false", as a string."""
    written = text_at(table.fields, "detour")
    if written is not None and written not in DETOURS:
        known = written.strip().lower()
        hint = f'write "{known if known in DETOURS and known else "false"}", or remove detour'
        yield Finding(("detour",), f'detour is "{written[:20]}", but HCCL knows only "true" and "false"', hint)


def _outside(pointer: Pointer, fields: Mapping[str, Any], bounds: Mapping[str, tuple[int, int]]) -> Iterator[Finding]:
    for key, (lowest, largest) in bounds.items():
        number = integer_at(fields, key)
        if number is not None and not lowest <= number <= largest:
            message = f"{key} {clipped(number)} is outside {max(lowest, 0)} .. {largest}"
            shown = "the number that the driver shows, which starts at 0"
            hint = f"write {16666 if key.endswith('port') else shown}"
            yield Finding((*pointer, key), message, hint)


def _backups(table: Table) -> Iterator[DeviceRow]:
    return (device for device in table.devices if integer_at(device.fields, "local_id") == BACKUP)


@warning("RT427", "an A5 table that is not completed", formats=V2_0)
def status_of_a5_not_completed(table: Table) -> Iterator[Finding]:
    """HCCL ignores the `status` of a v2.0 table. But in graph mode, the loader waits until `status` is "completed"."""
    if table.fields.get("status", COMPLETED) != COMPLETED:
        message = f'status is not "{COMPLETED}", so the loader of graph mode would wait until it is'
        yield Finding(("status",), message, f'write "{COMPLETED}" when the table is final')
