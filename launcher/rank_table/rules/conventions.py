"""Warnings: HCCL goes on, but another tool may not, or the table may not mean what it seems to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from launcher.rank_table.catalogue import Finding, warning
from launcher.rank_table.model import (
    Table,
    disorder,
    groups_of,
    odd_numbers,
    read_decimal,
    text_at,
)
from launcher.rank_table.positions import Pointer
from launcher.rank_table.table_format import RANKED, STRINGS, Format

NAMED_SERVERS = RANKED - {Format.V2_0}
COUNTS = frozenset({"server_count", "group_count"})
GROUP_COUNTS = frozenset({"instance_count", "device_count", "device_num", "server_num"})


@warning("RT402", "ranks do not follow the order of server_id", formats=NAMED_SERVERS)
def rank_order_unusual(table: Table) -> Iterator[Finding]:
    """MindSpore asks that servers get their ranks in the dictionary order of server_id ("10.0.0.10" before "10.0.0.9")."""
    for before, server in disorder(table):
        message = f'server "{server.server_id:.64}" comes after "{before.server_id:.64}" in rank, before it in dictionary order'
        yield Finding(
            server.at("server_id"), message, "MindSpore expects both orders to agree: give it the lower ranks"
        )


@warning("RT403", "ranks of servers are interleaved", formats=RANKED)
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


@warning("RT404", "a number that only HCCL reads", formats=STRINGS)
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
