"""Rules of single chips: the formats that they read, the sets of devices that a server of theirs can use."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule, warning
from launcher.rank_table.model import GroupTable, ServerRow, Table
from launcher.rank_table.table_format import STRINGS, Format

A2, HALF = "a2", 8  # devices of a module, of which a server has one or two
A5 = "a5"  # has a library of its own, for v2.0 alone
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


@rule("RT207", "a format that this chip does not read", ascend_only=True)
def format_not_read(table: Table) -> Iterator[Finding]:
    """An A5 reads v2.0 and nothing else, all other chips read every format but v2.0.

    HCCL comes with one library for A5 and one for all earlier chips, and each answers to the other's tables that it
    does not support them. A table of v1.0 that a node got before its hardware was replaced is the usual case.
    """
    chip, is_newest = table.chip, table.format is Format.V2_0
    if chip.name == "auto" or not chip.is_ascend or (chip.name == A5) == is_newest:
        return
    read = "v2.0 only" if chip.name == A5 else "every format but v2.0"
    message = f"{chip.title} reads {read}, and this is another format: {table.format.title}"
    hint = f"describe the cluster in v{'2.0' if chip.name == A5 else '1.0'}, or check it for the chip that it is for"
    yield Finding(("version",) if "version" in table.fields else (), message, hint)


# A warning: a variable that the processes are given, or cards that are joined by nothing but a network, make it right.
@warning("RT428", "two halves of an A2 server that are not used alike", formats=STRINGS - {Format.V1_1})
def halves_unlike(table: Table) -> Iterator[Finding]:
    """An A2 server of sixteen devices is two modules of eight, and a device is joined to the one eight above it.

    HCCL refuses a table of one such server that does not use the same places of both, unless HCCL_INTRA_ROCE_ENABLE=1
    sends what is between them over the network.
    """
    if table.chip.name != A2 or len(table.servers) != 1:
        return
    ids = sorted({device.device_id for device in table.devices if device.device_id is not None})
    low, high = [one for one in ids if one < HALF], [one for one in ids if one >= HALF]
    if low and high and low != [one - HALF for one in high]:
        message = (
            f"devices {_listed(low)} and {_listed(high)} of an A2 server are not at the same places of its two halves"
        )
        hint = f"use devices {_listed([one + HALF for one in low])} of the second half, or set HCCL_INTRA_ROCE_ENABLE=1"
        yield Finding(table.servers[0].at("device"), message, hint)


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids))


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
            apart = expected - len(server.devices)
            change = f"add {apart} here" if apart > 0 else f"remove {-apart} here"
            hint = f"{change}, or change the other servers: each has as many as the first"
            yield Finding(server.at("device"), message, hint)


@rule("RT343", "four devices that a 910 server cannot join", ascend_only=True)
def quartet_unconnected(table: Table) -> Iterator[Finding]:
    """Four devices of a 910 server must form a ring: one of the two groups of four, or two pairs across them."""
    for server in _servers(table):
        ids = frozenset(device.device_id for device in server.devices if device.device_id is not None)
        if len(server.devices) == 4 and len(ids) == 4 and max(ids) < 8 and ids not in QUARTETS:
            message = f"devices {', '.join(map(str, sorted(ids)))} of a 910 server do not form a ring"
            yield Finding(server.at("device"), message, "use 0 1 2 3, 4 5 6 7, or two pairs such as 0 1 4 5")


def _nearest_counts(count: int) -> str:
    fewer = max(usable for usable in COUNTS if usable < count)
    more = min((usable for usable in COUNTS if usable > count), default=None)
    hint = f"remove {count - fewer} of these entries to use {fewer}"
    return hint if more is None else f"{hint}, or add {more - count} to use {more}"


def _servers(table: Table) -> tuple[ServerRow, ...]:
    return _counted(table) if table.chip.is_910 and table.format not in UNCOUNTED else ()


def _counted(table: Table) -> tuple[ServerRow, ...]:
    """Return the servers whose devices can be counted: none where a list is broken or an instance names no server."""
    if isinstance(table, GroupTable) and not table.servers_are_complete:
        return ()
    return tuple(server for server in table.servers if server.devices)
