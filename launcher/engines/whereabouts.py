"""Whether this machine is the server on which a rank table has a rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.core.ranges import ranges
from launcher.core.records import Cluster, RankSpec, Server

SHOWN = 4  # servers in a hint; the others are left out
Address = IPv4Address | IPv6Address


@frozen
class Host:
    """Facts about this machine."""

    name: str
    addresses: frozenset[Address]  # of its interfaces
    resolved: tuple[tuple[str, frozenset[Address]], ...] = ()  # what names of servers mean here, as far as asked for


def read_host(names: Iterable[str] = ()) -> Host:
    """This machine, and what those of `names` mean here that it does not know as its own. Asks the resolver for them."""
    import psutil  # noqa: PLC0415 - only commands that need it load it

    own = os.uname().nodename
    found = (entry.address for entries in psutil.net_if_addrs().values() for entry in entries)
    addresses = frozenset(address for text in found if (address := _address(text)))
    unknown = dict.fromkeys(name for name in names if _address(name) is None and not _same_name(name, own))
    return Host(own, addresses, tuple((name, _resolve(name)) for name in unknown))


def names_of(server: Server) -> tuple[str, ...]:
    """All that a table calls the server itself, its id first."""
    container_ip = dict(server.options).get("container_ip")
    others = (server.host_ip, server.host_nic_ip, container_ip)
    return (server.server_id, *(name for name in others if name and _address(name)))


def is_here(server: Server, host: Host) -> bool:
    return any(_is_called(name, host) for name in names_of(server))


def is_everywhere(server: Server) -> bool:
    """Whether any machine could call itself so."""
    address = _address(server.server_id)
    return server.server_id == "localhost" or (address is not None and address.is_loopback)


def check_server(rank: RankSpec, used: Cluster, host: Host, said: str | None, local_size: int | None) -> str | None:
    """What is worth a warning about `rank` being here; `said` names this machine's server, whatever it looks like.

    `local_size` is how many ranks the engine started here, where it tells.

    Raises:
        UsageError: `said` is none of the servers.
        RefusedLayoutError: the table has this rank on another machine.
    """
    server = used.servers[rank.server_index]
    if said is not None:
        _check_said(said, rank, used)
        return None
    here = is_here(server, host)
    if len(used.servers) == 1:
        if not here or is_everywhere(server):
            _check_all_are_here(server, local_size)
        return (
            None
            if here
            else f"server {server.server_id} of the rank table is not known to be this machine, {host.name}"
        )
    if not here:
        raise RefusedLayoutError(
            f"rank {rank.global_rank} is on {_described(used, host)}, and {_wanted(server)}",
            hint=_hint_order(used),
        )
    return None


def _check_said(said: str, rank: RankSpec, used: Cluster) -> None:
    if said not in {server.server_id for server in used.servers}:
        raise UsageError(
            f"--server {said}: the rank table has no such server",
            hint=f"its servers are {_listed([server.server_id for server in used.servers])}",
        )
    if said != rank.server_id:
        raise RefusedLayoutError(
            f"rank {rank.global_rank} is on server {said} (--server), and {_wanted(used.servers[rank.server_index])}",
            hint=_hint_order(used),
        )


def _check_all_are_here(server: Server, local_size: int | None) -> None:
    """Nothing but their number can tell that ranks of one server were spread over several."""
    if local_size is not None and local_size < len(server.devices):
        raise RefusedLayoutError(
            f"all {len(server.devices)} ranks belong on one server, and the engine has started {local_size} on this one",
            hint="start all of them on one server, or give a --rank-table that names every server; "
            f"if they are all here, --server {server.server_id} says so",
        )


def _described(used: Cluster, host: Host) -> str:
    known = next((server.server_id for server in used.servers if is_here(server, host)), None)
    if known is None:
        return f"{host.name}, which is none of the table's servers"
    return f"server {known}" if known == host.name else f"server {known} ({host.name})"


def _wanted(server: Server) -> str:
    which = ranges(device.global_rank for device in server.devices)
    return f"the rank table has rank{'s' * (len(server.devices) > 1)} {which} on server {server.server_id}"


def _hint_order(used: Cluster) -> str:
    slots = [f"{server.server_id} slots={len(server.devices)}" for server in used.servers]
    return (
        f"name the hosts in the order of the table, each with as many ranks as devices: {_listed(slots)}; "
        "where a machine has another name, --server or TLAUNCH_SERVER tells which server it is"
    )


def _listed(words: list[str]) -> str:
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")


def _is_called(name: str, host: Host) -> bool:
    address = _address(name)
    if address is not None:
        return address.is_loopback or address in host.addresses
    if name == "localhost" or _same_name(name, host.name):
        return True
    meant = dict(host.resolved).get(name, frozenset())
    return any(address in host.addresses and not address.is_loopback for address in meant)


def _same_name(one: str, other: str) -> bool:
    """h2 is h2.example.org; two full names are the same only if they are equal."""
    one, other = one.casefold(), other.casefold()
    short = "." not in one or "." not in other
    return one == other or (short and one.partition(".")[0] == other.partition(".")[0])


def _address(text: str) -> Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _resolve(name: str) -> frozenset[Address]:
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(name, None)
        return frozenset(address for *_, where in found if (address := _address(str(where[0]))))
    return frozenset()
