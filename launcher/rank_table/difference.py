"""Compare two copies of a table, and determine whether HCCL's checksums of them differ.

Before ranks communicate, HCCL compares a checksum of each rank's table and stops with EI0005 on a mismatch. The
checksum covers the parsed file: white space and the order of keys do not matter; every value and the order of lists do,
even under keys that HCCL does not use.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import zip_longest
from typing import Any

from launcher.core.frozen import frozen
from launcher.core.records import Cluster
from launcher.rank_table.document import Document
from launcher.rank_table.positions import Pointer, json_pointer
from launcher.rank_table.table_reader import TableReport

_ABSENT = object()


class Kind(Enum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    REORDERED = "reordered"  # a list with the same entries


@frozen
class Difference:
    kind: Kind
    pointer: str  # RFC 6901
    before: Any  # None if the value was added
    after: Any  # None if the value was removed
    before_line: int | None  # from 1
    after_line: int | None


@frozen
class RankChange:
    """A value of one rank that differs between two tables. `name` is "rank" if only one of the tables has the rank."""

    global_rank: int
    name: str
    before: str | None
    after: str | None


@frozen
class Comparison:
    """The result of comparing two files. The checksums match if and only if `differences` is empty."""

    checksums: tuple[int, int]
    differences: tuple[Difference, ...]  # in the order of the first file
    rank_changes: tuple[RankChange, ...] | None  # by rank; None if one of the files is not a valid table

    @property
    def would_match(self) -> bool:
        return not self.differences


def compare(before: TableReport, after: TableReport) -> Comparison:
    """Compare two rank table files. Both must be valid JSON, but they may have other errors.

    Raises:
        RecursionError: one of them is nested hundreds of levels deep.
    """
    texts = canonical(before.document.value), canonical(after.document.value)
    found = [] if texts[0] == texts[1] else list(_differences(before.document.value, after.document.value))
    changes = None
    if before.cluster is not None and after.cluster is not None:
        changes = tuple(_rank_changes(before.cluster, after.cluster))
    checksums = zlib.crc32(texts[0].encode()), zlib.crc32(texts[1].encode())
    before_lines = _lines(before.document, [pointer for kind, pointer, *_ in found if kind is not Kind.ADDED])
    after_lines = _lines(after.document, [pointer for kind, pointer, *_ in found if kind is not Kind.REMOVED])
    differences = (
        Difference(kind, json_pointer(pointer), one, other, before_lines.get(pointer), after_lines.get(pointer))
        for kind, pointer, one, other in found
    )
    return Comparison(checksums, tuple(differences), changes)


def canonical(value: Any) -> str:
    """Return a value as canonical JSON, with sorted keys and without white space.

    HCCL computes its checksums differently, but they are equal for two tables if and only if these texts are equal.

    >>> canonical({"b": ["1", 2], "a": None})
    '{"a":null,"b":["1",2]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


_Found = tuple[Kind, Pointer, Any, Any]


def _differences(before: Any, after: Any) -> Iterator[_Found]:
    """Yield the differences depth first, in the order of the first file."""
    waiting: list[tuple[Pointer, Any, Any]] = [((), before, after)]
    while waiting:
        pointer, one, other = waiting.pop()
        if other is _ABSENT:
            yield Kind.REMOVED, pointer, one, None
        elif one is _ABSENT:
            yield Kind.ADDED, pointer, None, other
        elif _is_reordered(one, other):
            yield Kind.REORDERED, pointer, one, other
        elif isinstance(one, dict | list) and type(one) is type(other):
            # Lists are compared by position, objects by key, in the order of the first file.
            members: list[tuple[str | int, Any, Any]]
            if isinstance(one, dict) and isinstance(other, dict):
                members = [(k, one.get(k, _ABSENT), other.get(k, _ABSENT)) for k in dict.fromkeys([*one, *other])]
            else:
                pairs = enumerate(zip_longest(one, other, fillvalue=_ABSENT))
                members = [(index, left, right) for index, (left, right) in pairs]
            waiting.extend(((*pointer, name), left, right) for name, left, right in reversed(members))
        # Stricter than ==, for which 1, 1.0 and true are equal.
        elif type(one) is not type(other) or repr(one) != repr(other):
            yield Kind.CHANGED, pointer, one, other


def _is_reordered(one: Any, other: Any) -> bool:
    if not (isinstance(one, list) and isinstance(other, list)) or len(one) != len(other) or len(one) < 2:
        return False
    texts = [canonical(entry) for entry in one], [canonical(entry) for entry in other]
    return texts[0] != texts[1] and sorted(texts[0]) == sorted(texts[1])


def _lines(document: Document, pointers: list[Pointer]) -> Mapping[Pointer, int]:
    return {pointer: document.position(place.start).line for pointer, place in document.locate(pointers).items()}


def _rank_changes(before: Cluster, after: Cluster) -> Iterator[RankChange]:
    """Yield the changes of each rank. The order of servers and devices in the files does not matter."""
    facts = _facts(before), _facts(after)
    for rank in sorted({*facts[0], *facts[1]}):
        one, other = facts[0].get(rank), facts[1].get(rank)
        if one is None or other is None:
            yield RankChange(rank, "rank", _where(one), _where(other))
        else:
            for name in sorted({*one, *other}):
                if one.get(name) != other.get(name):
                    yield RankChange(rank, name, one.get(name), other.get(name))


def _where(facts: Mapping[str, str] | None) -> str | None:
    return None if facts is None else f"device {facts['device_id']} of server {facts['server_id']}"


def _facts(cluster: Cluster) -> dict[int, dict[str, str]]:
    """Return the values that describe each rank and its server, without values that are None."""
    facts = {}
    for server in cluster.servers:
        about_server = {name: getattr(server, name) for name in ("server_id", "host_ip", "super_pod_id")}
        about_server |= dict(server.options)
        for device in server.devices:
            about = {**about_server, "device_id": str(device.device_id), "device_ip": device.device_ip}
            about |= {"super_device_id": device.super_device_id, **dict(device.options)}
            facts[device.global_rank] = {name: text for name, text in about.items() if text is not None}
    return facts
