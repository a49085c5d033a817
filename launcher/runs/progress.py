"""The state of a run, folded from its events alone in this one place."""

from __future__ import annotations

from enum import Enum

from launcher.core.events import (
    COORDINATOR,
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Cause,
    Continued,
    Hung,
    Judged,
    Killing,
    Leftovers,
    NotBegun,
    NotRestarting,
    Paused,
    Preloaded,
    Preloading,
    RankEnded,
    RankStarted,
    Slow,
    Stopping,
    TimestampedEvent,
    Unkillable,
)
from launcher.core.proc import ProcessId
from launcher.core.report import Attempt, RankExit
from launcher.core.verdict import Verdict


class State(str, Enum):
    """The state of a run. Events alone give all but the last five, which need a look at processes and files."""

    STARTING = "starting"
    PRELOADING = "preloading"
    RUNNING = "running"
    PAUSED = "paused"
    ENDING = "ending"
    RESTARTING = "restarting"
    FINISHED = "finished"
    FAILED = "failed"
    HUNG = "hung"
    STOPPED = "stopped"
    LOST = "lost"  # its launcher or its agent was killed, or the machine started anew under it
    ELSEWHERE = "elsewhere"  # on another machine, or before this one's last start: cannot be told from here
    UNWATCHED = "unwatched"  # an mpirun or srun started its ranks (`tlaunch exec`), and nobody notes how they end
    ENDED = "ended"  # of these, too: all its processes are gone
    UNKNOWN = "unknown"  # written by another version

    @property
    def going_on(self) -> bool:
        """True if processes of the run live, as far as is known."""
        return not self.over and self not in {State.ELSEWHERE, State.UNWATCHED, State.UNKNOWN}

    @property
    def over(self) -> bool:
        """True if nothing of the run is left, as far as is known."""
        return self is State.ENDED or self in ENDED_AS.values()


ENDED_AS = {
    Cause.FINISHED: State.FINISHED,
    Cause.FAILED: State.FAILED,
    Cause.HUNG: State.HUNG,
    Cause.STOPPED: State.STOPPED,
    Cause.HEAD_LOST: State.LOST,
    Cause.COORDINATOR_LOST: State.LOST,
    Cause.AGENT_LOST: State.LOST,
}


