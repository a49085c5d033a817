"""The attempts of a run on one of its servers: the coordinator of all servers says what became of each, and what follows."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from launcher.core.errors import EXIT_FAILURE
from launcher.core.events import Cause, Judged, Stopping
from launcher.core.messages import (
    AttemptOver,
    Begin,
    Decided,
    EvidenceReport,
    EvidenceRequest,
    Finish,
    Message,
    ProbeRequest,
    Stop,
)
from launcher.core.verdict import Confidence, Verdict
from launcher.supervise.attempts import Attempts
from launcher.supervise.court import Decision, Evidence, to_fields, told_beside, with_unheard
from launcher.supervise.link import Link
from launcher.supervise.port import HeldPort
from launcher.supervise.soundings import ReachProbes, listening_ports


class ConcertedAttempts(Attempts):
    """As `Attempts`; between two of them it waits until nothing of the last one is left on any server."""

    _others = True

    def __init__(self, *given: Any, link: Link, **named: Any) -> None:
        super().__init__(*given, **named)
        self._link: Link | None = link  # None once the coordinator is lost
        self._waits = False  # nothing of the last attempt is left here
        self._decided_early: Decided | None = None  # while what ranks left here was being ended
        self._finish: Finish | None = None  # the coordinator's last word

    # --- what the coordinator orders ---

    def hear(self, message: Message) -> None:
        match message:
            case EvidenceRequest(attempt=attempt) if attempt == self._number:
                self._testify()
            case ProbeRequest() if self.soundings is not None:
                self.soundings.begin(message.number, message.targets, message.timeout_s)
            case Decided(attempt=attempt) if attempt == self._number:
                self._hear_decision(message)
            case Begin(attempt=attempt, master_port=port) if self._waits and attempt == self._number + 1:
                self._begin_again(port)
            case Stop(cause=cause, signal=number, server=server):
                self.stop(cause, number, server)
            case Finish():
                self._finish = message
            case _:
                pass

    def lose_coordinator(self) -> None:
        """Nobody is left who could tell of the other servers."""
        self._link = None
        if self._waits:
            self._finish = Finish(Cause.COORDINATOR_LOST, EXIT_FAILURE)
        else:
            self.stop(Cause.COORDINATOR_LOST)

    @property
    def _number(self) -> int:
        """Of the present attempt."""
        return self._first + len(self._over) - self._waits

    def _testify(self) -> None:
        if self._waits or self.watch.ends_leftovers:
            self.decide(self.watch.testify())
        else:
            self.watch.inquire()

    def _hear_decision(self, decided: Decided) -> None:
        self._end_soundings()
        if self._waits:
            self._note_failure_elsewhere(decided)
        elif self.watch.ends_leftovers:
            self._decided_early = decided
        else:
            self.watch.decided(Decision(decided.verdict, decided.restarts), decided.cause)

    def _note_failure_elsewhere(self, decided: Decided) -> None:
        """All ranks here had ended well before one of another server failed: who asks here is to hear of it."""
        if self._over[-1].cause is Cause.FINISHED:
            self._over[-1] = replace(self._over[-1], cause=decided.cause, verdict=decided.verdict)
            self._event_log.record(Judged(decided.verdict))
            grace_s = self._spec.supervision.grace_from(time.time())
            self._event_log.record(Stopping(decided.cause, grace_s, restarts=decided.restarts))

    def _begin_again(self, port: int) -> None:
        self._waits = False
        if self._port.holder is None:
            self._port = HeldPort(port)
        self.begin()

    # --- as in Attempts ---

    def stop(self, cause: Cause, number: int | None = None, server: str | None = None) -> None:
        """As `Attempts.stop`. Where nothing runs, the coordinator says when all is over."""
        self._end_soundings()
        if not self._waits:
            self.watch.stop(cause, number, server)

    def go_on(self, *, childless: bool) -> bool:
        self._step_soundings()
        if not self._waits and self.watch.over(childless=childless):
            self._end()
            if self._decided_early is not None:
                self._note_failure_elsewhere(self._decided_early)
                self._decided_early = None
            self._wait_for_others()
        return not self._waits or self._finish is None

    def decide(self, evidence: Evidence) -> Decision | None:
        if self._link is None:
            return super().decide(evidence)
        self._end_soundings()
        with suppress(OSError, AttributeError):  # no descriptor is left, or no epoll: others do not try this server
            self.soundings = ReachProbes()
        port = None if self.soundings is None else self.soundings.port
        self._link.send(EvidenceReport(self._number, to_fields(evidence), port))
        return None

    def judge_alone(self, evidence: Evidence) -> Verdict:
        """As `Attempts.judge_alone`. What ranks of other servers did is not known: nothing is certain."""
        here = {rank.global_rank for rank in self._ranks}
        elsewhere = [rank.global_rank for rank in self._spec.ranks if rank.global_rank not in here]
        verdict = super().judge_alone(with_unheard(evidence, elsewhere))
        if verdict.confidence is not Confidence.CERTAIN:
            return verdict
        return told_beside(replace(verdict, confidence=Confidence.LIKELY), "no other server was heard")

    def _step_soundings(self) -> None:
        if self.soundings is not None and (answer := self.soundings.step()) is not None and self._link is not None:
            self._link.send(replace(answer, ports=listening_ports({*self.rank_group.leaders, *self.watch.left()})))

    def _end_soundings(self) -> None:
        if self.soundings is not None:
            self.soundings.close()
            self.soundings = None

    @property
    def cause(self) -> Cause:
        if self.watch.cause is Cause.HEAD_LOST or self._finish is None:  # what ends here first has its reason here
            return self.watch.cause
        return self._finish.cause

    def exit_code(self, stopped_by: int | None) -> int:
        return self._finish.exit_code if self._finish else super().exit_code(stopped_by)

    def _wait_for_others(self) -> None:
        self._waits = True
        if self._link is None:
            self._finish = Finish(self.watch.cause, super().exit_code(None))
            return
        left = bool(self.watch.left())
        if not left:
            self._take_another_port()
        held = None if self._port.holder is None else self._port.number
        self._link.send(AttemptOver(self._number, left, held))
