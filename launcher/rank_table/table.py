"""A v1.0 table as rows that rules can run over, whatever is wrong with it.

A value of the wrong type is None here (the schema reports it), so one fault never hides another, and no rule has to
ask for types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from launcher.rank_table.chips import CHIPS, Chip
from launcher.rank_table.places import Pointer

_LARGEST = 0xFFFFFFFF  # HCCL keeps these numbers in 32 bits
# HCCL reads numbers with C++'s stoull: blanks and a plus before them are skipped, whatever follows them is ignored.
_LENIENT = re.compile(r"[ \t\n\v\f\r]*\+?0*([0-9]{1,11})")


def read_decimal(text: str | None) -> int | None:
    """The number that HCCL reads from `text`; None where it reads none.

    >>> read_decimal("7"), read_decimal(" +7x"), read_decimal("-7"), read_decimal("")
    (7, 7, None, None)
    """
    if text is None:
        return None
    match = _LENIENT.match(text)
    number = int(match.group(1)) if match else _LARGEST + 1
    return number if number <= _LARGEST else None


class DeviceRow(NamedTuple):
    """One entry of a server's device list."""

    server: int  # positions in the file's lists, from 0
    position: int
    fields: dict[str, Any]
    device_id: int | None
    global_rank: int | None
    addresses: tuple[str, ...]  # of device_ip, split at commas; empty where it is unset

    def at(self, key: str | None = None) -> Pointer:
        """The pointer to one of its values, or to the entry itself."""
        entry: Pointer = ("server_list", self.server, "device", self.position)
        return entry if key is None else (*entry, key)


class ServerRow(NamedTuple):
    position: int  # in server_list
    fields: dict[str, Any]
    server_id: str | None
    host_ip: str | None
    devices: tuple[DeviceRow, ...]

    def at(self, key: str | None = None) -> Pointer:
        entry: Pointer = ("server_list", self.position)
        return entry if key is None else (*entry, key)


@dataclass(frozen=True)
class Table:
    """All rows, in file order."""

    fields: dict[str, Any]
    servers: tuple[ServerRow, ...]
    chip: Chip = CHIPS["auto"]

    @classmethod
    def of(cls, document: dict[str, Any], chip: Chip) -> Table:
        rows = (
            _server_row(index, server)
            for index, server in enumerate(_list(document, "server_list"))
            if isinstance(server, dict)
        )
        return cls(document, tuple(rows), chip)

    @cached_property
    def devices(self) -> tuple[DeviceRow, ...]:
        return tuple(device for server in self.servers for device in server.devices)

    @cached_property
    def ranks_are_sound(self) -> bool:
        """Whether the ranks are exactly 0 .. n-1, so that questions of order make sense."""
        ranks = {device.global_rank for device in self.devices}
        return len(ranks) == len(self.devices) and ranks == set(range(len(ranks)))

    @cached_property
    def uses_host_nics(self) -> bool:
        """HCCL talks over the servers' own addresses when rank 0 has a host_ip and no device_ip."""
        first = min(self.devices, key=lambda device: (device.global_rank is None, device.global_rank), default=None)
        return first is not None and not first.addresses and bool(self._host_ip_of(first))

    def servers_by_rank(self) -> Iterator[tuple[ServerRow, list[int]]]:
        """Servers with their ranks, ascending, the server of rank 0 first. Only for sound ranks."""
        pairs = [(server, sorted(_ranks(server))) for server in self.servers if server.devices]
        yield from sorted(pairs, key=lambda pair: pair[1])

    def _host_ip_of(self, device: DeviceRow) -> str | None:
        return next(server.host_ip for server in self.servers if server.position == device.server)


def text_at(fields: dict[str, Any], key: str) -> str | None:
    """The string under `key`; None where it is missing or no string."""
    value = fields.get(key)
    return value if isinstance(value, str) else None


def _list(fields: dict[str, Any], key: str) -> list[Any]:
    value = fields.get(key)
    return value if isinstance(value, list) else []


def _ranks(server: ServerRow) -> list[int]:
    return [device.global_rank for device in server.devices if device.global_rank is not None]


def _server_row(index: int, fields: dict[str, Any]) -> ServerRow:
    devices = tuple(
        _device_row(index, position, device)
        for position, device in enumerate(_list(fields, "device"))
        if isinstance(device, dict)
    )
    return ServerRow(index, fields, text_at(fields, "server_id"), text_at(fields, "host_ip"), devices)


def _device_row(server: int, index: int, fields: dict[str, Any]) -> DeviceRow:
    device_id = read_decimal(text_at(fields, "device_id"))
    global_rank = read_decimal(text_at(fields, "rank_id"))
    return DeviceRow(server, index, fields, device_id, global_rank, split_addresses(text_at(fields, "device_ip")))


def split_addresses(device_ip: str | None) -> tuple[str, ...]:
    """As HCCL splits: at commas, and a comma at the end is forgiven."""
    if not device_ip:
        return ()
    return tuple(device_ip.removesuffix(",").split(","))
