"""The rows of a table, in the same form for all formats. Rules examine these rows, even if the table has faults.

Values of the wrong type are None in the rows, and the schema reports them. So one fault does not hide another, and
rules need no type checks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Device, Options, Server
from launcher.rank_table.ip import family_of, is_unspecified, packed_address
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import CHIPS, Chip
from launcher.rank_table.table_format import Format

_MAX_NUMBER = 0xFFFFFFFF  # HCCL keeps these numbers in 32 bits
_MAX_DIGITS = 10
_MAX_SIGNED = 0x7FFFFFFF
_BLANKS = " \t\n\v\f\r"
# HCCL parses numbers with C++'s stoull, which skips leading blanks and a plus, and ignores trailing text.
_LENIENT = re.compile(r"[ \t\n\v\f\r]*\+?0*([0-9]{1,11})")
_NO_WORDS: Mapping[str, str] = {}
COMPLETED = "completed"
INITIALIZING = "initializing"  # the status until a device plugin has completed the table
SERVER_ID_LIMIT = 64  # characters; older versions of HCCL allow 127
NUMBERS = ("device_id", "rank_id")
Fields = dict[str, Any]


def read_decimal(text: Any) -> int | None:
    """Return the number that HCCL reads from the string `text`, or None if `text` is not a number.

    >>> read_decimal("7"), read_decimal(" +7x"), read_decimal("-7"), read_decimal(""), read_decimal(7)
    (7, 7, None, None, None)
    """
    if not isinstance(text, str):
        return None
    if text.isdecimal() and text.isascii() and len(text) < _MAX_DIGITS:
        return int(text)
    match = _LENIENT.match(text)
    number = int(match.group(1)) if match else _MAX_NUMBER + 1
    return number if number <= _MAX_NUMBER else None


def read_signed(text: str | None) -> int | None:
    """Parse a signed 32-bit number as HCCL does. Return None if `text` is not a valid number.

    >>> read_signed("7"), read_signed("-1"), read_signed("--1"), read_signed("")
    (7, -1, None, None)
    """
    bare = "" if text is None else text.lstrip(_BLANKS)
    if not bare.startswith("-"):
        number = read_decimal(bare)
    else:
        magnitude = read_decimal(bare[1:]) if bare[1:2].isdigit() else None
        number = None if magnitude is None else -magnitude
    return number if number is not None and abs(number) <= _MAX_SIGNED else None


class DeviceRow(NamedTuple):
    server: int  # index into Table.servers
    pointer: Pointer  # of its object in the document
    fields: dict[str, Any]  # of that object
    device_id: int | None
    global_rank: int | None
    addresses: tuple[str, ...]  # device_ip, split at commas; empty if unset
    words: Mapping[str, str] = _NO_WORDS  # keys that have another name in this format, such as device_ip
    rank_pointer: Pointer | None = None  # the object that holds the rank, if not the device's own

    def word(self, key: str) -> str:
        """Return the name that this table's format uses for a key. Some formats rename device_ip, for example."""
        return self.words.get(key, key)

    def at(self, key: str | None = None) -> Pointer:
        """Return the JSON pointer to the device's value under `key`, or to the device if `key` is None."""
        if key is None:
            return self.pointer
        holder = self.rank_pointer if key == "rank_id" and self.rank_pointer is not None else self.pointer
        return holder + (self.words.get(key, key),)  # noqa: RUF005 - twice as fast as (*holder, ...)

    def written(self, key: str) -> Any:
        """Return the value of a key as written in the file, or None if the key is missing."""
        return self.fields.get(self.words.get(key, key))


