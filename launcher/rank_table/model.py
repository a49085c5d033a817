"""A table of any format as rows that rules can run over, whatever is wrong with it.

A value of the wrong type is None here (its shape is reported elsewhere), so one fault never hides another, and no rule
has to ask for types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

from launcher.core.frozen import frozen
from launcher.core.records import Options
from launcher.rank_table.ip import family_of, is_unspecified, packed_address
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import CHIPS, Chip
from launcher.rank_table.table_format import Format

_MAX_NUMBER = 0xFFFFFFFF  # HCCL keeps these numbers in 32 bits
_MAX_DIGITS = 10  # digits of it
_MAX_SIGNED = 0x7FFFFFFF
_BLANKS = " \t\n\v\f\r"
# HCCL reads numbers with C++'s stoull: blanks and a plus before them are skipped, whatever follows them is ignored.
_LENIENT = re.compile(r"[ \t\n\v\f\r]*\+?0*([0-9]{1,11})")
_NO_WORDS: Mapping[str, str] = {}
COMPLETED = "completed"
SERVER_ID_LIMIT = 64  # characters; older versions of HCCL allow 127
NUMBERS = ("device_id", "rank_id")
Fields = dict[str, Any]


def read_decimal(text: Any) -> int | None:
    """Return the number that HCCL reads from the string `text`; None where it reads none, or where `text` is no string.

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
    """Return the number that HCCL reads from `text` where a minus is allowed, in 32 bits; None where it reads none.

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
    """One device of a table."""

    server: int  # index into Table.servers
    pointer: Pointer  # of its object in the document
    fields: dict[str, Any]  # of that object
    device_id: int | None
    global_rank: int | None
    addresses: tuple[str, ...]  # of device_ip, split at commas; empty where it is unset
    words: Mapping[str, str] = _NO_WORDS  # how this format calls device_ip and the like, where it does otherwise
    rank_pointer: Pointer | None = None  # of the object that holds the rank, where that is another one

    def word(self, key: str) -> str:
        """Return the key as this format writes it."""
        return self.words.get(key, key)

    def at(self, key: str | None = None) -> Pointer:
        """Return the pointer to one of its values, or to the object itself."""
        if key is None:
            return self.pointer
        holder = self.rank_pointer if key == "rank_id" and self.rank_pointer is not None else self.pointer
        return holder + (self.words.get(key, key),)  # noqa: RUF005 - half the time of (*holder, ...), once for each device

    def written(self, key: str) -> Any:
        """Return the value of one of the object's own keys, None where it is missing."""
        return self.fields.get(self.words.get(key, key))


class ServerRow(NamedTuple):
    """One server of a table. Formats that name no servers, or name one several times, are put together."""

    number: int  # its index in Table.servers
    pointer: Pointer  # of its object, or of the first one that names it
    fields: dict[str, Any]
    server_id: str | None
    host_ip: str | None
    devices: tuple[DeviceRow, ...]
    words: Mapping[str, str] = _NO_WORDS

    @property
    def has_host_ip(self) -> bool:
        """True if it has an address of its own, right or wrong: HCCL reads 0.0.0.0 as no address."""
        return bool(self.host_ip) and not is_unspecified(packed_address(self.host_ip or ""))

    def word(self, key: str) -> str:
        return self.words.get(key, key)

    def at(self, key: str | None = None) -> Pointer:
        return self.pointer if key is None else (*self.pointer, self.word(key))


class PodRow(NamedTuple):
    """One super pod of a v1.2 table."""

    pointer: Pointer
    super_pod_id: str | None
    members: tuple[tuple[Pointer, str | None], ...]  # of each entry: its pointer and its server_id

    def at(self, key: str) -> Pointer:
        return (*self.pointer, key)


@frozen
class Table:
    """All rows, in file order."""

    format: Format
    fields: dict[str, Any]
    servers: tuple[ServerRow, ...]
    chip: Chip = CHIPS["auto"]
    consumer: str = "hccl"
    options: Options = field(default=())  # of the cluster
    pods: tuple[PodRow, ...] = ()  # empty where the table names no super pods
    complete: bool = True  # whether every list is there and every entry was read; else nothing can be counted
    keys: frozenset[str] = frozenset()  # every key that any object of the document has

    @cached_property
    def devices(self) -> tuple[DeviceRow, ...]:
        return tuple(chain.from_iterable(server.devices for server in self.servers))

    @cached_property
    def ranks_are_sound(self) -> bool:
        """True if the ranks are exactly 0 .. n-1, so that questions of order make sense."""
        ranks = {device.global_rank for device in self.devices}
        return len(ranks) == len(self.devices) and ranks == set(range(len(ranks)))

    @cached_property
    def packed_addresses(self) -> dict[str, bytes | None]:
        """Every address of a device, and its bytes; None where it is no address."""
        return {address: packed_address(address) for device in self.devices for address in device.addresses}

    @cached_property
    def address_families(self) -> dict[str, int | None]:
        """Every address of a device, and what it is: 4, 6, or None where it is invalid, or that of no device.

        A rank of v1.1 may have the address of no device: HCCL uses its node's where it computes on the host.
        """
        refused = self.format is not Format.V1_1
        packed = self.packed_addresses.items()
        return {address: None if refused and is_unspecified(found) else family_of(found) for address, found in packed}

    @cached_property
    def uses_host_nics(self) -> bool:
        """HCCL talks over the servers' own addresses when rank 0 has a host_ip and no device_ip."""
        first = next((device for device in self.devices if device.global_rank == 0), None)
        return first is not None and not first.addresses and self.servers[first.server].has_host_ip

    @cached_property
    def pod_of_server(self) -> dict[str, PodRow]:
        """The super pod of each server_id. HCCL takes the last one where several name it."""
        return {server_id: pod for pod in self.pods for _, server_id in pod.members if server_id is not None}

    @cached_property
    def servers_by_rank(self) -> list[tuple[ServerRow, list[int]]]:
        """Servers with their ranks, ascending, the server of rank 0 first. Only for sound ranks."""
        pairs = []
        for server in self.servers:
            ranks = sorted(device.global_rank for device in server.devices if device.global_rank is not None)
            if server.devices:
                pairs.append((server, ranks))
        return sorted(pairs, key=lambda pair: pair[1])

    @cached_property
    def is_without_ascend(self) -> bool:
        """True if the servers themselves say, as hardware_type, that they have no Ascend devices."""
        types = {(text_at(server.fields, "hardware_type") or "").lower() for server in self.servers}
        return bool(types) and types <= {"cpu", "gpu"}

    @cached_property
    def address_counts(self) -> Counter[int]:
        """The number of devices by their number of addresses."""
        return Counter(len(device.addresses) for device in self.devices)


