"""Starts the processes of ranks: through a fork server if there is one, otherwise one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from launcher.core.events import Preloaded, Preloading, Trouble
from launcher.core.frozen import frozen
from launcher.core.records import DeviceAssignment, RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.program.program_command import PythonCommand, parse_python
from launcher.supervise.event_log import EventLog
from launcher.supervise.fork_server import (
    Answer,
    ForkFailed,
    ForkResult,
    ForkServer,
    Ready,
    StartRequest,
    Unusable,
    bootstrap_argv,
)
from launcher.supervise.port import HeldPort
from launcher.supervise.spawn import Complaints, Program, common, overlaid, read_at_import, spawn

# Exit codes of a shell that cannot start its command. If it is a wrapper of Python, ranks will fail in the same way.
NO_PYTHON = frozenset({126, 127})
FORK_PATIENCE_S = 10.0  # after this time without a response, a fork server is stopped or stuck


# Returns the spec of an elastic run's attempt, and the files that it needs in the run directory, by name.
SpecifyAttempt = Callable[[DeviceAssignment, int], tuple[RunSpec, Mapping[str, str]]]


@frozen
class ServerShare:
    """The part of a run on one server."""

    spec: RunSpec
    ranks: tuple[RankSpec, ...]  # on this server
    inherited: Mapping[str, str]  # the environment that variables of ranks override
    server_index: int
    port: HeldPort  # of the first attempt
    specify: SpecifyAttempt | None = None  # in an elastic run


@frozen
class NotWanted:
    """A rank that was not started, because a shutdown had already begun."""

    global_rank: int


StartResult = ForkResult | ForkFailed | NotWanted


class _Preload:
    """The fork server, if there is one, and the ranks that it has been asked to fork."""

    def __init__(self, event_log: EventLog, import_patience_s: float | None) -> None:
        """Prepare to start fork servers. A fork server fails if its imports idle for `import_patience_s` seconds."""
        self.server: ForkServer | None = None
        self.pid = 0  # of the last fork server
        self.environment: Mapping[str, str] = {}  # of the fork server
        self.ready = False
        self.imitable = True  # False: the bootstrap does not work in the ranks' Python
        self.forking: dict[int, StartRequest] = {}  # by global rank: pending requests
        self._event_log = event_log
        self._import_patience_s = import_patience_s
        self.forked: dict[int, int] = {}  # pid by global rank, in this attempt
        self.status: int | None = None  # of the last fork server; None until it is reaped
        self.killed: set[int] = set()  # pids of fork servers that are not reaped yet
        self.forked_in_vain: dict[int, str] = {}  # by pid: why a forked process could not execute its program
        self._closing = False  # True if it will be ended when no request is pending

    @property
    def processes(self) -> Collection[int]:
        return () if self.server is None or self._closing else (self.server.pid,)

    @property
    def timeout_s(self) -> float | None:
        if self.server is None:
            return None
        if self.forking:
            return max(0.0, FORK_PATIENCE_S - self.server.waiting_for_s)
        if not self.ready and self._import_patience_s is not None:
            return max(0.0, self._import_patience_s - self.server.idle_s)
        return None

    def begin(self, program: PythonCommand, environment: Mapping[str, str], spec: RunSpec, run_dir: RunDir) -> None:
        modules = spec.supervision.preload or ()
        self.ready = self._closing = False
        self.status = None
        self.environment = environment
        try:
            stdin = spec.stdin is not None
            shown = Program(spec.ranks[0].argv, environment, spec.cwd, run_dir.preload_log, stdin=stdin)
            self.server = ForkServer(program, modules, shown)
        except OSError as error:
            self._event_log.record(Trouble(f"cannot start the fork server: {error.strerror}"))
            return
        self.pid = self.server.pid
        self._event_log.record(Preloading(self.pid, modules))

    def take(self) -> tuple[list[StartResult], tuple[str, list[StartRequest]] | None]:
        """Return new start results. If the fork server was lost, also return the reason and the pending requests."""
        results: list[StartResult] = []
        lost = None
        for news in self._news():
            match news:
                case Ready(seconds=seconds):
                    self.ready = True
                    self._event_log.record(Preloaded(seconds))
                case ForkResult(global_rank=global_rank, pid=pid):
                    self.forking.pop(global_rank, None)
                    self.forked[global_rank] = pid
                    results.append(news)
                case ForkFailed(global_rank=global_rank, reason=reason):
                    if self.forking.pop(global_rank, None) is not None:
                        results.append(news)
                    elif global_rank in self.forked:  # it already has a process, which will end
                        self.forked_in_vain[self.forked[global_rank]] = reason
                case Unusable(reason=reason, died=died):
                    self.imitable = self.ready or not died
                    lost = reason, list(self.forking.values())
                    self.forking.clear()
                    assert self.server is not None, "it has just answered"
                    self.server.close()
                    self.server = None
        return results, lost

    def end_if_idle(self) -> bool:
        """End the fork server if `end_soon` was called and no request is pending. Return True if it was ended."""
        if self.server is None or not self._closing or self.forking:
            return False
        self.close()
        return True

    def end_soon(self) -> None:
        self._closing = True
        self.end_if_idle()

    def close(self) -> None:
        """Kill the fork server. May be called twice."""
        if self.server is not None:
            if self.server.kill():
                self.killed.add(self.server.pid)
            self.server.close()
            self.server = None

    def note_ends(self, statuses: Mapping[int, int]) -> None:
        self.status = statuses.get(self.pid, self.status)
        self.killed.difference_update(statuses)
        if self.server is not None and self.server.pid in statuses:
            self.server.note_reaped()

    def _news(self) -> list[Answer]:
        if self.server is None:
            return []
        results = self.server.take()
        if results and isinstance(results[-1], Ready | Unusable):
            return results
        patience_s = self._import_patience_s
        if not self.ready and patience_s is not None and self.server.idle_s >= patience_s:
            reason = f"the fork server used no CPU time for {patience_s:g} s during imports (--hang-timeout)"
            results += self.server.give_up(reason, died=False)
        if self.server.waiting_for_s > FORK_PATIENCE_S:
            results += self.server.give_up(f"the fork server has not responded for {FORK_PATIENCE_S:g} s")
        return results


class Spawner:
    """Starts the ranks for all attempts of a run. `ask` requests starts, and `take` returns the results.

    Each `take` starts at most one process directly, so that its owner can handle events in between.
    """

    def __init__(
        self,
        spec: RunSpec,
        ranks: Iterable[RankSpec],
        inherited: Mapping[str, str],
        event_log: EventLog,
        run_dir: RunDir | None = None,
        *,
        descriptors: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        """Start a fork server if the run uses one. `descriptors` maps ranks to the descriptors that they inherit."""
        self._descriptors = descriptors or {}
        self._spec = spec
        self._run_dir = run_dir or RunDir(spec.run_dir)
        self.event_log = event_log
        self._complaints = Complaints()
        self._waiting: deque[StartRequest] = deque()
        self._not_wanted: list[NotWanted] = []
        self._untold: str | None = None  # why preloading failed, until the process's exit code is known
        self._wanted = True  # False once a shutdown has started: start nothing more
        self._preload = _Preload(event_log, spec.supervision.hang_timeout_s)
        # A server with only spare devices has no ranks yet, but the ranks of other servers run the same program.
        environments = [overlaid(inherited, rank.env) for rank in tuple(ranks) or spec.ranks]
        argv = {rank.argv for rank in spec.ranks}
        # The Python program of all ranks, or None.
        self._python = parse_python(argv.pop(), common(environments).get("PATH"), spec.cwd) if len(argv) == 1 else None
        if spec.supervision.preload is not None:
            self._begin_preloading(environments)

    @property
    def preloading(self) -> ForkServer | None:
        return self._preload.server

    @property
    def processes(self) -> Collection[int]:
        """The pids of processes that must outlive the current ranks, because they fork the next attempt's ranks."""
        return self._preload.processes

    @property
    def dying(self) -> Collection[int]:
        """The pids of fork servers that were killed but have not exited yet."""
        return self._preload.killed

    @property
    def timeout_s(self) -> float | None:
        """The seconds until `take` should be called, or None to call it only after events."""
        if self._not_wanted or (self._waiting and (self._preload.server is None or self._preload.ready)):
            return 0.0
        return self._preload.timeout_s

    def ask(self, wanted: Iterable[StartRequest]) -> None:
        self._wanted = True
        self._preload.forked.clear()
        self._waiting.extend(wanted)
        environments = [one.environment for one in self._waiting]
        if self._preload.server is not None and read_at_import([self._preload.environment, *environments]):
            self._preload.close()  # an elastic attempt on other devices has other thread counts
            self._begin_preloading(environments)

    def forget(self) -> None:
        """Cancel all waiting requests. `take` may still return ranks that are already being forked."""
        self._wanted = False
        self._not_wanted += [NotWanted(wanted.global_rank) for wanted in self._waiting]
        self._waiting.clear()

    def take(self) -> list[StartResult]:
        """Start waiting ranks, and return the results of requests since the last call."""
        results, lost = self._preload.take()
        if lost is not None:
            reason, owed = lost
            self._waiting.extendleft(reversed(owed))
            if not self._wanted:
                self.forget()
            else:
                self._untold = reason
                self._report_lost()
        results += self._not_wanted
        self._not_wanted.clear()
        server = self._preload.server
        if server is None:
            return results + ([self._start(self._waiting.popleft())] if self._waiting else [])
        if not self._preload.end_if_idle() and self._preload.ready and self._waiting:
            server.fork(self._waiting, self._spec.stdin)
            self._preload.forking |= {wanted.global_rank: wanted for wanted in self._waiting}
            self._waiting.clear()
        return results

    def note_ends(self, statuses: Mapping[int, int]) -> None:
        """Record that the children in `statuses` have been reaped, so their pids may be reused."""
        self._preload.note_ends(statuses)
        self._report_lost()

    def reason_of(self, pid: int) -> str | None:
        return self._preload.forked_in_vain.pop(pid, None) or self._complaints.reason_of(pid)

    def end_preloading(self) -> None:
        """End the fork server as soon as no request is pending. Call this after the last request."""
        self._preload.end_soon()

    def close(self) -> None:
        self._preload.close()
        self._complaints.close()
        with suppress(OSError):
            if self._run_dir.preload_log.stat().st_size == 0:
                self._run_dir.preload_log.unlink()

    def _begin_preloading(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Start a fork server, unless ranks have different values of an environment variable that affects imports."""
        if self._python is None:
            return
        if differing := ", ".join(read_at_import(environments)):
            reason = f"they have different values of {differing}, which modules read when imported"
            self.event_log.record(Trouble(f"ranks start one by one: {reason}"))
        else:
            self._preload.begin(self._python, common(environments), self._spec, self._run_dir)

    def _report_lost(self) -> None:
        """Report why the fork server was lost. If its Python cannot start, ranks report that instead."""
        if self._untold is None or (not self._preload.imitable and self._preload.status is None):
            return
        if self._preload.imitable or self._preload.status not in NO_PYTHON:
            self.event_log.record(Trouble(f"ranks start one by one: {self._untold}"))
        self._untold = None

    def _start(self, wanted: StartRequest) -> ForkResult | ForkFailed:
        """Start one rank without a fork server. Python programs still get the failure hook."""
        argv, global_rank = wanted.argv, wanted.global_rank
        if self._python is not None and self._preload.imitable:
            argv = bootstrap_argv(self._python, wanted.device_dir)
        descriptors, stdin = self._descriptors.get(global_rank, ()), global_rank == self._spec.stdin
        program = Program(argv, wanted.environment, self._spec.cwd, wanted.log, wanted.cpus, descriptors, stdin)
        try:
            return ForkResult(global_rank, spawn(program, self._complaints))
        except OSError as error:
            return ForkFailed(global_rank, f"cannot create a process: {error.strerror}")
