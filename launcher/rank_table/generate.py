"""Build the cluster of a new table from names, counts and addresses. Machines are queried by `discover`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import NamedTuple

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Device, Server
from launcher.core.text import printable
from launcher.rank_table.devices import DEVICE_ID_LIMIT, MAX_DEVICES, FoundDevice
from launcher.rank_table.hostfiles import MAX_COUNT, Place, is_host_name
from launcher.rank_table.ip import address_family, is_unspecified, packed_address, what_it_is_instead
from launcher.rank_table.model import SERVER_ID_LIMIT
from launcher.rank_table.nodelists import expand

HARDWARE = "hardware_type"  # "gpu" or "cpu": the table is not for HCCL


class Note(NamedTuple):
    text: str
    is_warning: bool = False


@frozen
class Machine:
    """A server of the rank table to generate, with its devices in rank order."""

    server_id: str
    devices: tuple[FoundDevice, ...]
    host_ip: str | None = None
    options: tuple[tuple[str, str], ...] = ()  # see `Server.options`


@frozen
class Generated:
    cluster: Cluster
    notes: tuple[Note, ...]


def devices_per_server(text: str, servers: int) -> tuple[int, ...]:
    """Return the number of devices of each server. `text` has one number for all servers, or one per server.

    Raises:
        UsageError: a count is invalid, or the list has the wrong length.
    """
    counts = []
    for part in map(str.strip, text.split(",")):
        if not re.fullmatch("[0-9]{1,9}", part):
            raise UsageError(f'--devices: "{printable(part[:40])}" is not a number', hint='write "8", or "8,8"')
        counts.append(int(part))
        if not 1 <= counts[-1] <= MAX_DEVICES:
            message = f"--devices {counts[-1]}: a server has 1 to {MAX_DEVICES} devices"
            raise UsageError(message, hint="give the number of devices per server")
    if len(counts) == 1:
        return tuple(counts * servers)
    if len(counts) != servers:
        raise UsageError(
            f"--devices has {len(counts)} counts for {servers} server{'s' * (servers > 1)}",
            hint="give one count per server, or one count for all servers",
        )
    return tuple(counts)


def parse_servers(text: str) -> tuple[str, ...]:
    """Return the names in a list such as "10.0.0.1,10.0.0.2" or Slurm's "node[1-3]", in the given order.

    Raises:
        UsageError: brackets do not match, HCCL would refuse a name, or a name is repeated.
    """
    names = tuple(name.strip() for name in text.split(","))
    if "[" in text or "]" in text:
        names = (*(name for name in names if not name), *expand(text, Place("--servers")))
    for name in names:
        check_server_id(name, "--servers")
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(f'--servers names "{repeated[0]}" twice', hint="name each server once")
    return names


def check_server_id(name: str, origin: str) -> None:
    """Raise an error if `name` is not a valid server_id.

    Raises:
        UsageError: the name is empty, too long, or not a valid host name for launchers.
    """
    if not name:
        raise UsageError(f"{origin}: a server's name is empty", hint="give the server's address or host name")
    if not is_host_name(name):
        raise UsageError(
            f'{origin}: "{printable(name[:40])}" is not a valid server name',
            hint="use only letters, digits, `.`, `_`, `-`, `%` and `:`",
        )
    if (length := len(name.encode())) > SERVER_ID_LIMIT:
        raise UsageError(
            f'{origin}: "{name[:20]}..." has {length} bytes, but HCCL allows {SERVER_ID_LIMIT}',
            hint="give the server's address, or a shorter unique name",
        )


def check_address(address: str, origin: str) -> None:
    """Raise an error if HCCL cannot use `address`.

    Raises:
        UsageError: it is not an IP address, or it is the unspecified one.
    """
    packed = packed_address(address)
    if packed is None or is_unspecified(packed):
        wrong = what_it_is_instead(address, "network card")
        message = f'{origin}: "{printable(address[:45])}" is {wrong}'
        raise UsageError(message, hint="give the IP address of the network card")


def build_cluster(machines: Sequence[Machine], *, hardware: str | None = None, sort: bool = False) -> Generated:
    """Assign ranks to all devices, server by server. If `sort` is set, servers are sorted by name first.

    `hardware` ("gpu") is stored in the table. Addresses come only from `machines`. If several servers have no device
    addresses, their own addresses become host_ip. If their names are not addresses, the table is for CPU or GPU runs.

    Raises:
        UsageError: there is no server, a server has no devices, there are too many devices, or HCCL does not support a
            server or a device id.
    """
    if not machines or not all(machine.devices for machine in machines):
        raise UsageError("there is no device", hint="give the number of devices with --devices N")
    if (total := sum(len(machine.devices) for machine in machines)) > MAX_COUNT:
        raise UsageError(f"{total:,} devices exceed the limit of {MAX_COUNT:,}", hint="check the counts")
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
                f'server "{server.server_id}" would have device {highest}, but HCCL allows 0 to {DEVICE_ID_LIMIT - 1}',
                hint="for more devices, create a table for CPUs or GPUs: use --nvidia-smi, or several host names in --servers",
            )
    for before, server in pairwise(cluster.servers):
        if server.server_id < before.server_id:
            text = (
                f'"{server.server_id}" gets higher ranks than "{before.server_id}", but is first in dictionary '
                "order, which MindSpore expects: use --sort to assign ranks in that order"
            )
            return Generated(cluster, (Note(text, is_warning=True), *notes))
    return Generated(cluster, notes)


def _reachable(cluster: Cluster) -> tuple[Cluster, tuple[Note, ...]]:
    """Add the addresses that HCCL needs to connect servers. If they are unknown, mark the cluster as "cpu"."""
    servers = cluster.servers
    if len(servers) == 1 or all(device.device_ip for server in servers for device in server.devices):
        return cluster, ()
    if all(address_family(server.server_id) for server in servers):
        note = (
            "the devices have no device_ip, so each server's address becomes its host_ip: HCCL will use the servers' "
            "network cards, except on Atlas A2, which always needs device_ip between servers; to use the devices' "
            "cards, run `table generate --hccn-tool` on each server and merge the tables"
        )
        return Cluster(tuple(replace(server, host_ip=server.server_id) for server in servers)), (Note(note),)
    note = (
        "this table is for runs on CPU or GPU: between servers, HCCL needs the device_ip of every device (run `table "
        "generate --hccn-tool` on each server and merge the tables), or addresses in --servers"
    )
    return Cluster(marked_as_cpu(servers)), (Note(note),)


def marked_as_cpu(servers: Iterable[Server]) -> tuple[Server, ...]:
    """Set the hardware_type of each server to "cpu", unless the server already has a hardware_type."""
    options = {HARDWARE: "cpu"}
    return tuple(
        replace(server, options=tuple(sorted({**options, **dict(server.options)}.items()))) for server in servers
    )