def text_at(fields: Mapping[str, Any], key: str) -> str | None:
    """Return the string under `key`; None where it is missing or no string."""
    value = fields.get(key)
    return value if isinstance(value, str) else None


def integer_at(fields: Mapping[str, Any], key: str) -> int | None:
    """Return the integer under `key`; None where it is missing or of another type, as true and false are."""
    value = fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def options_at(fields: Mapping[str, Any], keys: frozenset[str]) -> Options:
    """Return those of `keys` that are set to a string, sorted, for the records."""
    return tuple(
        sorted((key, value) for key in fields.keys() & keys if isinstance(value := fields[key], str) and value)
    )


def split_addresses(device_ip: Any) -> tuple[str, ...]:
    """Split as HCCL does: at commas, one at the end forgiven. Empty where `device_ip` is empty or no string."""
    if not device_ip or not isinstance(device_ip, str):
        return ()
    if "," not in device_ip:
        return (device_ip,)
    return tuple(device_ip.removesuffix(",").split(","))


class InstanceRow(NamedTuple):
    """One instance: a process in a lab, a pod in a cloud."""

    pointer: Pointer
    fields: dict[str, Any]
    server_id: str | None
    entry_count: int  # how many of its devices are objects, as they should be

    @property
    def device_count(self) -> int | None:
        """The length of its list of devices, whatever is wrong with them; None where it has no such list."""
        return entry_count(self.fields, "devices")


class GroupRow(NamedTuple):
    """One group of instances."""

    pointer: Pointer
    fields: dict[str, Any]
    instances: tuple[InstanceRow, ...]

    @property
    def instance_count(self) -> int | None:
        """The length of its list of instances, whatever is wrong with them; None where it has no such list."""
        return entry_count(self.fields, "instance_list")


@frozen
class GroupTable(Table):
    """A table whose servers follow from its instances. Invariant: an instance without server_id is a server of its own."""

    groups: tuple[GroupRow, ...] = ()

    @cached_property
    def servers_are_complete(self) -> bool:
        """True if each instance names its server and nothing is lost, so that devices can be counted per server."""
        whole = all(
            instance.entry_count == (instance.device_count or 0)
            for group in self.groups
            for instance in group.instances
        )
        groups_are_whole = all(len(group.instances) == (group.instance_count or 0) for group in self.groups)
        return whole and groups_are_whole and all(server.server_id for server in self.servers)

    @cached_property
    def ranks_are_sound(self) -> bool:
        return self.servers_are_complete and super().ranks_are_sound


def groups_of(table: Table) -> tuple[GroupRow, ...]:
    """Return the groups of a table; other formats have none."""
    return table.groups if isinstance(table, GroupTable) else ()


def entry_count(fields: dict[str, Any], key: str) -> int | None:
    """Return the length of a list; None where it is missing or empty, which is a fault of its own."""
    value = fields.get(key)
    return len(value) if isinstance(value, list) and value else None


def odd_numbers(table: Table) -> Iterator[tuple[DeviceRow, str, str, int]]:
    """Yield ids and ranks that HCCL reads but that are not written plainly: device, key, text, number."""
    for device in table.devices:
        fields = device.fields
        # Nearly always the same text as HCCL's number gives: this loop runs over every device of every table.
        if fields.get("device_id") == str(device.device_id) and fields.get("rank_id") == str(device.global_rank):
            continue
        for key, number in zip(NUMBERS, (device.device_id, device.global_rank), strict=True):
            written = device.written(key)
            if number is not None and isinstance(written, str) and written != str(number):
                yield device, key, written, number


def disorder(table: Table) -> Iterator[tuple[ServerRow, ServerRow]]:
    """Yield the first server, with the one ranked before it, whose name as text comes before that one's."""
    for (before, _), (server, _) in pairwise(table.servers_by_rank if table.ranks_are_sound else ()):
        if before.server_id and server.server_id and server.server_id < before.server_id:
            yield before, server
            return
