"""What servers tell of one attempt that failed, and what it amounts to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from launcher.core.events import Cause
from launcher.core.ranges import ranges
from launcher.core.records import Server
from launcher.core.verdict import Confidence, Verdict
from launcher.engines.cluster.peers import Clock
from launcher.supervise.court import Evidence, from_fields, judged, together
from launcher.supervise.journal import Journal


class Hearing:
    """Of one attempt. Servers are named by their index."""

    def __init__(self, servers: Sequence[Server], journal: Journal) -> None:
        self._servers = servers
        self._journal = journal
        self._testimonies: dict[int, Evidence] = {}
        self._ahead_ns: dict[int, int] = {}  # of the clocks of those that have testified
        self._error_ns: dict[int, int] = {}
        self.lost: dict[int, str] = {}  # why, by server

    def take(self, server_index: int, evidence: Any, clock: Clock) -> None:
        """A server's testimony, and what is known of its clock. What is none counts as silence."""
        with suppress(ValueError):
            self._testimonies[server_index] = from_fields(evidence)
            self._ahead_ns[server_index], self._error_ns[server_index] = clock.ahead_ns, clock.error_ns

    def silent(self, server_indices: Collection[int]) -> list[int]:
        """Those of these servers that have not testified."""
        return [index for index in server_indices if index not in self._testimonies]

    def verdict(self) -> tuple[Verdict, Cause, int | None]:
        """Who is to blame, why the attempt ends, and the highest step that any rank has told."""
        evidence = together(self._testimonies, self._ahead_ns, self._error_ns)
        verdict = judged(evidence, self._journal)
        if self.lost and verdict.confidence is not Confidence.CERTAIN:
            verdict = self._of_loss(verdict)
        hung = bool(evidence.hung) and not self.lost
        return verdict, Cause.HUNG if hung else Cause.FAILED, evidence.highest_step

    def _of_loss(self, verdict: Verdict) -> Verdict:
        """What ranks of other servers failed of followed from it."""
        index, why = next(iter(self.lost.items()))
        server = self._servers[index]
        lost_ranks = ranges(device.global_rank for device in server.devices)
        reason = f"server {server.server_id} with rank{'s' * (len(server.devices) > 1)} {lost_ranks} was lost: {why}"
        return Verdict(None, Confidence.CERTAIN, reason, verdict.failures, verdict.stacks, server=server.server_id)
