"""What servers tell of one attempt that failed, and what it amounts to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from launcher.core.events import Cause, Trouble
from launcher.core.interfaces import names_of
from launcher.core.messages import ProbeResult
from launcher.core.records import Server
from launcher.core.text import ranges
from launcher.core.verdict import Confidence, Role, Verdict
from launcher.engines.cluster.agent_connection import AgentConnection, Clock
from launcher.engines.cluster.losses import Loss, at_most_likely, has_own_fault, weigh
from launcher.engines.cluster.reach_check import Apart, Pair, ReachCheck, cut_off
from launcher.supervise.absence import stopped
from launcher.supervise.blame import accounts_of
from launcher.supervise.court import Evidence, from_fields, judged, together, told_beside
from launcher.supervise.event_log import EventLog
from launcher.supervise.stacks import sentence

SHOWN = 4  # pairs of servers
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")


class Hearing:
    """Of one attempt. Servers are named by their index."""

    def __init__(
        self,
        servers: Sequence[Server],
        event_log: EventLog,
        hang_timeout_s: float | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`hang_timeout_s`: ranks that are told to hang have made no progress for so long. `now_ns`: the wall clock."""
        self._now_ns = now_ns
        self._servers = servers
        self._event_log = event_log
        self._hang_timeout_s = hang_timeout_s
        self._testimonies: dict[int, Evidence] = {}
        self._ahead_ns: dict[int, int] = {}  # of the clocks of those that have testified
        self._error_ns: dict[int, int] = {}
        self._began_ns = self._now_ns()
        self._stalled_ns: int | None = None  # since when, at the latest, ranks that hang have made no progress
        self._losses: dict[int, Loss] = {}  # when
        self.lost: dict[int, str] = {}  # why, by server
        self._doors: dict[int, int] = {}  # ports on which servers that have testified can be reached for now
        self.reach: ReachCheck | None = None  # once it matters which servers reach each other
        self.apart: Sequence[Apart] = ()  # servers that do not

    def take(self, server_index: int, evidence: Any, clock: Clock, port: int | None = None) -> None:
        """A server's testimony, what is known of its clock, and where it can be reached. What is none counts as silence."""
        if port is not None:
            self._doors[server_index] = port
        with suppress(ValueError):
            own = self._testimonies[server_index] = self._own(server_index, from_fields(evidence))
            self._ahead_ns[server_index], self._error_ns[server_index] = clock.ahead_ns, clock.error_ns
            if own.hung and self._stalled_ns is None and self._hang_timeout_s is not None:
                self._stalled_ns = self._now_ns() - int(self._hang_timeout_s * 1e9)

    def _own(self, server_index: int, evidence: Evidence) -> Evidence:
        """A server speaks of its own ranks only."""
        own = set(self._ranks_of([server_index]))
        ranks = tuple(rank for rank in evidence.ranks if rank.global_rank in own)
        return replace(evidence, ranks=ranks, hung=tuple(rank for rank in evidence.hung if rank in own))

    def lose(
        self,
        server_index: int,
        why: str,
        *,
        since_ns: int,
        probably_ns: int,
        failed: Iterable[int] = (),
        alone: bool = False,
    ) -> None:
        """A server is lost, as is found now. `failed`: those ranks of all servers that are known to have failed.

        `alone`: no other machine is heard either.

        Wall clock, in nanoseconds: `since_ns`: not before; `probably_ns`: then, as far as is known.
        """
        self.lost[server_index] = why
        own = set(self._ranks_of([server_index]))
        ended = tuple(rank for rank in failed if rank in own)
        testified = server_index in self._testimonies
        self._losses[server_index] = Loss(server_index, since_ns, probably_ns, self._now_ns(), testified, ended, alone)

    def awaited(self, server_indices: Collection[int]) -> list[int]:
        """Those of these servers that have not testified and still can."""
        return [index for index in server_indices if index not in self._testimonies and index not in self.lost]

    def verdict(self) -> tuple[Verdict, Cause, int | None]:
        """Who is to blame, why the attempt ends, and the highest step that any rank has told."""
        evidence = self._evidence()
        verdict = judged(evidence, self._event_log)
        try:
            if self.apart and not self.lost and not has_own_fault(accounts_of(evidence.ranks)):
                verdict = self._with_partition(verdict, evidence)
            if self.lost:
                verdict = self._with_losses(verdict, evidence)
        except Exception as error:  # noqa: BLE001 - as in `judged`: ranks are ended, whatever is shown to us
            self._event_log.record(Trouble(f"what was lost cannot be judged: {error!r}"))
            verdict = told_beside(verdict, self._losses_told()) if self.lost else verdict
        if verdict.confidence is Confidence.CERTAIN:
            verdict = self._without_unheard(verdict)
        hung = bool(evidence.hung) and (verdict.server is None or bool(verdict.apart))
        return verdict, Cause.HUNG if hung else Cause.FAILED, evidence.highest_step

    @property
    def asks_for_reach(self) -> bool:
        """Whether no rank failed by itself: a network that parts servers would look the same."""
        evidence = self._evidence()
        if self.lost or len(self._testimonies) < 2:
            return False
        try:
            accounts = accounts_of(evidence.ranks)
            return bool(evidence.hung or accounts) and not has_own_fault(accounts)
        except Exception:  # noqa: BLE001 - it will be told when it is judged
            return False

    def _evidence(self) -> Evidence:
        unheard = self._ranks_of(index for index in range(len(self._servers)) if index not in self._testimonies)
        return together(self._testimonies, self._ahead_ns, self._error_ns, unheard)

    def check_reach(
        self,
        peers: Mapping[int, AgentConnection],
        master: tuple[int, int],
        resolved: Iterable[tuple[str, Iterable[object]]] = (),
    ) -> float | None:
        """Ask servers whether they reach each other, where that matters: when to call again, monotonic; None: done.

        `master`: the server of rank 0, and the port where ranks meet there. `resolved`: what names of servers mean.
        """
        if self.reach is None:
            if not self.asks_for_reach:
                return None
            named = self._named_pairs()
            self.reach = ReachCheck(
                peers, self._servers, self._doors, master=master, resolved=dict(resolved), named=named
            )
        if not self.reach.step():
            return self.reach.due
        self.apart = self.reach.apart
        return None

    def take_reach(self, server_index: int, answer: ProbeResult) -> None:
        """Whom a server does not reach. What nobody has asked is not heard."""
        if self.reach is not None:
            self.reach.take(server_index, answer)

    def _named_pairs(self) -> Iterator[Pair]:
        """Servers of which a failure's own words name another one's address."""
        places = {name: index for index, server in enumerate(self._servers) for name in names_of(server)}
        for index, testimony in self._testimonies.items():
            texts = (rank.failure.message if rank.failure else rank.log_tail for rank in testimony.ranks)
            for word in {word for text in texts for word in _ADDRESS.findall(text)}:
                if places.get(word, index) != index:
                    yield index, places[word]

    def _with_partition(self, verdict: Verdict, evidence: Evidence) -> Verdict:
        """No rank is to blame, unless one is stopped, which no network does: between some servers nothing arrives."""
        pairs = [one.pair for one in self.apart]
        alone = cut_off(pairs, len(self._testimonies))
        ids = [self._servers[index].server_id for index in range(len(self._servers))]
        tried = [
            f"between {ids[one]} (port {port}) and {ids[other]} (port {other_port}): {each.why}"
            for each in self.apart[:SHOWN]
            for (one, other), (port, other_port) in ((each.pair, each.ports),)
        ]
        more = f" and between {len(self.apart) - SHOWN} more pairs" if len(self.apart) > SHOWN else ""
        found = f"no connection can be made either way {', '.join(tried)}{more}"
        if any(stopped(rank) and rank.global_rank == verdict.culprit for rank in evidence.ranks):
            return told_beside(replace(verdict, confidence=at_most_likely(verdict)), found)
        where = f"{sentence(verdict.stacks)}; " if verdict.stacks else ""
        failed = {one.global_rank for one in accounts_of(evidence.ranks)}
        return Verdict(
            culprit=None,
            confidence=Confidence.LIKELY,
            reason=where + found,
            failures=tuple(
                replace(one, role=Role.CONSEQUENCE) for one in verdict.failures if one.global_rank in failed
            ),
            stacks=verdict.stacks,
            server=None if alone is None else ids[alone],
            apart=tuple((ids[one], ids[other]) for one, other in pairs),
        )

    def _without_unheard(self, verdict: Verdict) -> Verdict:
        """A rank of a server that was too busy to testify in time may have failed before all others."""
        unheard = self.awaited(range(len(self._servers)))
        if not unheard:
            return verdict
        more = f" and {len(unheard) - 1} more were" if len(unheard) > 1 else " was"
        doubted = replace(verdict, confidence=Confidence.LIKELY)
        return told_beside(doubted, f"{self._described(unheard[0])}{more} not heard in time")

    def _with_losses(self, verdict: Verdict, evidence: Evidence) -> Verdict:
        """What ranks of other servers failed of followed from a loss, unless one failed by itself before it."""
        told, now_ns = self._losses_told(), self._now_ns()
        losses = [self._losses.get(index, Loss(index, self._began_ns, now_ns, now_ns)) for index in self.lost]
        found = weigh(verdict, evidence, losses, self._stalled_ns)
        if found.why:
            told = f"{told}; {found.why}"
        if found.loss is None:
            return told_beside(replace(verdict, confidence=found.confidence), told)
        followed = {one.global_rank: one.symptom.consequence for one in accounts_of(evidence.ranks)}
        failures = tuple(  # a rank that is missed has not failed
            replace(one, role=Role.CONSEQUENCE) if followed[one.global_rank] else one
            for one in verdict.failures
            if one.global_rank in followed
        )
        server = self._servers[found.loss.server_index].server_id
        return Verdict(None, found.confidence, told, failures, verdict.stacks, server=server)

    def _losses_told(self) -> str:
        return "; ".join(f"{self._described(index)} was lost: {why}" for index, why in self.lost.items())

    def _described(self, server_index: int) -> str:
        which = self._ranks_of([server_index])
        return f"server {self._servers[server_index].server_id} with rank{'s' * (len(which) > 1)} {ranges(which)}"

    def _ranks_of(self, server_indices: Iterable[int]) -> list[int]:
        return [device.global_rank for index in server_indices for device in self._servers[index].devices]
