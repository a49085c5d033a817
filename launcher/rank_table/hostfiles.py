"""Hostfiles and Open MPI's rankfiles: the number of processes per host, or the host of each rank.

Hostfiles are read and written in both dialects, Open MPI's and MPICH's. Errors name the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from launcher.core.errors import TlaunchError, UsageError
from launcher.core.records import Cluster, Device, Server

MAX_COUNT = 1_000_000  # devices of a cluster
_SLOTS = ("slots", "cpu", "cpus", "count")
_MAX_SLOTS_KEYS = ("max_slots", "max-slots", "slots_max", "slots-max")
_IGNORED = ("ifname", "binding", "port", "user", "username", "user_name", "user-name")  # for connections
_HOST_NAME = re.compile(r"(?!-)[\w.%:-]+")  # a name for every launcher; -x would be an option
_RANK_LINE = re.compile(r"rank\s*(?P<rank>[0-9]+)\s*=\s*(?P<host>\S+)\s+slots?\s*=\s*(?P<slot>\S.*)", re.IGNORECASE)
_SLOT = r"p?[0-9]+(-[0-9]+)?(:([0-9]+(-[0-9]+)?|\*))?"  # 3, 0-3, p7, 1:2, 1:0-3, 1:*
_SLOT_LIST = re.compile(rf"{_SLOT}([,;]{_SLOT})*", re.IGNORECASE)


class Place(NamedTuple):
    """The origin of a value, for error messages: a line of a file, or a command-line option."""

    name: str
    line: int | None = None  # None: of an option

    def refuse(self, message: str, hint: str) -> NoReturn:
        if self.line is None:
            raise UsageError(f"{self.name}: {message}", hint=hint)
        raise TlaunchError(f"{self.name}:{self.line}: {message}", hint=hint)


def is_host_name(text: str) -> bool:
    """Return True if `text` is a valid host name in hostfiles, rankfiles and node lists.

    A name with exactly one colon is not allowed, because it would be read as a name and a count.
    """
    return _HOST_NAME.fullmatch(text) is not None and text.count(":") != 1


def write_hostfile(cluster: Cluster) -> str:
    """Convert a cluster to an Open MPI hostfile. Its ranks and devices must be numbered host by host."""
    return "".join(f"{server.server_id} slots={len(server.devices)}\n" for server in cluster.servers)


def write_mpich_hostfile(cluster: Cluster) -> str:
    """Return an MPICH hostfile with lines such as `name:8`. IPv6 addresses are in brackets."""
    counts = ((server.server_id, len(server.devices)) for server in cluster.servers)
    return "".join(f"[{name}]:{count}\n" if ":" in name else f"{name}:{count}\n" for name, count in counts)


def write_rankfile(cluster: Cluster) -> str:
    """Return a rankfile with one line per rank. The slots are device ids, although Open MPI reads them as cores."""
    return "".join(
        f"rank {device.global_rank}={server.server_id} slot={device.device_id}\n"
        for server in cluster.servers
        for device in server.devices
    )


def parse_hostfile(text: str, name: str, devices: int | None = None) -> tuple[Cluster, tuple[str, ...]]:
    """Convert a hostfile to a cluster with one device per slot, in the same order. Also return notes for the user.

    A host without a count gets `devices` devices, or if that is None, one for each line that names it.

    Raises:
        TlaunchError: a line cannot be parsed, or a host has two counts; the message names the line.
        UsageError: `devices` is given, but every host has a count.
    """
    counts: dict[str, int] = {}
    mentions: dict[str, list[Place]] = {}
    ignored: dict[str, None] = {}
    for place, line in _lines(text, name):
        host, count = _host_line(place, line, ignored)
        if count is not None:
            counts[host] = count
        mentions.setdefault(host, []).append(place)
        if host in counts and len(mentions[host]) > 1:
            first = mentions[host][0].line
            place.refuse(f"{host!r} has a count here and on line {first}", "write one line with all its slots")
    if not mentions:
        raise TlaunchError(f"{name}: the file names no host", hint="write one host per line")
    if devices is not None and len(counts) == len(mentions):
        raise UsageError(f"--devices {devices}: every host in {name} already has a count", hint="remove --devices")
    cluster = counted_cluster([(host, counts.get(host) or devices or len(at)) for host, at in mentions.items()])
    return cluster, (f"ignored, because it does not concern ranks: {', '.join(ignored)}",) if ignored else ()


def counted_cluster(counts: list[tuple[str, int]]) -> Cluster:
    """Return a cluster with a given number of devices per server. Ranks are numbered from the first server to the last.

    Raises:
        TlaunchError: there are more than `MAX_COUNT` devices.
    """
    total = sum(count for _, count in counts)
    if total > MAX_COUNT:
        message = f"{total:,} devices are more than the limit of {MAX_COUNT:,}"
        raise TlaunchError(message, hint="check the counts and --devices")
    servers, first = [], 0
    for server_id, count in counts:
        servers.append(Server(server_id, tuple(Device(index, first + index) for index in range(count))))
        first += count
    return Cluster(tuple(servers))


def parse_rankfile(text: str, name: str) -> tuple[Cluster, tuple[str, ...]]:
    """Convert a rankfile to a cluster, with servers in the order of the file. Also return notes for the user.

    If all slots are plain numbers that differ on each host, they are device ids. If any slot is a list, a range or a
    socket with a core, all slots are cores, and devices are numbered on each host in rank order.

    Raises:
        TlaunchError: a line cannot be parsed, or the ranks are not 0 .. n-1; the message names the line.
    """
    hosts: dict[str, dict[int, str]] = {}
    seen: dict[int, int | None] = {}  # lines
    for place, line in _lines(text, name):
        rank, host, slot = _rank_line(place, line)
        if rank in seen:
            place.refuse(f"rank {rank} is assigned twice, first on line {seen[rank]}", "write one line for each rank")
        seen[rank] = place.line
        hosts.setdefault(host, {})[rank] = slot
    if not hosts:
        raise TlaunchError(f"{name}: the file assigns no rank", hint='write lines such as "rank 0=name slot=0"')
    # Ranks after a gap would get wrong numbers.
    gap = next((rank for rank in range(len(seen)) if rank not in seen), None)
    if gap is not None:
        last = max(seen)
        message = f"{name}:{seen[last]}: rank {last} is assigned, but rank {gap} is not"
        raise TlaunchError(message, hint=f"use ranks 0 to {len(seen) - 1} for {len(seen)} lines")
    cores = _why_cores(hosts)
    servers = []
    for host, slots in hosts.items():
        ids = ((index if cores else int(slots[rank]), rank) for index, rank in enumerate(sorted(slots)))
        servers.append(Server(host, tuple(Device(device_id, rank) for device_id, rank in ids)))
    return Cluster(tuple(servers)), () if cores is None else (cores,)


def _lines(text: str, name: str) -> Iterator[tuple[Place, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        meaning = line.partition("#")[0].strip()
        if meaning:
            yield Place(name, number), meaning


def _host_line(place: Place, line: str, ignored: dict[str, None]) -> tuple[str, int | None]:
    """Parse a line of a hostfile into host and count. Keys that have no effect are added to `ignored`."""
    host, *settings = re.sub(r"\s*=\s*", "=", line).split()
    count = None
    # MPICH's name:8. Text with two or more colons is an IPv6 address, unless it is in brackets.
    if host.startswith("["):
        text = host
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            place.refuse(f"{text[:40]!r}: the bracket is not closed", "write [fe80::1]:8, or fe80::1 slots=8")
        count = _count(place, "the count", rest[1:]) if rest else None
    elif host.count(":") == 1:
        host, _, written = host.partition(":")
        count = _count(place, "the count", written)
    for setting in settings:
        key, _, value = setting.partition("=")
        if key in _IGNORED and value:
            ignored[key] = None
            continue
        if key not in (*_SLOTS, *_MAX_SLOTS_KEYS) or not value:
            place.refuse(f"unknown setting {setting[:40]!r} after the host name", 'write "name slots=8"')
        number = _count(place, key, value)
        count = number if key in _SLOTS else count
    return _checked_host(place, host), count


def _count(place: Place, what: str, text: str) -> int:
    if text.lower() == "auto":
        place.refuse(f"{what} is auto, which only the host itself can resolve", "write the number of its devices")
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(MAX_COUNT)) or int(text) == 0:
        place.refuse(f"{what} is {text[:20]!r}, which is not a valid number", f"write a number from 1 to {MAX_COUNT}")
    return int(text)


def _checked_host(place: Place, host: str) -> str:
    if host[:1] == "+":
        hint = "write the host's name; tlaunch does not know the hosts of an allocation in advance"
        place.refuse(f"{host[:40]!r} is a host relative to an allocation", hint)
    if "@" in host:
        place.refuse(f"{host[:40]!r} names a user", "write only the host, and set the user in the ssh configuration")
    if not is_host_name(host):
        place.refuse(f"{host[:40]!r} is not a valid host name", 'write "name slots=8"')
    return host


def _rank_line(place: Place, line: str) -> tuple[int, str, str]:
    match = _RANK_LINE.fullmatch(line)
    if match is None:
        place.refuse(f"{line[:40]!r} assigns no rank", 'write "rank 0=name slot=0"')
    digits, slot = match["rank"], re.sub(r"\s+", "", match["slot"])
    if len(digits) > len(str(MAX_COUNT)):
        place.refuse(f"rank {digits[:20]} is too large", "number the ranks from 0")
    if _SLOT_LIST.fullmatch(slot) is None:
        place.refuse(
            f"slot={slot[:40]} is not a slot",
            "write a number, a list 0,1, a range 0-3, or socket:core; separate several by ;",
        )
    host = match["host"]
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return int(digits), _checked_host(place, host), slot


def _why_cores(hosts: dict[str, dict[int, str]]) -> str | None:
    """Return the reason why the slots of a rankfile are CPU cores. Return None if they may be device ids."""
    for host, slots in hosts.items():
        for rank, slot in slots.items():
            if not slot.isdecimal() or len(slot) > len(str(MAX_COUNT)):
                return f"rank {rank} has slot={slot[:20]}, so slots are cores; devices are numbered from 0 on each host"
        if len({int(slot) for slot in slots.values()}) < len(slots):
            return f"{host} has a slot twice, so slots are cores; devices are numbered from 0 on each host"
    return None
