"""The CPU time and memory of processes with their descendants, from one scan of /proc for all of them."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

from launcher.core.frozen import frozen
from launcher.core.proc import PROC

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@frozen
class Usage:
    """A process and its descendants together."""

    cpu_s: float  # since their start, of those that were reaped too; grows
    rss_bytes: int  # of those that live; pages that they share count for each


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    ticks: int
    pages: int


def usage_of(leaders: Collection[int]) -> dict[int, Usage]:
    """Return the usage of each leader by pid: of itself, its descendants, and orphans in the session that it leads.

    Leaders that have gone are missing; without /proc, all are.
    """
    try:
        names = os.listdir(PROC)  # noqa: PTH208 - a scan of thousands of names, and no use for paths
    except OSError:
        return {}
    found = (_read(name) for name in names if name.isdecimal())
    processes = {process.pid: process for process in found if process}
    owners: dict[int, int | None] = {leader: leader for leader in leaders}
    sums: dict[int, Usage] = {leader: Usage(0.0, 0) for leader in leaders if leader in processes}
    for process in processes.values():
        owner = _owner(process, processes, owners)
        if owner in sums:
            so_far = sums[owner]
            sums[owner] = Usage(
                so_far.cpu_s + process.ticks / TICKS_PER_S, so_far.rss_bytes + process.pages * PAGE_BYTES
            )
    return sums


def _owner(process: _Process, processes: dict[int, _Process], owners: dict[int, int | None]) -> int | None:
    """Return the leader whose process this is, or None. Remembers the path in `owners`."""
    way = []
    current: _Process | None = process
    owner = None
    while current is not None:
        if current.pid in owners:
            owner = owners[current.pid]
            break
        owners[current.pid] = None  # whatever /proc says, nothing goes round in a circle
        way.append(current.pid)
        if current.session in owners and owners[current.session] == current.session:
            owner = current.session
            break
        current = processes.get(current.parent)
    owners.update(dict.fromkeys(way, owner))
    return owner


def _read(name: str) -> _Process | None:
    try:
        descriptor = os.open(f"{PROC}/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # gone meanwhile
        return None
    try:
        text = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    fields = text[text.rindex(b")") + 1 :].split()  # a name may hold anything
    ticks = sum(map(int, fields[11:15]))  # in user and system mode, its reaped children's too
    return _Process(int(name), int(fields[1]), int(fields[3]), ticks, int(fields[21]))
