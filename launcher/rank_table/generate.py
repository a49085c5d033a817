"""From names, counts and addresses to the cluster of a new table. Asks no machine: `discover` does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import NamedTuple, NoReturn

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Device, Server
from launcher.core.text import printable
from launcher.rank_table.devices import DEVICE_ID_LIMIT, MAX_DEVICES, FoundDevice
from launcher.rank_table.hostfiles import MAX_COUNT, Place, is_host_name
from launcher.rank_table.ip import address_family, is_unspecified, packed_address, what_it_is_instead
from launcher.rank_table.model import SERVER_ID_LIMIT
from launcher.rank_table.nodelists import expand

HARDWARE = "hardware_type"  # "gpu" or "cpu": HCCL is not meant to read the table


class Note(NamedTuple):
    """A remark for the user of the table."""

    text: str
    is_warning: bool = False


@frozen
class Machine:
    """A server to be, its devices in the order of their ranks."""

    server_id: str
    devices: tuple[FoundDevice, ...]
    host_ip: str | None = None
    options: tuple[tuple[str, str], ...] = ()  # further keys of the server, as `Server.options` has them


@frozen
class Generated:
    cluster: Cluster
    notes: tuple[Note, ...]


def devices_per_server(text: str, servers: int) -> tuple[int, ...]:
    """Return the number of devices of each of `servers` servers: one count for all, or a list with one for each.

    Raises:
        UsageError: no count, a count that no server can have, or a list of another length.
    """
    counts = []
    for part in map(str.strip, text.split(",")):
        if not re.fullmatch("[0-9]{1,9}", part):
            raise UsageError(f'--devices: "{printable(part[:40])}" is not a number', hint='for instance "8", or "8,8"')
        counts.append(int(part))
        if not 1 <= counts[-1] <= MAX_DEVICES:
            message = f"--devices {counts[-1]}: a server has 1 to {MAX_DEVICES} devices"
            raise UsageError(message, hint="count them per server")
    if len(counts) == 1:
        return tuple(counts * servers)
    if len(counts) != servers:
        raise UsageError(
            f"--devices gives {len(counts)} counts, and there {'is' if servers == 1 else 'are'} {servers} server{'s' * (servers > 1)}",
            hint="give one count for each server, or a single one for all",
        )
    return tuple(counts)


def parse_servers(text: str) -> tuple[str, ...]:
    """Return the names in a list such as "10.0.0.1,10.0.0.2" or, as Slurm writes it, "node[1-3]", in the order written.

    Raises:
        UsageError: brackets that are not understood, a name that HCCL would refuse, or one that stands there twice.
    """
    names = tuple(name.strip() for name in text.split(","))
    if "[" in text or "]" in text:
        names = (*(name for name in names if not name), *expand(text, _Option("--servers", 1)))
    for name in names:
        check_server_id(name, "--servers")
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(f'--servers names "{repeated[0]}" twice', hint="each server stands in a table once")
    return names


class _Option(Place):
    """An option in place of a file with lines."""

    __slots__ = ()

    def refuse(self, message: str, hint: str) -> NoReturn:
        raise UsageError(f"{self.name}: {message}", hint=hint)


def check_server_id(name: str, origin: str) -> None:
    """Make sure that `name` can be a server_id.

    Raises:
        UsageError: it is empty, too long, or nothing that launchers take for the name of a host.
    """
    if not name:
        raise UsageError(f"{origin}: a server's name is empty", hint="give its address or its host name")
    if not is_host_name(name):
        raise UsageError(
            f'{origin}: "{printable(name[:40])}" is not a valid server name',
            hint="one word of letters, digits and ._-%:",
        )
    if (length := len(name.encode())) > SERVER_ID_LIMIT:
        raise UsageError(
            f'{origin}: "{name[:20]}..." has {length} bytes, HCCL allows {SERVER_ID_LIMIT}',
            hint="give its address, or any shorter name; it only has to be unique",
        )


def check_address(address: str, origin: str) -> None:
    """Make sure that HCCL can read `address`.

    Raises:
        UsageError: it is no IP address, or the unspecified one.
    """
    packed = packed_address(address)
    if packed is None or is_unspecified(packed):
        wrong = what_it_is_instead(address, "network card")
        raise UsageError(
            f'{origin}: "{printable(address[:45])}" is {wrong}', hint="give the address of the network card"
        )


def build_cluster(machines: Sequence[Machine], *, hardware: str | None = None, sort: bool = False) -> Generated:
    """Give ranks to all devices, server by server in the order given, or in dictionary order when asked to `sort`.

    `hardware` ("gpu") is written down where it is known. Addresses come from `machines` alone: several servers without
    any get their own addresses as host_ip, and where their names are no addresses, a table for CPU or GPU runs.

    Raises:
        UsageError: there is no server, one without devices, more than a cluster has, or one that HCCL cannot know.
    """
    if not machines or not all(machine.devices for machine in machines):
        raise UsageError("there is no device to write down", hint="--devices N says how many there are")
    if (total := sum(len(machine.devices) for machine in machines)) > MAX_COUNT:
        raise UsageError(f"{total:,} devices are more than the {MAX_COUNT:,} of a cluster", hint="check the counts")
    ordered = sorted(machines, key=lambda machine: machine.server_id) if sort else list(machines)
    ranks = count()
    marks = {} if hardware is None else {HARDWARE: hardware}
    servers = []
    for machine in ordered:
        devices = tuple(Device(found.device_id, next(ranks), found.device_ip) for found in machine.devices)
        options = tuple(sorted({**dict(machine.options), **marks}.items()))
        servers.append(Server(machine.server_id, devices, host_ip=machine.host_ip, options=options))
    cluster, notes = _reachable(Cluster(tuple(servers)))
    for server in cluster.servers:
        highest = max(device.device_id for device in server.devices)
        if highest >= DEVICE_ID_LIMIT and HARDWARE not in dict(server.options):
            raise UsageError(
                f'server "{server.server_id}" would have device {highest}, HCCL knows 0 to {DEVICE_ID_LIMIT - 1}',
                hint="tables for CPU or GPU may have more: --nvidia-smi, or several --servers by host name",
            )
    for before, server in pairwise(cluster.servers):
        if server.server_id < before.server_id:
            text = (
                f'"{server.server_id}" gets higher ranks than "{before.server_id}", but comes first in dictionary '
                "order, which MindSpore expects: --sort gives ranks in that order"
            )
            return Generated(cluster, (Note(text, is_warning=True), *notes))
    return Generated(cluster, notes)


def _reachable(cluster: Cluster) -> tuple[Cluster, tuple[Note, ...]]:
    """Return the cluster with the addresses that HCCL needs between servers, or marked as one without HCCL."""
    servers = cluster.servers
    if len(servers) == 1 or all(device.device_ip for server in servers for device in server.devices):
        return cluster, ()
    if all(address_family(server.server_id) for server in servers):
        note = (
            "the devices have no device_ip, so each server's name is written as its host_ip: HCCL will talk over the "
            "servers' own network cards, but not on Atlas A2, which always needs device_ip between servers; for the "
            "devices' cards, merge what `--hccn-tool` writes on each server"
        )
        return Cluster(tuple(replace(server, host_ip=server.server_id) for server in servers)), (Note(note),)
    note = (
        "this table is for runs on CPU or GPU: between servers HCCL needs the device_ip of every device (merge what "
        "`--hccn-tool` writes on each server), or addresses as --servers"
    )
    return Cluster(marked_as_cpu(servers)), (Note(note),)


def marked_as_cpu(servers: Iterable[Server]) -> tuple[Server, ...]:
    """Return the servers with the hardware_type "cpu", except where they have one of their own."""
    options = {HARDWARE: "cpu"}
    return tuple(
        replace(server, options=tuple(sorted({**options, **dict(server.options)}.items()))) for server in servers
    )
