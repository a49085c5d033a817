"""Hostfiles and Open MPI's rankfiles: how many processes a host gets, or which rank goes where.

Both dialects of hostfiles, Open MPI's and MPICH's, are read and written. A fault is reported with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from launcher.core.errors import TlaunchError, UsageError
from launcher.core.records import Cluster, Device, Server

MAX_COUNT = 1_000_000  # devices of a cluster: beyond it a number is a mistake
_SLOTS = ("slots", "cpu", "cpus", "count")
_MAX_SLOTS_KEYS = ("max_slots", "max-slots", "slots_max", "slots-max")
_IGNORED = ("ifname", "binding", "port", "user", "username", "user_name", "user-name")  # how to get there, not who runs
_HOST_NAME = re.compile(r"(?!-)[\w.%:-]+")  # what no launcher takes for anything but a name; -x would be an option
_RANK_LINE = re.compile(r"rank\s*(?P<rank>[0-9]+)\s*=\s*(?P<host>\S+)\s+slots?\s*=\s*(?P<slot>\S.*)", re.IGNORECASE)
_SLOT = r"p?[0-9]+(-[0-9]+)?(:([0-9]+(-[0-9]+)?|\*))?"  # 3, 0-3, p7, 1:2, 1:0-3, 1:*
_SLOT_LIST = re.compile(rf"{_SLOT}([,;]{_SLOT})*", re.IGNORECASE)


class Place(NamedTuple):
    """The place of a line: a fault starts with it."""

    name: str
    line: int

    def refuse(self, message: str, hint: str) -> NoReturn:
        raise TlaunchError(f"{self.name}:{self.line}: {message}", hint=hint)


def is_host_name(text: str) -> bool:
    """Return whether hostfiles, rankfiles and node lists can name a host so; with one colon it is a name and a count."""
    return _HOST_NAME.fullmatch(text) is not None and text.count(":") != 1


def write_hostfile(cluster: Cluster) -> str:
    """Write one line per server, for ranks and devices that are counted from host to host."""
    return "".join(f"{server.server_id} slots={len(server.devices)}\n" for server in cluster.servers)


def write_mpich_hostfile(cluster: Cluster) -> str:
    """Write what `write_hostfile` does for MPICH: `name:8`, an IPv6 address in brackets."""
    counts = ((server.server_id, len(server.devices)) for server in cluster.servers)
    return "".join(f"[{name}]:{count}\n" if ":" in name else f"{name}:{count}\n" for name, count in counts)


def write_rankfile(cluster: Cluster) -> str:
    """Write one line per rank; the slot is the device's id, where Open MPI means a core of the processor."""
    return "".join(
        f"rank {device.global_rank}={server.server_id} slot={device.device_id}\n"
        for server in cluster.servers
        for device in server.devices
    )


def parse_hostfile(text: str, name: str, devices: int | None = None) -> tuple[Cluster, tuple[str, ...]]:
    """Return the servers in the order of their first mention, with as many devices as slots, and notes about them.

    A host without a count has `devices` devices, or where that is None, one for each mention.

    Raises:
        TlaunchError: a line that is not understood, or a host that is counted twice; the message names the line.
        UsageError: `devices` is given and no host lacks a count.
    """
    counts: dict[str, int] = {}
    mentions: dict[str, list[Place]] = {}
    ignored: dict[str, int] = {}
    for place, line in _lines(text, name):
        host, count = _host_line(place, line, ignored)
        if count is not None:
            counts[host] = count
        mentions.setdefault(host, []).append(place)
        if host in counts and len(mentions[host]) > 1:
            first = mentions[host][0].line
            place.refuse(f"{host!r} is counted here and on line {first} too", "give it one line with its slots")
    if not mentions:
        raise TlaunchError(f"{name}: it names no host", hint="one host per line")
    if devices is not None and len(counts) == len(mentions):
        raise UsageError(f"--devices {devices}: every host in {name} has a count of its own", hint="leave it out")
    cluster = counted_cluster([(host, counts.get(host) or devices or len(at)) for host, at in mentions.items()])
    return cluster, (f"ignored, since it says nothing about ranks: {', '.join(ignored)}",) if ignored else ()


def counted_cluster(counts: list[tuple[str, int]]) -> Cluster:
    """Return servers with the given numbers of devices, ranks counted from the first to the last.

    Raises:
        TlaunchError: more than `MAX_COUNT` devices.
    """
    total = sum(count for _, count in counts)
    if total > MAX_COUNT:
        raise TlaunchError(f"{total:,} devices are more than any cluster has", hint="check the counts and --devices")
    servers, first = [], 0
    for server_id, count in counts:
        servers.append(Server(server_id, tuple(Device(index, first + index) for index in range(count))))
        first += count
    return Cluster(tuple(servers))


