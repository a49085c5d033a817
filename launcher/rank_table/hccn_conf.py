"""The text of /etc/hccn.conf: which device has which address. Every line that cannot be used is named."""

from __future__ import annotations

import re

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.rank_table.device_ids import DEVICE_ID_LIMIT, FoundDevice
from launcher.rank_table.ip import FAMILY_NAMES, UNSET, address_family

MAX_CONF_BYTES = 1024 * 1024
FAULTS_SHOWN = 20
_KEY = re.compile(r"(?P<ipv6>IPv6)?(?P<name>address|netmask)_(?P<device>[0-9]+)")
_ALMOST_ADDRESS = re.compile(r"(ipv6|ip)?[ _-]?add?res?s?[ _-]*[0-9]*", re.IGNORECASE)


@frozen
class HccnConf:
    devices: tuple[FoundDevice, ...]  # ascending by id; those without an address too, where a line names them
    notes: tuple[str, ...]


def decode_conf(data: bytes, name: str) -> str:
    """Return the text of a file's bytes in any encoding: what is replaced is a comment, or refused where it stands.

    Raises:
        UnreadableError: it is far too large.
    """
    if len(data) > MAX_CONF_BYTES:
        limit = f"{MAX_CONF_BYTES >> 20} MiB"
        raise UnreadableError(f"{name} is larger than {limit}", hint="hccn.conf has a few lines for each device")
    return data.decode("utf-8", errors="replace")


def parse_hccn_conf(text: str, name: str) -> HccnConf:
    """Return the devices that `text` names, with the IPv4 address of each, or its IPv6 address where it has no other.

    Comments, blank lines, either kind of line end, and keys with other meanings are fine. `name` is what messages call
    the text.

    Raises:
        UnreadableError: lines that cannot be used, all of them in one message, or no device at all.
    """
    reader = _Reader(name)
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        reader.take(number, line.partition("#")[0].strip())
    if reader.faults:
        raise UnreadableError(_several(reader.faults, name), hint="repair the file, or give --device-ids and --devices")
    if not reader.ids:
        hint = "it should hold lines such as address_0=192.168.100.100"
        raise UnreadableError(f"{name} names no device", hint=hint)
    return HccnConf(reader.devices(), tuple(reader.notes))


def _several(faults: list[str], name: str) -> str:
    if len(faults) == 1:
        return f"{name}: {faults[0]}"
    shown = faults[:FAULTS_SHOWN]
    if len(faults) > FAULTS_SHOWN:
        shown.append(f"... and {len(faults) - FAULTS_SHOWN} more")
    return "\n".join([f"{name}: {len(faults)} lines cannot be used", *(f"  {fault}" for fault in shown)])


class _Reader:
    """The devices and faults of the lines read so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: set[int] = set()
        self.faults: list[str] = []
        self.notes: list[str] = []
        self._addresses: dict[tuple[int, int], str] = {}  # by device and version of IP
        self._said: dict[tuple[int, int], int] = {}  # on which line
        self._owners: dict[str, tuple[int, int]] = {}  # by address: its line, its device

    def devices(self) -> tuple[FoundDevice, ...]:
        return tuple(
            FoundDevice(one, self._addresses.get((one, 4)) or self._addresses.get((one, 6))) for one in sorted(self.ids)
        )

    def take(self, number: int, line: str) -> None:
        key, equals, value = (part.strip() for part in line.partition("="))
        match = _KEY.fullmatch(key)
        if match is None or not equals:
            if line and not equals:
                self.faults.append(f'line {number}: "{printable(line[:40])}" is neither KEY=VALUE nor a comment')
            elif _ALMOST_ADDRESS.fullmatch(key):
                known = 'write "address_0", "address_1" ...'
                self.faults.append(f'line {number}: "{printable(key[:40])}" is not known, {known}')
            return
        device = self._device(number, match["device"])
        if device is None:
            return
        self.ids.add(device)
        if match["name"] == "address":
            self._take_address(number, key, (device, 6 if match["ipv6"] else 4), value)

    def _device(self, number: int, digits: str) -> int | None:
        if len(digits) > 6 or str(int(digits)) != digits or int(digits) >= DEVICE_ID_LIMIT:
            self.faults.append(f"line {number}: {digits[:20]} is not a device id from 0 to {DEVICE_ID_LIMIT - 1}")
            return None
        return int(digits)

    def _take_address(self, number: int, key: str, place: tuple[int, int], address: str) -> None:
        if place in self._said:
            first = f"{key} stands on line {self._said[place]} already"
            if address == self._addresses.get(place, ""):
                self.notes.append(f"{self.name}, line {number}: {first}, with the same address")
            else:
                self.faults.append(f"line {number}: {first}, with another address")
            return
        self._said[place] = number
        if address in UNSET:
            return
        self._addresses[place] = address
        if address_family(address) != place[1]:
            wanted = FAMILY_NAMES[place[1]]
            self.faults.append(f'line {number}: {key} is "{printable(address[:45])}", which is not an {wanted} address')
            return
        line, owner = self._owners.setdefault(address, (number, place[0]))
        if owner != place[0]:
            self.faults.append(f"line {number}: {key} is {address}, which line {line} gives to device {owner}")
