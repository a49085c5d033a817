"""From one way to write a cluster down to another, and what cannot come along.

What would change the meaning for the ranks is refused; what HCCL never reads is left behind and named; nothing is
ever made up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher.core.errors import RefusedTableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Device, Options, Server
from launcher.core.text import did_you_mean, near
from launcher.rank_table.groups import groups_of
from launcher.rank_table.keys import NODE_TABLE_OPTIONS
from launcher.rank_table.limits import Reason
from launcher.rank_table.targets import NEVER_READ, SUPER_POD, TARGETS, Target

if TYPE_CHECKING:
    from launcher.rank_table.read import TableReport

_SUPER_POD_NAME = "super_pod"  # what --drop calls the two keys that place a device in a pod
KNOWN_KEYS = NEVER_READ.union(*(target.keys for target in TARGETS.values()))
NEEDED = frozenset({"version", "status", "server_count", "server_list", "server_id", "device", "device_id", "rank_id"})
_SERVER_FIELDS = ("host_ip", "host_nic_ip", "super_pod_id")
_DEVICE_FIELDS = ("device_ip", "super_device_id")
_NAMED_AT_MOST = 10  # keys that nobody reads, in one note
_MAX_NAME = 40  # characters of such a key
_UNKNOWN_KEY = "RT401"


@frozen
class Converted:
    """A cluster in its new form."""

    text: str
    cluster: Cluster  # what the text says: the one given, without what was dropped or left behind
    left_behind: tuple[str, ...]  # keys that the new form has no place for
    notes: tuple[str, ...]  # what a person should know about it


def convert_cluster(
    cluster: Cluster, target_name: str, drop: Collection[str] = (), *, called: str | None = None
) -> Converted:
    """Write `cluster` as `target_name` (a name in `TARGETS`) without the keys in `drop`.

    Equal clusters give equal text. `called` is what people call the file it came from, for messages.

    Raises:
        RefusedTableError: the target cannot express the cluster; the message has all reasons.
        UsageError: `target_name` is no target, or a key in `drop` is in no format.
    """
    target = TARGETS[target_named(target_name)]
    cluster = without(cluster, _dropped_keys(drop))
    held = held_keys(cluster)
    homeless = [key for key in held if key not in target.keys]
    left = [key for key in homeless if key in NEVER_READ or not target.is_table]
    cluster = without(cluster, left)
    reasons = list(_reasons(cluster, target, {key: held[key] for key in homeless if key not in left}))
    if reasons:
        name = called or str(cluster.source or "the cluster")
        raise RefusedTableError(_refusal(name, target, reasons), hint="; ".join(_unique(reasons)))
    cluster = target.completed(cluster)
    notes = (*_notes(target, {key: held[key] for key in left}), *target.advice(cluster))
    return Converted(target.write(cluster), cluster, tuple(left), notes)


def unread_note(reports: Iterable[TableReport]) -> str | None:
    """Which keys of these tables are in no record, since nobody reads them; None where there are none."""
    keys = list(dict.fromkeys(key for report in reports for key in _unread_keys(report)))
    if not keys:
        return None
    named = ", ".join(key[:_MAX_NAME] for key in islice(keys, _NAMED_AT_MOST))
    more = f", and {len(keys) - _NAMED_AT_MOST:,} more" if len(keys) > _NAMED_AT_MOST else ""
    return f"left behind, since nobody reads them: {named}{more}"


def target_named(name: str) -> str:
    """The target's full name: "1.0" is "v1.0".

    Raises:
        UsageError: there is no such target.
    """
    full = f"v{name}" if f"v{name}" in TARGETS else name
    if full not in TARGETS:
        question = did_you_mean(near(name[:40], TARGETS, limit=1))
        hint = f"{f'{question} ' if question else ''}known are {', '.join(TARGETS)}"
        raise UsageError(f"{name[:40]!r} is no format that tables are converted from or to", hint=hint)
    return full


def held_keys(cluster: Cluster) -> dict[str, int]:
    """The keys that the cluster has beside servers, devices and ranks, with how often each occurs."""
    held = Counter(dict.fromkeys((key for key, _ in cluster.options), 1))
    for server in cluster.servers:
        held.update(_server_keys(server))
        for device in server.devices:
            held.update(_device_keys(device))
    return dict(held)


def without(cluster: Cluster, keys: Collection[str]) -> Cluster:
    """The cluster without `keys`, wherever they stand. The same records where there is nothing to leave out."""
    if not keys:
        return cluster
    servers = tuple(_server_without(server, keys) for server in cluster.servers)
    return replace(cluster, servers=servers, options=_options_without(cluster.options, keys))


def _unread_keys(report: TableReport) -> Iterator[str]:
    """Those that no format knows, and a lab's list of servers, which HCCL has given up."""
    for warning in report.warnings:
        if warning.code == _UNKNOWN_KEY:
            yield warning.pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
    if report.table is not None and any("server_list" in group.fields for group in groups_of(report.table)):
        yield "server_list"


