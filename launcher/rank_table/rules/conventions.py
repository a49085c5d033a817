"""Warnings: HCCL goes on, but another tool may not, or the table may not mean what it seems to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from launcher.rank_table.catalogue import Addition, Finding, rule
from launcher.rank_table.diagnostics import Severity
from launcher.rank_table.formats import RANKED, SERVER_LISTS, STRINGS, Format
from launcher.rank_table.groups import groups_of
from launcher.rank_table.ip import is_loopback
from launcher.rank_table.places import Pointer
from launcher.rank_table.rows import DeviceRow, ServerRow, Table, read_decimal, text_at
from launcher.rank_table.rules.identity import odd_numbers

NAMED_SERVERS = RANKED - {Format.V2_0}
COUNTS = frozenset({"server_count", "group_count"})
GROUP_COUNTS = frozenset({"instance_count", "device_count", "device_num", "server_num"})
NAME_LIMIT = 256  # characters of a name that are looked at
# A sign that no name has, or an address of four parts of which one or more is made of x, y, z or w alone.
_PLACEHOLDER = re.compile(r"[*<>{}$?]|^(?=[^.]*(?:\.[^.]*){3}$)(?:.*\.)?([xyzw])\1*(?:\.|$)", re.IGNORECASE)


@rule(
    "RT402",
    "ranks do not follow the order of server_id",
    hccl_code=None,
    severity=Severity.WARNING,
    formats=NAMED_SERVERS,
)
def rank_order_unusual(table: Table) -> Iterator[Finding]:
    """MindSpore asks that servers get their ranks in the dictionary order of server_id ("10.0.0.10" before "10.0.0.9")."""
    for before, server in disorder(table):
        message = f'server "{server.server_id:.64}" comes after "{before.server_id:.64}" in rank, before it in dictionary order'
        yield Finding(
            server.at("server_id"), message, "MindSpore expects both orders to agree: give it the lower ranks"
        )


def disorder(table: Table) -> Iterator[tuple[ServerRow, ServerRow]]:
    """The first server whose name as text is before that of the server with the ranks below its own, after that one."""
    for (before, _), (server, _) in pairwise(table.servers_by_rank if table.ranks_are_sound else ()):
        if before.server_id and server.server_id and server.server_id < before.server_id:
            yield before, server
            return


@rule("RT403", "ranks of servers are interleaved", hccl_code=None, severity=Severity.WARNING, formats=RANKED)
def ranks_interleaved(table: Table) -> Iterator[Finding]:
    """Each server should hold consecutive ranks: neighbours in rank are expected to be neighbours in space."""
    if not table.ranks_are_sound:
        return
    for server, ranks in table.servers_by_rank:
        if ranks[-1] - ranks[0] >= len(ranks):
            jump = next(after for before, after in pairwise(ranks) if after != before + 1)
            device = next(device for device in server.devices if device.global_rank == jump)
            message = f"rank {jump} does not follow rank {ranks[ranks.index(jump) - 1]} on this server"
            hint = f"ranks {ranks[0]} .. {ranks[0] + len(ranks) - 1} on one server keep its traffic inside it"
            yield Finding(device.at("rank_id"), message, hint)
            return


@rule("RT404", "a number that only HCCL reads", hccl_code=None, severity=Severity.WARNING, formats=STRINGS)
def number_unusual(table: Table) -> Iterator[Finding]:
    """HCCL skips blanks and a plus before a number and ignores what follows it; other readers refuse such numbers."""
    for key in COUNTS & table.fields.keys():
        written = text_at(table.fields, key)
        yield from _unusual((key,), written, read_decimal(written))
    for group in groups_of(table):
        for key in GROUP_COUNTS & group.fields.keys():
            written = text_at(group.fields, key)
            yield from _unusual((*group.pointer, key), written, read_decimal(written))
    for device, key, written, number in odd_numbers(table):
        yield from _unusual(device.at(key), written, number)
    if table.format is Format.V1_2:
        for device in table.devices:
            in_pod = text_at(device.fields, "super_device_id")
            yield from _unusual(device.at("super_device_id"), in_pod, read_decimal(in_pod))


def _unusual(pointer: Pointer, written: str | None, number: int | None) -> Iterator[Finding]:
    if written is not None and number is not None and written != str(number):
        message = f'"{written[:20]}" is an unusual way to write {number}'
        yield Finding(pointer, message, f'write "{number}"', rewrite=f'"{number}"')


@rule("RT407", "server_count is missing", hccl_code=None, severity=Severity.WARNING, formats=SERVER_LISTS)
def server_count_missing(table: Table) -> Iterator[Finding]:
    """HCCL counts the servers itself where `server_count` is missing, but its documentation and other readers ask for it."""
    servers = table.fields.get("server_list")
    if "server_count" not in table.fields and isinstance(servers, list):
        missing = Addition("server_count", f'"{len(servers)}"', before="server_list")
        yield Finding((), "server_count is missing", f'add "server_count": {missing.value}', addition=missing)


@rule("RT408", "a placeholder as the name of a server", hccl_code=None, severity=Severity.WARNING, formats=SERVER_LISTS)
def name_is_placeholder(table: Table) -> Iterator[Finding]:
    """Tutorials print 10.*.*.*, xx.xx.xx.xx or <ip> where an address belongs.

    HCCL takes any text as server_id, so such a table works on one server, but not for readers who look for an address.
    """
    for server in table.servers:
        if server.server_id and _PLACEHOLDER.search(server.server_id[:NAME_LIMIT]):
            message = f'server_id "{server.server_id[:64]}" is a placeholder'
            yield Finding(server.at("server_id"), message, "write the server's own address or name")


@rule(
    "RT409",
    "a server named by an address that every server has",
    hccl_code=None,
    severity=Severity.WARNING,
    formats=SERVER_LISTS,
)
def name_is_loopback(table: Table) -> Iterator[Finding]:
    """127.x.x.x and localhost mean "this server" on each of them.

    Generators write them where a host's name leads to itself; no reader can tell which server such an entry means.
    """
    for server in table.servers if len(table.servers) > 1 else ():
        if server.server_id and is_loopback(server.server_id):
            message = f'server_id "{server.server_id[:64]}" means each server itself, and this table has several'
            yield Finding(server.at("server_id"), message, "write the address that the other servers reach it by")


@rule(
    "RT424",
    "a device_ip that leads to no other server",
    hccl_code=None,
    severity=Severity.WARNING,
    formats=SERVER_LISTS,
    ascend_only=True,
)
def address_leads_nowhere(table: Table) -> Iterator[Finding]:
    """127.x.x.x and ::1 are addresses, so HCCL's parser takes them, but no other server reaches a device there."""
    nowhere = {address for address in table.packed_addresses if is_loopback(address)}
    for device in table.devices if nowhere and len(table.servers) > 1 else ():
        for address in device.addresses:
            if address in nowhere:
                message = f"device_ip {address[:45]} leads to no other server"
                hint = "write the address that `hccn_tool -i ID -ip -g` shows on that server"
                yield Finding(device.at("device_ip"), message, hint)


@rule(
    "RT425",
    "a host_port used twice on one server",
    hccl_code=None,
    severity=Severity.WARNING,
    formats=SERVER_LISTS,
    ascend_only=True,
)
def host_port_repeated(table: Table) -> Iterator[Finding]:
    """The processes of one server listen at their host_port, so each needs its own. HCCL's parser does not look."""
    for server in table.servers if "host_port" in table.keys else ():
        first: dict[int, DeviceRow] = {}
        for device in server.devices:
            port = read_decimal(text_at(device.fields, "host_port"))
            if port is None:
                continue
            earlier = first.setdefault(port, device)
            if earlier is not device:
                message = f"host_port {port} is used twice on this server"
                hint = "write a port that no other device of this server has"
                yield Finding(device.at("host_port"), message, hint, earlier.at("host_port"))
