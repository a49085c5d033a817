"""Warnings: HCCL continues, but another tool may not, or the table may not mean what it seems to.

A table has no netmasks, so for the segments of its addresses one that fits is looked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from launcher.rank_table.catalogue import Finding, warning
from launcher.rank_table.model import (
    DeviceRow,
    Table,
    disorder,
    groups_of,
    odd_numbers,
    read_decimal,
    text_at,
)
from launcher.rank_table.positions import Pointer
from launcher.rank_table.table_format import RANKED, STRINGS, Format

NAMED_SERVERS = RANKED - {Format.V2_0}
COUNTS = frozenset({"server_count", "group_count"})
GROUP_COUNTS = frozenset({"instance_count", "device_count", "device_num", "server_num"})
BITS = 32
MAX_PREFIX = 30  # a longer one has no room for two devices
MIN_COMMON_PREFIX = 16  # all addresses share a shorter one too easily for it to mean anything
POSITIONS = 4  # devices i and i + 4 of a server are at the same position
FULL_SERVER = frozenset(range(2 * POSITIONS))
HINT = (
    "compare with `hccn_tool -i ID -ip -g`: on a 910, devices i and i + 4 of all servers share a segment, and 0 to 3 "
    "are in four different ones"
)


@warning("RT402", "ranks do not follow the order of server_id", formats=NAMED_SERVERS)
def rank_order_unusual(table: Table) -> Iterator[Finding]:
    """MindSpore asks that servers get their ranks in the dictionary order of server_id ("10.0.0.10" before "10.0.0.9")."""
    for before, server in disorder(table):
        message = f'server "{server.server_id:.64}" comes after "{before.server_id:.64}" in rank, before it in dictionary order'
        yield Finding(
            server.at("server_id"), message, "MindSpore expects both orders to agree: give it the lower ranks"
        )


@warning("RT403", "ranks of servers are interleaved", formats=RANKED)
def ranks_interleaved(table: Table) -> Iterator[Finding]:
    """Each server should hold consecutive ranks: neighbours in rank are expected to be neighbours in space."""
    if not table.ranks_are_sound:
        return
    for server, ranks in table.servers_by_rank:
        if ranks[-1] - ranks[0] >= len(ranks):
            jump = next(after for before, after in pairwise(ranks) if after != before + 1)
            device = next(device for device in server.devices if device.global_rank == jump)
            message = f"rank {jump} does not follow rank {ranks[ranks.index(jump) - 1]} on this server"
            hint = f"ranks {ranks[0]} .. {ranks[0] + len(ranks) - 1} on one server keep its traffic inside it"
            yield Finding(device.at("rank_id"), message, hint)
            return


@warning("RT404", "a number that only HCCL reads", formats=STRINGS)
def number_unusual(table: Table) -> Iterator[Finding]:
    """HCCL skips blanks and a plus before a number and ignores what follows it; other readers refuse such numbers."""
    for key in COUNTS & table.fields.keys():
        written = text_at(table.fields, key)
        yield from _unusual((key,), written, read_decimal(written))
    for group in groups_of(table):
        for key in GROUP_COUNTS & group.fields.keys():
            written = text_at(group.fields, key)
            yield from _unusual((*group.pointer, key), written, read_decimal(written))
    for device, key, written, number in odd_numbers(table):
        yield from _unusual(device.at(key), written, number)
    if table.format is Format.V1_2:
        for device in table.devices:
            in_pod = text_at(device.fields, "super_device_id")
            yield from _unusual(device.at("super_device_id"), in_pod, read_decimal(in_pod))


def _unusual(pointer: Pointer, written: str | None, number: int | None) -> Iterator[Finding]:
    if written is not None and number is not None and written != str(number):
        message = f'"{written[:20]}" is an unusual way to write {number}'
        yield Finding(pointer, message, f'write "{number}"', rewrite=f'"{number}"')


@warning("RT410", "device addresses in unusual segments", ascend_only=True)
def segments_unusual(table: Table) -> Iterator[Finding]:
    """On 910 servers, devices 0 to 3 are in four different network segments, and i + 4 is in that of i.

    Those segments are the same on all servers. Servers of later chips may keep all their devices in one segment. Since
    a table has no netmasks, this warns only where no netmask makes any of it true.
    """
    is_910 = table.chip.is_910
    # A chip that is not named is taken for a 910 where every server has the devices 0 to 7 of one.
    sets = [{device.device_id for device in server.devices} for server in table.servers]
    if not is_910 and (table.chip.name != "auto" or not sets or any(ids != FULL_SERVER for ids in sets)):
        return
    positions = _positions(table)
    of_servers = ([_number(table, device) or 0 for device in server.devices] for server in table.servers)
    if not positions or (not is_910 and all(_loosest(each)[0] >= MIN_COMMON_PREFIX for each in of_servers)):
        return
    # Within a position, the addresses share this many leading bits; a segment may be no longer than that ...
    tight, low, high = min(map(_loosest, positions.values()))
    # ... and between positions the closest share this many; a segment must be longer.
    firsts = combinations((numbers[0] for numbers in positions.values()), 2)
    pairs = ((BITS - (one ^ other).bit_length(), one, other) for one, other in firsts)
    shared, one, other = max(pairs, default=(0, low, high))
    if shared >= tight:
        owners = {number: device for device in table.devices if (number := _number(table, device)) is not None}
        apart = f"keeps {_named(owners[one])} and {_named(owners[other])} apart"
        joins = "" if low == high else f"joins {_named(owners[low])} and {_named(owners[high])} and "
        yield Finding(owners[high].at("device_ip"), f"no netmask {joins}{apart}", HINT)


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


def _loosest(numbers: Sequence[int]) -> tuple[int, int, int]:
    """Return the number of leading bits that all addresses share, at most 30, and two that share no more."""
    first = numbers[0]
    distance = max(map(first.__xor__, numbers))
    return min(BITS - distance.bit_length(), MAX_PREFIX), first, first ^ distance


def _number(table: Table, device: DeviceRow) -> int | None:
    packed = table.packed_addresses[device.addresses[0]] if device.addresses else None
    return None if packed is None else int.from_bytes(packed, "big")


def _named(device: DeviceRow) -> str:
    return f"{device.addresses[0]} (device {device.device_id})"
