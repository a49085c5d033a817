"""Convert a cluster to another format, and report what that format cannot hold.

A conversion that would change the meaning for ranks is refused. Keys that HCCL never reads are dropped and reported.
Nothing is invented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from launcher.core.errors import RefusedTableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster, Device, Options, Server
from launcher.core.text import did_you_mean, near
from launcher.rank_table.formats.writing import (
    DEVICE_LIMITS,
    PLAIN,
    V1_0,
    V1_2,
    V2_0,
    Reason,
    Target,
    devices_of,
    equal_servers,
    plain_host_names,
)
from launcher.rank_table.generate import HARDWARE, marked_as_cpu
from launcher.rank_table.hostfiles import write_hostfile, write_mpich_hostfile, write_rankfile
from launcher.rank_table.nodelists import order_of_slurm, write_nodelist
from launcher.rank_table.table_format import NEVER_READ, NODE_TABLE_OPTIONS, SUPER_POD, Format

_Record = TypeVar("_Record", Server, Device)
_SUPER_POD_NAME = "super_pod"  # the name in --drop for the two keys that assign a device to a pod


def _ranks_follow_the_file(cluster: Cluster) -> Iterator[Reason]:
    """Yield an error if ranks or devices are not numbered host by host. A list of hosts cannot store other numbers."""
    places = ((server, slot, device) for server in cluster.servers for slot, device in enumerate(server.devices))
    for expected, (server, slot, device) in enumerate(places):
        if device.global_rank == expected and device.device_id == slot:
            continue
        kind, number = ("rank", expected) if device.global_rank != expected else ("device", slot)
        who = f"rank {device.global_rank}, device {device.device_id} of {server.server_id[:60]!r}"
        message = f"ranks and devices are numbered host by host, so {who} would become {kind} {number}"
        yield Reason(message, f"use a rankfile, which stores the {kind}s")
        return


_COUNTED = (_ranks_follow_the_file, plain_host_names)
_FILES_OF_LAUNCHERS = (
    Target("hostfile", write_hostfile, limits=_COUNTED, is_table=False),
    Target("mpich-hostfile", write_mpich_hostfile, limits=_COUNTED, is_table=False),
    Target("rankfile", write_rankfile, limits=(*DEVICE_LIMITS, plain_host_names), is_table=False),
    Target("nodelist", write_nodelist, limits=(*_COUNTED, equal_servers), advice=order_of_slurm, is_table=False),
)
# v1.1 and the legacy formats are only read.
TARGETS = {target.name: target for target in (V1_0, V1_2, V2_0, *_FILES_OF_LAUNCHERS)}
SOURCES = (*(table_format.value for table_format in Format if table_format.is_rank_table), *PLAIN)
KNOWN_KEYS = NEVER_READ.union(NODE_TABLE_OPTIONS, ("bind_device_id",), *(target.keys for target in TARGETS.values()))
NEEDED = frozenset({"version", "status", "server_count", "server_list", "server_id", "device", "device_id", "rank_id"})
_SERVER_FIELDS = ("host_ip", "host_nic_ip", "super_pod_id")
_DEVICE_FIELDS = ("device_ip", "super_device_id")
_HARDWARE_NOTE = (
    'no device has a device_ip, so the servers get hardware_type "cpu": the table is for CPU or GPU; for Ascend '
    "devices, add every device_ip and remove hardware_type"
)


@frozen
class Converted:
    text: str
    cluster: Cluster  # the given cluster without dropped keys, as the text describes it
    left_behind: tuple[str, ...]  # keys that the target format cannot hold
    notes: tuple[str, ...]  # remarks for the user


def convert_cluster(
    cluster: Cluster, target_name: str, drop: Collection[str] = (), *, called: str | None = None
) -> Converted:
    """Convert `cluster` to the format `target_name` (a key of `TARGETS`), without the keys in `drop`.

    Equal clusters give equal text. `called` is the name of the source in messages.

    Raises:
        RefusedTableError: the target cannot express the cluster; the message lists all reasons.
        UsageError: `target_name` is not a target, or a key in `drop` exists in no format.
    """
    target = TARGETS[format_named(target_name, TARGETS)]
    keys = set(drop)
    if _SUPER_POD_NAME in keys:
        keys = keys - {_SUPER_POD_NAME} | SUPER_POD
    for key in sorted(keys & NEEDED):
        hint = "drop only keys that the new format cannot hold"
        raise UsageError(f"--drop {key}: every table needs this key", hint=hint)
    for key in sorted(keys - KNOWN_KEYS):
        question = did_you_mean(near(key[:40], [*KNOWN_KEYS, _SUPER_POD_NAME], limit=1))
        hint = question or f"give an optional key, such as {_SUPER_POD_NAME}, device_ip or level_list"
        raise UsageError(f"--drop {key[:40]}: rank tables have no optional key with this name", hint=hint)
    cluster = without(cluster, keys)
    held = held_keys(cluster)
    homeless = [key for key in held if key not in target.keys]
    left = [key for key in homeless if key in NEVER_READ or not target.is_table]
    cluster = without(cluster, left)
    reasons = list(_reasons(cluster, target, {key: held[key] for key in homeless if key not in left}))
    if reasons:
        name = called or str(cluster.source or "the cluster")
        lines = (f"{name}: error: {target.name} cannot express this: {reason.message}" for reason in reasons)
        raise RefusedTableError("\n".join(lines), hint="; ".join(dict.fromkeys(reason.hint for reason in reasons)))
    notes = (*_notes(target, {key: held[key] for key in left}), *target.advice(cluster))
    return Converted(target.write(cluster), cluster, tuple(left), notes)


def has_super_pods(cluster: Cluster) -> bool:
    return any(server.super_pod_id is not None for server in cluster.servers)


def format_named(name: str, known: Collection[str]) -> str:
    """Return the full name of a format in `known`, such as "v1.0" for "1.0".

    Raises:
        UsageError: the format is unknown.
    """
    full = f"v{name}" if f"v{name}" in SOURCES else name
    if full not in known:
        is_read = full in SOURCES
        question = None if is_read else did_you_mean(near(name[:40], known, limit=1))
        hint = f"{f'{question} ' if question else ''}use one of {', '.join(known)}"
        raise UsageError(f"format {name[:40]!r} is {'read but not written' if is_read else 'unknown'}", hint=hint)
    return full


def rewritten_format(table_format: str) -> str:
    """Return `table_format` if tlaunch can write this format, or else v1.0."""
    return table_format if table_format in TARGETS else V1_0.name


def marked_without_ascend(cluster: Cluster, target_name: str) -> tuple[Cluster, tuple[str, ...]]:
    """Mark the cluster as CPU if it lacks the addresses that HCCL needs. Return the cluster and notes about the change.

    Between servers, HCCL needs the address of every device or of every server. Other clusters are returned unchanged.
    A server's existing hardware_type is kept.
    """
    servers = cluster.servers
    has_addresses = all(server.host_ip for server in servers) or any(one.device_ip for one in devices_of(cluster))
    if HARDWARE not in TARGETS[target_name].keys or len(servers) < 2 or has_addresses:
        return cluster, ()
    marked = marked_as_cpu(servers)
    return (cluster, ()) if marked == servers else (replace(cluster, servers=marked), (_HARDWARE_NOTE,))


def held_keys(cluster: Cluster) -> dict[str, int]:
    """Return the number of occurrences of each optional key in a cluster."""
    held = Counter(dict.fromkeys((key for key, _ in cluster.options), 1))
    for server in cluster.servers:
        held.update(key for key in _SERVER_FIELDS if getattr(server, key) is not None)
        held.update(dict(server.options).keys())
        for device in server.devices:
            held.update(key for key in _DEVICE_FIELDS if getattr(device, key) is not None)
            held.update(dict(device.options).keys())
    return dict(held)


def without(cluster: Cluster, keys: Collection[str]) -> Cluster:
    """Return the cluster without the given optional keys."""
    if not keys:
        return cluster
    servers = []
    for server in cluster.servers:
        devices = tuple(_record_without(device, _DEVICE_FIELDS, keys) for device in server.devices)
        servers.append(replace(_record_without(server, _SERVER_FIELDS, keys), devices=devices))
    return replace(cluster, servers=tuple(servers), options=_options_without(cluster.options, keys))


def _record_without(record: _Record, fields: tuple[str, ...], keys: Collection[str]) -> _Record:
    left_out: dict[str, Any] = {key: None for key in fields if key in keys}
    return replace(record, options=_options_without(record.options, keys), **left_out)


def _options_without(options: Options, keys: Collection[str]) -> Options:
    return tuple((key, value) for key, value in options if key not in keys)


def _reasons(cluster: Cluster, target: Target, homeless: dict[str, int]) -> Iterator[Reason]:
    if "super_pod_id" in homeless:
        yield Reason("only v1.2 has super pods", f"use --drop {_SUPER_POD_NAME} to leave them out")
        homeless = {key: count for key, count in homeless.items() if key not in SUPER_POD}
    for key, count in homeless.items():
        times = "" if count == 1 else f" (it occurs {count:,} times)"
        yield Reason(f"the format has no key for {key}{times}", f"use --drop {key} to leave it out")
    for limit in target.limits:
        yield from limit(cluster)


def _notes(target: Target, left: dict[str, int]) -> Iterator[str]:
    if not left:
        return
    if not target.is_table:
        yield f"dropped, because a {target.name} holds only hosts and slots: {', '.join(left)}; keep the table"
        return
    of_v1_1 = [key for key in left if key in NODE_TABLE_OPTIONS]
    others = [key for key in left if key not in NODE_TABLE_OPTIONS]
    if of_v1_1:
        yield f"dropped, because only v1.1 uses it: {', '.join(of_v1_1)}"
    if others:
        yield f"dropped, because {target.name} cannot hold it and HCCL never reads it: {', '.join(others)}"
