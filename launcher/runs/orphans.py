"""Ranks that have outlived who watched over them, each with what it has started in its process group."""

from __future__ import annotations

import os
from contextlib import suppress

from launcher.core.frozen import frozen
from launcher.core.proc import ProcessId, every_process, stat


@frozen
class Orphan:
    """A rank, and the process group that is its own: what runs there belongs to it, also after its end."""

    process: ProcessId
    group: int | None  # None where others may be in its group
    watcher: int | None  # leads the group of a rank of a run.sh; it tells how that ended, and ends with it

    def living(self) -> list[ProcessId]:
        """Return the living processes of the rank and its group."""
        host, boot = self.process.host, self.process.boot
        others = [
            ProcessId(found.pid, found.started, host, boot)
            for found in (every_process() if self.group is not None else ())
            if found.living and found.pid not in (self.process.pid, self.watcher) and _group(found.pid) == self.group
        ]
        return [self.process, *others] if self.process.lives else others


def orphan(process: ProcessId) -> Orphan:
    """Return the rank whose own process this living one is."""
    group, found = _group(process.pid), stat(process.pid)
    if group == process.pid:
        return Orphan(process, group, None)
    if found is not None and group == found.parent:
        return Orphan(process, group, group)
    return Orphan(process, None, None)


def _group(pid: int) -> int | None:
    with suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return None
