"""Find the state of a run from any shell, from its files and the processes that they name.

Only processes distinguish an active run from one whose launcher was killed. They are visible only on the run's own
machine, until it is rebooted.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from enum import Enum
from pathlib import Path

from launcher.core.codec import MAX_JSON_BYTES
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.machine.proc import ProcessId, stat
from launcher.core.regular_files import read_regular
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Attempt, Report
from launcher.core.verdict import Verdict
from launcher.runs.engine_ranks import EngineRanks
from launcher.runs.event_reader import EventReader
from launcher.runs.owner import owner_of
from launcher.runs.progress import ENDED_AS, Progress, State
from launcher.runs.record import read_recorded
from launcher.runs.store import run_at, run_names

# The agent's first event follows the creation of the run's directory within a second, or a few on a busy machine. After
# this time the launcher is considered dead.
FIRST_EVENT_S = 30.0


class RankState(str, Enum):
    WAITING = "waiting"  # not started, or not yet
    RUNNING = "running"  # for a run on another machine: according to its last event
    STOPPED = "stopped"  # its process has been stopped (SIGSTOP, Ctrl-Z)
    ENDED = "ended"
    GONE = "gone"  # its process has ended, and no agent has recorded its status
    UNWATCHED = "unwatched"  # only the engine that started it knows its process


@frozen
class RankLook:
    global_rank: int
    state: RankState
    process: ProcessId | None  # None if it had none
    started_ns: int | None  # nanoseconds since 1970
    ended_ns: int | None
    status: int | None = None  # as in subprocess; None unless it has ended
    reason: str | None = None  # why it could not be started


@frozen
class RunState:
    """A snapshot of a run. Times are nanoseconds since 1970; durations end at the time of the snapshot."""

    run_dir: RunDir
    state: State
    progress: Progress  # from events; changes when a `RunStatusReader` looks again
    report: Report | None  # None before the end, or if it was never written
    looked_ns: int
    engine: str | None = None  # what started the ranks of a run without an agent
    noted: Mapping[int, ProcessId] = field(default_factory=dict)  # processes of its ranks, by global rank
    part: tuple[int, ...] | None = None  # global ranks of one server if only its files exist here; None: all
    owner: int | None = None  # the user who owns the run; None if its files belong to different users

    @property
    def name(self) -> str:
        return self.run_dir.root.name

    @property
    def exit_code(self) -> int | None:
        """The run's exit code, or None while the run is active or if the exit code was not recorded."""
        return self.report.exit_code if self.report else self.progress.exit_code

    @property
    def started_ns(self) -> int | None:
        """The time of the agent's first event. For a run without an agent, the time at which run.json was written."""
        return self.progress.first_ns or (
            self.report.started_ns if self.report else _modified_ns(self.run_dir.run_json)
        )

    @property
    def ended_ns(self) -> int | None:
        """The time of the last event of a finished run, or None while the run is active."""
        if not self.state.over:
            return None
        return self.report.ended_ns if self.report else self.progress.last_ns or None

    @property
    def elapsed_s(self) -> float | None:
        if self.started_ns is None:
            return None
        return max(0.0, ((self.ended_ns or self.looked_ns) - self.started_ns) / 1e9)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts of the run. The last attempt may still be active."""
        return self.report.attempts if self.report and self.report.attempts else self.progress.attempts

    @property
    def verdict(self) -> Verdict | None:
        return self.attempts[-1].verdict

    @property
    def not_restarting(self) -> str | None:
        """The reason that the remaining restarts were not used."""
        return self.report.not_restarting if self.report else self.progress.not_restarting

    @property
    def host(self) -> str | None:
        return self.progress.agent.host if self.progress.agent else None

    @property
    def ranks(self) -> Iterator[RankLook]:
        """The states of the ranks in `part` (default: all), ascending. Checks the processes of unfinished ranks."""
        global_ranks = range(self.progress.rank_count) if self.part is None else self.part
        for global_rank in global_ranks:
            process = self.progress.process_of(global_rank) or self.noted.get(global_rank)
            start = self.progress.current.starts.get(global_rank)
            ended = self.progress.current.exits.get(global_rank)
            state = RankState.ENDED if ended else self._state_of(process)
            end = (ended.ended_ns, ended.status, ended.reason) if ended else (None, None, None)
            yield RankLook(global_rank, state, process, start.time_ns if start else None, *end)

    @property
    def lives(self) -> bool:
        """True if any process of the run is alive, even ranks without an agent and ranks that an engine started."""
        if self.state in {State.LOST, State.UNWATCHED}:
            return any(rank.process.lives for rank in self.ranks if rank.process)
        return self.state.going_on

    @property
    def scheduler(self) -> RankState | None:
        """The state of MindSpore's scheduler process, or None if the run has no scheduler process."""
        scheduler = self.progress.current.scheduler
        if scheduler is None:
            return None
        if scheduler.ended is not None or self.state.over:
            return RankState.ENDED
        return self._state_of(self.progress.scheduler_process)

    def _state_of(self, process: ProcessId | None) -> RankState:
        if self.engine is not None and (process is None or process.host != socket.gethostname()):
            return RankState.UNWATCHED
        if process is None:
            return RankState.WAITING
        if not process.is_local:
            agent = self.progress.agent
            elsewhere = self.state is State.ELSEWHERE or (agent is not None and process.host != agent.host)
            return RankState.RUNNING if elsewhere and not self.state.over else RankState.GONE
        found = stat(process.pid)
        if found is None or found.started != process.started or not found.living:
            is_recorded_soon = not self.state.over and self.engine is None  # the agent will record it
            return RankState.RUNNING if is_recorded_soon else RankState.GONE
        return RankState.STOPPED if found.stopped else RankState.RUNNING


