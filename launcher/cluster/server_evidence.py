"""The evidence of all servers for a failed attempt, and the verdict, which also considers lost servers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from launcher.cluster.agent_connection import AgentConnection, Clock
from launcher.control.events import Diagnosed, EvidenceReport, Pair
from launcher.control.evidence_collection import cut_off
from launcher.control.orders import Apart
from launcher.core.codec import decode
from launcher.core.events import Cause, Trouble
from launcher.core.machine.interfaces import names_of
from launcher.core.records import Server
from launcher.core.run_report import RankExit
from launcher.core.text import ranges
from launcher.core.verdict import Confidence, Role, Verdict
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.missing_rank import stopped
from launcher.supervise.diagnosis.rank_stacks import sentence
from launcher.supervise.diagnosis.root_cause import at_most_likely, summaries_of, with_remark
from launcher.supervise.diagnosis.servers import (
    Evidence,
    Loss,
    judged,
    merge_evidence,
    own_fault,
    weigh,
)
from launcher.supervise.event_log import EventLog

SHOWN = 4  # pairs of servers
CHECK_MTU = "`ping -M do -s 1472 {}` shows whether 1500 bytes pass"
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")


class ServerEvidence:
    """The reports of servers about one attempt, and the servers that were lost. Servers are identified by index."""

    def __init__(
        self,
        servers: Sequence[Server],
        event_log: EventLog,
        hang_timeout_s: float | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Start without evidence. Ranks count as hung after `hang_timeout_s` seconds without progress."""
        self._now_ns = now_ns
        self.servers = servers
        self._event_log = event_log
        self._hang_timeout_s = hang_timeout_s
        self._reports: dict[int, Evidence] = {}
        self._ahead_ns: dict[int, int] = {}  # clock offsets of servers that have reported
        self._error_ns: dict[int, int] = {}
        self._stalled_ns: int | None = None  # the latest time at which hung ranks stopped making progress
        self._losses: dict[int, Loss] = {}  # times of losses, by server
        self.lost: dict[int, str] = {}  # reasons of losses, by server

    def take(self, report: EvidenceReport, clock: Clock) -> bool:
        """Store a server's evidence and clock offset. Return False if the evidence cannot be decoded."""
        server_index = report.server
        try:
            reported = decode(Evidence, report.evidence)
        except ValueError:
            return False
        # A server only reports on its own ranks.
        ranks = set(self._ranks_of([server_index]))
        own = self._reports[server_index] = replace(
            reported,
            ranks=tuple(rank for rank in reported.ranks if rank.global_rank in ranks),
            hung=tuple(rank for rank in reported.hung if rank in ranks),
        )
        self._ahead_ns[server_index], self._error_ns[server_index] = clock.ahead_ns, clock.error_ns
        if own.hung and self._stalled_ns is None and self._hang_timeout_s is not None:
            self._stalled_ns = self._now_ns() - int(self._hang_timeout_s * 1e9)
        return True

    def lose_agent(
        self,
        server_index: int,
        why: str,
        peer: AgentConnection,
        silence_s: float,
        *,
        failed: Iterable[int],
        alone: bool,
        stood_still_s: float = 0.0,
    ) -> None:
        """Record that a server was just lost or gave up, and estimate the time of the loss from its connection.

        `silence_s`: the silence after which a server is lost. For the other parameters, see `lose`.
        """
        now_ns, now_monotonic_ns = time.time_ns(), time.monotonic_ns()

        def by_wall_clock(monotonic_ns: int | None) -> int:
            return now_ns if monotonic_ns is None else now_ns - now_monotonic_ns + monotonic_ns

        silent = peer.silent_s >= silence_s
        self.lose(
            server_index,
            why,
            since_ns=by_wall_clock(peer.pings.answered_ns),
            probably_ns=by_wall_clock(peer.pings.unanswered_ns) if silent else now_ns,
            failed=failed,
            alone=silent and alone,
            stood_still_s=stood_still_s,
        )

    def lose(
        self,
        server_index: int,
        why: str,
        *,
        since_ns: int,
        probably_ns: int,
        failed: Iterable[int] = (),
        alone: bool = False,
        stood_still_s: float = 0.0,
    ) -> None:
        """Record that a server was lost just now.

        `since_ns` and `probably_ns` are the earliest and the most likely time of the loss, by the wall clock in
        nanoseconds. `failed` has the failed ranks of all servers. `alone`: no other machine was heard.
        `stood_still_s`: how long this machine was suspended, if the server disconnected because of that.
        """
        self.lost[server_index] = why
        own = set(self._ranks_of([server_index]))
        ended = tuple(rank for rank in failed if rank in own)
        testified = server_index in self._reports
        self._losses[server_index] = Loss(
            server_index, since_ns, probably_ns, self._now_ns(), testified, ended, alone, stood_still_s
        )

    def note_finished(self, server_index: int, exits: Mapping[int, RankExit]) -> None:
        """Record that a server left the run after all of its ranks had succeeded."""
        ranks = self._ranks_of([server_index])
        self._reports[server_index] = Evidence(
            tuple(
                RankEvidence(rank, exits[rank].status, exits[rank].ended_ns, index) for index, rank in enumerate(ranks)
            )
        )

    def awaited(self, server_indices: Collection[int]) -> list[int]:
        return [index for index in server_indices if index not in self._reports and index not in self.lost]

    def diagnosed(self, apart: Sequence[Apart] = ()) -> Diagnosed:
        """Return the verdict on the evidence so far. `apart` lists the servers that cannot reach each other."""
        unheard = self._ranks_of(index for index in range(len(self.servers)) if index not in self._reports)
        evidence = merge_evidence(self._reports, self._ahead_ns, self._error_ns, unheard)
        verdict = judged(evidence, self._event_log.record)
        try:
            if apart and not self.lost and not own_fault(summaries_of(evidence.ranks)):
                verdict = self._with_partition(verdict, evidence, apart)
            if self.lost:
                verdict = self._with_losses(verdict, evidence)
        except Exception as error:  # noqa: BLE001 - as in `judged`: the ranks must be ended in any case
            self._event_log.record(Trouble(f"cannot evaluate the lost servers: {error!r}"))
            verdict = with_remark(verdict, self._losses_text()) if self.lost else verdict
        late = self.awaited([index for index, server in enumerate(self.servers) if server.devices])
        if late and verdict.confidence is Confidence.CERTAIN:
            # A rank on a server that did not report in time may have failed first.
            more = f" and {len(late) - 1} more were" if len(late) > 1 else " was"
            doubted = replace(verdict, confidence=Confidence.LIKELY)
            verdict = with_remark(doubted, f"{self._described(late[0])}{more} not heard in time")
        cause = Cause.HUNG if evidence.hung and not verdict.is_loss else Cause.FAILED
        asks_reach = self._asks_reach(evidence)
        named = tuple(self._named_pairs()) if asks_reach else ()
        return Diagnosed(verdict, cause, evidence.highest_step, asks_reach, named)

    def _asks_reach(self, evidence: Evidence) -> bool:
        """Return True if no rank failed by itself, so a network partition may be the cause."""
        if self.lost or len(self._reports) < 2:
            return False
        try:
            summaries = summaries_of(evidence.ranks)
            return bool(evidence.hung or summaries) and not own_fault(summaries)
        except Exception:  # noqa: BLE001 - `diagnosed` reports it
            return False

    def _named_pairs(self) -> Iterator[Pair]:
        """Yield the pairs (a, b) where a failure message on server a contains an address of server b."""
        places = {name: index for index, server in enumerate(self.servers) for name in names_of(server)}
        for index, report in self._reports.items():
            texts = (rank.failure.message if rank.failure else rank.log_tail for rank in report.ranks)
            for word in {word for text in texts for word in _ADDRESS.findall(text)}:
                if places.get(word, index) != index:
                    yield index, places[word]

    def _with_partition(self, verdict: Verdict, evidence: Evidence, apart: Sequence[Apart]) -> Verdict:
        """Return the verdict if servers cannot reach each other. Blame the network unless the culprit was suspended."""
        pairs = [one.pair for one in apart]
        alone = cut_off(pairs, len(self._reports))
        ids = [self.servers[index].server_id for index in range(len(self.servers))]
        loses_large = apart[0].loses_large
        tried = [
            f"between {ids[one]} (port {port}) and {ids[other]} (port {other_port}){'' if loses_large else f': {each.why}'}"
            for each in apart[:SHOWN]
            for (one, other), (port, other_port) in ((each.pair, each.ports),)
        ]
        more = f" and between {len(apart) - SHOWN} more pairs" if len(apart) > SHOWN else ""
        found = f"no connection can be made in either direction {', '.join(tried)}{more}"
        if loses_large:
            check = CHECK_MTU.format(ids[apart[0].pair[1]])
            found = f"small packets arrive but large ones are lost {', '.join(tried)}{more}; {check}"
        if any(stopped(rank) and rank.global_rank == verdict.culprit for rank in evidence.ranks):
            return with_remark(replace(verdict, confidence=at_most_likely(verdict)), found)
        where = f"{sentence(verdict.stacks)}; " if verdict.stacks else ""
        failed = {one.global_rank for one in summaries_of(evidence.ranks)}
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
            loses_large=loses_large,
        )

    def _with_losses(self, verdict: Verdict, evidence: Evidence) -> Verdict:
        """Return the verdict if servers were lost. It blames the loss, unless a rank failed by itself earlier."""
        told = self._losses_text()
        found = weigh(verdict, evidence, list(self._losses.values()), self._stalled_ns)
        if found.why:
            told = f"{told}; {found.why}"
        if found.loss is None:
            return with_remark(replace(verdict, confidence=found.confidence), told)
        followed = {one.global_rank: one.symptom.consequence for one in summaries_of(evidence.ranks)}
        failures = tuple(  # without missing ranks, which have not failed
            replace(one, role=Role.CONSEQUENCE) if followed[one.global_rank] else one
            for one in verdict.failures
            if one.global_rank in followed
        )
        if found.loss.stood_still_s:
            still_s = found.loss.stood_still_s
            return Verdict(None, found.confidence, told, failures, verdict.stacks, stood_still_s=still_s)
        server = self.servers[found.loss.server_index].server_id
        lost = sorted(loss.server_index for loss in (found.loss, *found.together))
        servers = tuple(self.servers[index].server_id for index in lost) if found.together else ()
        return Verdict(None, found.confidence, told, failures, verdict.stacks, server=server, servers=servers)

    def _losses_text(self) -> str:
        return "; ".join(f"{self._described(index)} was lost: {why}" for index, why in self.lost.items())

    def _described(self, server_index: int) -> str:
        which = self._ranks_of([server_index])
        return f"server {self.servers[server_index].server_id} with rank{'s' * (len(which) > 1)} {ranges(which)}"

    def _ranks_of(self, server_indices: Iterable[int]) -> list[int]:
        return [device.global_rank for index in server_indices for device in self.servers[index].devices]
