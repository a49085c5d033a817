"""Slurm's node lists: `node[01-04,7],login` names five hosts and says nothing about devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from launcher.core.errors import TlaunchError
from launcher.core.records import Cluster
from launcher.rank_table.hostfiles import Place, counted_cluster, is_host_name

MAX_HOSTS = 65_536  # what one list may name: a slip of the keyboard in a range must not fill the memory
_LAST_NUMBER = re.compile(r"(?P<prefix>.*?)(?P<digits>[0-9]{1,18})(?P<suffix>[^0-9]*)", re.DOTALL)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_DIGITS = re.compile(r"([0-9]+)")
_Split = tuple[str, str, str]  # a name before, in, and after its last number


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
        for part in _parts(item, place, limit):
            alternatives.append(part)
            count *= len(part)
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
    if names != sorted(names, key=_numbers_by_value):
        yield (
            "Slurm sorts the nodes of `srun -w`, and ranks would follow its order: to keep this one, give the names line "
            "by line in the file SLURM_HOSTFILE, with `srun -m arbitrary`"
        )


def compress(names: list[str]) -> str:
    """Return the shortest list that keeps the order: neighbours that differ in their last number alone share brackets.

    >>> compress(["node01", "node02", "node04", "login"])
    'node[01-02,04],login'
    """
    items = []
    for group in _groups([_split(name) for name in names]):
        prefix, digits, suffix = group[0]
        numbers = digits if len(group) == 1 else f"[{','.join(_ranges([split[1] for split in group]))}]"
        items.append(f"{prefix}{numbers}{suffix}")
    return ",".join(items)


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


def _parts(item: str, place: Place, limit: int) -> Iterator[list[str]]:
    """Yield plain text and what a pair of brackets stands for, in turns."""
    for index, part in enumerate(re.split(r"[\[\]]", item)):
        if index % 2:
            numbers: list[str] = []
            for entry in part.split(","):
                numbers.extend(_numbers(entry.strip(), item, place, limit - len(numbers)))
            yield numbers
        else:
            yield [part]


def _numbers_by_value(name: str) -> list[tuple[int, str]]:
    """Return a key for sorting: node2 comes before node10. Texts and numbers take turns, so like meets like."""
    parts = enumerate(_DIGITS.split(name))
    return [(len(text.lstrip("0")), text.lstrip("0")) if at % 2 else (0, text) for at, text in parts]


def _numbers(entry: str, item: str, place: Place, limit: int) -> Iterator[str]:
    """Return the numbers of a range: 08-10 is 08, 09, 10, for the width of the first number counts."""
    match = _RANGE.fullmatch(entry)
    if match is None:
        place.refuse(f"{entry[:40]!r} in {item[:40]!r} is not a number or a range", "write node[01-04,7]")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        place.refuse(f"the range {entry} in {item[:40]!r} runs backwards", f"write {last}-{first}")
    if int(last) - int(first) >= limit:
        place.refuse(f"{entry} in {item[:40]!r} leads beyond {MAX_HOSTS:,} hosts", "check the range")
    return (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))


def _split(name: str) -> _Split:
    match = _LAST_NUMBER.fullmatch(name)
    return (match["prefix"], match["digits"], match["suffix"]) if match else (name, "", "")


def _groups(names: list[_Split]) -> Iterator[list[_Split]]:
    group: list[_Split] = []
    for split in names:
        if group and not (split[1] and (split[0], split[2]) == (group[0][0], group[0][2]) and group[0][1]):
            yield group
            group = []
        group.append(split)
    yield group


def _ranges(numbers: list[str]) -> Iterator[str]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != f"{int(last) + 1:0{len(first)}d}":
            yield first if first == last else f"{first}-{last}"
            first = number
        last = number
    yield first if first == last else f"{first}-{last}"