def _server_keys(server: Server) -> Iterator[str]:
    yield from (key for key in _SERVER_FIELDS if getattr(server, key) is not None)
    yield from (key for key, _ in server.options)


def _device_keys(device: Device) -> Iterator[str]:
    yield from (key for key in _DEVICE_FIELDS if getattr(device, key) is not None)
    yield from (key for key, _ in device.options)


def _server_without(server: Server, keys: Collection[str]) -> Server:
    fields: dict[str, Any] = {key: None for key in _SERVER_FIELDS if key in keys}
    devices = tuple(_device_without(device, keys) for device in server.devices)
    return replace(server, devices=devices, options=_options_without(server.options, keys), **fields)


def _device_without(device: Device, keys: Collection[str]) -> Device:
    fields: dict[str, Any] = {key: None for key in _DEVICE_FIELDS if key in keys}
    return replace(device, options=_options_without(device.options, keys), **fields)


def _options_without(options: Options, keys: Collection[str]) -> Options:
    return tuple((key, value) for key, value in options if key not in keys)


def _dropped_keys(drop: Collection[str]) -> set[str]:
    keys = set(drop)
    if _SUPER_POD_NAME in keys:
        keys = keys - {_SUPER_POD_NAME} | SUPER_POD
    for key in sorted(keys & NEEDED):
        raise UsageError(
            f"--drop {key}: every table needs it", hint="--drop leaves out what the new format has no place for"
        )
    for key in sorted(keys - KNOWN_KEYS):
        question = did_you_mean(near(key[:40], [*KNOWN_KEYS, _SUPER_POD_NAME], limit=1))
        hint = question or f"for instance {_SUPER_POD_NAME}, device_ip, level_list"
        raise UsageError(f"--drop {key[:40]}: no table has such a key that could be left out", hint=hint)
    return keys


def _reasons(cluster: Cluster, target: Target, homeless: dict[str, int]) -> Iterator[Reason]:
    if "super_pod_id" in homeless:
        yield Reason("super pods are only in v1.2", f"--drop {_SUPER_POD_NAME} leaves them out")
        homeless = {key: count for key, count in homeless.items() if key not in SUPER_POD}
    for key, count in homeless.items():
        times = "" if count == 1 else f" (it occurs {count:,} times)"
        yield Reason(f"there is no place for {key}{times}", f"--drop {key} leaves it out")
    for limit in target.limits:
        yield from limit(cluster)


def _refusal(name: str, target: Target, reasons: list[Reason]) -> str:
    return "\n".join(f"{name}: error: {target.name} cannot express this: {reason.message}" for reason in reasons)


def _unique(reasons: list[Reason]) -> Iterator[str]:
    yield from dict.fromkeys(reason.hint for reason in reasons)


def _notes(target: Target, left: dict[str, int]) -> Iterator[str]:
    if not left:
        return
    if not target.is_table:
        yield f"left behind, since a {target.name} names only hosts and slots: {', '.join(left)}; keep the table"
        return
    of_v1_1 = [key for key in left if key in NODE_TABLE_OPTIONS]
    others = [key for key in left if key not in NODE_TABLE_OPTIONS]
    if of_v1_1:
        yield f"left behind, since it means nothing outside v1.1: {', '.join(of_v1_1)}"
    if others:
        yield f"left behind, since {target.name} has no place for it and HCCL never reads it: {', '.join(others)}"