class Progress:
    """Takes events in their order. Times are nanoseconds since 1970."""

    def __init__(self, rank_count: int | None = None) -> None:
        """Without `rank_count` the agent's word is taken."""
        self.rank_count = rank_count or 0
        self._told_count = rank_count is not None
        self.agent: ProcessId | None = None  # of several servers: their coordinator
        self.agents: dict[int, ProcessId] = {}  # by server_index
        self.head: ProcessId | None = None
        self.first_ns: int | None = None
        self.last_ns = 0
        self.past: list[Attempt] = []  # attempts that were followed by another one
        self.not_begun: NotBegun | None = None
        self.not_restarting: str | None = None
        self.exit_code: int | None = None  # of the whole run; None until the agent has said its last word
        self.unkillable: tuple[int, ...] | None = None  # empty: something that changes its pid all the time
        self._preloading = False
        self._begin(0, 0, 0)

    def _begin(self, number: int, master_port: int, started_ns: int) -> None:
        """Reset what belongs to one attempt only."""
        self.attempt = number
        self.starts: dict[int, RankStarted] = {}  # by global rank
        self.started_ns: dict[int, int] = {}  # by global rank
        self.exits: dict[int, RankExit] = {}  # by global rank, in the order in which they ended
        self.first_failure: RankExit | None = None  # as processes ended; who is to blame is in `verdict`
        self.verdict: Verdict | None = None
        self.stopping: Stopping | None = None
        self.cause = Cause.FINISHED
        self._killed: dict[int, int] = {}  # by server_index
        self.grace_passed_s: float | None = None  # between the first SIGTERM and SIGKILL; None if none was needed
        self._leftovers: dict[int, int] = {}  # by server_index
        self._server_of: dict[int, int] = {}  # by global rank: the index of the server that told of its start
        self.slow: dict[int, Slow] = {}  # by global rank; the last word on each
        self.hung: Hung | None = None
        self.paused = False
        self._master_port = master_port
        self._attempt_started_ns = started_ns
        self._ending_since_ns = 0

    @property
    def killed(self) -> int:
        """Processes that had to be killed, on all servers."""
        return sum(self._killed.values())

    @property
    def leftovers(self) -> int:
        """Processes that outlived their ranks, on all servers."""
        return sum(self._leftovers.values())

    @property
    def ended(self) -> bool:
        """True once the agent has written its last event."""
        return self.exit_code is not None

    @property
    def running(self) -> int:
        """The number of ranks that have a process."""
        return len(self.started_ns.keys() - self.exits.keys())

    @property
    def seconds(self) -> float:
        """From the agent's start to the last event."""
        return 0.0 if self.first_ns is None else (self.last_ns - self.first_ns) / 1e9

    @property
    def state(self) -> State:
        """The state as far as events show it: never LOST, for a killed process writes no event, and never ELSEWHERE."""
        if self.ended:
            return ENDED_AS[self.cause]
        if self.stopping is not None:
            return State.RESTARTING if self.stopping.restarts else State.ENDING
        if self.paused:
            return State.PAUSED
        if self.started_ns or self.exits:
            return State.ENDING if self.leftovers else State.RUNNING
        if self._preloading:
            return State.PRELOADING
        return State.RESTARTING if self.attempt else State.STARTING

    def process_of(self, global_rank: int) -> ProcessId | None:
        """Return the identity of the rank's process in this attempt, or None."""
        start = self.starts.get(global_rank)
        agent = self.agents.get(self._server_of.get(global_rank, COORDINATOR), self.agent)
        if start is None or agent is None:
            return None
        return ProcessId(start.pid, start.started, agent.host, agent.boot)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts as a report would tell them, the one that goes on included."""
        current = Attempt(
            number=self.attempt,
            master_port=self._master_port,
            started_ns=self._attempt_started_ns or self.first_ns or 0,
            ended_ns=self.last_ns,
            cause=self.cause,
            exits=tuple(self.exits.values()),
            verdict=self.verdict,
            killed=self.killed,
        )
        return (*self.past, current)

    def take(self, stamped: TimestampedEvent) -> None:
        if self.first_ns is None:
            self.first_ns = stamped.time_ns
        _ = any(take(stamped) for take in (self._take_run, self._take_ranks, self._take_ending))
        self.last_ns = max(self.last_ns, stamped.time_ns)  # servers' clocks are known within limits

    def _take_run(self, stamped: TimestampedEvent) -> bool:
        """Take an event that concerns the run as a whole. Return True if it does."""
        event = stamped.event
        match event:
            case AgentStarted():
                self.agents[stamped.server_index] = event.agent
                # Of several servers, the coordinator's comes first and counts for all.
                if stamped.server_index == COORDINATOR or COORDINATOR not in self.agents:
                    self.agent, self.head = event.agent, event.head
                    self.rank_count = self.rank_count if self._told_count else event.rank_count
            case Preloading():
                self._preloading = True
            case Preloaded():
                self._preloading = False
            case AttemptStarted():
                if event.number > self.attempt:
                    self.past.append(self.attempts[-1])
                self._begin(event.number, event.master_port, stamped.time_ns)
            case NotBegun():
                self.not_begun = event
            case NotRestarting():
                self.not_restarting = event.reason
            case AgentEnded():
                self.cause, self.exit_code = event.cause, event.exit_code
            case _:
                return False
        return True

    def _take_ranks(self, stamped: TimestampedEvent) -> bool:
        event = stamped.event
        match event:
            case RankStarted():
                self._preloading = False  # also where it was given up
                self.starts[event.global_rank] = event
                self.started_ns[event.global_rank] = stamped.time_ns
                self._server_of[event.global_rank] = stamped.server_index
            case RankEnded():
                started_ns = self.started_ns.get(event.global_rank)
                ended = RankExit(event.global_rank, event.pid, event.status, started_ns, stamped.time_ns, event.reason)
                self.exits[event.global_rank] = ended
                if ended.failed and self.first_failure is None and self.stopping is None:
                    self.first_failure = ended
            case Slow():
                self.slow[event.global_rank] = event
            case Hung():
                self.hung = event
            case Paused():
                self.paused = True
            case Continued():
                self.paused = False
            case _:
                return False
        return True

    def _take_ending(self, stamped: TimestampedEvent) -> bool:
        event, time_ns, server_index = stamped.event, stamped.time_ns, stamped.server_index
        match event:
            case Judged():
                self.verdict = event.verdict
            case Stopping():
                self.stopping, self.cause = event, event.cause
                self._ending_since_ns = time_ns
            case Leftovers():
                self._leftovers[server_index] = event.count
                self._ending_since_ns = time_ns
            case Killing():
                self._killed[server_index] = event.count
                self.grace_passed_s = (time_ns - self._ending_since_ns) / 1e9
            case Unkillable():
                self.unkillable = (*(self.unkillable or ()), *event.pids)
            case _:
                return False
        return True
