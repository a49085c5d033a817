"""The outcome of a run as decided so far: the cause, the exit code, and whether ranks are restarted."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.control.events import ASKS_TO_STOP, Diagnosed, EngineExited, ServerLost, Setup
from launcher.control.orders import EndRanks, Finish, Order, Record
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, EXIT_TIMED_OUT, TlaunchError, exit_code_of
from launcher.core.events import Cause, Event, Judged, NotBegun, NotRestarting, Stopping, Trouble
from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.core.verdict import Verdict

TIME_LIMIT_REACHED = "the time limit was reached"


class Restarts:
    """Counts the remaining restarts and decides whether the ranks are restarted after a failure.

    There is no restart after a failure that repeats without progress, since it would repeat forever. An attempt makes
    progress if it reports a higher step than all earlier attempts. An attempt from scratch first repeats their steps.
    """

    def __init__(self, allowed: int) -> None:
        self.left = allowed
        self._last_signature: str | None = None
        self._highest_step = -1  # over all attempts
        self.refusal: str | None = None  # why the remaining restarts are not used

    def forget_failure(self) -> None:
        """Treat the next failure as a new one, because the devices have changed."""
        self._last_signature = None

    def note_step(self, step: int | None) -> None:
        if step is not None:
            self._highest_step = max(step, self._highest_step)

    def decide(self, verdict: Verdict, step: int | None, *, is_left_out: bool = False) -> bool:
        """Return True if the ranks should be restarted after a failure. Call this once for each failed attempt.

        `step` is the highest step that any rank reported in the attempt, or None. `is_left_out`: the failed device
        is now excluded, so the failure is not expected to repeat.
        """
        if is_left_out:
            self.forget_failure()
        further = step is not None and step > self._highest_step
        self.note_step(step)
        repeated = verdict.signature is not None and verdict.signature == self._last_signature and not further
        self._last_signature = None if is_left_out else verdict.signature
        if self.left and repeated:
            self.refusal = f"the same failure occurred again without any progress ({verdict.signature})"
        if not self.left or repeated:
            return False
        self.left -= 1
        return True


@frozen
class StopRequest:
    """A request to end the run. It comes from a person, an engine, the time limit, or the loss of the launcher."""

    cause: Cause
    number: int | None = None  # the signal, if one requested it
    by_server: int | None = None  # the server whose launcher or agent received the signal


class Outcome:
    """The outcome of a run. Its methods append the resulting orders to `orders`."""

    def __init__(self, setup: Setup, orders: list[Order]) -> None:
        self._setup = setup
        self._orders = orders
        self.budget = Restarts(setup.supervision.max_restarts)
        self.wall_s = 0.0  # seconds since 1970
        self.finish: Finish | None = None  # set once the end is certain
        self.restarts = False  # True if the ranks will be restarted
        self.stopped_by_server = False  # True if the stop may come from an engine that gives up
        self.begin_attempt()

    def begin_attempt(self) -> None:
        self.forget_end()
        self.stopped_by_server = False
        self.lost: set[int] = set()  # lost servers
        self.exits: dict[int, int] = {}  # statuses by global rank, in the order in which ranks ended
        self._verdict: Verdict | None = None
        self._unkillable_on: int | None = None  # a server with processes of the attempt that cannot be killed

    def forget_end(self) -> None:
        """Discard the outcome of the last attempt before the next attempt begins."""
        self.finish, self.restarts = None, False

    @property
    def is_resizing(self) -> bool:
        """True while healthy ranks are being ended because they will be restarted on other devices."""
        return self.restarts and self._verdict is None

    @property
    def restarts_on_same_agents(self) -> bool:
        lacks_agents = self.lost and self._setup.supervision.elastic is None
        return self.restarts and not lacks_agents and not self._setup.engine_anew

    def judge(self, found: Diagnosed, *, wish: StopRequest | None = None, is_left_out: bool = False) -> None:
        """Record a verdict, end the ranks, and decide whether to start them again. `wish` rules that out."""
        self._verdict = found.verdict
        self.record(Judged(found.verdict))
        if found.verdict.is_loss and self.lost and self._setup.supervision.elastic is not None:
            self.budget.note_step(found.highest_step)
            self.restarts = True
        else:
            self.restarts = self.budget.decide(found.verdict, found.highest_step, is_left_out=is_left_out)
        if self.budget.refusal:
            self.refuse_restart(self.budget.refusal)
        if wish is not None:
            self.stop_restart(wish)
        self._refuse_impossible_restart()
        self._record_stopping(found.cause)
        self._orders.append(EndRanks(found.cause, found.verdict, self.restarts_on_same_agents))
        self.finish = Finish(found.cause, exit_code(found.cause))

    def resize(self) -> EndRanks:
        self.restarts = True
        self._record_stopping(Cause.RESIZED)
        self.finish = Finish(Cause.FAILED, EXIT_FAILURE)  # used if they cannot be restarted
        return EndRanks(Cause.RESIZED, restarts=self.restarts_on_same_agents)

    def blame(self, verdict: Verdict, *, restarts: bool) -> None:
        """Change the outcome from a stop request to a failure with this verdict."""
        self.stopped_by_server = False
        self.restarts = restarts
        self._verdict = verdict
        self.record(Judged(verdict))
        self.finish = Finish(Cause.FAILED, EXIT_FAILURE)

    def note_loss(self, loss: ServerLost) -> None:
        self.lost.add(loss.server)
        how = "left after all its ranks succeeded" if loss.finished else "is lost"
        self.record(Trouble(f"server {self._setup.server_ids[loss.server]} {how}: {loss.why}"))

    def note_engine_end(self, engine: EngineExited) -> None:
        """Blame the engine if it ended its agents without being asked by a person."""
        if not self.stopped_by_server:
            return
        if engine.cancelled:  # not a failure
            self.record(Trouble(engine.cancelled))
        elif engine.killed:
            self.blame(engine.killed, restarts=self.budget.decide(engine.killed, None))
        elif verdict := engine.gave_up:
            self.blame(verdict, restarts=verdict.server is not None and self.budget.decide(verdict, None))

    def refuse(self, error: TlaunchError) -> None:
        """Record an error that prevents the start of ranks, and cancel any pending restart."""
        self.restarts = False
        self.record(NotBegun(error.message, error.hint))
        self._record_stopping(Cause.FAILED)
        self.finish = Finish(Cause.FAILED, error.exit_code, printable(error.message), error.hint)

    def end_as_wanted(self, wish: StopRequest) -> EndRanks:
        """End the run because of a stop request, and return the order to end the ranks."""
        self.restarts = False
        self.stopped_by_server = self.is_by_engine(wish.by_server)
        # The server that received the signal. With an engine, the launcher may run on any server, so it is not named.
        asked_at = self._setup.first_server if wish.by_server is None else wish.by_server
        server = None if self._setup.brings_all and wish.by_server is None else self._setup.server_ids[asked_at]
        stopping = self._record_stopping(wish.cause, wish.number, server)
        reason = f"stopped by {stopping.asked_by}" if wish.number else None
        if wish.cause is Cause.TIMED_OUT:
            reason = TIME_LIMIT_REACHED
        self.finish = Finish(wish.cause, exit_code(wish.cause, signal_number=wish.number), reason)
        return EndRanks(wish.cause, signal=wish.number, server=stopping.server)

    def stop_restart(self, wish: StopRequest) -> bool:
        """Return False if an engine may have requested the stop. Otherwise cancel any restart, and return True."""
        is_timed_out = wish.cause is Cause.TIMED_OUT
        if wish.by_server is None and not is_timed_out:
            self.stopped_by_server = False  # a person requested it, so it is not an engine failure
        if self.is_by_engine(wish.by_server):
            return False
        if self.restarts:
            self.refuse_restart(TIME_LIMIT_REACHED if is_timed_out else "a stop was requested")
        return True

    def note_unkillable(self, server: int) -> None:
        """Record that processes on a server cannot be killed, which rules out a restart."""
        self._unkillable_on = server
        self._refuse_impossible_restart()

    def settle(self) -> None:
        """Complete the outcome. Call this after the attempt has ended on all connected servers."""
        self._refuse_impossible_restart()  # a server may have been lost during the shutdown
        if self.finish is None:
            self.finish = Finish(Cause.FINISHED, EXIT_OK)
        elif self.finish.cause is Cause.FAILED:
            code = exit_code(Cause.FAILED, self._verdict, tuple(self.exits.items()))
            self.finish = Finish(Cause.FAILED, code)

    def is_by_engine(self, by_server: int | None) -> bool:
        return by_server is not None and self._setup.brings_all

    def record(self, event: Event) -> None:
        self._orders.append(Record(event))

    def refuse_restart(self, reason: str) -> None:
        self.restarts = False
        self.record(NotRestarting(reason))

    def _refuse_impossible_restart(self) -> None:
        ids = self._setup.server_ids
        if self.restarts and self._unkillable_on is not None:
            which = f"on server {ids[self._unkillable_on]}" if len(ids) > 1 else "of the last attempt"
            self.refuse_restart(f"processes {which} cannot be killed")
        if self.restarts and self.lost and not self._setup.brings_all and self._setup.supervision.elastic is None:
            self.refuse_restart("a server that was started by hand has to be started by hand again")

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
    """Return the exit code of a run with this `cause`.

    A failed run has the exit code of the culprit, or the code that the culprit was about to exit with. If that is
    unknown, it has the code of the first failed rank. Ranks that ended by a termination signal do not count, because
    the user did not send it: libraries such as MindSpore do.

    `exits` are global ranks and statuses in the order in which they ended. `signal_number` is the first stop signal.
    """
    match cause:
        case Cause.FINISHED:
            return EXIT_OK
        case Cause.HUNG | Cause.TIMED_OUT:
            return EXIT_TIMED_OUT
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