def parse_rankfile(text: str, name: str) -> tuple[Cluster, tuple[str, ...]]:
    """Return the servers in the order of their first mention, and notes about them.

    Slots that are plain numbers, different on each host, are the ids of devices. Where one is a list, a range or a
    socket with a core, all of them are cores, and devices are counted on each host in the order of the ranks.

    Raises:
        TlaunchError: a line that is not understood, or ranks that are not 0 .. n-1; the message names the line.
    """
    hosts: dict[str, dict[int, str]] = {}
    seen: dict[int, int] = {}
    for place, line in _lines(text, name):
        rank, host, slot = _rank_line(place, line)
        if rank in seen:
            place.refuse(f"rank {rank} is placed twice, first on line {seen[rank]}", "give each rank one line")
        seen[rank] = place.line
        hosts.setdefault(host, {})[rank] = slot
    if not hosts:
        raise TlaunchError(f"{name}: it places no rank", hint='one line per rank: "rank 0=name slot=0"')
    # The ranks after a gap would be counted wrongly.
    gap = next((rank for rank in range(len(seen)) if rank not in seen), None)
    if gap is not None:
        last = max(seen)
        message = f"{name}:{seen[last]}: rank {last} is placed, and rank {gap} is not"
        raise TlaunchError(message, hint=f"ranks are 0 to {len(seen) - 1} for {len(seen)} lines")
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


def _host_line(place: Place, line: str, ignored: dict[str, int]) -> tuple[str, int | None]:
    """Return the host and its count. `ignored` gets the keys that were read over, with their line."""
    host, *settings = re.sub(r"\s*=\s*", "=", line).split()
    count = None
    # MPICH's name:8. With two colons or more it is an IPv6 address, unless brackets stand around it.
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
            ignored.setdefault(key, place.line)
            continue
        if key not in (*_SLOTS, *_MAX_SLOTS_KEYS) or not value:
            place.refuse(f"{setting[:40]!r} is not known after a host's name", 'write "name slots=8"')
        number = _count(place, key, value)
        count = number if key in _SLOTS else count
    return _checked_host(place, host), count


def _count(place: Place, what: str, text: str) -> int:
    if text.lower() == "auto":
        place.refuse(f"{what} is auto, which only the host itself can count", "write the number of its devices")
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(MAX_COUNT)) or int(text) == 0:
        place.refuse(f"{what} is {text[:20]!r}", f"write a number from 1 to {MAX_COUNT}")
    return int(text)


def _checked_host(place: Place, host: str) -> str:
    if host[:1] == "+":
        hint = "write the host's name; tlaunch cannot know which hosts an allocation will have"
        place.refuse(f"{host[:40]!r} is a host relative to an allocation", hint)
    if "@" in host:
        place.refuse(f"{host[:40]!r} names a user", "write the host alone; users belong into the ssh configuration")
    if not is_host_name(host):
        place.refuse(f"{host[:40]!r} is not a valid host name", 'write "name slots=8"')
    return host


def _rank_line(place: Place, line: str) -> tuple[int, str, str]:
    match = _RANK_LINE.fullmatch(line)
    if match is None:
        place.refuse(f"{line[:40]!r} places no rank", 'write "rank 0=name slot=0"')
    digits, slot = match["rank"], re.sub(r"\s+", "", match["slot"])
    if len(digits) > len(str(MAX_COUNT)):
        place.refuse(f"rank {digits[:20]} is more than any cluster has", "ranks are counted from 0")
    if _SLOT_LIST.fullmatch(slot) is None:
        place.refuse(
            f"slot={slot[:40]} is not a slot",
            "write a number, a list 0,1, a range 0-3, or socket:core, several with ; between them",
        )
    host = match["host"]
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return int(digits), _checked_host(place, host), slot


def _why_cores(hosts: dict[str, dict[int, str]]) -> str | None:
    """Return the reason why slots are cores and not devices, in words; None when they are devices."""
    for host, slots in hosts.items():
        for rank, slot in slots.items():
            if not slot.isdecimal() or len(slot) > len(str(MAX_COUNT)):
                return f"rank {rank} has slot={slot[:20]}, so slots are cores; devices are counted from 0 on each host"
        if len({int(slot) for slot in slots.values()}) < len(slots):
            return f"{host} has a slot twice, so slots are cores; devices are counted from 0 on each host"
    return None
