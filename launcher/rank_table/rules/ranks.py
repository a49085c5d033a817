"""Global ranks are exactly 0 .. n-1, each once, n being the number of devices in the whole file."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.formats import RANKED, Format
from launcher.rank_table.rows import DeviceRow, Table


@rule("RT301", "a rank id outside 0 .. n-1", formats=RANKED)
def rank_outside(table: Table) -> Iterator[Finding]:
    """Ranks are counted over the whole file, from 0, without a gap.

    HCCL sorts the devices by rank and refuses the table when the rank at position i is not i.
    """
    last = len(table.devices) - 1
    # Where entries could not be read, ranks beyond the rest are right, and any hint would renumber a sound table.
    for device, earlier, free in _misplaced(table) if table.complete else ():
        if earlier is None:
            message = f"rank_id {device.global_rank} is outside 0 .. {last} ({_devices(last + 1)} in this table)"
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
    """Devices whose rank must change: the device, who has its rank already, and a rank that nobody has.

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


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
