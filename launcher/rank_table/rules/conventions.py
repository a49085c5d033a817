"""Warnings: HCCL goes on, but another tool may not, or the table may not mean what it seems to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.diagnostics import Severity
from launcher.rank_table.places import Pointer
from launcher.rank_table.rules.identity import NUMBERS
from launcher.rank_table.table import Table, read_decimal, text_at

TABLE_KEYS = frozenset({"version", "status", "server_count", "server_list"})
SERVER_KEYS = frozenset(
    {"server_id", "device", "host_ip", "host_nic_ip", "container_ip", "hardware_type", "pod_ip", "server_index"}
    | {"server_ip"}
)
DEVICE_KEYS = frozenset(
    {"device_id", "device_ip", "rank_id", "device_port", "device_vnic_port", "host_port", "net_position"}
    | {"net_protocol", "backup_device_ip", "backup_device_port", "super_device_id"}
)


@rule("RT401", "a key that nobody reads", hccl_code=None, severity=Severity.WARNING)
def key_unknown(table: Table) -> Iterator[Finding]:
    """HCCL ignores keys that it does not know, so a misspelt optional key is lost without a word.

    Each unknown key is named once, at its first use.
    """
    yield from _unknown([((), table.fields)], TABLE_KEYS)
    yield from _unknown(((server.at(), server.fields) for server in table.servers), SERVER_KEYS)
    yield from _unknown(((device.at(), device.fields) for device in table.devices), DEVICE_KEYS)


def _unknown(objects: Iterable[tuple[Pointer, dict[str, Any]]], known: frozenset[str]) -> Iterator[Finding]:
    first: dict[str, Pointer] = {}
    uses: dict[str, int] = {}
    for pointer, fields in objects:
        if fields.keys() <= known:
            continue
        for key in fields.keys() - known:
            first.setdefault(key, pointer)
            uses[key] = uses.get(key, 0) + 1
    for key, pointer in first.items():
        more = f" (and {uses[key] - 1} more like it)" if uses[key] > 1 else ""
        yield Finding((*pointer, key), f'key "{key[:40]}" is not known{more}', _similar(key, known), at_key=True)


def _similar(key: str, known: frozenset[str]) -> str:
    import difflib  # noqa: PLC0415  # needed only for a misspelt key

    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else "remove it, or keep it knowing that HCCL ignores it"


@rule("RT402", "ranks do not follow the order of server_id", hccl_code=None, severity=Severity.WARNING)
def rank_order_unusual(table: Table) -> Iterator[Finding]:
    """MindSpore asks that servers get their ranks in the dictionary order of server_id ("10.0.0.10" before "10.0.0.9")."""
    if not table.ranks_are_sound:
        return
    for (before, _), (server, _) in pairwise(table.servers_by_rank()):
        if before.server_id is not None and server.server_id is not None and server.server_id < before.server_id:
            message = (
                f'server "{server.server_id[:64]}" comes after "{before.server_id[:64]}" in rank, before it in '
                "dictionary order"
            )
            hint = "MindSpore expects both orders to agree: give it the lower ranks"
            yield Finding(server.at("server_id"), message, hint)
            return


@rule("RT403", "ranks of servers are interleaved", hccl_code=None, severity=Severity.WARNING)
def ranks_interleaved(table: Table) -> Iterator[Finding]:
    """Each server should hold consecutive ranks: neighbours in rank are expected to be neighbours in space."""
    if not table.ranks_are_sound:
        return
    for server, ranks in table.servers_by_rank():
        if ranks[-1] - ranks[0] >= len(ranks):
            jump = next(after for before, after in pairwise(ranks) if after != before + 1)
            device = next(device for device in server.devices if device.global_rank == jump)
            message = f"rank {jump} does not follow rank {ranks[ranks.index(jump) - 1]} on this server"
            hint = f"ranks {ranks[0]} .. {ranks[0] + len(ranks) - 1} on one server keep its traffic inside it"
            yield Finding(device.at("rank_id"), message, hint)
            return


@rule("RT404", "a number that only HCCL reads", hccl_code=None, severity=Severity.WARNING)
def number_unusual(table: Table) -> Iterator[Finding]:
    """HCCL skips blanks and a plus before a number and ignores what follows it; other readers refuse such numbers."""
    count = text_at(table.fields, "server_count")
    yield from _unusual(("server_count",), count, read_decimal(count))
    for device in table.devices:
        for key, number in zip(NUMBERS, (device.device_id, device.global_rank), strict=True):
            if number is not None and device.fields[key] != str(number):
                yield from _unusual(device.at(key), device.fields[key], number)


def _unusual(pointer: Pointer, written: str | None, number: int | None) -> Iterator[Finding]:
    if written is not None and number is not None and written != str(number):
        yield Finding(pointer, f'"{written[:20]}" is an unusual way to write {number}', f'write "{number}"')


@rule("RT407", "server_count is missing", hccl_code=None, severity=Severity.WARNING)
def server_count_missing(table: Table) -> Iterator[Finding]:
    """HCCL counts the servers itself where `server_count` is missing, but its documentation and other readers ask for it."""
    servers = table.fields.get("server_list")
    if "server_count" not in table.fields and isinstance(servers, list):
        yield Finding((), "server_count is missing", f'add "server_count": "{len(servers)}"')
