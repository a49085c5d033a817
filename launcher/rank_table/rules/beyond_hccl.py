"""Rules that HCCL does not have: warnings for any table, and requirements of one reader, checked if it is named.

A table has no netmasks, so rules about segments search for a netmask that fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise

from launcher.rank_table.catalogue import Finding, Severity, rule, warning
from launcher.rank_table.ip import address_family
from launcher.rank_table.model import DeviceRow, Table, disorder, odd_numbers, read_decimal, text_at
from launcher.rank_table.positions import Pointer
from launcher.rank_table.table_format import RANKED, SERVER_LISTS, STRINGS, Format

NAMED_SERVERS = RANKED - {Format.V2_0}
COUNTS = frozenset({"server_count", "group_count"})
GROUP_COUNTS = frozenset({"instance_count", "device_count", "device_num", "server_num"})
BITS = 32
MAX_PREFIX = 30  # a longer prefix has no room for two devices
MIN_COMMON_PREFIX = 16  # a shorter common prefix is too frequent to be significant
POSITIONS = 4  # devices i and i + 4 of a server are at the same position
FULL_SERVER = frozenset(range(2 * POSITIONS))
HINT = (
    "compare both device_ip with `hccn_tool -i ID -ip -g`, and correct the wrong one: on a 910, devices i and i + 4 of "
    "all servers must be in one subnet, and devices 0 to 3 in four different subnets"
)
for_mindspore, for_msrun = (partial(rule, hccl_code=None, consumer=reader) for reader in ("mindspore", "msrun"))


@warning("RT402", "ranks do not follow the order of server_id", formats=NAMED_SERVERS)
def rank_order_unusual(table: Table) -> Iterator[Finding]:
    """For MindSpore, ranks must follow the dictionary order of server_id. In this order, 10.0.0.10 precedes 10.0.0.9.

    Other programs accept ranks in any order.
    """
    for before, server in disorder(table):
        message = f'server "{server.name}" has higher ranks than "{before.name}", but sorts before it as text'
        hint = f'for MindSpore, give "{server.name}" the lower ranks; other programs accept this order'
        yield Finding(server.at("server_id"), message, hint)


@warning("RT403", "ranks of servers are interleaved", formats=RANKED)
def ranks_interleaved(table: Table) -> Iterator[Finding]:
    """Ranks of a server should be consecutive: programs expect neighbouring ranks to be close in the network."""
    if not table.ranks_are_sound:
        return
    for server, ranks in table.servers_by_rank:
        if ranks[-1] - ranks[0] >= len(ranks):
            before, jump = next((one, other) for one, other in pairwise(ranks) if other != one + 1)
            device = next(device for device in server.devices if device.global_rank == jump)
            message = f'the ranks of server "{server.name}" are not consecutive: {jump} follows {before}'
            hint = f"use ranks {ranks[0]} to {ranks[0] + len(ranks) - 1} on this server to keep traffic inside it"
            yield Finding(device.at("rank_id"), message, hint)
            return


@warning("RT404", "a number that only HCCL accepts", formats=STRINGS)
def number_unusual(table: Table) -> Iterator[Finding]:
    """HCCL reads " 7", "+7" and "7x" as the number 7. Other readers refuse these texts."""
    for key in COUNTS & table.fields.keys():
        written = text_at(table.fields, key)
        yield from _unusual((key,), written, read_decimal(written))
    for group in table.groups:
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
    """On a 910 server, devices 0 to 3 are in four different subnets. Device i + 4 is in the same subnet as device i.

    All servers have the same four subnets. With later chips, all devices may be in one subnet. A rank table contains no
    netmask. Therefore, tlaunch warns only if the addresses break these rules with every possible netmask.
    """
    is_910 = table.chip.is_910
    # Without --chip, assume a 910 if every server has devices 0 to 7.
    sets = [{device.device_id for device in server.devices} for server in table.servers]
    if not is_910 and (table.chip.name != "auto" or not sets or any(ids != FULL_SERVER for ids in sets)):
        return
    positions = _positions(table)
    of_servers = ([_number(table, device) or 0 for device in server.devices] for server in table.servers)
    if not positions or (not is_910 and all(_loosest(each)[0] >= MIN_COMMON_PREFIX for each in of_servers)):
        return
    # Addresses of one position share this many leading bits; a netmask must not be longer ...
    tight, low, high = min(map(_loosest, positions.values()))
    # ... and the closest positions share this many leading bits; a netmask must be longer.
    firsts = combinations((numbers[0] for numbers in positions.values()), 2)
    pairs = ((BITS - (one ^ other).bit_length(), one, other) for one, other in firsts)
    shared, one, other = max(pairs, default=(0, low, high))
    if shared >= tight:
        owners = {number: device for device in table.devices if (number := _number(table, device)) is not None}
        apart = f"{_named(owners[one])} and {_named(owners[other])} in two subnets"
        joins = "" if low == high else f"{_named(owners[low])} and {_named(owners[high])} in one subnet and "
        yield Finding(owners[high if joins else other].at("device_ip"), f"no netmask puts {joins}{apart}", HINT)


def _positions(table: Table) -> dict[int, list[int]]:
    """Return the addresses as numbers, grouped by device_id modulo 4. Return {} if any device has no IPv4 address."""
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
    """Return the common prefix length of all addresses in bits, at most 30, and two addresses that differ after it."""
    first = numbers[0]
    distance = max(map(first.__xor__, numbers))
    return min(BITS - distance.bit_length(), MAX_PREFIX), first, first ^ distance


def _number(table: Table, device: DeviceRow) -> int | None:
    packed = table.packed_addresses[device.addresses[0]] if device.addresses else None
    return None if packed is None else int.from_bytes(packed, "big")


def _named(device: DeviceRow) -> str:
    return f"{device.addresses[0]} (device {device.device_id})"


@for_mindspore(
    "RT501",
    "ranks that do not follow the order of server_id, for MindSpore",
    severity=Severity.WARNING,
    formats=NAMED_SERVERS,
    replaces="RT402",
)
def rank_order_refused(table: Table) -> Iterator[Finding]:
    """MindSpore's tutorials require ranks in the dictionary order of server_id, where 10.0.0.10 precedes 10.0.0.9.

    Without `--for mindspore`, tlaunch reports such ranks as RT402.
    """
    for before, server in disorder(table):
        first = min(device.global_rank or 0 for device in server.devices)
        message = f'server "{server.name}" starts at rank {first}, after "{before.name}", but sorts before it as text'
        hint = f'give "{server.name}" the lower ranks: MindSpore expects ranks in the text order of server_id'
        yield Finding(server.at("server_id"), message, hint)


@for_mindspore("RT502", "a number that Python does not read, for MindSpore", formats=STRINGS, replaces="RT404")
def number_refused_by_python(table: Table) -> Iterator[Finding]:
    """HCCL reads "3abc" as 3. MindSpore's scripts parse rank_id and device_id with int(), which refuses "3abc"."""
    for device, key, written, number in odd_numbers(table):
        try:
            is_read = int(written) == read_decimal(written)
        except ValueError:
            is_read = False
        if not is_read:
            message = f'{key} is "{written[:20]}": HCCL reads {number}, but MindSpore\'s scripts cannot parse it'
            yield Finding(device.at(key), message, f'write "{number}"', rewrite=f'"{number}"')


