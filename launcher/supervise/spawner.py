"""Starts the processes of ranks: forked from a fork server if there is one, else one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from launcher.core.events import Preloaded, Preloading, Trouble
from launcher.core.frozen import frozen
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.program.program_command import PythonCommand, parse_python
from launcher.supervise import fork_server
from launcher.supervise.event_log import EventLog
from launcher.supervise.fork_server import (
    ForkFailed,
    ForkRequest,
    ForkResult,
    ForkServer,
    Ready,
    Unusable,
    bootstrap_argv,
)
from launcher.supervise.spawn import Complaints, Program, common, overlaid, read_at_import, spawn

# With these a shell ends whose command there is not, or does not start: for one that stands for Python, ranks find the same.
NO_PYTHON = frozenset({126, 127})
FORK_PATIENCE_S = 10.0  # a fork server that takes longer to fork is stopped, or stuck


@frozen
class StartRequest:
    """A rank to start, with its whole environment."""

    rank: RankSpec
    environment: Mapping[str, str]


@frozen
class NotWanted:
    """The end came before the rank was started."""

    global_rank: int


StartResult = ForkResult | ForkFailed | NotWanted


class _Preload:
    """The fork server while there is one, and the ranks that it was asked to fork."""

    def __init__(self, event_log: EventLog, import_patience_s: float | None) -> None:
        """`import_patience_s`: the longest that a fork server may import without using processor time; None: any time."""
        self.server: ForkServer | None = None
        self.pid = 0  # of the process that was made last
        self.environment: Mapping[str, str] = {}  # in which it imports
        self.ready = False
        self.imitable = True  # False: the bootstrap does not run in the ranks' Python at all
        self.forking: dict[int, StartRequest] = {}  # by global rank: asked for, and not answered yet
        self._event_log = event_log
        self._import_patience_s = import_patience_s
        self._forked: dict[int, int] = {}  # pid by global rank, of this attempt
        self.status: int | None = None  # of the process that was made last; None until it is reaped
        self.killed: set[int] = set()  # pids of fork servers that are not reaped yet
        self.forked_in_vain: dict[int, str] = {}  # why forked processes never became their programs, by pid
        self._closing = False  # to be ended as soon as it owes no answer

    @property
    def processes(self) -> Collection[int]:
        return () if self.server is None or self._closing else (self.server.pid,)

    @property
    def timeout_s(self) -> float | None:
        """Seconds until the fork server has taken too long; None if there is nothing to wait for."""
        if self.server is not None and self.forking:
            return max(0.0, FORK_PATIENCE_S - self.server.waiting_for_s)
        if self.server is not None and not self.ready and self._import_patience_s is not None:
            return max(0.0, self._import_patience_s - self.server.idle_s)
        return None

    def begin(self, program: PythonCommand, environment: Mapping[str, str], spec: RunSpec, run_dir: RunDir) -> None:
        """Start the process. If that fails, an event reports it."""
        modules = spec.supervision.preload or ()
        self.ready = self._closing = False
        self.status = None
        self.environment = environment
        try:
            self.server = ForkServer(
                program,
                modules,
                argv_shown=spec.ranks[0].argv,
                common_environment=environment,
                cwd=spec.cwd,
                log=run_dir.preload_log,
            )
        except OSError as error:
            self._event_log.record(Trouble(f"no fork server could be made: {error.strerror}"))
            return
        self.pid = self.server.pid
        self._event_log.record(Preloading(self.pid, modules))

    def begin_attempt(self) -> None:
        self._forked.clear()

    def take(self) -> tuple[list[StartResult], tuple[str, list[StartRequest]] | None]:
        """Return what became of ranks since the last call, and if the process was lost why, and what it owes."""
        results: list[StartResult] = []
        lost = None
        for news in self._news():
            match news:
                case Ready(seconds=seconds):
                    self.ready = True
                    self._event_log.record(Preloaded(seconds))
                case ForkResult(global_rank=global_rank, pid=pid):
                    self.forking.pop(global_rank, None)
                    self._forked[global_rank] = pid
                    results.append(news)
                case ForkFailed(global_rank=global_rank, reason=reason):
                    if self.forking.pop(global_rank, None) is not None:
                        results.append(news)
                    elif global_rank in self._forked:  # it has a process already, whose end will be seen
                        self.forked_in_vain[self._forked[global_rank]] = reason
                case Unusable(reason=reason, died=died):
                    self.imitable = self.ready or not died
                    lost = reason, list(self.forking.values())
                    self.forking.clear()
                    assert self.server is not None, "it has just answered"
                    self.server.close()
                    self.server = None
        return results, lost

    def end_if_idle(self) -> bool:
        """End the process if `end_soon` was called and it owes no answer. Return True if it has been ended."""
        if self.server is None or not self._closing or self.forking:
            return False
        self.close()
        return True

    def end_soon(self) -> None:
        self._closing = True
        self.end_if_idle()

    def close(self) -> None:
        """Kill the process. May be called twice."""
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

    def _news(self) -> list[fork_server.Answer]:
        if self.server is None:
            return []
        results = self.server.take()
        if results and isinstance(results[-1], Ready | Unusable):
            return results
        patience_s = self._import_patience_s
        if not self.ready and patience_s is not None and self.server.idle_s >= patience_s:
            reason = f"the fork server imports, and has done nothing for {patience_s:g} s (--hang-timeout)"
            results += self.server.give_up(reason, died=False)
        if self.server.waiting_for_s > FORK_PATIENCE_S:
            results += self.server.give_up(f"the fork server has not answered for {FORK_PATIENCE_S:g} s")
        return results


class Spawner:
    """Takes ranks (`ask`), and returns (`take`) what became of each of them. Serves every attempt of a run.

    `take` starts at most one process by itself, so that its owner can listen in between.
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
        """`descriptors`: those of this process that a rank inherits, by global rank, unless a fork server forks it."""
        self._descriptors = descriptors or {}
        self._spec = spec
        self._run_dir = run_dir or RunDir(spec.run_dir)
        self._event_log = event_log
        self._complaints = Complaints()
        self._waiting: deque[StartRequest] = deque()
        self._not_wanted: list[NotWanted] = []
        self._untold: str | None = None  # why preloading was given up, until the process's exit code is known
        self._wanted = True  # False once the end has begun: nothing more is started
        self._preload = _Preload(event_log, spec.supervision.hang_timeout_s)
        # A server of spare devices has no ranks yet: those of others have the same program.
        environments = [overlaid(inherited, rank.env) for rank in tuple(ranks) or spec.ranks]
        argv = {rank.argv for rank in spec.ranks}
        # The Python program that all ranks run, or None.
        self._python = parse_python(argv.pop(), common(environments).get("PATH"), spec.cwd) if len(argv) == 1 else None
        if spec.supervision.preload is not None:
            self._begin_preloading(environments)

    @property
    def preloading(self) -> ForkServer | None:
        """The fork server, if there is one. Call `take` when it is readable."""
        return self._preload.server

    @property
    def processes(self) -> Collection[int]:
        """The processes that must live on while ranks are ended, to fork them again."""
        return self._preload.processes

    @property
    def dying(self) -> Collection[int]:
        """Fork servers that were killed, and have not gone yet: the kernel takes its time for their memory."""
        return self._preload.killed

    @property
    def timeout_s(self) -> float | None:
        """Seconds until `take` has work to do even if nothing happens; None if it needs an event."""
        if self._not_wanted or (self._waiting and (self._preload.server is None or self._preload.ready)):
            return 0.0
        return self._preload.timeout_s

    def ask(self, wanted: Iterable[StartRequest]) -> None:
        self._wanted = True
        self._preload.begin_attempt()
        self._waiting.extend(wanted)
        environments = [one.environment for one in self._waiting]
        if self._preload.server is not None and read_at_import([self._preload.environment, *environments]):
            self._preload.close()  # an elastic run's attempt on other devices has other numbers of threads
            self._begin_preloading(environments)

    def forget(self) -> None:
        """Start no more of the ranks that wait. Those that are being forked at this moment may still appear."""
        self._wanted = False
        self._not_wanted += [NotWanted(wanted.rank.global_rank) for wanted in self._waiting]
        self._waiting.clear()

    def take(self) -> list[StartResult]:
        """Return what became of requests since the last call. Never blocks for longer than a fork takes."""
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
            run_dir, ranks = self._run_dir, [(wanted.rank, wanted.environment) for wanted in self._waiting]
            server.fork(
                [
                    ForkRequest(
                        rank.global_rank,
                        environment,
                        run_dir.train_log(rank.global_rank),
                        run_dir.device(rank.global_rank),
                        rank.cpus,
                    )
                    for rank, environment in ranks
                ]
            )
            self._preload.forking |= {wanted.rank.global_rank: wanted for wanted in self._waiting}
            self._waiting.clear()
        return results

    def note_ends(self, statuses: Mapping[int, int]) -> None:
        """Take note that these children have been reaped: from now on other processes may get their pids."""
        self._preload.note_ends(statuses)
        self._report_lost()

    def reason_of(self, pid: int) -> str | None:
        """Return why the process `pid`, already reaped, never became its program; None if it did."""
        return self._preload.forked_in_vain.pop(pid, None) or self._complaints.reason_of(pid)

    def end_preloading(self) -> None:
        """Let the fork server end as soon as it has answered for the ranks that it forks: no more will be asked for."""
        self._preload.end_soon()

    def close(self) -> None:
        self._preload.close()
        self._complaints.close()
        with suppress(OSError):
            if self._run_dir.preload_log.stat().st_size == 0:
                self._run_dir.preload_log.unlink()

    def _begin_preloading(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Start a fork server for ranks with these environments, unless it could not import what each of them would."""
        if self._python is None:
            return
        if differing := ", ".join(read_at_import(environments)):
            reason = f"{differing} differs between them, and is read by imports"
            self._event_log.record(Trouble(f"ranks start one by one: {reason}"))
        else:
            self._preload.begin(self._python, common(environments), self._spec, self._run_dir)

    def _report_lost(self) -> None:
        """Say why there is no fork server any more, but not where it never ran and ranks will say so themselves."""
        if self._untold is None or (not self._preload.imitable and self._preload.status is None):
            return
        if self._preload.imitable or self._preload.status not in NO_PYTHON:
            self._event_log.record(Trouble(f"ranks start one by one: {self._untold}"))
        self._untold = None

    def _start(self, wanted: StartRequest) -> ForkResult | ForkFailed:
        """Start one rank without the fork server. Python programs get the failure hook this way too."""
        rank = wanted.rank
        argv = rank.argv
        if self._python is not None and self._preload.imitable:
            argv = bootstrap_argv(self._python, self._run_dir.device(rank.global_rank))
        log = self._run_dir.train_log(rank.global_rank)
        descriptors = self._descriptors.get(rank.global_rank, ())
        program = Program(argv, wanted.environment, self._spec.cwd, log, cpus=rank.cpus, descriptors=descriptors)
        try:
            return ForkResult(rank.global_rank, spawn(program, self._complaints))
        except OSError as error:
            return ForkFailed(rank.global_rank, f"no process could be made: {error.strerror}")
