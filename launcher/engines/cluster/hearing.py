"""What servers tell of one attempt that failed, and what it amounts to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
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
            self._testimonies[server_index] = self._own(server_index, from_fields(evidence))
            self._ahead_ns[server_index], self._error_ns[server_index] = clock.ahead_ns, clock.error_ns

    def _own(self, server_index: int, evidence: Evidence) -> Evidence:
        """A server speaks of its own ranks only."""
        own = {device.global_rank for device in self._servers[server_index].devices}
        ranks = tuple(rank for rank in evidence.ranks if rank.global_rank in own)
        return replace(evidence, ranks=ranks, hung=tuple(rank for rank in evidence.hung if rank in own))

    def awaited(self, server_indices: Collection[int]) -> list[int]:
        """Those of these servers that have not testified and still can."""
        return [index for index in server_indices if index not in self._testimonies and index not in self.lost]

    def verdict(self) -> tuple[Verdict, Cause, int | None]:
        """Who is to blame, why the attempt ends, and the highest step that any rank has told."""
        evidence = together(self._testimonies, self._ahead_ns, self._error_ns)
        verdict = judged(evidence, self._journal)
        if self.lost:
            verdict = self._with_losses(verdict)
        if verdict.confidence is Confidence.CERTAIN and verdict.server is None:  # a loss was seen
            verdict = self._without_unheard(verdict)
        hung = bool(evidence.hung) and not self.lost
        return verdict, Cause.HUNG if hung else Cause.FAILED, evidence.highest_step

    def _without_unheard(self, verdict: Verdict) -> Verdict:
        """A rank of a server that was too busy to testify in time may have failed before all others."""
        unheard = self.awaited(range(len(self._servers)))
        if not unheard:
            return verdict
        more = f" and {len(unheard) - 1} more were" if len(unheard) > 1 else " was"
        told = f"; {self._described(unheard[0])}{more} not heard in time"
        failures = (
            replace(one, reason=one.reason + told) if one.global_rank == verdict.culprit else one
            for one in verdict.failures
        )
        return replace(verdict, confidence=Confidence.LIKELY, reason=verdict.reason + told, failures=tuple(failures))

    def _with_losses(self, verdict: Verdict) -> Verdict:
        """What ranks of other servers failed of followed from a loss, unless it is certain that they were first."""
        losses = [f"{self._described(index)} was lost: {why}" for index, why in self.lost.items()]
        if verdict.confidence is Confidence.CERTAIN:
            return replace(verdict, reason="; ".join((verdict.reason, *losses)))
        server = self._servers[next(iter(self.lost))].server_id
        return Verdict(None, Confidence.CERTAIN, "; ".join(losses), verdict.failures, verdict.stacks, server=server)

    def _described(self, server_index: int) -> str:
        server = self._servers[server_index]
        which = ranges(device.global_rank for device in server.devices)
        return f"server {server.server_id} with rank{'s' * (len(server.devices) > 1)} {which}"
