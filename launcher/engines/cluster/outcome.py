"""What becomes of a run over several servers, as far as it is decided: how it ends, and whether its ranks start again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from launcher.core.errors import EXIT_FAILURE, EXIT_HUNG, EXIT_OK, TlaunchError
from launcher.core.events import Cause, Judged, NotBegun, NotRestarting, Stopping, Trouble
from launcher.core.messages import Decided, Finish, Stop
from launcher.core.records import RunSpec, Server
from launcher.core.verdict import Verdict
from launcher.engines.cluster.agent_connection import AgentConnection
from launcher.engines.cluster.chronicle import Chronicle
from launcher.engines.cluster.engine_output import cancelled, gave_up, killed
from launcher.engines.cluster.engine_process import EngineProcess
from launcher.engines.cluster.hearing import Hearing
from launcher.engines.cluster.plan import Plan
from launcher.supervise.attempts import exit_code_of_failure
from launcher.supervise.restart import Restarts


class Outcome:
    """Decides, and has what it decides recorded. What servers have to be told of it is the coordinator's."""

    def __init__(self, spec: RunSpec, plan: Plan, servers: Sequence[Server], chronicle: Chronicle) -> None:
        self._supervision = spec.supervision
        self._plan = plan
        self._servers = servers
        self._first_id = spec.ranks[0].server_id
        self._chronicle = chronicle
        self._restarts = Restarts(spec.supervision.max_restarts)
        self.stopped_by_server = False  # perhaps by an engine that gives up
        self.hearing = self._new_hearing()  # of the present attempt
        self.finish: Finish | None = None  # once the end is certain
        self.again = False  # the ranks are to be started again

    @property
    def again_here(self) -> bool:
        """Whether the same agents start ranks again; else agents are started anew."""
        return self.again and not self.hearing.lost and not self._plan.engine_anew

    def begin_attempt(self) -> None:
        """What was decided of the attempt before was undone by starting again."""
        self.hearing = self._new_hearing()
        self.forget_end()
        self.stopped_by_server = False

    def _new_hearing(self) -> Hearing:
        return Hearing(self._servers, self._chronicle.event_log, self._supervision.hang_timeout_s)

    def note_loss(self, server_index: int, why: str, peer: AgentConnection, *, hears_others: bool) -> None:
        """A server is lost, or gives itself up. `hears_others`: agents of other machines are heard."""
        now_ns, now_monotonic_ns = time.time_ns(), time.monotonic_ns()

        def by_wall_clock(monotonic_ns: int | None) -> int:
            return now_ns if monotonic_ns is None else now_ns - now_monotonic_ns + monotonic_ns

        silent = peer.silent_s >= self._plan.silence_s
        self.hearing.lose(
            server_index,
            why,
            since_ns=by_wall_clock(peer.answered_ns),
            probably_ns=by_wall_clock(peer.unanswered_ns) if silent else now_ns,
            failed=[rank for rank, ended in self._chronicle.progress.exits.items() if ended.failed],
            alone=silent and not hears_others,
        )

    def forget_end(self) -> None:
        """If agents cannot be had for the next attempt, that is the end."""
        self.finish, self.again = None, False

    def refuse(self, error: TlaunchError) -> None:
        """Nothing starts, also where an attempt was to be repeated."""
        self.again = False
        self._chronicle.record(NotBegun(error.message, error.hint))
        self._record_stopping(Cause.FAILED)
        self.finish = Finish(Cause.FAILED, error.exit_code, str(error))

    def refuse_restart(self, reason: str) -> None:
        self.again = False
        self._chronicle.record(NotRestarting(reason))

    def judge(self, attempt: int, engine: EngineProcess | None) -> Decided:
        """By what has been heard of the attempt, for all servers. `engine`: which has brought them."""
        verdict, cause, step = self.hearing.verdict()
        if self._plan.brings_all and self.hearing.lost:
            verdict = killed(engine) or verdict  # it has taken agents with it
        self._chronicle.record(Judged(verdict))
        self.again = self._restarts.decide(verdict, step)
        if self._restarts.refusal:
            self.refuse_restart(self._restarts.refusal)
        self._refuse_restart_by_hand()
        self._record_stopping(cause)
        self.finish = Finish(cause, EXIT_HUNG if cause is Cause.HUNG else EXIT_FAILURE)
        return Decided(attempt, verdict, cause, self.again_here)

    def stop(self, cause: Cause, number: int | None, *, by_server: int | None) -> Stop:
        """Somebody wants the end; `by_server`: the server whose agent was asked, perhaps by an engine that gives up."""
        self.stopped_by_server = by_server is not None and self._plan.brings_all
        stopping = self._record_stopping(cause, number, self._asked_at(by_server) if number else None)
        reason = f"stopped by {stopping.asked_by}" if number else None
        self.finish = Finish(cause, 128 + number if number else EXIT_FAILURE, reason)
        return Stop(cause, number, stopping.server)

    def stop_restart(self, *, by_server: int | None) -> None:
        """Somebody wants the end of what ends already. What a person wants is no engine's failure."""
        if by_server is None:
            self.stopped_by_server = False
        if self.again and (by_server is None or not self._plan.brings_all):  # an engine may end agents by then
            self.refuse_restart("the end was asked for meanwhile")

    def settle(self) -> None:
        """Nothing of the attempt is left on any server that is there."""
        if self.stopped_by_server and self.hearing.lost:
            self._judge_loss()
        self._refuse_restart_by_hand()  # a server may have been lost while ranks were being ended
        progress = self._chronicle.progress
        if self.finish is None:
            self.finish = Finish(Cause.FINISHED, EXIT_OK)
        elif self.finish.cause is Cause.FAILED and progress.verdict and progress.verdict.culprit is not None:
            exit_code = exit_code_of_failure(progress.verdict, progress.attempts[-1].exits)
            self.finish = Finish(Cause.FAILED, exit_code)

    def note_engine_end(self, engine: EngineProcess, names: Mapping[int, Sequence[str]]) -> None:
        """It ended by itself. Where it asked agents to end, and nobody asked us, it has lost a server or was ended.

        `names`: what servers are called, by server_index.
        """
        if not self.stopped_by_server:
            return
        if words := cancelled(engine):  # no failure
            self._chronicle.record(Trouble(words))
        elif verdict := killed(engine):
            self._blame(verdict, again=self._restarts.decide(verdict, None))
        elif verdict := gave_up(engine, self._servers, names):
            named = verdict.server is not None
            self._blame(verdict, again=named and self._restarts.decide(verdict, None))

    def _judge_loss(self) -> None:
        """The engine was the first to notice, and asked the other agents to end."""
        verdict, _, step = self.hearing.verdict()
        self._blame(verdict, again=self._restarts.decide(verdict, step))

    def _blame(self, verdict: Verdict, *, again: bool) -> None:
        """What was taken for somebody's wish was a failure."""
        self.stopped_by_server = False
        self.again = again
        self._chronicle.record(Judged(verdict))
        self.finish = Finish(Cause.FAILED, EXIT_FAILURE)

    def _refuse_restart_by_hand(self) -> None:
        if self.again and self.hearing.lost and not self._plan.brings_all:
            self.refuse_restart("a lost server that was started by hand has to be started by hand again")

    def _asked_at(self, by_server: int | None) -> str | None:
        """The server of the launcher or agent that was asked; None for the launcher of an engine's run, which is on any."""
        if by_server is not None:
            return self._servers[by_server].server_id
        return None if self._plan.brings_all else self._first_id

    def _record_stopping(self, cause: Cause, number: int | None = None, server: str | None = None) -> Stopping:
        stopping = Stopping(cause, self._supervision.grace_from(time.time()), number, self.again, server)
        self._chronicle.record(stopping)
        return stopping
