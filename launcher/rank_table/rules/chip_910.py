"""What older chips ask for: a 910 server is two rings of four devices, and all servers of a job are alike."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.formats import Format
from launcher.rank_table.groups import GroupTable
from launcher.rank_table.rows import ServerRow, Table

COUNTS = frozenset({1, 2, 4, 8})
UNCOUNTED = frozenset({Format.V1_1, Format.V2_0})  # HCCL does not look at the sets of devices there
QUARTETS = frozenset(
    map(
        frozenset,
        (
            (0, 1, 2, 3),
            (4, 5, 6, 7),
            (0, 1, 4, 5),
            (0, 2, 4, 6),
            (0, 3, 4, 7),
            (1, 2, 5, 6),
            (1, 3, 5, 7),
            (2, 3, 6, 7),
        ),
    )
)


@rule("RT341", "a number of devices that a 910 server cannot use", ascend_only=True)
def device_count_odd(table: Table) -> Iterator[Finding]:
    """A job uses 1, 2, 4 or 8 devices of a 910 server."""
    for server in _servers(table):
        if len(server.devices) not in COUNTS:
            message = f"a 910 server is used with 1, 2, 4 or 8 devices, not {len(server.devices)}"
            yield Finding(server.at("device"), message, _nearest_counts(len(server.devices)))


@rule("RT342", "servers with different numbers of devices", ascend_only=True)
def device_counts_differ(table: Table) -> Iterator[Finding]:
    """A job uses the same number of devices on each server, where those are 910 or 300I. Other chips do not mind.

    Nor does HCCL in a v1.1 table, whose ranks may compute on hosts.
    """
    servers = _counted(table) if table.chip.equal_servers and table.format not in UNCOUNTED else ()
    for server in servers[1:]:
        if len(server.devices) != len(servers[0].devices):
            expected = len(servers[0].devices)
            message = f"the first server has {expected} device{'s' * (expected > 1)}, this one {len(server.devices)}"
            yield Finding(server.at("device"), message, _equalised(len(server.devices), expected))


@rule("RT343", "four devices that a 910 server cannot join", ascend_only=True)
def quartet_unconnected(table: Table) -> Iterator[Finding]:
    """Four devices of a 910 server must form a ring: one of the two groups of four, or two pairs across them."""
    for server in _servers(table):
        ids = frozenset(device.device_id for device in server.devices if device.device_id is not None)
        if len(server.devices) == 4 and len(ids) == 4 and max(ids) < 8 and ids not in QUARTETS:
            message = f"devices {', '.join(map(str, sorted(ids)))} of a 910 server do not form a ring"
            yield Finding(server.at("device"), message, "use 0 1 2 3, 4 5 6 7, or two pairs such as 0 1 4 5")


def _equalised(count: int, first: int) -> str:
    change = f"add {first - count} here" if count < first else f"remove {count - first} here"
    return f"{change}, or change the other servers: each has as many as the first"


def _nearest_counts(count: int) -> str:
    fewer = max(usable for usable in COUNTS if usable < count)
    more = min((usable for usable in COUNTS if usable > count), default=None)
    hint = f"remove {count - fewer} of these entries to use {fewer}"
    return hint if more is None else f"{hint}, or add {more - count} to use {more}"


def _servers(table: Table) -> tuple[ServerRow, ...]:
    return _counted(table) if table.chip.is_910 and table.format not in UNCOUNTED else ()


def _counted(table: Table) -> tuple[ServerRow, ...]:
    """Servers whose devices can be counted: all of them, unless a list is broken or an instance does not say where it is."""
    if isinstance(table, GroupTable) and not table.servers_are_complete:
        return ()
    return tuple(server for server in table.servers if server.devices)
