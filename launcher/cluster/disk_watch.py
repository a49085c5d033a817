"""Detection of disks that do not respond, for a run on several servers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.cluster.agent_connection import AgentConnection
from launcher.control.disk_stalls import ALSO_S, DiskStalls
from launcher.control.events import Diagnosed
from launcher.core.records import Server
from launcher.core.run_dir import RunDir
from launcher.supervise.diagnosis.root_cause import with_remark
from launcher.supervise.disk import Disk


class DiskWatch:
    def __init__(self, run_dir: Path, servers: Sequence[Server]) -> None:
        self.disk = Disk(RunDir(run_dir).events)
        self.stalled: set[int] = set()  # servers whose disks did not answer at the last check
        self.some_stalls = False  # one of them, or the coordinator's own disk
        self._servers = servers
        self._stalls = DiskStalls(str(run_dir))

    def look(self, peers: Mapping[int, AgentConnection]) -> str | None:
        """Check the disks of all servers. Return a message if a disk stops responding or works again, else None."""
        self.stalled = {index for index, peer in peers.items() if peer.disk_silent_s >= ALSO_S}
        silent_s = {self._servers[index].server_id: peers[index].disk_silent_s for index in self.stalled}
        own_s = self.disk.recent_silence_s()
        if not silent_s:
            silent_s["the launcher's machine"] = own_s
        self.some_stalls = max(silent_s.values()) >= ALSO_S
        return self._stalls.look(silent_s, time.monotonic())

    def remarked(self, found: Diagnosed) -> Diagnosed:
        """Add a remark to the verdict if a disk is not responding or recently did not respond."""
        remark = self._stalls.remark(time.monotonic())
        return found if remark is None else replace(found, verdict=with_remark(found.verdict, remark))
