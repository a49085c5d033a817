"""The common parts of all writers: the layout of the text, and the limits of a format.

Fixed order of keys, one line per device, a newline at the end: equal clusters give equal bytes on every node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from launcher.core.frozen import frozen
from launcher.core.records import HOST_RANK, Cluster, Device, Options
from launcher.rank_table.hostfiles import is_host_name

PLAIN = ("hostfile", "rankfile", "nodelist")


def dump(value: Any) -> str:
    """Return `value` as JSON on one line, in the script it was written in.

    A lone half of a surrogate pair, which JSON allows and UTF-8 does not, is written as an escape.
    """
    text = json.dumps(value, ensure_ascii=False)
    if text.isascii():
        return text
    return json.dumps(value) if any("\ud800" <= char <= "\udfff" for char in text) else text


class Rows(NamedTuple):
    """A list that has a line for each of its entries; an object that holds one has a line for each of its members."""

    entries: Iterable[Mapping[str, Any]]


def table_text(table: Mapping[str, Any]) -> str:
    """Return a table as text. Everything but `Rows`, and what holds them, is on one line; what is None is left out."""
    return f"{_laid_out(table, 0)}\n"


def _laid_out(value: Any, indent: int) -> str:
    if isinstance(value, Rows):
        brackets, items = "[]", (_laid_out(entry, indent + 2) for entry in value.entries)
    elif not isinstance(value, dict):
        return dump(value)
    else:
        members = {key: inner for key, inner in value.items() if inner is not None}
        if Rows not in map(type, members.values()):
            return dump(members)
        brackets, items = "{}", (f'"{key}": {_laid_out(inner, indent + 2)}' for key, inner in members.items())
    lines = ",\n".join(f"{' ' * (indent + 2)}{item}" for item in items)
    return f"{brackets[0]}\n{lines}\n{' ' * indent}{brackets[1]}"


def picked(options: Options, keys: Iterable[str]) -> dict[str, str]:
    """Return the options named by `keys`, in the order of `keys`."""
    known = dict(options)
    return {key: known[key] for key in keys if key in known}


def parsed(text: str) -> Any:
    """Return the value that an option holds as JSON text; None where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Reason(NamedTuple):
    message: str
    hint: str


Limit = Callable[[Cluster], Iterator[Reason]]


def no_host_ranks(cluster: Cluster) -> Iterator[Reason]:
    ranks = [device.global_rank for device in devices_of(cluster) if device.device_id == HOST_RANK]
    if ranks:
        few = ", ".join(map(str, ranks[:3]))
        more = f" and {len(ranks) - 3} more" if len(ranks) > 3 else ""
        message = f"rank{'s' if len(ranks) > 1 else ''} {few}{more} run on the host itself (device_id -1), which only v1.1 has"
        yield Reason(message, "keep the v1.1 table, or remove these ranks")


def one_rank_per_device(cluster: Cluster) -> Iterator[Reason]:
    """Refuse two ranks on one device. In v2.0 a spare device may have the id of the one that it replaces."""
    for server in cluster.servers:
        ids = sorted(device.device_id for device in server.devices if device.device_id != HOST_RANK)
        twice = next((one for one, other in pairwise(ids) if one == other), None)
        if twice is not None:
            message = f"device {twice} of {server.server_id[:60]!r} has two ranks"
            yield Reason(message, "give each device one rank first")
            return


def equal_servers(cluster: Cluster) -> Iterator[Reason]:
    first = cluster.servers[0]
    for server in cluster.servers:
        if len(server.devices) != len(first.devices):
            message = (
                f"all servers need equally many devices: {first.server_id[:60]!r} has {len(first.devices)}, "
                f"{server.server_id[:60]!r} has {len(server.devices)}"
            )
            yield Reason(message, "v1.0 and rankfile take any number")
            return


def plain_host_names(cluster: Cluster) -> Iterator[Reason]:
    for server in cluster.servers:
        if not is_host_name(server.server_id):
            message = f"{server.server_id[:60]!r} cannot be the name of a host"
            yield Reason(message, "write the servers' names or addresses as server_id first")
            return


def devices_of(cluster: Cluster) -> Iterator[Device]:
    return (device for server in cluster.servers for device in server.devices)


@frozen
class Target:
    """One way to write a cluster down. Invariant: `write` gets only clusters without keys outside `keys`."""

    name: str  # `Format.value`, or the name of a file for another launcher
    write: Callable[[Cluster], str]
    keys: frozenset[str] = frozenset()  # what it has a place for, beside servers, devices and ranks
    limits: tuple[Limit, ...] = ()
    advice: Callable[[Cluster], Iterator[str]] = lambda _: iter(())  # what a person should know about the result
    is_table: bool = True  # False: it names hosts and slots for another launcher; all else stays in the table


DEVICE_LIMITS = (no_host_ranks, one_rank_per_device)
