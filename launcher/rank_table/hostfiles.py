"""Hostfiles, Open MPI rankfiles and Slurm's node lists: how many processes a host gets, or which rank goes where.

`node[01-04,7],login` names five hosts and says nothing about devices. Written is the dialect that Open MPI reads; read are those of Open MPI and MPICH. A fault is reported with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
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
MAX_HOSTS = 65_536  # what one list may name: a slip of the keyboard in a range must not fill the memory
_LAST_NUMBER = re.compile(r"(?P<prefix>.*?)(?P<digits>[0-9]{1,18})(?P<suffix>[^0-9]*)", re.DOTALL)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_DIGITS = re.compile(r"([0-9]+)")


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


def write_nodelist(cluster: Cluster) -> str:
    """Write one line, compressed, in the order of the servers. Only for servers with equally many devices."""
    return f"{compress([server.server_id for server in cluster.servers])}\n"


def parse_nodelist(text: str, name: str, devices: int = 1) -> Cluster:
    """Return the hosts as listed, each with `devices` devices. Lines are joined as if commas stood between them.

    Raises:
        TlaunchError: brackets, ranges or names that are not understood, more than `MAX_HOSTS` hosts, or one of them
            twice; the message starts with `name` and the line.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        place = Place(name, number)
        for host in expand(line.partition("#")[0], place, MAX_HOSTS - len(seen)):
            if host in seen:
                place.refuse(f"{host[:60]!r} is listed twice, first on line {seen[host]}", "list each host once")
            seen[host] = number
    if not seen:
        raise TlaunchError(f"{name}: it names no host", hint="for instance node[01-04]")
    return counted_cluster([(host, devices) for host in seen])


def expand(line: str, place: Place, limit: int = MAX_HOSTS) -> Iterator[str]:
    """Yield the hosts that `line` names, in its order; of several brackets the last one runs fastest.

    >>> list(expand("r[1-2]n[08-09],login", Place("nodes", 1)))
    ['r1n08', 'r1n09', 'r2n08', 'r2n09', 'login']
    """
    for item in _items(line, place):
        count, alternatives = 1, []
        # Plain text and what a pair of brackets stands for take turns.
        for index, part in enumerate(re.split(r"[\[\]]", item)):
            alternatives.append(_numbers(part, item, place, limit) if index % 2 else [part])
            count *= len(alternatives[-1])
            if count > limit:
                place.refuse(f"{item[:40]!r} leads beyond {MAX_HOSTS:,} hosts", "check the ranges")
        limit -= count
        for name in map("".join, product(*alternatives)):
            if not is_host_name(name):
                place.refuse(f"{item[:40]!r} is not a valid host name", "write node[01-04,7]")
            yield name


def order_of_slurm(cluster: Cluster) -> Iterator[str]:
    """Yield a note where the servers are in another order than Slurm puts nodes into by itself."""
    names = [server.server_id for server in cluster.servers]
    # node2 comes before node10: texts and numbers take turns, so like meets like.
    split = {name: enumerate(_DIGITS.split(name)) for name in names}
    by_value = {
        name: [(len(text.lstrip("0")), text.lstrip("0")) if at % 2 else (0, text) for at, text in parts]
        for name, parts in split.items()
    }
    if names != sorted(names, key=by_value.__getitem__):
        yield (
            "Slurm sorts the nodes of `srun -w`, and ranks would follow its order: to keep this one, give the names line "
            "by line in the file SLURM_HOSTFILE, with `srun -m arbitrary`"
        )


def compress(names: list[str]) -> str:
    """Return the shortest list that keeps the order: neighbours that differ in their last number alone share brackets.

    >>> compress(["node01", "node02", "node04", "login"])
    'node[01-02,04],login'
    """
    groups: list[tuple[str, str, list[str]]] = []  # what stands around the last number, and that number of each name
    for name in names:
        match = _LAST_NUMBER.fullmatch(name)
        prefix, digits, suffix = match.group("prefix", "digits", "suffix") if match else (name, "", "")
        if groups and digits and groups[-1][:2] == (prefix, suffix) and groups[-1][2][0]:
            groups[-1][2].append(digits)
        else:
            groups.append((prefix, suffix, [digits]))
    return ",".join(
        f"{prefix}{numbers[0] if len(numbers) == 1 else f'[{in_ranges(numbers)}]'}{suffix}"
        for prefix, suffix, numbers in groups
    )


def _items(line: str, place: Place) -> Iterator[str]:
    """Yield the items between the commas that are outside of brackets."""
    depth, item = 0, ""
    for char in line:
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            place.refuse(f"brackets inside brackets or none to close: {line.strip()[:40]!r}", "write node[01-04,7]")
        if depth == 0 and (char == "," or char.isspace()):
            if item:
                yield item
            item = ""
        else:
            item += char
    if depth:
        place.refuse(f"a bracket is not closed: {line.strip()[:40]!r}", "write node[01-04,7]")
    if item:
        yield item


def _numbers(ranges: str, item: str, place: Place, limit: int) -> list[str]:
    """Return the numbers of a pair of brackets: 08-10 is 08, 09, 10, for the width of the first number counts."""
    numbers: list[str] = []
    for entry in map(str.strip, ranges.split(",")):
        match = _RANGE.fullmatch(entry)
        if match is None:
            place.refuse(f"{entry[:40]!r} in {item[:40]!r} is not a number or a range", "write node[01-04,7]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            place.refuse(f"the range {entry} in {item[:40]!r} runs backwards", f"write {last}-{first}")
        if int(last) - int(first) >= limit - len(numbers):
            place.refuse(f"{entry} in {item[:40]!r} leads beyond {MAX_HOSTS:,} hosts", "check the range")
        numbers.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return numbers


def in_ranges(numbers: Iterable[str]) -> str:
    """Return a list of numbers in which neighbours of one width that follow each other are a range.

    >>> in_ranges(["08", "09", "10", "12"])
    '08-10,12'
    """
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number == f"{int(runs[-1][-1]) + 1:0{len(runs[-1][0])}d}":
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
