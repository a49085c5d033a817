"""From names, counts and addresses to the cluster of a new table. Asks no machine: `discover` does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import NamedTuple

from launcher.core.errors import UsageError
from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.faults import printable
from launcher.rank_table.ip import address_family

ASCEND_VARIABLES = ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")  # the first one that is set counts
CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
DEVICE_ID_LIMIT = 32  # ids are 0 .. 31 on the largest server that HCCL knows
MOST_DEVICES = 4096  # on one server, in tables for CPU or GPU
SERVER_ID_LIMIT = 64  # bytes
UNSET = ("", "-.-.-.-")  # what the driver's tools and files say where no address is set
_ID_OR_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_UUID = re.compile(r"(GPU|MIG)-", re.IGNORECASE)


class FoundDevice(NamedTuple):
    """A device that a machine has, or is said to have."""

    device_id: int  # physical
    device_ip: str | None = None  # None where none is set; never invented


@dataclass(frozen=True)
class Machine:
    """A server to be, its devices in the order of their ranks."""

    server_id: str
    devices: tuple[FoundDevice, ...]
    host_ip: str | None = None


@dataclass(frozen=True)
class Generated:
    cluster: Cluster
    notes: tuple[str, ...]  # "note: ..." and "warning: ...": what a person should know before the table is used


def parse_device_ids(text: str, origin: str) -> tuple[int, ...]:
    """The ids that a list such as "0-3,6" names, in the order written. `origin` is the option or variable it is from.

    Raises:
        UsageError: no such list, an id twice, or one that no server has.
    """
    ids = [one for part in text.split(",") for one in _id_or_range(part.strip(), origin)]
    if repeated := [one for one, times in Counter(ids).items() if times > 1]:
        raise UsageError(f"{origin} names device {repeated[0]} twice", hint="each device gets one rank")
    return tuple(ids)


def _id_or_range(part: str, origin: str) -> range:
    match = _ID_OR_RANGE.fullmatch(part)
    if match is None:
        raise UsageError(f'{origin}: "{printable(part[:40])}" is no device id', hint='for instance "0-3,6"')
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise UsageError(f'{origin}: the range "{part}" runs backwards', hint=f'write "{last}-{first}"')
    if last >= MOST_DEVICES:
        raise UsageError(
            f"{origin} names device {last}, a server has at most {MOST_DEVICES}", hint="ids start at 0 on each server"
        )
    return range(first, last + 1)


def visible_devices(environment: Mapping[str, str], names: Sequence[str]) -> tuple[str, tuple[int, ...]] | None:
    """The first variable of `names` that is set, and the ids it lets be seen; None where none is set.

    Raises:
        UsageError: it is empty, hides all devices, or holds UUIDs.
    """
    name = next((name for name in names if name in environment), None)
    if name is None:
        return None
    parts = [part.strip() for part in environment[name].split(",")]
    if name in CUDA_VARIABLES and "-1" in parts:  # CUDA ignores what follows it
        parts = parts[: parts.index("-1")]
    if not any(parts):
        raise UsageError(f"{name} lets no device be seen", hint=f"unset {name}, or choose with --device-ids")
    if uuid := next((part for part in parts if _UUID.match(part)), None):
        raise UsageError(
            f"{name} names {printable(uuid[:44])}, and a table holds numbers",
            hint="`nvidia-smi -L` shows its number: choose with --device-ids",
        )
    return name, parse_device_ids(",".join(parts), name)


def select_devices(found: Sequence[FoundDevice], ids: Iterable[int], origin: str) -> tuple[FoundDevice, ...]:
    """Those of `found` that `ids` names, in the order of `ids`.

    Raises:
        UsageError: `origin` names a device that was not found.
    """
    by_id = {device.device_id: device for device in found}
    wanted = tuple(ids)
    if missing := [one for one in wanted if one not in by_id]:
        raise UsageError(
            f"{origin} names {name_devices(missing)}, which this machine does not have",
            hint=f"it has {name_devices(by_id)}",
        )
    return tuple(by_id[one] for one in wanted)


def name_devices(ids: Iterable[int]) -> str:
    """In words.

    >>> name_devices([0, 1, 2, 3, 6]), name_devices([5])
    ('devices 0-3,6', 'device 5')
    """
    runs: list[list[int]] = []
    for one in sorted(ids):
        if runs and runs[-1][-1] == one - 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    words = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"device{'' if words.isdigit() else 's'} {words}"


def devices_per_server(text: str, servers: int) -> tuple[int, ...]:
    """How many devices each of `servers` servers has: one count for all, or a list with one for each.

    Raises:
        UsageError: no count, a count that no server can have, or a list of another length.
    """
    counts = [_count(part.strip()) for part in text.split(",")]
    if len(counts) == 1:
        return tuple(counts * servers)
    if len(counts) != servers:
        raise UsageError(
            f"--devices gives {len(counts)} counts, and there {_are(servers, 'server')}",
            hint="give one count for each server, or a single one for all",
        )
    return tuple(counts)


def _count(part: str) -> int:
    number = int(part) if re.fullmatch("[0-9]{1,9}", part) else None
    if number is None:
        raise UsageError(f'--devices: "{printable(part[:40])}" is no number', hint='for instance "8", or "8,8,4"')
    if not 1 <= number <= MOST_DEVICES:
        raise UsageError(f"--devices {number}: a server has 1 to {MOST_DEVICES} devices", hint="count them per server")
    return number


def parse_servers(text: str) -> tuple[str, ...]:
    """The names in a list such as "10.0.0.1,10.0.0.2", in the order written.

    Raises:
        UsageError: a name that HCCL would refuse, or one that stands there twice.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        check_server_id(name, "--servers")
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(f'--servers names "{repeated[0]}" twice', hint="each server stands in a table once")
    return names


