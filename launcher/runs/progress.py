"""Compute the state of a run from its events only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from launcher.core import events
from launcher.core.events import COORDINATOR, Cause, TimestampedEvent
from launcher.core.frozen import frozen
from launcher.core.machine.proc import ProcessId
from launcher.core.records import DeviceAssignment
from launcher.core.run_report import Attempt, RankExit
from launcher.core.verdict import Verdict


class State(str, Enum):
    """The state of a run. Some states follow from its events, and others from its processes and files."""

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
    LOST = "lost"  # its launcher or agent was killed, or the machine was rebooted
    ELSEWHERE = "elsewhere"  # on another machine, or before this machine's last boot: not visible
    UNWATCHED = "unwatched"  # mpirun or srun started its ranks (`tlaunch exec`), and their exits are not recorded
    ENDED = "ended"  # started like `UNWATCHED`, and all its processes are gone
    UNKNOWN = "unknown"  # written by another version

    @property
    def going_on(self) -> bool:
        """True if processes of the run are known to be alive."""
        return not self.over and self not in {State.ELSEWHERE, State.UNWATCHED, State.UNKNOWN}

    @property
    def over(self) -> bool:
        """True if no process of the run is left, as far as is known."""
        return self is State.ENDED or self in ENDED_AS.values()


ENDED_AS = {
    Cause.FINISHED: State.FINISHED,
    Cause.FAILED: State.FAILED,
    Cause.HUNG: State.HUNG,
    Cause.STOPPED: State.STOPPED,
    Cause.TIMED_OUT: State.STOPPED,
    Cause.HEAD_LOST: State.LOST,
    Cause.COORDINATOR_LOST: State.LOST,
    Cause.AGENT_LOST: State.LOST,
}


@dataclass(slots=True)
class AttemptEnd:
    """Records how an attempt was ended, from the first SIGTERM to SIGKILL."""

    stopping: events.Stopping | None = None
    cause: Cause = Cause.FINISHED
    grace_passed_s: float | None = None  # between the first SIGTERM and SIGKILL; None if no SIGKILL was needed
    _since_ns: int = 0
    _killed: dict[int, int] = field(default_factory=dict)  # by server_index
    _leftovers: dict[int, int] = field(default_factory=dict)  # by server_index

    @property
    def killed(self) -> int:
        """The number of processes that had to be killed, on all servers."""
        return sum(self._killed.values())

    @property
    def leftovers(self) -> int:
        """The number of processes that outlived their ranks, on all servers."""
        return sum(self._leftovers.values())

    def take(self, stamped: TimestampedEvent) -> None:
        match event := stamped.event:
            case events.Stopping():
                self.stopping, self.cause = event, event.cause
                self._since_ns = stamped.time_ns
            case events.Leftovers():
                self._leftovers[stamped.server_index] = event.count
                self._since_ns = stamped.time_ns
            case events.Killing():
                self._killed[stamped.server_index] = event.count
                self.grace_passed_s = (stamped.time_ns - self._since_ns) / 1e9
            case events.AgentEnded():
                self.cause = event.cause
            case _:
                pass


@frozen
class RankStart:
    event: events.RankStarted
    time_ns: int
    server_index: int  # the server that reported it


@frozen
class SchedulerStart:
    """The start of MindSpore's scheduler process in an attempt, and its exit if that was unexpected."""

    event: events.SchedulerStarted | None  # None: it could not be started
    server_index: int
    ended: events.SchedulerEnded | None = None


@dataclass(slots=True)
class AttemptProgress:
    """The state of one attempt, computed from its events."""

    number: int = 0
    master_port: int = 0
    started_ns: int = 0
    allotment: DeviceAssignment | None = None  # None: all devices of the run
    starts: dict[int, RankStart] = field(default_factory=dict)  # by global rank
    exits: dict[int, RankExit] = field(default_factory=dict)  # by global rank, in order of exit
    scheduler: SchedulerStart | None = None
    first_failure: RankExit | None = None  # in order of exit; `verdict` names the culprit
    verdict: Verdict | None = None
    slow: dict[int, events.Slow] = field(default_factory=dict)  # the last event by global rank
    not_exiting: dict[int, events.NotExiting] = field(default_factory=dict)  # by global rank
    paused: bool = False
    ending: AttemptEnd = field(default_factory=AttemptEnd)

    @property
    def running(self) -> int:
        return len(self.starts.keys() - self.exits.keys())

    def take(self, stamped: TimestampedEvent) -> None:
        match event := stamped.event:
            case events.RankStarted():
                self.starts[event.global_rank] = RankStart(event, stamped.time_ns, stamped.server_index)
            case events.RankEnded():
                start = self.starts.get(event.global_rank)
                started_ns = None if start is None else start.time_ns
                ended = RankExit(event.global_rank, event.pid, event.status, started_ns, stamped.time_ns, event.reason)
                self.exits[event.global_rank] = ended
                self.not_exiting.pop(event.global_rank, None)
                if ended.failed and self.first_failure is None and self.ending.stopping is None:
                    self.first_failure = ended
            case events.SchedulerStarted():
                self.scheduler = SchedulerStart(event, stamped.server_index)
            case events.SchedulerEnded():
                started = None if self.scheduler is None else self.scheduler.event
                self.scheduler = SchedulerStart(started, stamped.server_index, event)
            case events.NotExiting():
                self.not_exiting[event.global_rank] = event
            case events.Slow():
                self.slow[event.global_rank] = event
            case events.Paused() | events.Continued():
                self.paused = isinstance(event, events.Paused)
            case events.Judged():
                self.verdict = event.verdict
            case _:
                self.ending.take(stamped)


