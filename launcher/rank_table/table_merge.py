"""Merge the tables of several servers. Ranks are renumbered in the order of the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

from launcher.core.errors import RefusedTableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Options, Server
from launcher.core.text import printable
from launcher.rank_table.catalogue import CATALOGUE
from launcher.rank_table.convert import convert_cluster, marked_without_ascend, rewritten_format
from launcher.rank_table.diagnostics import render_problems
from launcher.rank_table.ip import is_loopback
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import Profile
from launcher.rank_table.table_format import NEVER_READ
from launcher.rank_table.table_reader import AS_HCCL, TableReport, parse_rank_table

_CALLED = "the merged table"
_MAX_SHOWN = 20  # repeated values that are listed
_Named = tuple[TableReport, Pointer]  # a value in one of the files


@frozen
class Merged:
    text: str
    cluster: Cluster
    notes: tuple[str, ...]  # remarks for the user


def merge_tables(reports: Sequence[TableReport], profile: Profile = AS_HCCL) -> Merged:
    """Merge the tables of several servers into one table, and check the result.

    The format is that of the given tables, or v1.0 if tlaunch does not write theirs. Ranks are numbered file by file in
    the given order, and by rank within a file. The order of servers and keys within the files does not change the text.

    Raises:
        RefusedTableError: the formats differ, a server or an address is in two files, a server's name is a loopback
            address, or the result is not valid. The message names files and lines.
        UsageError: a table has errors.
    """
    clusters = []
    for report in reports:
        if report.cluster is None:
            raise UsageError(f"{report.path} has errors", hint=f"list them with `tlaunch validate {report.path}`")
        clusters.append(report.cluster)
    format_name = _common_format(reports)
    repeats, loopbacks = list(_repeats(reports)), list(_loopbacks(reports))
    hints = ["name each server's table once, with a unique server name and unique addresses"] if repeats else []
    if loopbacks:
        hints.append("generate the table again with --server-id ADDRESS, an address that other servers can reach")
    if hints:
        raise RefusedTableError("\n".join([*repeats, *loopbacks]), hint="; ".join(hints))
    options = _common_options(reports, clusters)
    servers: list[Server] = []
    offset = 0
    for each in clusters:
        for server in sorted(each.servers, key=lambda server: server.devices[0].global_rank):
            devices = (replace(device, global_rank=device.global_rank + offset) for device in server.devices)
            servers.append(replace(server, devices=tuple(devices)))
        offset += each.device_count
    cluster = Cluster(tuple(servers), options=options)
    marks: tuple[str, ...] = ()
    if not profile.hardware.is_ascend:
        cluster, marks = marked_without_ascend(cluster, format_name)
    converted = convert_cluster(cluster, format_name, called=_CALLED)
    checked = parse_rank_table(converted.text.encode(), Path("merged.json"), profile)
    if checked.cluster is None:
        hint = "correct the tables: each may be valid, but the merged table is not"
        if all(CATALOGUE[problem.code].ascend_only for problem in checked.errors):
            hint += "; for CPU or GPU, use --chip none"
        raise RefusedTableError(render_problems(checked.problems, checked.document, _CALLED), hint=hint)
    return Merged(converted.text, converted.cluster, (*marks, *converted.notes, *_order_note(converted.cluster)))


def _common_format(reports: Sequence[TableReport]) -> str:
    names = {report.format.value: report.path for report in reversed(reports) if report.format is not None}
    if len(names) > 1:
        said = ", ".join(f"{path} is {name}" for name, path in reversed(names.items()))
        hint = f"convert them: `tlaunch table convert FILE --to {rewritten_format(next(reversed(names)))}`"
        raise RefusedTableError(f"error: the tables are in different formats: {said}", hint=hint)
    return rewritten_format(next(iter(names)))


def _repeats(reports: Sequence[TableReport]) -> Iterator[str]:
    """Yield errors for servers and addresses that occur in two files."""
    first: dict[tuple[str, str], _Named] = {}
    found: dict[tuple[Path, str, str], tuple[_Named, _Named]] = {}  # some formats repeat the server for each device
    for report in reports:
        values: list[tuple[str, str, Pointer]] = []
        for server in report.table.servers if report.table else ():
            values.append((server.word("server_id"), server.server_id or "", server.at("server_id")))
            for device in server.devices:
                at = device.at("device_ip")
                values += [(device.word("device_ip"), address, at) for address in device.addresses]
        for key, value, pointer in values:
            earlier = first.setdefault((key, value), (report, pointer))
            if earlier[0] is not report:
                found.setdefault((report.path, key, value), ((report, pointer), earlier))
    for (_, key, value), (named, earlier_named) in islice(found.items(), _MAX_SHOWN):
        yield f"{_where(named)}: error: {key} {value[:60]!r} is also in {_where(earlier_named)}"
    yield from _more(len(found))


def _where(named: _Named) -> str:
    report, pointer = named
    place = report.document.locate([pointer]).get(pointer)
    line = 1 if place is None else report.document.position(place.start).line
    return f"{printable(str(report.path))}:{line}"


def _more(count: int) -> Iterator[str]:
    if count > _MAX_SHOWN:
        yield f"... and {count - _MAX_SHOWN} more"


def _loopbacks(reports: Sequence[TableReport]) -> Iterator[str]:
    """Yield errors for servers named by a loopback address, which refers to a different machine on each server."""
    if sum(report.servers for report in reports) < 2:
        return
    tables = [(report, report.table) for report in reports if report.table is not None]
    named = [(report, server) for report, table in tables for server in table.servers if is_loopback(server.server_id)]
    for report, server in named[:_MAX_SHOWN]:
        where = _where((report, server.at("server_id")))
        yield f"{where}: error: {server.server_id!r:.60} refers to a different machine on each server"
    yield from _more(len(named))


def _common_options(reports: Sequence[TableReport], clusters: Sequence[Cluster]) -> Options:
    """Return the options of the merged table. Options that HCCL reads must be equal in all tables."""
    first = dict(clusters[0].options)
    for report, cluster in zip(reports, clusters, strict=True):
        other = dict(cluster.options)
        for key in sorted((first.keys() | other.keys()) - NEVER_READ):
            if first.get(key) != other.get(key):
                said = f"{key} is {first.get(key)!r} in {reports[0].path} and {other.get(key)!r} in {report.path}"
                raise RefusedTableError(f"error: {said}", hint="use the same value in all tables")
    return clusters[0].options


def _order_note(cluster: Cluster) -> Iterator[str]:
    """Yield a note if the servers are not in dictionary order, which MindSpore expects."""
    for before, after in pairwise(server.server_id for server in cluster.servers):
        if before > after:
            yield (
                f"ranks follow the order of the files, {before[:60]!r} before {after[:60]!r}; "
                "MindSpore expects servers in dictionary order of server_id"
            )
            return
