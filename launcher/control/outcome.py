"""The outcome of a run as far as it is decided: how it ends, and whether its ranks are started again."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.control.events import ASKS_TO_STOP, Diagnosed, EngineExited, ServerLost, Setup
from launcher.control.orders import EndRanks, Finish, Order, Record
from launcher.core.errors import EXIT_FAILURE, EXIT_HUNG, EXIT_OK, TlaunchError, exit_code_of
from launcher.core.events import Cause, Event, Judged, NotBegun, NotRestarting, Stopping, Trouble
from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.core.verdict import Verdict


class Restarts:
    """Counts restarts, and remembers what the last attempt failed of, and how far attempts came.

    A failure that comes back before the program made progress would come back for ever. An attempt makes progress when
    it reports a higher step than all attempts before it: one that begins anew repeats theirs first.
    """

    def __init__(self, allowed: int) -> None:
        self.left = allowed
        self._last_signature: str | None = None
        self._highest_step = -1  # of all attempts
        self.refusal: str | None = None  # why restarts that are left are not used

    def forget_failure(self) -> None:
        """Take the next failure for a new one, since the devices are others."""
        self._last_signature = None

    def note_step(self, step: int | None) -> None:
        """Note how far an attempt came: the highest step that any rank reported; None if none reported any."""
        if step is not None:
            self._highest_step = max(step, self._highest_step)

    def decide(self, verdict: Verdict, step: int | None, *, is_left_out: bool = False) -> bool:
        """Return whether to start all ranks again after `verdict`; call once for each failed attempt.

        `step`: the highest that any rank reported in it; None if none reported any. `is_left_out`: the device that failed is
        left out from now on, so that the failure does not come back.
        """
        if is_left_out:
            self.forget_failure()
        further = step is not None and step > self._highest_step
        self.note_step(step)
        repeated = verdict.signature is not None and verdict.signature == self._last_signature and not further
        self._last_signature = None if is_left_out else verdict.signature
        if self.left and repeated:
            self.refusal = f"the same failure came back before any progress ({verdict.signature})"
        if not self.left or repeated:
            return False
        self.left -= 1
        return True


@frozen
class StopRequest:
    """The end of a run, as a person, an engine or a loss wants it."""

    cause: Cause
    number: int | None = None  # of the signal that asked
    by_server: int | None = None  # to whose launcher or agent it came


class Outcome:
    """Decides, and adds what is to be recorded and done of it to `orders`."""

    def __init__(self, setup: Setup, orders: list[Order]) -> None:
        self._setup = setup
        self._orders = orders
        self.budget = Restarts(setup.supervision.max_restarts)
        self.wall_s = 0.0  # seconds since 1970
        self.finish: Finish | None = None  # once the end is certain
        self.restarts = False  # the ranks are to be started again
        self.stopped_by_server = False  # perhaps by an engine that gives up
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget what was decided of the attempt before."""
        self.forget_end()
        self.stopped_by_server = False
        self.lost: set[int] = set()  # servers
        self.exits: dict[int, int] = {}  # statuses by global rank, in the order in which ranks ended
        self._verdict: Verdict | None = None
        self._unkillable_on: int | None = None  # a server on which something of the attempt cannot be killed

    def forget_end(self) -> None:
        """Have no end decided: if agents cannot be had for the next attempt, that will be the end."""
        self.finish, self.restarts = None, False

    @property
    def is_resizing(self) -> bool:
        """True while an attempt that has not failed ends for one with other devices."""
        return self.restarts and self._verdict is None

    @property
    def restarts_on_same_agents(self) -> bool:
        """True if the same agents start the ranks again."""
        lacks_agents = self.lost and self._setup.supervision.elastic is None
        return self.restarts and not lacks_agents and not self._setup.engine_anew

    def judge(self, found: Diagnosed, *, may_restart: bool = True, is_left_out: bool = False) -> None:
        """Decide what follows from a verdict, and have ranks ended. `is_left_out`: as in `Restarts.decide`."""
        self._verdict = found.verdict
        self.record(Judged(found.verdict))
        if found.verdict.is_loss and self.lost and self._setup.supervision.elastic is not None:
            self.budget.note_step(found.highest_step)
            self.restarts = may_restart
        else:
            self.restarts = may_restart and self.budget.decide(
                found.verdict, found.highest_step, is_left_out=is_left_out
            )
        if may_restart and self.budget.refusal:
            self.refuse_restart(self.budget.refusal)
        self._refuse_impossible_restart()
        self._record_stopping(found.cause)
        self._orders.append(EndRanks(found.cause, found.verdict, self.restarts_on_same_agents))
        self.finish = Finish(found.cause, exit_code(found.cause))

    def resize(self) -> EndRanks:
        """Decide that the ranks start again on other devices; return how they are ended."""
        self.restarts = True
        self._record_stopping(Cause.RESIZED)
        self.finish = Finish(Cause.FAILED, EXIT_FAILURE)  # if they cannot be started again
        return EndRanks(Cause.RESIZED, restarts=self.restarts_on_same_agents)

    def blame(self, verdict: Verdict, *, restarts: bool) -> None:
        """Judge as a failure what seemed to be a wish."""
        self.stopped_by_server = False
        self.restarts = restarts
        self._verdict = verdict
        self.record(Judged(verdict))
        self.finish = Finish(Cause.FAILED, EXIT_FAILURE)

    def judge_loss(self, found: Diagnosed) -> None:
        """Blame the loss that the engine was the first to notice, when it asked the other agents to end."""
        self.blame(found.verdict, restarts=self.budget.decide(found.verdict, found.highest_step))

    def note_loss(self, loss: ServerLost) -> None:
        self.lost.add(loss.server)
        how = "has gone after all its ranks had ended well" if loss.finished else "is lost"
        self.record(Trouble(f"server {self._setup.server_ids[loss.server]} {how}: {loss.why}"))

    def note_engine_end(self, engine: EngineExited) -> None:
        """Blame an engine that asked agents to end although it was not asked to itself: it has lost a server."""
        if not self.stopped_by_server:
            return
        if engine.cancelled:  # no failure
            self.record(Trouble(engine.cancelled))
        elif engine.killed:
            self.blame(engine.killed, restarts=self.budget.decide(engine.killed, None))
        elif verdict := engine.gave_up:
            self.blame(verdict, restarts=verdict.server is not None and self.budget.decide(verdict, None))

    def refuse(self, error: TlaunchError) -> None:
        """Start nothing, also if an attempt was to be repeated."""
        self.restarts = False
        self.record(NotBegun(error.message, error.hint))
        self._record_stopping(Cause.FAILED)
        self.finish = Finish(Cause.FAILED, error.exit_code, printable(error.message), error.hint)

    def end_as_wanted(self, wish: StopRequest) -> EndRanks:
        """Decide that the run ends as `wish` says; return how ranks are ended."""
        self.restarts = False
        self.stopped_by_server = self.is_by_engine(wish.by_server)
        # The server of the launcher or agent that got a signal; an engine's launcher may be on any.
        asked_at = self._setup.first_server if wish.by_server is None else wish.by_server
        server = None if self._setup.brings_all and wish.by_server is None else self._setup.server_ids[asked_at]
        stopping = self._record_stopping(wish.cause, wish.number, server)
        reason = f"stopped by {stopping.asked_by}" if wish.number else None
        self.finish = Finish(wish.cause, exit_code(wish.cause, signal_number=wish.number), reason)
        return EndRanks(wish.cause, signal=wish.number, server=stopping.server)

    def stop_restart(self, by_server: int | None) -> bool:
        """Give up a restart that is under way, and return True; an engine may end agents by then, and gets False."""
        if by_server is None:
            self.stopped_by_server = False  # what a person wants is no engine's failure
        if self.is_by_engine(by_server):
            return False
        if self.restarts:
            self.refuse_restart("the end was asked for meanwhile")
        return True

    def note_unkillable(self, server: int) -> None:
        """Restart nothing beside processes that cannot be killed."""
        self._unkillable_on = server
        self._refuse_impossible_restart()

    def settle(self) -> None:
        """Decide the rest: nothing of the attempt is left on any server that is there."""
        self._refuse_impossible_restart()  # a server may have been lost while ranks were being ended
        if self.finish is None:
            self.finish = Finish(Cause.FINISHED, EXIT_OK)
        elif self.finish.cause is Cause.FAILED:
            code = exit_code(Cause.FAILED, self._verdict, tuple(self.exits.items()))
            self.finish = Finish(Cause.FAILED, code)

    def is_by_engine(self, by_server: int | None) -> bool:
        """Return True if it may be an engine that has asked the agent of that server to end."""
        return by_server is not None and self._setup.brings_all

    def record(self, event: Event) -> None:
        self._orders.append(Record(event))

    def refuse_restart(self, reason: str) -> None:
        """Start the ranks no more, and record why."""
        self.restarts = False
        self.record(NotRestarting(reason))

    def _refuse_impossible_restart(self) -> None:
        ids = self._setup.server_ids
        if self.restarts and self._unkillable_on is not None:
            which = f"on server {ids[self._unkillable_on]}" if len(ids) > 1 else "of the last attempt"
            self.refuse_restart(f"what is left {which} cannot be killed")
        if self.restarts and self.lost and not self._setup.brings_all and self._setup.supervision.elastic is None:
            self.refuse_restart("a lost server that was started by hand has to be started by hand again")

    def _record_stopping(self, cause: Cause, number: int | None = None, server: str | None = None) -> Stopping:
        grace_s = self._setup.supervision.grace_from(self.wall_s)
        stopping = Stopping(cause, grace_s, number, self.restarts, server if number else None)
        self.record(stopping)
        return stopping


