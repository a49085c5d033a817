"""Match machines with the servers of a rank table, by names and addresses."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.interfaces import (
    Address,
    address_of,
    addresses_of,
    are_on_loopback,
    held_addresses,
    interface_of,
    names_of,
)
from launcher.core.records import Cluster, RankSpec, Server
from launcher.core.text import ranges, some_of
from launcher.doctor.network_facts import patience_s, resolve
from launcher.logs.terminal import escaped

_HOST_NAME = re.compile(r"\w[\w.-]*")
SHOWN = 4  # servers listed in a hint


@frozen
class Host:
    name: str
    addresses: frozenset[Address]  # of its network interfaces
    # Addresses that this machine resolves for server names, as far as requested.
    resolved: tuple[tuple[str, frozenset[Address]], ...] = ()
    other_names: tuple[str, ...] = ()  # other names for it: Slurm's name of a node can differ from the host name


def read_host(names: Iterable[str] = (), *, other_names: tuple[str, ...] = ()) -> Host:
    """Describe this machine, and resolve the `names` that belong to other machines. Blocks while resolving."""
    own = os.uname().nodename
    called = (own, *other_names)
    addresses = frozenset(held.address for held in held_addresses())
    unknown = dict.fromkeys(name for name in names if address_of(name) is None and not _among(called, name))
    meanings = resolve(unknown, patience_s(len(unknown)))
    resolved = tuple((name, addresses_of(found.addresses)) for name, found in meanings.items())
    return Host(own, addresses, resolved, other_names)


def own_interface(servers: Sequence[Server], index: int) -> str | None:
    """Return the network interface that ranks on this machine (servers[index]) use to reach other servers.

    None lets libraries choose. A single server needs none: its ranks use loopback, which gloo finds without a network.
    Blocks while the server's name is resolved, if the table has no address.
    """
    if len(servers) == 1:
        return None
    called = names_of(servers[index])
    unknown = () if any(map(address_of, called)) else called
    meanings = {name: addresses_of(found.addresses) for name, found in resolve(unknown, patience_s(1)).items()}
    return interface_of(called, held_addresses(), meanings, on_loopback=are_on_loopback(servers))


class ServerIndex:
    """An index of a table's servers by name and address. It is fast enough to look up thousands of machines."""

    def __init__(self, servers: Sequence[Server], resolved: Iterable[tuple[str, frozenset[Address]]] = ()) -> None:
        self.servers = tuple(servers)
        self._resolved = dict(resolved)
        self._by_address: dict[Address, set[int]] = {}
        self._by_name: dict[str, set[int]] = {}  # up to the first dot
        for index, server in enumerate(servers):
            for name in names_of(server):
                address = address_of(name)
                if address is None:
                    self._by_name.setdefault(_short(name), set()).add(index)
                for meant in self._resolved.get(name, ()) if address is None else (address,):
                    self._by_address.setdefault(meant, set()).add(index)

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {server.server_id: index for index, server in enumerate(self.servers)}

    def find(self, host: str, addresses: frozenset[Address], other_names: tuple[str, ...] = ()) -> tuple[int, ...]:
        """Return the indices of the servers that match a machine. Names shared by several servers are ignored."""
        alone = len(self.servers) == 1
        # All candidates, possibly too many.
        named = (self._by_name.get(_short(name), ()) for name in (host, *other_names))
        known_by = (self._by_address.get(address, ()) for address in addresses)
        candidates = (0,) if alone else sorted({*chain.from_iterable(named), *chain.from_iterable(known_by)})
        names = (name for index in candidates for name in names_of(self.servers[index]))
        meant = tuple((name, self._resolved[name]) for name in dict.fromkeys(names) if name in self._resolved)
        known = Host(host, addresses, meant, other_names)
        fitting = [_fitting(self.servers[index], known, alone=alone) for index in candidates]
        claims = Counter(fact for facts in fitting for fact in facts)
        return tuple(
            index for index, facts in zip(candidates, fitting, strict=True) if any(claims[fact] == 1 for fact in facts)
        )


def local_servers(servers: Sequence[Server], host: Host) -> tuple[Server, ...]:
    """Return the servers of a table that match this machine. To look up many machines, use `ServerIndex`."""
    found = ServerIndex(servers, host.resolved).find(host.name, host.addresses, host.other_names)
    return tuple(servers[index] for index in found)


def doubt(server: Server, host: Host) -> str | None:
    """Return a warning if this machine does not seem to be the table's only server, else None."""
    address = address_of(server.server_id)
    # Names that no machine can have: a space, 0.0.0.0, 10.*.*.1.
    is_placeholder = _HOST_NAME.fullmatch(server.server_id) is None if address is None else address.is_unspecified
    if is_placeholder or local_servers((server,), host):
        return None
    name = escaped(server.server_id)
    return (
        f"server {name} of the rank table does not seem to be this machine, {_called(host)} "
        f"(to confirm that it is: --server {name})"
    )


