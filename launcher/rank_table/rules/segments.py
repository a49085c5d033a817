"""Network segments of device addresses. A table has no netmasks, so one that fits is looked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from launcher.rank_table.catalogue import Finding, warning
from launcher.rank_table.model import DeviceRow, ServerRow, Table

BITS = 32
MAX_PREFIX = 30  # a longer one has no room for two devices
MIN_COMMON_PREFIX = 16  # all addresses share a shorter one too easily for it to mean anything
POSITIONS = 4  # devices i and i + 4 of a server are at the same position
FULL_SERVER = frozenset(range(2 * POSITIONS))
HINT = (
    "compare with `hccn_tool -i ID -ip -g`: on a 910, devices i and i + 4 of all servers share a segment, and 0 to 3 "
    "are in four different ones"
)


@warning("RT410", "device addresses in unusual segments", ascend_only=True)
def segments_unusual(table: Table) -> Iterator[Finding]:
    """On 910 servers, devices 0 to 3 are in four different network segments, and i + 4 is in that of i.

    Those segments are the same on all servers. Servers of later chips may keep all their devices in one segment. Since
    a table has no netmasks, this warns only where no netmask makes any of it true.
    """
    if not table.chip.is_910 and not _looks_like_910(table):
        return
    positions = _positions(table)
    if not positions or (not table.chip.is_910 and _each_in_one_segment(table)):
        return
    # Within a position, the addresses share this many leading bits; a segment may be no longer than that ...
    tight, low, high = min(map(_loosest, positions.values()))
    # ... and between positions the closest share this many; a segment must be longer.
    firsts = combinations((numbers[0] for numbers in positions.values()), 2)
    shared, one, other = max(((_shared_bits(*pair), *pair) for pair in firsts), default=(0, low, high))
    if shared >= tight:
        owners = {number: device for device in table.devices if (number := _number(table, device)) is not None}
        apart = f"keeps {_named(owners[one])} and {_named(owners[other])} apart"
        joins = "" if low == high else f"joins {_named(owners[low])} and {_named(owners[high])} and "
        yield Finding(owners[high].at("device_ip"), f"no netmask {joins}{apart}", HINT)


def _looks_like_910(table: Table) -> bool:
    """Return a chip that is not named is taken for a 910 where every server has the devices 0 to 7 of one."""
    return table.chip.name == "auto" and bool(table.servers) and all(map(_is_full, table.servers))


def _is_full(server: ServerRow) -> bool:
    return len(server.devices) == len(FULL_SERVER) and {device.device_id for device in server.devices} == FULL_SERVER


def _positions(table: Table) -> dict[int, list[int]]:
    """Return the addresses of each position, as numbers. Empty where one is missing, repeated, or none of IPv4."""
    positions: dict[int, list[int]] = defaultdict(list)
    packed_addresses = table.packed_addresses
    if set(table.address_counts) != {1} or len(packed_addresses) != len(table.devices):
        return {}
    if set(table.address_families.values()) != {4}:
        return {}
    for device in table.devices:
        if device.device_id is None:
            return {}
        packed = packed_addresses[device.addresses[0]]
        positions[device.device_id % POSITIONS].append(int.from_bytes(packed or b"", "big"))
    return positions


def _each_in_one_segment(table: Table) -> bool:
    numbers = ([_number(table, device) or 0 for device in server.devices] for server in table.servers)
    return all(_loosest(of_server)[0] >= MIN_COMMON_PREFIX for of_server in numbers)


def _loosest(numbers: Sequence[int]) -> tuple[int, int, int]:
    """Return how many leading bits all addresses share, at most 30, and two of them that share no more."""
    first = numbers[0]
    distance = max(map(first.__xor__, numbers))
    return min(BITS - distance.bit_length(), MAX_PREFIX), first, first ^ distance


def _shared_bits(one: int, other: int) -> int:
    return BITS - (one ^ other).bit_length()


def _number(table: Table, device: DeviceRow) -> int | None:
    packed = table.packed_addresses[device.addresses[0]] if device.addresses else None
    return None if packed is None else int.from_bytes(packed, "big")


def _named(device: DeviceRow) -> str:
    return f"{device.addresses[0]} (device {device.device_id})"