def check_server_id(name: str, origin: str) -> None:
    """Make sure that `name` can be a server_id.

    Raises:
        UsageError: it is empty, too long, or not one word of printable characters.
    """
    if not name:
        raise UsageError(f"{origin}: a server's name is empty", hint="give its address or its host name")
    if not name.isprintable() or " " in name:
        raise UsageError(f'{origin}: "{printable(name[:40])}" is no name of a server', hint="one word, no blanks")
    if (length := len(name.encode())) > SERVER_ID_LIMIT:
        raise UsageError(
            f'{origin}: "{name[:20]}..." has {length} bytes, HCCL allows {SERVER_ID_LIMIT}',
            hint="give its address, or any shorter name; it only has to be unique",
        )


def check_host_ip(address: str) -> None:
    """Make sure that HCCL can read `address`.

    Raises:
        UsageError: it is no IP address.
    """
    if address_family(address) is None:
        raise UsageError(
            f'--host-ip: "{printable(address[:45])}" is no IP address', hint="give the address of the network card"
        )


def build_cluster(machines: Sequence[Machine], *, hardware: str | None = None, sort: bool = False) -> Generated:
    """Give ranks to all devices, server by server in the order given, or in dictionary order when asked to `sort`.

    `hardware` ("gpu") is written down where it is known. Addresses come from `machines` alone: several servers without
    any get their own addresses as host_ip, and a table for CPU or GPU runs where their names are none.

    Raises:
        UsageError: there is no server, one without devices, or a device that HCCL cannot know.
    """
    if not machines or not all(machine.devices for machine in machines):
        raise UsageError("there is no device to write down", hint="--devices N says how many there are")
    ordered = sorted(machines, key=lambda machine: machine.server_id) if sort else list(machines)
    ranks = count()
    cluster = Cluster(tuple(_server(machine, ranks, hardware) for machine in ordered))
    cluster, notes = _reachable(cluster)
    _refuse_high_ids(cluster)
    return Generated(cluster, (*_order_notes(cluster), *notes))


def _server(machine: Machine, ranks: Iterator[int], hardware: str | None) -> Server:
    devices = tuple(Device(found.device_id, next(ranks), found.device_ip) for found in machine.devices)
    options = () if hardware is None else (("hardware_type", hardware),)
    return Server(machine.server_id, devices, host_ip=machine.host_ip, options=options)


def _reachable(cluster: Cluster) -> tuple[Cluster, tuple[str, ...]]:
    """Between servers HCCL needs addresses, of the devices or of the servers."""
    servers = cluster.servers
    if len(servers) == 1 or all(device.device_ip for server in servers for device in server.devices):
        return cluster, ()
    if all(address_family(server.server_id) for server in servers):
        note = (
            "note: the devices have no device_ip, so each server's name is written as its host_ip: HCCL will talk over the "
            "servers' own network cards; for the devices' cards, merge what `--hccn-tool` writes on each server"
        )
        return Cluster(tuple(replace(server, host_ip=server.server_id) for server in servers)), (note,)
    note = (
        "note: this table is for runs on CPU or GPU: between servers HCCL needs the device_ip of every device (merge what "
        "`--hccn-tool` writes on each server), or addresses as --servers"
    )
    return Cluster(tuple(_without_hccl(server) for server in servers)), (note,)


def _without_hccl(server: Server) -> Server:
    return server if server.options else replace(server, options=(("hardware_type", "cpu"),))


def _refuse_high_ids(cluster: Cluster) -> None:
    for server in cluster.servers:
        highest = max(device.device_id for device in server.devices)
        if highest >= DEVICE_ID_LIMIT and not server.options:
            raise UsageError(
                f'server "{server.server_id}" would have device {highest}, HCCL knows 0 to {DEVICE_ID_LIMIT - 1}',
                hint="tables for CPU or GPU may have more: --nvidia-smi, or several --servers by host name",
            )


def _order_notes(cluster: Cluster) -> Iterator[str]:
    for before, server in pairwise(cluster.servers):
        if server.server_id < before.server_id:
            yield (
                f'warning: "{server.server_id}" gets higher ranks than "{before.server_id}", but comes first in dictionary '
                "order, which MindSpore expects: --sort gives ranks in that order"
            )
            return


def _are(number: int, noun: str) -> str:
    return f"is 1 {noun}" if number == 1 else f"are {number} {noun}s"