def is_everywhere(server: Server) -> bool:
    """Return True if any machine could have this name or address, such as localhost."""
    address = address_of(server.server_id)
    return server.server_id == "localhost" or (address is not None and address.is_loopback)


def is_local(name: str) -> bool:
    """Return True if the name or address belongs to this machine. May block to resolve a name."""
    host = read_host([name])
    address = address_of(name)
    if address is None and _same_name(name, host.name):
        return True
    meant = dict(host.resolved).get(name, frozenset()) if address is None else {address}
    return any(one.is_loopback or one in host.addresses for one in meant)


def check_server(rank: RankSpec, used: Cluster, host: Host, said: str | None, local_size: int | None) -> str | None:
    """Check that the rank table places `rank` on this machine. Return a warning, or None if the machine matches.

    `said`: the server named by the user. `local_size`: number of ranks that the engine started here, if known.

    Raises:
        UsageError: `said` is not one of the servers.
        RefusedLayoutError: the table has this rank on another machine.
    """
    server = used.servers[rank.server_index]
    if said is not None:
        if said not in {server.server_id for server in used.servers}:
            raise UsageError(
                f"--server {said} is not a server in the rank table",
                hint=f"use one of its servers: {some_of([server.server_id for server in used.servers], SHOWN)}",
            )
        if said != rank.server_id:
            raise _elsewhere(rank, f"server {said} (--server)", used)
        return None
    here = server in local_servers(used.servers, host)
    if len(used.servers) == 1:
        # Only their number shows that ranks of one server were spread over several.
        spread = local_size is not None and local_size < len(server.devices)
        if spread and (not here or is_everywhere(server)):
            raise RefusedLayoutError(
                f"the rank table has one server with {len(server.devices)} ranks, but the engine started only "
                f"{local_size} on this machine",
                hint="start all ranks on one server, or list every server in --rank-table; "
                f"if all ranks are on this machine, add --server {server.server_id}",
            )
        return doubt(server, host)
    if not here:
        raise _elsewhere(rank, _described(used, host), used)
    return None


def _described(used: Cluster, host: Host) -> str:
    known = next((server.server_id for server in local_servers(used.servers, host)), None)
    if known is not None:
        return f"server {known}" if known == host.name else f"server {known} ({host.name})"
    alike = [server.server_id for server in used.servers if _fitting(server, host, alone=False)]
    if alike:
        return f"{_called(host)}, which matches several servers: {some_of(alike, SHOWN)}"
    return f"{_called(host)}, which is not one of the table's servers"


def _called(host: Host) -> str:
    other = next((name for name in host.other_names if not _same_name(name, host.name)), None)
    return host.name if other is None else f"{other} ({host.name})"


def _elsewhere(rank: RankSpec, where: str, used: Cluster) -> RefusedLayoutError:
    server = used.servers[rank.server_index]
    which = ranges(device.global_rank for device in server.devices)
    wanted = f"the rank table has rank{'s' * (len(server.devices) > 1)} {which} on server {server.server_id}"
    slots = [f"{server.server_id} slots={len(server.devices)}" for server in used.servers]
    return RefusedLayoutError(
        f"rank {rank.global_rank} is on {where}, but {wanted}",
        hint=f"list the hosts in the order of the rank table, with one rank per device: {some_of(slots, SHOWN)}; "
        "if a machine has a different name in the rank table, set --server or TLAUNCH_SERVER on that machine",
    )


def _fitting(server: Server, host: Host, *, alone: bool) -> set[Address | str]:
    """Return the names and addresses that the server and this machine share. Include localhost only with `alone`."""
    facts: set[Address | str] = set()
    for name in names_of(server):
        address = address_of(name)
        if own := _among((host.name, *host.other_names), name) if address is None else ():
            facts.update(own)
            continue
        meant = {address} if address is not None else dict(host.resolved).get(name, frozenset())
        facts.update(one for one in meant if one in host.addresses and not one.is_loopback)
    return facts | {"localhost"} if alone and is_everywhere(server) else facts


def _among(own: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(one for one in own if _same_name(name, one))


def _same_name(one: str, other: str) -> bool:
    """Return True if two host names match. h2 matches h2.example.org, but full names must be equal."""
    one, other = one.casefold(), other.casefold()
    short = "." not in one or "." not in other
    return one == other or (short and _short(one) == _short(other))


def _short(name: str) -> str:
    return name.casefold().partition(".")[0]