@for_msrun("RT511", "a server without pod_ip, for msrun", severity=Severity.WARNING, formats=SERVER_LISTS)
def pod_ip_missing(table: Table) -> Iterator[Finding]:
    """The scheduler of msrun looks up the ranks of a host by the host's pod_ip.

    If any server has no pod_ip, msrun ignores the ranks of the table. msrun then numbers processes in the order of
    their hosts' addresses, sorted as text. If the ranks of the table differ from these numbers, HCCL refuses the table.
    """
    for server in table.servers:
        if "pod_ip" not in server.fields:
            message = f'server "{server.name}" has no pod_ip, so msrun ignores the ranks of this table'
            yield Finding(server.at(), message, 'add "pod_ip", with the server\'s address in the network of the job')


@for_msrun("RT512", "a pod_ip that is not an address, for msrun", formats=SERVER_LISTS)
def pod_ip_unusable(table: Table) -> Iterator[Finding]:
    """The scheduler of msrun finds a host in the table by comparing pod_ip with the host's address.

    A placeholder never matches: msrun then logs that HOST_IP cannot be found, and ignores the ranks of the table.
    """
    for server in table.servers:
        written = server.fields.get("pod_ip")
        if "pod_ip" in server.fields and (not isinstance(written, str) or address_family(written) is None):
            quoted = f'"{written[:45]}"' if isinstance(written, str) else "not a string"
            message = f"pod_ip is {quoted}, but msrun expects the host's address"
            yield Finding(server.at("pod_ip"), message, "write the server's address in the network of the job")


@for_msrun("RT513", "a device at the wrong position in the list, for msrun", formats=SERVER_LISTS)
def device_misplaced(table: Table) -> Iterator[Finding]:
    """With msrun, process i of a server uses device i, but the rank of device entry i. So entry i must be device i.

    This rule applies only to servers with a pod_ip. Without pod_ip, msrun ignores the ranks of the table.
    """
    for server in table.servers:
        if "pod_ip" not in server.fields:
            continue
        for index, device in enumerate(server.devices):
            if device.device_id is not None and device.device_id != index:
                found = f"device_id {device.device_id} is in entry {index} of this server's device list"
                message = f"{found}, but msrun expects device {index} there"
                yield Finding(device.at("device_id"), message, "list the server's devices in the order 0, 1, 2 ...")
                break


@for_msrun("RT514", "a format whose ranks msrun does not use", severity=Severity.WARNING)
def format_unused_by_msrun(table: Table) -> Iterator[Finding]:
    """The scheduler of msrun reads pod_ip from server_list. Only formats v1.0 and v1.2 have this list.

    With other formats, msrun numbers processes in the order of their hosts' addresses, sorted as text.
    """
    if table.format not in SERVER_LISTS:
        message = f"msrun does not use the ranks of this format ({table.format.title})"
        yield Finding((), message, "convert it with `tlaunch table convert FILE --to v1.0`")
