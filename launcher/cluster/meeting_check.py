"""A check before the start that every server can resolve MASTER_ADDR, the rendezvous address of the ranks.

Agents connect to the coordinator by its addresses, so a server can join even if its ranks cannot resolve MASTER_ADDR.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from launcher.cluster.engine_output import listed
from launcher.core import env
from launcher.core.errors import RefusedLayoutError
from launcher.core.machine.interfaces import address_of, addresses_of
from launcher.core.records import RunSpec
from launcher.doctor.network_facts import patience_s, resolve
from launcher.engines.assemble import Request
from launcher.logs.terminal import escaped

LOOKS = 3  # a name server may be busy when thousands of servers ask it at once
AGAIN_S = 1.0
HINT = (
    "add it to /etc/hosts or DNS there, or use addresses in the rank table; `tlaunch doctor` checks all names "
    "of the table"
)


def resolved_meeting(spec: RunSpec, request: Request) -> tuple[str, ...] | None:
    """Resolve MASTER_ADDR on this server and return its addresses. Return None if ranks need not resolve it.

    Empty if it cannot be resolved. Ranks do not resolve an address, or any name if they use MPI. Blocks for at most
    `patience_s(1)` and a few seconds.
    """
    name = spec.master_addr
    if request.mpi_ranks or address_of(name):
        return None
    for look in range(LOOKS):
        if look:
            time.sleep(AGAIN_S)
        found = resolve([name], patience_s(1))[name]
        if found.addresses or not found.answered:
            break
    return found.addresses


def unresolved(
    name: str, found: Mapping[int, tuple[str, ...]], hosts: Mapping[int, str], first: int, server_ids: Sequence[str]
) -> RefusedLayoutError | None:
    """Return an error if a server cannot resolve `name` or resolves it to its own loopback address, else None.

    `name` is that of server `first`. If no server can resolve it, it is only a label, and None is returned.
    `found` has the addresses of `name`, and `hosts` the hostnames, by server index.
    """
    unknown = [server_ids[index] for index in sorted(found) if not found[index]]
    own = [
        server_ids[index]
        for index, addresses in sorted(found.items())
        if addresses
        and all(one.is_loopback for one in addresses_of(addresses))
        and hosts.get(index) != hosts.get(first)  # in a trial run several servers may be one machine
    ]
    if unknown and len(unknown) < len(found):
        return RefusedLayoutError(
            f"{env.MASTER_ADDR} {escaped(name)} cannot be resolved on {listed(unknown)}", hint=HINT
        )
    if own:
        return RefusedLayoutError(
            f"{env.MASTER_ADDR} {escaped(name)} is a loopback address on {listed(own)}: its ranks would look for rank 0 on "
            "their own machine",
            hint=HINT,
        )
    return None
