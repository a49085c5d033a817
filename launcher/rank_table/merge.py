"""The tables of several servers as one: ranks counted anew in the order of the files, the same text on every node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from launcher.core.errors import RefusedTableError, UsageError
from launcher.core.records import Cluster, Options, Server
from launcher.rank_table.convert import convert_cluster
from launcher.rank_table.document import Document
from launcher.rank_table.places import Pointer
from launcher.rank_table.profile import Profile
from launcher.rank_table.read import AS_HCCL, TableReport, parse_rank_table

_SERVER_KEYS = ("server_id", "node_addr", "net_instance_id")  # what the formats call a server's name
_ADDRESS_KEYS = ("device_ip", "rank_ip")
_NOT_SERVERS = ("super_pod_list",)  # it names the servers a second time
_REMADE = "collective_id"  # the one key that may differ: it names a table, and this is a new one
_SHOWN_AT_MOST = 20  # repeats told one by one


@dataclass(frozen=True)
class Merged:
    text: str
    cluster: Cluster
    notes: tuple[str, ...]  # what a person should know about it


def merge_tables(reports: Sequence[TableReport], profile: Profile = AS_HCCL) -> Merged:
    """One table of all servers, in the format of the given ones, checked as `profile` asks.

    Ranks are counted file by file in the order given, within a file in the order of its own ranks. The order of
    servers and keys in the files does not change the text.

    Raises:
        RefusedTableError: the formats differ, a server or an address is in two files, a server is called by a
            loopback address, or the result would not be valid. The message names the files with lines.
        UsageError: `reports` is empty, or one of them has errors.
    """
    clusters = [_cluster_of(report) for report in reports]
    format_name = _common_format(reports)
    if faults := [*_repeats(reports), *_loopbacks(reports)]:
        hint = "give each server's own table once, each with a name and addresses of its own"
        raise RefusedTableError("\n".join(faults), hint=hint)
    options, notes = _common_options(reports, clusters)
    converted = convert_cluster(Cluster(_renumbered(clusters), options=options), format_name, called="the merged table")
    checked = parse_rank_table(converted.text.encode(), Path("merged.json"), profile)
    if checked.cluster is None:
        raise RefusedTableError(checked.render(), hint="each table may be valid alone; together they are not")
    return Merged(converted.text, converted.cluster, (*notes, *_order_note(converted.cluster)))


def _cluster_of(report: TableReport) -> Cluster:
    if report.cluster is None:
        raise UsageError(f"{report.path} has errors", hint=f"tlaunch validate {report.path} shows them")
    return report.cluster


def _common_format(reports: Sequence[TableReport]) -> str:
    names = {report.format.value: report.path for report in reversed(reports) if report.format is not None}
    if not names:
        raise UsageError("there is nothing to merge", hint="name the tables, one per server")
    if len(names) > 1:
        said = ", ".join(f"{path} is {name}" for name, path in reversed(names.items()))
        first = reports[0].format
        hint = f"tlaunch table convert FILE --to {first.value if first else 'v1.0'} makes them alike"
        raise RefusedTableError(f"error: the tables are in different formats: {said}", hint=hint)
    return next(iter(names))


def _repeats(reports: Sequence[TableReport]) -> Iterator[str]:
    """Servers and addresses that two files have; the reader has found those that one file has twice."""
    told: set[tuple[Path, str, str]] = set()  # a lab's table names a server once for each device
    first: dict[tuple[str, str], tuple[TableReport, Pointer]] = {}
    for report in reports:
        for kind, value, pointer in _identities(report.document.value):
            earlier, at = first.setdefault((kind, value), (report, pointer))
            if earlier is report or (report.path, kind, value) in told:
                continue
            if len(told) == _SHOWN_AT_MOST:
                yield "... and more"
                return
            told.add((report.path, kind, value))
            other = _where(earlier, at)
            yield f"{_where(report, pointer)}: error: {kind} {value[:60]!r} is in {other} too"


def _identities(document: Any) -> Iterator[tuple[str, str, Pointer]]:
    """What must be different on all servers: key, value, and where it stands. Iterative: tables may be nested."""
    waiting: list[tuple[Pointer, Any]] = [((), document)]
    while waiting:
        pointer, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(
                ((*pointer, key), inner) for key, inner in reversed(value.items()) if key not in _NOT_SERVERS
            )
        elif isinstance(value, list):
            waiting.extend(((*pointer, index), value[index]) for index in reversed(range(len(value))))
        elif isinstance(value, str) and pointer:
            yield from ((str(pointer[-1]), one, pointer) for one in _values(pointer, value) if one)


def _values(pointer: Pointer, value: str) -> list[str]:
    if pointer[-1] in _ADDRESS_KEYS:
        return value.split(",")
    return [value] if _names_a_server(pointer) else []


def _names_a_server(pointer: Pointer) -> bool:
    """In v2.0 it is the first layer that tells servers apart; the further layers are common to all."""
    return pointer[-1] in _SERVER_KEYS and (pointer[-1] != "net_instance_id" or pointer[-2] == 0)


def _where(report: TableReport, pointer: Pointer) -> str:
    return f"{report.path}:{_line(report.document, pointer)}"


def _line(document: Document, pointer: Pointer) -> int:
    place = document.locate([pointer]).get(pointer)
    return 1 if place is None else document.position(place.start).line


def _loopbacks(reports: Sequence[TableReport]) -> Iterator[str]:
    """127.0.1.1 is what a host's own name means to itself; on another server it is somebody else."""
    if sum(report.servers for report in reports) < 2:
        return
    for report in reports:
        names = {value: pointer for _, value, pointer in _identities(report.document.value) if _names_a_server(pointer)}
        for name, pointer in names.items():
            if name.startswith("127.") or name in {"localhost", "::1"}:
                yield f"{_where(report, pointer)}: error: {name[:60]!r} means another server on each server"


def _common_options(reports: Sequence[TableReport], clusters: Sequence[Cluster]) -> tuple[Options, tuple[str, ...]]:
    """What all tables say about the whole. Only the name of the table may differ."""
    first = dict(clusters[0].options)
    notes: tuple[str, ...] = ()
    for report, cluster in zip(reports, clusters, strict=True):
        other = dict(cluster.options)
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) == other.get(key):
                continue
            if key != _REMADE:
                said = f"{key} is {first.get(key)!r} in {reports[0].path} and {other.get(key)!r} in {report.path}"
                raise RefusedTableError(f"error: {said}", hint="write the same in all tables")
            first.pop(key, None)
            notes = (f"the tables have different values of {key}: the merged one gets its own",)
    return tuple(sorted(first.items())), notes


def _renumbered(clusters: Sequence[Cluster]) -> tuple[Server, ...]:
    servers: list[Server] = []
    offset = 0
    for cluster in clusters:
        in_rank_order = sorted(cluster.servers, key=lambda server: server.devices[0].global_rank)
        servers.extend(_moved(server, offset) for server in in_rank_order)
        offset += cluster.device_count
    return tuple(servers)


def _moved(server: Server, offset: int) -> Server:
    devices = (replace(device, global_rank=device.global_rank + offset) for device in server.devices)
    return replace(server, devices=tuple(devices))


def _order_note(cluster: Cluster) -> Iterator[str]:
    """A shell sorts file names as text, so host10's table comes before host2's."""
    names = [server.server_id for server in cluster.servers]
    if names == sorted(names):
        return
    before, after = next(pair for pair in pairwise(names) if pair[0] > pair[1])
    yield (
        f"ranks follow the order of the files: {before[:60]!r} comes before {after[:60]!r}, though not as text; "
        "MindSpore expects the order of server_id as text"
    )