def exit_code(
    cause: Cause,
    verdict: Verdict | None = None,
    exits: Sequence[tuple[int, int]] = (),
    signal_number: int | None = None,
) -> int:
    """Return the exit code of a run that ended of `cause`.

    That of a failed run is the culprit's own or, if that had not ended by itself, that of the first rank that had; not of
    one that its library ended by a signal that asks to stop, as MindSpore's does: nobody has asked the run to. A culprit
    that did not exit has the code that it was about to exit with.
    `exits`: global ranks and statuses, in the order in which they ended. `signal_number`: the first that asked to stop.
    """
    match cause:
        case Cause.FINISHED:
            return EXIT_OK
        case Cause.HUNG:
            return EXIT_HUNG
        case Cause.STOPPED if signal_number:
            return 128 + signal_number
        case Cause.FAILED if verdict is not None and verdict.signalled is not None:
            return exit_code_of(verdict.signalled.status or EXIT_FAILURE)
        case Cause.FAILED if verdict is not None and verdict.culprit is not None:
            own = [one.status for one in verdict.failures if one.global_rank == verdict.culprit and one.status]
            known = {(failure.global_rank, failure.status) for failure in verdict.failures}
            failed = [status for rank, status in exits if status != 0 and (rank, status) in known]
            others = [status for status in failed if -status not in ASKS_TO_STOP]
            return exit_code_of((own or others)[0]) if own or others else EXIT_FAILURE
        case _:
            return EXIT_FAILURE