class RunStatusReader:
    """Reads the state of one run repeatedly. Each event is read once, and no file stays open between calls."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self._progress = Progress()
        self._events = EventReader(run_dir.events)
        self._engine: str | None = None
        self._engine_ranks: EngineRanks | None = None
        self._part = _part(run_dir)

    def look(self) -> RunState:
        """Return the state of the run. This function never blocks, and never raises an error for invalid files.

        Files are read again after the processes were checked, because a process that has ended has written everything.
        """
        self._read()
        while True:
            agent = self._progress.agent
            agent_lives = agent is not None and agent.lives
            head_lives = not agent_lives and self._progress.head is not None and self._progress.head.lives
            if not agent_lives and not self._progress.ended:
                self._read()  # the last event may have been written between the two checks
            report = read_report(self.run_dir)
            if self._progress.agent == agent:
                break
        state = self._state(report, agent_lives=agent_lives, head_lives=head_lives)  # sets the engine
        return RunState(
            self.run_dir,
            state,
            self._progress,
            report,
            time.time_ns(),
            engine=self._engine,
            noted=self._engine_ranks.look() if self._engine_ranks else {},
            part=self._part,
            owner=owner_of(self.run_dir, frozenset(self._events.uids)),
        )

    def _read(self) -> None:
        for stamped in self._events.read():
            self._progress.take(stamped)

    def _state(self, report: Report | None, *, agent_lives: bool, head_lives: bool) -> State:
        if report is not None:
            return ENDED_AS[report.cause]
        progress = self._progress
        if progress.ended or agent_lives:
            return progress.state
        if progress.agent is None:
            return self._state_without_events()
        if not progress.agent.is_local:
            return State.ELSEWHERE
        # A launcher that outlives its agent ends the remaining processes and writes the report.
        return State.ENDING if head_lives else State.LOST

    def _state_without_events(self) -> State:
        if self._events.strange or os.path.isfile(self.run_dir.report):  # noqa: PTH113 - never raises
            return State.UNKNOWN
        made_ns = _modified_ns(self.run_dir.run_json)
        young = made_ns is not None and time.time_ns() - made_ns < FIRST_EVENT_S * 1e9
        if self._engine_ranks is None:
            with suppress(UnreadableError):
                recorded = read_recorded(self.run_dir)
                self._engine = recorded.engine
                if recorded.engine is not None:  # only run.json records the number of ranks
                    self._progress.rank_count = len(recorded.places)
                    self._engine_ranks = EngineRanks(self.run_dir, recorded)
        if self._engine_ranks is not None:
            self._engine_ranks.look()
            return State.ENDED if self._engine_ranks.ended(all_noted=not young) else State.UNWATCHED
        return State.STARTING if young else State.LOST


def look(run_dir: RunDir) -> RunState:
    """Return the current state of the run. Never blocks, and raises no errors for file content."""
    return RunStatusReader(run_dir).look()


def runs_going_on(runs_dir: Path) -> tuple[RunState, ...]:
    """Return the runs in `runs_dir` that have a living process, newest first."""
    run_dirs = (run_at((runs_dir / name).resolve()) for name in run_names(runs_dir))
    # The agent writes the report last, so runs with a report are over.
    states = [look(run_dir) for run_dir in run_dirs if not os.path.exists(run_dir.report)]  # noqa: PTH110 - never raises
    living = [state for state in states if state.lives]
    return tuple(sorted(living, key=lambda state: state.started_ns or 0, reverse=True))


def _part(run_dir: RunDir) -> tuple[int, ...] | None:
    """Return the global ranks of one server if `run_dir` has only the files of this server, else None."""
    if run_dir.server_index is None:
        return None
    try:
        places = read_recorded(run_dir).places
    except UnreadableError:
        return ()
    return tuple(place.global_rank for place in places if place.server_index == run_dir.server_index)


def read_report(run_dir: RunDir) -> Report | None:
    """Return the content of report.json, or None if it is missing or was written by another version."""
    try:
        return Report.from_json(read_regular(run_dir.report, MAX_JSON_BYTES))
    except (OSError, ValueError):
        return None


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