class ServerRow(NamedTuple):
    """A server in a rank table. Each server has exactly one row, in all file formats."""

    number: int  # its index in Table.servers
    pointer: Pointer  # its object, or the first object that names it
    fields: dict[str, Any]
    server_id: str | None
    host_ip: str | None
    devices: tuple[DeviceRow, ...]
    words: Mapping[str, str] = _NO_WORDS

    @property
    def has_host_ip(self) -> bool:
        """True if host_ip is set, even to an invalid address. HCCL treats 0.0.0.0 as unset."""
        return bool(self.host_ip) and not is_unspecified(packed_address(self.host_ip or ""))

    @property
    def name(self) -> str:
        """The server_id, shortened for a message."""
        return (self.server_id or "")[:64]

    def word(self, key: str) -> str:
        return self.words.get(key, key)

    def at(self, key: str | None = None) -> Pointer:
        return self.pointer if key is None else (*self.pointer, self.word(key))


class PodRow(NamedTuple):
    pointer: Pointer
    super_pod_id: str | None
    members: tuple[tuple[Pointer, str | None], ...]  # pointer and server_id of each entry

    @property
    def name(self) -> str:
        """The super_pod_id, shortened for a message."""
        return (self.super_pod_id or "")[:64]

    def at(self, key: str) -> Pointer:
        return (*self.pointer, key)


@frozen
class Table:
    """The rows of a rank table, in file order."""

    format: Format
    fields: dict[str, Any]
    servers: tuple[ServerRow, ...]
    chip: Chip = CHIPS["auto"]
    consumer: str = "hccl"
    options: Options = field(default=())  # of the cluster
    pods: tuple[PodRow, ...] = ()  # empty if the table names no super pods
    complete: bool = True  # whether every list exists and every entry was read; if not, counts are meaningless
    keys: frozenset[str] = frozenset()  # the keys of all objects of the document
    groups: tuple[GroupRow, ...] = ()  # empty for formats without groups

    @cached_property
    def devices(self) -> tuple[DeviceRow, ...]:
        return tuple(chain.from_iterable(server.devices for server in self.servers))

    @cached_property
    def ranks_are_sound(self) -> bool:
        """True if the n devices have the ranks 0 to n - 1. Otherwise rules cannot check the order of ranks."""
        ranks = {device.global_rank for device in self.devices}
        return self.servers_are_complete and len(ranks) == len(self.devices) and ranks == set(range(len(ranks)))

    @cached_property
    def servers_are_complete(self) -> bool:
        """True if all devices are known. False if an instance names no server, or an entry cannot be read."""
        return not self.groups or (
            all(len(group.instances) == (group.instance_count or 0) for group in self.groups)
            and all(one.entry_count == (one.device_count or 0) for group in self.groups for one in group.instances)
            and all(server.server_id for server in self.servers)
        )

    @cached_property
    def packed_addresses(self) -> dict[str, bytes | None]:
        """A mapping from each device address to its bytes, or to None if the address is invalid."""
        return {address: packed_address(address) for device in self.devices for address in device.addresses}

    @cached_property
    def address_families(self) -> dict[str, int | None]:
        """The family of each device address: 4, 6, or None if the address is not valid for a device.

        In v1.1 an unspecified address is allowed: HCCL uses the node's address for a rank that computes on the host.
        """
        refused = self.format is not Format.V1_1
        packed = self.packed_addresses.items()
        return {address: None if refused and is_unspecified(found) else family_of(found) for address, found in packed}

    @cached_property
    def uses_host_nics(self) -> bool:
        """True if rank 0 has a host_ip but no device_ip. HCCL then uses the servers' network cards."""
        first = next((device for device in self.devices if device.global_rank == 0), None)
        return first is not None and not first.addresses and self.servers[first.server].has_host_ip

    @cached_property
    def pod_of_server(self) -> dict[str | None, PodRow]:
        """The super pod of each server_id. If several pods name a server, HCCL uses the last one."""
        return {server_id: pod for pod in self.pods for _, server_id in pod.members if server_id is not None}

    @cached_property
    def servers_by_rank(self) -> list[tuple[ServerRow, list[int]]]:
        """Each server with its sorted ranks. Servers are ordered by lowest rank. Requires `ranks_are_sound`."""
        pairs = []
        for server in self.servers:
            ranks = sorted(device.global_rank for device in server.devices if device.global_rank is not None)
            if server.devices:
                pairs.append((server, ranks))
        return sorted(pairs, key=lambda pair: pair[1])

    @cached_property
    def is_without_ascend(self) -> bool:
        """True if the servers' hardware_type says that they have no Ascend devices."""
        types = {(text_at(server.fields, "hardware_type") or "").lower() for server in self.servers}
        return bool(types) and types <= {"cpu", "gpu"}

    @cached_property
    def address_counts(self) -> Counter[int]:
        """The number of devices that have 0 addresses, 1 address, 2 addresses, and so on."""
        return Counter(len(device.addresses) for device in self.devices)


