"""The run controller decides the next step of a run on one or more servers. It takes events and returns orders.

    gathering ──> running ──> every rank succeeded ──────────────────────────────────┐
        ^            ├── a rank failed or hangs, a server is lost ──> judging ──> ending ──> leaving ──> over
        │            └── a stop is requested ────────────────────────────────────────┘  │          │
        ├──────────────── another attempt, by the same agents ──────────────────────────┘          │
        └──────────────── another attempt, by newly started agents ────────────────────────────────┘

The controller reads no clocks, files, sockets or processes; every event comes with the time. Its driver reports
events, carries out orders in their sequence, and sends `Tick` after it has reported all pending events. The driver is
the agent for a single server, and the coordinator for several servers.

Decisions, by phase:

| event                | gathering | running               | judging                   | ending, leaving            |
|----------------------|-----------|-----------------------|---------------------------|----------------------------|
| a rank failed        | -         | ask other servers     | wait for all, then judge  | -                          |
| a server is lost     | -         | ask other servers**   | do not wait for it        | a restart needs new agents |
| a stop is requested  | finish    | end ranks, 128 + sig  | judge at once, no restart | no restart                 |
| the time limit       | finish    | end ranks, 124        | judge at once, no restart | no restart                 |
| the launcher is lost | finish    | end ranks             | judge at once, no restart | no restart                 |
| devices change       | -         | end ranks, restart*** | for the next attempt      | for the next attempt       |
| all attempts ended   | -         | finish, 0             | -                         | restart, or finish         |

** unless all its ranks have succeeded, so nothing of the run was left on it.
*** unless a rank has ended. After a failure the next attempt uses the new devices. If ranks have succeeded, the others
continue. After a server returns, the restart is delayed so that other servers can return too. Each loss of the server
makes the delay longer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

from launcher.control import events, orders
from launcher.control.evidence_collection import EvidenceCollection
from launcher.control.membership import Membership
from launcher.control.outcome import Outcome, StopRequest
from launcher.core.errors import RefusedLayoutError
from launcher.core.events import Cause, Continued, Forwarded, Joined, Paused, RankEnded, Trouble
from launcher.core.records import DeviceAssignment
from launcher.core.verdict import Verdict

NO_LAYOUT = "no layout fits the remaining devices"


class Phase(Enum):
    GATHERING = "gathering"
    RUNNING = "running"
    JUDGING = "judging"
    ENDING = "ending"
    LEAVING = "leaving"
    OVER = "over"


class RunController:
    def __init__(self, setup: events.Setup) -> None:
        self._setup = setup
        self._orders: list[orders.Order] = []
        self._there = set(range(len(setup.server_ids)))  # connected servers
        self._running_on = set(self._there)  # servers that still run processes of the attempt
        self._ending_leftovers: set[int] = set()  # servers whose ranks have all succeeded
        self._inquiry = EvidenceCollection(setup, setup.first_server)  # for the current attempt
        self._wish: StopRequest | None = None  # waits for a diagnosis
        self._now_s = 0.0
        self.master_port = 0  # rendezvous port of the next attempt
        self._paused = False
        self.phase = Phase.GATHERING
        self.attempt = 0
        elastic = setup.supervision.elastic
        self._membership = None if elastic is None else Membership(elastic)
        self._last_failed: frozenset[int] = frozenset()  # devices of the last failure
        self._deadline_s: float | None = None  # monotonic time at which the run ends; None once it is reached
        self.outcome = Outcome(setup, self._orders)

    def take(self, event: events.Event, now_s: float, wall_s: float) -> Sequence[orders.Order]:
        """Process an event and return the resulting orders. `now_s` is a monotonic time, `wall_s` a wall-clock time."""
        self._now_s = now_s
        self.outcome.wall_s = wall_s
        match event:
            case events.Tick(quiet=quiet):
                self._on_tick(quiet)
            case events.Diagnosed():
                self._on_diagnosis(event)
            case events.SignalReceived(number=number, server=server):
                self._on_signal(number, server)
            case events.EndWanted(cause=cause):
                self._stop(StopRequest(cause))
            case events.ServersReady(master_port=port, ports=ports):
                self.master_port = port
                self._there = set(range(len(self._setup.server_ids)))
                self._begin_gathered(ports)
            case events.CannotBegin(error=error):
                self.outcome.refuse(error)
                self._leave()
            case events.ServersLeft(engine=engine):
                self._on_servers_left(engine)
            case events.ExclusionsChanged(excluded=excluded) if self._membership is not None:
                self._exclude(excluded, self._membership)
            case events.ServerJoined() if self._membership is not None:
                self._on_join(event, self._membership)
            case _:
                self._on_attempt(event)
        ordered = tuple(self._orders)
        self._orders.clear()
        return ordered

    @property
    def next_tick_s(self) -> float | None:
        """The monotonic time by which the next Tick is needed, or None if none is scheduled."""
        due_s = self._inquiry.due_s if self.phase is Phase.JUDGING else self._resize_s
        limit_s = None if self.phase in {Phase.LEAVING, Phase.OVER} else self._deadline_s
        return min((moment for moment in (due_s, limit_s) if moment is not None), default=None)

    @property
    def _resize_s(self) -> float | None:
        """The monotonic time of the restart that includes a returned server, or None."""
        if self.phase is not Phase.RUNNING or self._membership is None:
            return None
        return self._membership.restart_for_returned_s

    # --- events ---

    def _on_tick(self, quiet: Collection[int]) -> None:
        leaves = self.phase in {Phase.LEAVING, Phase.OVER}
        is_timed_out = self._deadline_s is not None and self._now_s >= self._deadline_s and not leaves
        if self.phase is Phase.JUDGING and not is_timed_out:
            found = self._inquiry.step(self._there, self._reporting, quiet, self._now_s)
            self._orders += [orders.Diagnose(self._inquiry.apart)] if found is None else found
            return
        if self._membership is not None and (due_s := self._resize_s) is not None and self._now_s >= due_s:
            self._membership.forget_returns()
            self._resize(self._membership)
        if self.phase in {Phase.RUNNING, Phase.ENDING} and self._running_on.isdisjoint(self._there):
            self._settle()
        elif is_timed_out:
            self._deadline_s = None
            self._stop(StopRequest(Cause.TIMED_OUT))

    def _on_attempt(self, event: events.Event) -> None:
        if isinstance(event, events.EvidenceReport | events.ProbeResult):
            self._inquiry.take(event)
        match event:
            case RankEnded(global_rank=rank, status=status):
                self.outcome.exits[rank] = status
            case events.RankFailed(server=server) | events.EvidenceReport(server=server):
                self._ask_others(server)
            case events.EndingLeftovers(server=server):
                self._ending_leftovers.add(server)
                if self.phase is Phase.RUNNING and self._running_on <= self._ending_leftovers:
                    self.phase = Phase.ENDING
            case events.AttemptEnded():
                self._on_attempt_end(event)
            case events.ServerLost(server=server):
                has_rejoined = self._membership is not None and server in self._there
                if has_rejoined or server not in self.outcome.lost:
                    self._on_loss(event)
            case events.ServerGone(server=server):
                self._there.discard(server)

    def _on_attempt_end(self, ended: events.AttemptEnded) -> None:
        self._running_on.discard(ended.server)
        self.master_port = ended.master_port or self.master_port
        if self._membership is not None and ended.master_port is not None:
            self._membership.ports[ended.server] = ended.master_port
        if ended.left:
            self.outcome.note_unkillable(ended.server)

    def _on_loss(self, loss: events.ServerLost) -> None:
        self.outcome.note_loss(loss)
        if self._membership is not None:  # the next attempt runs without it
            self._there.discard(loss.server)
            name = self._setup.server_ids[loss.server]
            if (change := self._membership.note_loss(loss, name, self._there, self._now_s)) is not None:
                self.outcome.record(change)
        if loss.finished:
            self._running_on.discard(loss.server)
        elif self._membership is None or self._membership.has_ranks(loss.server):
            self._ask_others(None)

    def _on_signal(self, number: int, by_server: int | None) -> None:
        is_forwarded = number in self._setup.supervision.forward_signals
        if events.ends_run(number, self._setup.supervision):
            self._stop(StopRequest(Cause.STOPPED, number, by_server))
        if number == events.KILLS_AT_ONCE or is_forwarded:
            self._orders.append(orders.ForwardSignal(number))
        if is_forwarded:
            self.outcome.record(Forwarded(number))
        if number in {events.PAUSES, events.CONTINUES} and self._paused != (number == events.PAUSES):
            self._paused = number == events.PAUSES
            self._orders.append(orders.ForwardSignal(number))
            self.outcome.record(Paused() if self._paused else Continued())

    def _on_servers_left(self, engine: events.EngineExited | None) -> None:
        if engine is not None:
            self.outcome.note_engine_end(engine)
        if self.outcome.restarts:
            self.attempt += 1
            self.outcome.forget_end()
            self.phase = Phase.GATHERING
            self._orders.append(orders.GatherServers())
        else:
            self.phase = Phase.OVER
            self._orders.append(orders.Close())

    # --- from phase to phase ---

    def _begin_gathered(self, ports: Sequence[tuple[int, int]]) -> None:
        allotment = None
        if self._membership is not None:
            self._membership.ports.update(ports)
            allotment = self._membership.next(self._there)
            if allotment is None:
                self.outcome.refuse(RefusedLayoutError(NO_LAYOUT, hint="exclude fewer devices"))
                self._leave()
                return
        self._begin(allotment)

    def _begin(self, allotment: DeviceAssignment | None) -> None:
        self._running_on = set(self._there)
        self._ending_leftovers = set()
        self.outcome.begin_attempt()
        if self.attempt == 0 and (limit_s := self._setup.supervision.time_limit_s) is not None:
            self._deadline_s = self._now_s + limit_s
        first_server = self._setup.first_server
        if self._membership is not None and allotment is not None:
            self._membership.present = allotment
            self._membership.forget_returns()
            first_server = self._membership.server_of(allotment.devices[0])
            self.master_port = self._membership.ports.get(first_server, self.master_port)
        self._inquiry = EvidenceCollection(self._setup, first_server)
        self._orders.append(orders.BeginAttempt(self.attempt, self.master_port, allotment))
        if self._paused:
            self._orders.append(orders.ForwardSignal(events.PAUSES))
        self.phase = Phase.RUNNING

    @property
    def _reporting(self) -> set[int]:
        """The connected servers that have ranks in the current attempt and can report evidence."""
        heard = self._there - self.outcome.lost
        return heard if self._membership is None else set(filter(self._membership.has_ranks, heard))

    def _ask_others(self, server: int | None) -> None:
        """Request evidence from all servers except `server`, which has noticed the failure itself."""
        if self.phase is not Phase.RUNNING:
            return
        self.phase = Phase.JUDGING
        self._inquiry.open(self._now_s)
        awaited = self._inquiry.awaited(self._reporting)
        self._orders += map(orders.CollectEvidence, sorted(awaited - {server}))

    def _on_diagnosis(self, found: events.Diagnosed) -> None:
        wish, self._wish = self._wish, None
        if self.phase is not Phase.JUDGING:  # the engine noticed a loss first and ended the other agents
            restarts = self.outcome.budget.decide(found.verdict, found.highest_step)
            self.outcome.blame(found.verdict, restarts=restarts)
            self._settle()
        elif wish is None and found.asks_reach and not self._inquiry.checks_reach:
            self._orders += self._inquiry.check_reach(found, self._there, self.master_port, self._now_s)
        elif wish is None:
            self.outcome.judge(found, is_left_out=self._leave_out_culprit(found.verdict))
            self.phase = Phase.ENDING
        else:  # a failure still counts as a failure if a stop is requested later
            self.outcome.judge(found, wish=wish)
            self.phase = Phase.ENDING
            self._stop(wish)

    def _settle(self) -> None:
        """Restart the ranks or finish the run. Call this after the attempt has ended on all connected servers."""
        if self.outcome.stopped_by_server and self.outcome.lost:
            self._orders.append(orders.Diagnose())
            return
        self.outcome.settle()
        allotment = None
        if self.outcome.restarts and self._membership is not None:
            allotment = self._next_allotment(self._membership)
        if self.outcome.restarts_on_same_agents:
            self.attempt += 1
            self._begin(allotment)
        else:
            self._leave()

    def _next_allotment(self, membership: Membership) -> DeviceAssignment | None:
        """Return the devices of the next attempt. If no layout fits, keep the present ones or cancel the restart."""
        following = membership.next(self._there)
        if following is None and self.outcome.is_resizing and membership.keeps_present(self._there):
            self.outcome.record(Trouble(f"{NO_LAYOUT}; ranks continue on their previous devices"))
            return membership.present
        if following is None:
            self.outcome.refuse_restart(NO_LAYOUT)
        return following

    def _leave(self) -> None:
        assert self.outcome.finish is not None, "the outcome is decided before the agents leave"
        self.phase = Phase.LEAVING
        self._orders.append(self.outcome.finish)

    # --- devices come and go ---

    def _leave_out_culprit(self, verdict: Verdict) -> bool:
        """Exclude devices whose ranks have failed repeatedly. Return True if a device was excluded."""
        if self._membership is None or not self.outcome.budget.left:
            return False
        failed = self._membership.failed_devices(verdict)
        if failed != self._last_failed:
            self.outcome.budget.forget_failure()
        self._last_failed = failed
        if (change := self._membership.note_failure(verdict, self._there)) is not None:
            self.outcome.record(change)
        return change is not None

    def _on_join(self, joined: events.ServerJoined, membership: Membership) -> None:
        self._there.add(joined.server)
        self._running_on.discard(joined.server)  # it has no processes of the current attempt
        if joined.master_port is not None:
            membership.ports[joined.server] = joined.master_port
        pause_s = membership.note_return(joined.server, self._now_s)
        self.outcome.record(Joined(self._setup.server_ids[joined.server], pause_s))

    def _exclude(self, excluded: frozenset[int], membership: Membership) -> None:
        if (change := membership.exclude(excluded)) is not None:
            self.outcome.record(change)
            if change.taken_back:
                self.outcome.budget.forget_failure()
            self._resize(membership)

    def _resize(self, membership: Membership) -> None:
        # A failure leads to a new assignment anyway.
        if self.phase is not Phase.RUNNING or any(self.outcome.exits.values()):
            return
        following = membership.next(self._there)
        if following is None:
            self.outcome.record(Trouble(f"{NO_LAYOUT}; ranks continue on their current devices for now"))
        elif following != membership.present and self.outcome.exits:
            self.outcome.record(Trouble("some ranks have succeeded; the others continue on their current devices"))
        elif following != membership.present:
            self._orders.append(self.outcome.resize())
            self.phase = Phase.ENDING

    # --- stop requests ---

    def _stop(self, wish: StopRequest) -> None:
        match self.phase:
            case Phase.JUDGING:
                self._wish = wish
                self._orders.append(orders.Diagnose(self._inquiry.apart))  # with the evidence received so far
            case Phase.GATHERING:
                self.outcome.end_as_wanted(wish)
                self._leave()
            case Phase.RUNNING | Phase.ENDING if self.phase is Phase.RUNNING or self.outcome.is_resizing:
                self._orders.append(self.outcome.end_as_wanted(wish))
                self.phase = Phase.ENDING
            case _:
                if self.outcome.stop_restart(wish):
                    self._orders.append(orders.CancelRestart())
