"""The attempts of a run on one server, one after the other: each has its own ranks, its own port and its own verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.core.errors import EXIT_FAILURE, EXIT_HUNG, EXIT_OK, exit_code_of
from launcher.core.events import AttemptStarted, Cause, Continued, NotRestarting, Paused, Trouble
from launcher.core.records import RankSpec, RunSpec
from launcher.core.report import Attempt, RankExit, Report
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Verdict
from launcher.supervise.attempt_monitor import AttemptMonitor
from launcher.supervise.cgroup import RunGroup
from launcher.supervise.event_log import EventLog
from launcher.supervise.port import HeldPort, hold_port
from launcher.supervise.progress_monitor import ProgressMonitor
from launcher.supervise.rank_group import AttemptVariables, RankGroup
from launcher.supervise.restart import Restarts
from launcher.supervise.spawner import Spawner

if TYPE_CHECKING:
    from launcher.supervise.court import Decision, Evidence
    from launcher.supervise.soundings import ReachProbes


class Attempts:
    """Begins attempts, and knows what became of those that are over. `rank_group` and `watch` are the present one's."""

    rank_group: RankGroup
    watch: AttemptMonitor
    _others = False  # whether ranks of other servers belong to an attempt
    soundings: ReachProbes | None = None  # while others may want to know whether they reach this server

    def __init__(
        self,
        spec: RunSpec,
        ranks: Sequence[RankSpec],
        inherited: Mapping[str, str],
        *,
        port: HeldPort,
        spawner: Spawner,
        group: RunGroup,
        event_log: EventLog,
        first: int = 0,
    ) -> None:
        """`first`: the number of the first attempt here; agents that were lost had those before."""
        self._first = first
        self._spec = spec
        self._ranks = ranks
        self._inherited = inherited
        self._port = port
        self._spawner = spawner
        self._group = group
        self._event_log = event_log
        self._run_dir = RunDir(spec.run_dir)  # of what ranks write
        self._restarts = Restarts(spec.supervision.max_restarts)
        self._over: list[Attempt] = []
        self._refusal: str | None = None  # why restarts that are left are not used
        self._paused = False

    def begin(self) -> None:
        """Ask for all ranks."""
        self._group.take_back()
        variables = AttemptVariables(self._first + len(self._over), self._port.number)
        self._began_ns = self._event_log.record(AttemptStarted(variables.number, variables.master_port))
        self.rank_group = RankGroup(
            self._ranks,
            self._run_dir,
            variables,
            inherited=self._inherited,
            spawner=self._spawner,
            event_log=self._event_log,
        )
        supervision = self._spec.supervision
        global_ranks = [rank.global_rank for rank in self._ranks]
        self.watch = AttemptMonitor(
            self.rank_group,
            ProgressMonitor(self._run_dir, global_ranks, supervision.hang_timeout_s, self._spec.layout),
            run_dir=self._run_dir,
            supervision=supervision,
            spawner=self._spawner,
            group=self._group,
            event_log=self._event_log,
            court=self,
            others=self._others,
        )
        if self._paused:
            self.watch.pause()

    def stop(self, cause: Cause, number: int | None = None, server: str | None = None) -> None:
        """Someone wants the end, by signal `number` at that server: no restart follows, not even one under way."""
        if self.watch.restarts:
            self._refuse("the end was asked for meanwhile")
        self.watch.stop(cause, number, server)

    def pause(self) -> None:
        """Stop every rank, those that are yet to be started too, until `resume`."""
        if not self._paused:
            self._paused = True
            self.watch.pause()
            self._event_log.record(Paused())

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.watch.resume()
            self._event_log.record(Continued())

    def go_on(self, *, childless: bool) -> bool:
        """Begin the next attempt if the present one is over and is to be repeated; False once all is over."""
        if not self.watch.over(childless=childless):
            return True
        self._end()
        if not self.watch.restarts:
            return False
        if self.watch.left():
            self._refuse("what is left of the last attempt cannot be killed")
            return False
        self._take_another_port()
        self.begin()
        return True

    def decide(self, evidence: Evidence) -> Decision | None:
        """As `launcher.supervise.court.Court`."""
        from launcher.supervise.court import Decision  # noqa: PLC0415 - loaded with the inquest

        verdict = self.judge_alone(evidence)
        return Decision(verdict, self._restart(verdict, evidence.highest_step))

    def judge_alone(self, evidence: Evidence) -> Verdict:
        """As `launcher.supervise.court.Court`."""
        from launcher.supervise.court import judged  # noqa: PLC0415 - as above

        return judged(evidence, self._event_log)

    # --- the end ---

    @property
    def cause(self) -> Cause:
        """Why the last attempt ended."""
        return self.watch.cause

    def close(self) -> None:
        self._port.close()

    def exit_code(self, stopped_by: int | None) -> int:
        """The run's, when all is over; `stopped_by`: the first signal that asked for the end."""
        match self.watch.cause:
            case Cause.FINISHED:
                return EXIT_OK
            case Cause.HUNG:
                return EXIT_HUNG
            case Cause.STOPPED if stopped_by:
                return 128 + stopped_by
            case Cause.FAILED if self.watch.verdict:
                return exit_code_of_failure(self.watch.verdict, self._over[-1].exits)
            case _:
                return EXIT_FAILURE

    def report(self, server_index: int, started_ns: int, exit_code: int, unkillable: tuple[int, ...]) -> Report:
        """When all is over. `started_ns`: since when there was an agent."""
        return Report(
            run=self._spec.name,
            server_index=server_index,
            cause=self.cause,
            exit_code=exit_code,
            started_ns=started_ns,
            ended_ns=time.time_ns(),
            attempts=tuple(self._over),
            not_restarting=self._refusal,
            unkillable=unkillable,
            events_lost=self._event_log.lost,
        )

    def _restart(self, verdict: Verdict, step: int | None) -> bool:
        restarts = self._restarts.decide(verdict, step)
        if self._restarts.refusal:
            self._refuse(self._restarts.refusal)
        return restarts

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self._event_log.record(NotRestarting(reason))

    def _end(self) -> None:
        self.watch.close()
        self._over.append(
            Attempt(
                number=self._first + len(self._over),
                master_port=self._port.number,
                started_ns=self._began_ns,
                ended_ns=time.time_ns(),
                cause=self.watch.cause,
                exits=tuple(self.rank_group.exits),
                verdict=self.watch.verdict,
                killed=self.watch.killed,
            )
        )

    def _take_another_port(self) -> None:
        """Nothing of the last attempt can reach the next one, unless the user chose the port."""
        if self._port.holder is None:
            return
        try:
            former, self._port = self._port, hold_port()
        except OSError as error:
            self._event_log.record(Trouble(f"no other port can be had, the ranks meet on the same: {error.strerror}"))
        else:
            former.close()


def exit_code_of_failure(verdict: Verdict, exits: Sequence[RankExit]) -> int:
    """The culprit's own, or, where it had not ended by itself, that of the first rank that had."""
    known = {(failure.global_rank, failure.status) for failure in verdict.failures}
    failed = [ended for ended in exits if ended.failed and (ended.global_rank, ended.status) in known]
    culprits = [ended for ended in failed if ended.global_rank == verdict.culprit]
    return exit_code_of((culprits or failed)[0].status) if failed else EXIT_FAILURE