class Progress:
    """Tracks the state of a run from its events, which must come in order. Times are nanoseconds since 1970."""

    def __init__(self, rank_count: int | None = None, devices: frozenset[int] | None = None) -> None:
        """Start without any events. If `devices` is given, count only the ranks on these devices."""
        self._devices = devices
        self.rank_count = rank_count or 0
        self._count_is_given = rank_count is not None
        self.agent: ProcessId | None = None  # with several servers, the coordinator's
        self.agents: dict[int, ProcessId] = {}  # by server_index
        self.head: ProcessId | None = None
        self.first_ns: int | None = None
        self.last_ns = 0
        self.past: list[Attempt] = []  # attempts before the current one
        self.current = AttemptProgress()
        self.not_begun: events.NotBegun | None = None
        self.not_restarting: str | None = None
        self.exit_code: int | None = None  # of the run; None until the agent has written its last event
        self.unkillable: list[int] | None = None  # of all attempts; empty if the pid keeps changing
        self._preloading = False

    @property
    def ended(self) -> bool:
        return self.exit_code is not None

    @property
    def seconds(self) -> float:
        """The seconds from the agent's start to the last event."""
        return 0.0 if self.first_ns is None else (self.last_ns - self.first_ns) / 1e9

    @property
    def state(self) -> State:
        """The run's state according to its events, which do not show that an agent was killed."""
        attempt, ending = self.current, self.current.ending
        if self.ended:
            return ENDED_AS[ending.cause]
        if ending.stopping is not None:
            return State.RESTARTING if ending.stopping.restarts else State.ENDING
        if attempt.paused:
            return State.PAUSED
        if attempt.starts or attempt.exits:
            return State.ENDING if ending.leftovers else State.RUNNING
        if self._preloading:
            return State.PRELOADING
        return State.RESTARTING if attempt.number else State.STARTING

    def process_of(self, global_rank: int) -> ProcessId | None:
        start = self.current.starts.get(global_rank)
        return None if start is None else self._process(start.event.pid, start.event.started, start.server_index)

    @property
    def scheduler_process(self) -> ProcessId | None:
        scheduler = self.current.scheduler
        if scheduler is None or scheduler.event is None:
            return None
        return self._process(scheduler.event.pid, scheduler.event.started, scheduler.server_index)

    def _process(self, pid: int, started: int, server_index: int) -> ProcessId | None:
        agent = self.agents.get(server_index, self.agent)
        return None if agent is None else ProcessId(pid, started, agent.host, agent.boot)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return (*self.past, self._current_attempt())

    def _current_attempt(self) -> Attempt:
        now = self.current
        return Attempt(
            number=now.number,
            master_port=now.master_port,
            started_ns=now.started_ns or self.first_ns or 0,
            ended_ns=self.last_ns,
            cause=now.ending.cause,
            exits=tuple(now.exits.values()),
            verdict=now.verdict,
            killed=now.ending.killed,
            allotment=now.allotment,
        )

    @property
    def restarts(self) -> int:
        """The number of restarts that count against `--max-restarts`. Device changes and server losses do not count."""
        if self.current.allotment is None:
            return self.current.number
        verdicts = [attempt.verdict for attempt in self.past if attempt.verdict is not None]
        return sum(not verdict.is_loss for verdict in verdicts)

    def take(self, stamped: TimestampedEvent) -> None:
        if self.first_ns is None:
            self.first_ns = stamped.time_ns
        match event := stamped.event:
            case events.AgentStarted():
                self._note_agent(event, stamped.server_index)
            case events.Preloading() | events.Preloaded() | events.RankStarted():
                # Ranks also start after preloading has failed.
                self._preloading = isinstance(event, events.Preloading)
            case events.AttemptStarted():
                if event.number > self.current.number:
                    self.past.append(self._current_attempt())
                self.current = AttemptProgress(event.number, event.master_port, stamped.time_ns, event.allotment)
                self.rank_count = self._ranks_of(event.allotment)
            case events.NotBegun():
                self.not_begun = event
            case events.NotRestarting():
                self.not_restarting = event.reason
            case events.AgentEnded():
                self.exit_code = event.exit_code
            case events.Unkillable():
                self.unkillable = self.unkillable or []
                self.unkillable.extend(event.pids)
            case _:
                pass
        self.current.take(stamped)
        self.last_ns = max(self.last_ns, stamped.time_ns)  # clocks of servers are only approximately synchronized

    def _ranks_of(self, allotment: DeviceAssignment | None) -> int:
        if allotment is None:
            return self.rank_count
        return len(allotment.devices if self._devices is None else self._devices.intersection(allotment.devices))

    def _note_agent(self, event: events.AgentStarted, server_index: int) -> None:
        self.agents[server_index] = event.agent
        # With several servers, the coordinator's event comes first and counts for all.
        if server_index == COORDINATOR or COORDINATOR not in self.agents:
            self.agent, self.head = event.agent, event.head
            self.rank_count = self.rank_count if self._count_is_given else event.rank_count
