"""Select a server's devices from a list of ids, a visibility variable, UUIDs of GPUs, or /etc/hccn.conf."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.rank_table.ip import FAMILY_NAMES, UNSET, address_family
from launcher.rank_table.nodelists import in_ranges
from launcher.rank_table.profile import CHIPS

ASCEND_VARIABLES = ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")  # the first one that is set is used
CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
MAX_DEVICES = CHIPS["none"].device_id_limit  # on one server, in tables for CPU or GPU
_ID_OR_RANGE = re.compile(r"([0-9]{1,6})(?:\s*-\s*([0-9]{1,6}))?")
_HALF_OPEN = re.compile(r"\[\s*([0-9]{1,6})\s*,\s*([0-9]{1,6})\s*\)")  # the ranges of hccl_tools
_UUID = re.compile(r"(GPU|MIG)-", re.IGNORECASE)
DEVICE_ID_LIMIT = CHIPS["auto"].device_id_limit  # ids are 0 .. 31 on the largest server that HCCL knows
MAX_CONF_BYTES = 1024 * 1024
FAULTS_SHOWN = 20
_KEY = re.compile(r"(?P<ipv6>IPv6)?(?P<name>address|netmask)_(?P<device>[0-9]+)")
_ALMOST_ADDRESS = re.compile(r"(ipv6|ip)?[ _-]?add?res?s?[ _-]*[0-9]*", re.IGNORECASE)


class FoundDevice(NamedTuple):
    """A device that was detected on a machine, or that is assumed to be there."""

    device_id: int  # physical
    device_ip: str | None = None  # None if not set; never invented
    uuid: str | None = None  # of a GPU


def parse_device_ids(text: str, origin: str) -> tuple[int, ...]:
    """Return the ids in a list such as "0-3,6", in the given order. Error messages refer to the list as `origin`.

    Raises:
        UsageError: the list cannot be parsed, has an id twice, or an id that no server has.
    """
    if text.lstrip().startswith("["):
        hint, match = 'write ids and ranges without brackets, for instance "0-3,6"', _HALF_OPEN.fullmatch(text.strip())
        if match is not None and int(match[2]) > int(match[1]):
            hint = f'write "{int(match[1])}-{int(match[2]) - 1}": a range includes both ends'
        raise UsageError(f'{origin}: "{printable(text[:40])}" is written in brackets', hint=hint)
    ids: list[int] = []
    for part in map(str.strip, text.split(",")):
        match = _ID_OR_RANGE.fullmatch(part)
        if match is None:
            raise UsageError(f'{origin}: "{printable(part[:40])}" is not a device id', hint='write ids as in "0-3,6"')
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise UsageError(f'{origin}: the range "{part}" runs backwards', hint=f'write "{last}-{first}"')
        if last >= MAX_DEVICES:
            message = f"{origin} names device {last}, but a server has at most {MAX_DEVICES} devices"
            raise UsageError(message, hint="number the devices on each server from 0")
        ids += range(first, last + 1)
    if repeated := [one for one, times in Counter(ids).items() if times > 1]:
        raise UsageError(f"{origin} names device {repeated[0]} twice", hint="each device gets one rank")
    return tuple(ids)


def visible_devices(
    environment: Mapping[str, str], names: Sequence[str], found: Sequence[FoundDevice] = ()
) -> tuple[str, tuple[int, ...]] | None:
    """Return the first variable of `names` that is set, and its device ids. Return None if no variable is set.

    UUIDs of GPUs, full or shortened to a unique prefix, are looked up in `found`.

    Raises:
        UsageError: the variable is empty, hides all devices, or names a part of a GPU or a GPU that is not in `found`.
    """
    name = next((name for name in names if name in environment), None)
    if name is None:
        return None
    parts = [part.strip() for part in environment[name].split(",")]
    if name in CUDA_VARIABLES and "-1" in parts:  # CUDA ignores what follows it
        parts = parts[: parts.index("-1")]
    if not any(parts):
        raise UsageError(f"{name} hides all devices", hint=f"unset {name}, or choose devices with --device-ids")
    for index, part in enumerate(parts):
        if _UUID.match(part) is None:
            continue
        named = f"{name} names {printable(part[:44])}"
        if part.upper().startswith("MIG"):
            message = f"{named}, a part of a GPU, but a table lists only full GPUs"
            raise UsageError(message, hint="choose full GPUs with --device-ids")
        meant = [device for device in found if device.uuid and device.uuid.casefold().startswith(part.casefold())]
        if len(meant) != 1:
            message = f"{named}, but {len(meant) or 'no'} GPUs of this machine have a UUID with this prefix"
            raise UsageError(message, hint="list the GPUs with `nvidia-smi -L`, then select GPUs with --device-ids")
        parts[index] = str(meant[0].device_id)
    return name, parse_device_ids(",".join(parts), name)


def select_devices(found: Sequence[FoundDevice], ids: Iterable[int], origin: str) -> tuple[FoundDevice, ...]:
    """Return the devices with the given ids, in the order of `ids`.

    Raises:
        UsageError: `origin` names a device that was not found.
    """
    by_id = {device.device_id: device for device in found}
    wanted = tuple(ids)
    if missing := [one for one in wanted if one not in by_id]:
        raise UsageError(
            f"{origin} names {name_devices(missing)}, but this machine has {name_devices(by_id)}",
            hint="select only devices of this machine",
        )
    return tuple(by_id[one] for one in wanted)


def name_devices(ids: Iterable[int]) -> str:
    """Return a phrase that lists device ids, such as "devices 0-3,6", in the given order.

    >>> name_devices([0, 1, 2, 3, 6]), name_devices([5]), name_devices([6, 2, 3])
    ('devices 0-3,6', 'device 5', 'devices 6,2-3')
    """
    words = in_ranges(map(str, ids))
    return f"device{'' if words.isdigit() else 's'} {words}"


@frozen
class HccnConf:
    devices: tuple[FoundDevice, ...]  # ascending by id, including named devices without an address
    notes: tuple[str, ...]


def decode_conf(data: bytes, name: str) -> str:
    """Decode a file as UTF-8, and replace invalid bytes, which may occur in comments.

    Raises:
        UnreadableError: the file is too large.
    """
    if len(data) > MAX_CONF_BYTES:
        hint = "name an hccn.conf: it has a few lines for each device"
        raise UnreadableError(f"{name} is larger than {MAX_CONF_BYTES >> 20} MiB", hint=hint)
    return data.decode("utf-8", errors="replace")


def parse_hccn_conf(text: str, name: str) -> HccnConf:
    """Return the devices listed in `text` with their addresses. IPv4 addresses take precedence over IPv6.

    Comments, blank lines, any line endings, and unrelated keys are allowed. `name` is the text's name in messages.

    Raises:
        UnreadableError: there is no device, or some lines cannot be used; the message lists them.
    """
    reader = _Reader(name)
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        reader.take(number, line.partition("#")[0].strip())
    if reader.faults:
        message = f"{name}: {reader.faults[0]}"
        if (count := len(reader.faults)) > 1:
            more = [f"... and {count - FAULTS_SHOWN} more"] if count > FAULTS_SHOWN else []
            message = "\n  ".join([f"{name}: {count} lines cannot be used", *reader.faults[:FAULTS_SHOWN], *more])
        raise UnreadableError(message, hint="correct the file, or set the devices with --device-ids and --devices")
    if not reader.ids:
        raise UnreadableError(f"{name} names no device", hint="add lines such as address_0=192.168.100.100")
    return HccnConf(reader.devices(), tuple(reader.notes))


class _Reader:
    """A parser of hccn.conf that collects devices and faults."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: set[int] = set()
        self.faults: list[str] = []
        self.notes: list[str] = []
        self._addresses: dict[tuple[int, int], str] = {}  # by device and IP version
        self._said: dict[tuple[int, int], int] = {}  # line numbers
        self._owners: dict[str, tuple[int, int]] = {}  # line and device by address

    def devices(self) -> tuple[FoundDevice, ...]:
        known = self._addresses
        return tuple(FoundDevice(one, known.get((one, 4)) or known.get((one, 6))) for one in sorted(self.ids))

    def take(self, number: int, line: str) -> None:
        key, equals, value = (part.strip() for part in line.partition("="))
        match = _KEY.fullmatch(key)
        if match is None or not equals:
            if line and not equals:
                self.faults.append(f'line {number}: "{printable(line[:40])}" is not KEY=VALUE or a comment')
            elif _ALMOST_ADDRESS.fullmatch(key):
                known = 'expected "address_0", "address_1" ...'
                self.faults.append(f'line {number}: "{printable(key[:40])}" is not known, {known}')
            return
        digits = match["device"]
        if len(digits) > 6 or str(int(digits)) != digits or int(digits) >= DEVICE_ID_LIMIT:
            self.faults.append(f"line {number}: {digits[:20]} is not a device id from 0 to {DEVICE_ID_LIMIT - 1}")
            return
        device = int(digits)
        self.ids.add(device)
        if match["name"] == "address":
            self._take_address(number, key, (device, 6 if match["ipv6"] else 4), value)

    def _take_address(self, number: int, key: str, place: tuple[int, int], address: str) -> None:
        if place in self._said:
            first = f"{key} is already on line {self._said[place]}"
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