def cluster_of(table: Table, device: Callable[[DeviceRow], Device]) -> Cluster:
    """Convert a valid table to a cluster, with the devices of each server sorted by rank."""
    servers = (
        Server(row.server_id or "", tuple(sorted(map(device, row.devices), key=lambda one: one.global_rank)))
        for row in table.servers
    )
    return Cluster(tuple(servers), options=table.options)


def text_at(fields: Mapping[str, Any], key: str) -> str | None:
    """Return the string under `key`, or None if it is missing or of another type."""
    value = fields.get(key)
    return value if isinstance(value, str) else None


def integer_at(fields: Mapping[str, Any], key: str) -> int | None:
    """Return the integer under `key`, or None if it is missing or of another type, such as a boolean."""
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def options_at(fields: Mapping[str, Any], keys: frozenset[str]) -> Options:
    """Return (key, value) for each key in `keys` whose value is a non-empty string, sorted by key."""
    texts = ((key, text_at(fields, key)) for key in fields.keys() & keys)
    return tuple(sorted((key, text) for key, text in texts if text))


def split_addresses(device_ip: Any) -> tuple[str, ...]:
    """Return the addresses in a comma-separated list. As in HCCL, a trailing comma is allowed."""
    if not device_ip or not isinstance(device_ip, str):
        return ()
    if "," not in device_ip:
        return (device_ip,)
    return tuple(device_ip.removesuffix(",").split(","))


class InstanceRow(NamedTuple):
    """An instance of a group: a process in a legacy-lab table, or a pod in a legacy-cloud table."""

    pointer: Pointer
    fields: dict[str, Any]
    server_id: str | None
    entry_count: int  # the number of its devices that are objects

    @property
    def device_count(self) -> int | None:
        """The number of entries in the instance's device list, or None if the list is missing or empty."""
        return entry_count(self.fields, "devices")


class GroupRow(NamedTuple):
    pointer: Pointer
    fields: dict[str, Any]
    instances: tuple[InstanceRow, ...]

    @property
    def instance_count(self) -> int | None:
        """The number of entries in the group's instance list, or None if the list is missing or empty."""
        return entry_count(self.fields, "instance_list")


def entry_count(fields: dict[str, Any], key: str) -> int | None:
    """Return the length of the list under `key`, or None if the list is missing or empty."""
    value = fields.get(key)
    return len(value) if isinstance(value, list) and value else None


def odd_numbers(table: Table) -> Iterator[tuple[DeviceRow, str, str, int]]:
    """Yield (device, key, text, number) for each id or rank that HCCL can parse but other readers cannot."""
    for device in table.devices:
        fields = device.fields
        # Fast path: this loop runs over every device of every table.
        if fields.get("device_id") == str(device.device_id) and fields.get("rank_id") == str(device.global_rank):
            continue
        for key, number in zip(NUMBERS, (device.device_id, device.global_rank), strict=True):
            written = device.written(key)
            if number is not None and isinstance(written, str) and written != str(number):
                yield device, key, written, number


def disorder(table: Table) -> Iterator[tuple[ServerRow, ServerRow]]:
    """Yield the first two consecutive servers, in rank order, whose names are not in dictionary order."""
    for (before, _), (server, _) in pairwise(table.servers_by_rank if table.ranks_are_sound else ()):
        if before.server_id and server.server_id and server.server_id < before.server_id:
            yield before, server
            return
