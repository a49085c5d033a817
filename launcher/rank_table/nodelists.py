"""Slurm's node lists: `node[01-04,7],login` names five hosts, without device counts.

Lists of one or several lines are read and written. Errors name the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

from launcher.core.errors import TlaunchError
from launcher.core.records import Cluster
from launcher.rank_table.hostfiles import Place, counted_cluster, is_host_name

MAX_HOSTS = 65_536  # limit for one list, so that a typo in a range does not fill the memory
_LAST_NUMBER = re.compile(r"(?P<prefix>.*?)(?P<digits>[0-9]{1,18})(?P<suffix>[^0-9]*)", re.DOTALL)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_DIGITS = re.compile(r"([0-9]+)")


def write_nodelist(cluster: Cluster) -> str:
    """Return all servers as a compressed node list on one line. All servers must have the same number of devices."""
    return f"{compress([server.server_id for server in cluster.servers])}\n"


def parse_nodelist(text: str, name: str, devices: int = 1) -> Cluster:
    """Return a cluster of the hosts in a node list of one or more lines, with `devices` devices per host.

    Raises:
        TlaunchError: brackets, ranges or names cannot be parsed, there are more than `MAX_HOSTS` hosts, or a host is
            repeated; the message starts with `name` and the line.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        place = Place(name, number)
        for host in expand(line.partition("#")[0], place, MAX_HOSTS - len(seen)):
            if host in seen:
                place.refuse(f"{host[:60]!r} is listed twice, first on line {seen[host]}", "list each host once")
            seen[host] = number
    if not seen:
        raise TlaunchError(f"{name}: the file names no host", hint="write a list of hosts, for example node[01-04]")
    return counted_cluster([(host, devices) for host in seen])


def expand(line: str, place: Place, limit: int = MAX_HOSTS) -> Iterator[str]:
    """Yield the hosts that `line` names, in order. If a name has several brackets, the last one varies fastest.

    >>> list(expand("r[1-2]n[08-09],login", Place("nodes", 1)))
    ['r1n08', 'r1n09', 'r2n08', 'r2n09', 'login']
    """
    for item in _items(line, place):
        count, alternatives = 1, []
        # Plain text and the content of brackets alternate.
        for index, part in enumerate(re.split(r"[\[\]]", item)):
            alternatives.append(_numbers(part, item, place, limit) if index % 2 else [part])
            count *= len(alternatives[-1])
            if count > limit:
                place.refuse(f"{item[:40]!r} names more than {MAX_HOSTS:,} hosts", "check the ranges")
        limit -= count
        for name in map("".join, product(*alternatives)):
            if not is_host_name(name):
                place.refuse(f"{item[:40]!r} is not a valid host name", "write node[01-04,7]")
            yield name


def order_of_slurm(cluster: Cluster) -> Iterator[str]:
    """Yield a note if Slurm would put the servers into another order."""
    names = [server.server_id for server in cluster.servers]
    # node2 comes before node10: text and number parts alternate, so parts of the same type are compared.
    split = {name: enumerate(_DIGITS.split(name)) for name in names}
    by_value = {
        name: [(len(text.lstrip("0")), text.lstrip("0")) if at % 2 else (0, text) for at, text in parts]
        for name, parts in split.items()
    }
    if names != sorted(names, key=by_value.__getitem__):
        yield (
            "Slurm sorts the nodes of `srun -w`, and ranks follow its order: to keep this order, write the names line "
            "by line into the file that SLURM_HOSTFILE names, and use `srun -m arbitrary`"
        )


def compress(names: list[str]) -> str:
    """Return a short node list in the given order. Consecutive names that differ only in the last number are combined.

    >>> compress(["node01", "node02", "node04", "login"])
    'node[01-02,04],login'
    """
    groups: list[tuple[str, str, list[str]]] = []  # the text around the last number, and each name's last number
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
    """Yield the items of a line, split at commas that are not in brackets."""
    depth, item = 0, ""
    for char in line:
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            place.refuse(f"nested or unmatched brackets: {line.strip()[:40]!r}", "write node[01-04,7]")
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
    """Return the numbers in a pair of brackets. Ranges keep leading zeros: 08-10 is 08, 09, 10."""
    numbers: list[str] = []
    for entry in map(str.strip, ranges.split(",")):
        match = _RANGE.fullmatch(entry)
        if match is None:
            place.refuse(f"{entry[:40]!r} in {item[:40]!r} is not a number or a range", "write node[01-04,7]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            place.refuse(f"the range {entry} in {item[:40]!r} runs backwards", f"write {last}-{first}")
        if int(last) - int(first) >= limit - len(numbers):
            place.refuse(f"{entry} in {item[:40]!r} names more than {MAX_HOSTS:,} hosts", "check the range")
        numbers.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return numbers


def in_ranges(numbers: Iterable[str]) -> str:
    """Return a list of numbers as text, with ranges for consecutive numbers of the same width.

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
