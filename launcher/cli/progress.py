"""What is known of a run so far, from its events alone."""

from __future__ import annotations

from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    Cause,
    Event,
    Killing,
    Leftovers,
    RankEnded,
    RankExit,
    RankStarted,
    Stamped,
    Stopping,
    Unkillable,
)


class Progress:
    """Takes events in their order."""

    def __init__(self, rank_count: int) -> None:
        self.rank_count = rank_count
        self.started_ns: dict[int, int] = {}  # by global rank
        self.exits: dict[int, RankExit] = {}  # by global rank, in the order in which they ended
        self.agent_pid: int | None = None
        self.first_ns: int | None = None
        self.last_ns = 0
        self.stopping: Stopping | None = None
        self.first_failure: RankExit | None = None
        self.cause = Cause.FINISHED
        self.killed = 0
        self.grace_passed_s: float | None = None  # between the first SIGTERM and SIGKILL; None if none was needed
        self.leftovers = 0
        self.unkillable: tuple[int, ...] | None = None  # empty: something that changes its pid all the time
        self.ended = False  # the agent has said its last word
        self._ending_since_ns = 0

    @property
    def running(self) -> int:
        return len(self.started_ns.keys() - self.exits.keys())

    @property
    def seconds(self) -> float:
        """From the agent's start to the last event."""
        return 0.0 if self.first_ns is None else (self.last_ns - self.first_ns) / 1e9

    def take(self, stamped: Stamped) -> None:
        self.first_ns = stamped.time_ns if self.first_ns is None else self.first_ns
        self.last_ns = stamped.time_ns
        match stamped.event:
            case RankStarted(global_rank=global_rank):
                self.started_ns[global_rank] = stamped.time_ns
            case RankEnded():
                self._take_end(stamped.event, stamped.time_ns)
            case Stopping():
                self.stopping = stamped.event
                self.cause = stamped.event.cause
                self._ending_since_ns = stamped.time_ns
            case Leftovers(count=count):
                self.leftovers = count
                self._ending_since_ns = stamped.time_ns
            case Killing(count=count):
                self.killed = count
                self.grace_passed_s = (stamped.time_ns - self._ending_since_ns) / 1e9
            case _:
                self._take_rest(stamped.event)

    def _take_rest(self, event: Event) -> None:
        match event:
            case AgentStarted(agent_pid=pid):
                self.agent_pid = pid
            case Unkillable(pids=pids):
                self.unkillable = pids
            case AgentEnded(cause=cause):
                self.cause = cause
                self.ended = True
            case _:
                pass

    def _take_end(self, event: RankEnded, time_ns: int) -> None:
        started_ns = self.started_ns.get(event.global_rank)
        ended = RankExit(event.global_rank, event.pid, event.status, started_ns, time_ns, event.reason)
        self.exits[event.global_rank] = ended
        if ended.failed and self.first_failure is None and self.stopping is None:
            self.first_failure = ended
