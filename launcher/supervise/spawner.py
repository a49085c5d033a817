"""Starts the processes of ranks: forked from a preload process if there is one, else one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from launcher.core.events import Preloaded, Preloading, Trouble
from launcher.core.frozen import frozen
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.program.command import PythonCommand, parse_python
from launcher.supervise import fork_server
from launcher.supervise.environment import common, overlaid, read_at_import
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
from launcher.supervise.spawn import EXIT_NOT_EXECUTABLE, Complaints, Program, spawn

FORK_PATIENCE_S = 10.0  # a preload process that takes longer to fork is stopped, or stuck


@frozen
class StartRequest:
    """A rank to start, with its whole environment."""

    rank: RankSpec
    environment: Mapping[str, str]


@frozen
class StartResult:
    global_rank: int
    pid: int


@frozen
class NotStarted:
    """There is no process at all."""

    global_rank: int
    reason: str
    status: int = EXIT_NOT_EXECUTABLE


@frozen
class NotWanted:
    """It was to be started, but the end came first."""

    global_rank: int


Told = StartResult | NotStarted | NotWanted


class Spawner:
    """Takes ranks (`ask`), and tells (`take`) what became of each of them. Serves every attempt of a run.

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
        """`descriptors`: which of this process's a rank inherits, by global rank. Ranks of a preload process do not."""
        self._descriptors = descriptors or {}
        self._spec = spec
        self._run_dir = run_dir or RunDir(spec.run_dir)
        self._event_log = event_log
        self._complaints = Complaints()
        self._waiting: deque[StartRequest] = deque()
        self._forking: dict[int, StartRequest] = {}  # by global rank: asked of the preload process, and not told yet
        self._forked: dict[int, int] = {}  # pid by global rank, of the last time
        self._forked_in_vain: dict[int, str] = {}  # why, by pid
        self._not_wanted: list[NotWanted] = []
        self._wanted = True  # False once the end has begun: nothing more is started
        self._ready = False
        self._closing = False  # the preload process is to end as soon as it owes no answer
        self._imitable = True  # whether the bootstrap runs in the ranks' Python at all
        self._fork_server: ForkServer | None = None
        self._import_patience_s = spec.supervision.hang_timeout_s  # None: as long as it takes
        environments = [overlaid(inherited, rank.env) for rank in ranks]
        self._python, environment = self._program(environments)
        if self._python is not None and spec.supervision.preload is not None and self._may_preload(environments):
            self._begin_preloading(self._python, spec.supervision.preload, environment)

    @property
    def preloading(self) -> ForkServer | None:
        """The preload process. To be listened to while it is there; `take` must be called when it has something to say."""
        return self._fork_server

    @property
    def processes(self) -> Collection[int]:
        """The processes that must live on while ranks are ended, to fork them again."""
        return () if self._fork_server is None or self._closing else (self._fork_server.pid,)

    @property
    def timeout_s(self) -> float | None:
        """Seconds until `take` has work to do even if nothing happens; None if it needs an event."""
        if self._not_wanted or (self._waiting and (self._fork_server is None or self._ready)):
            return 0.0
        if self._fork_server is not None and self._forking:
            return max(0.0, FORK_PATIENCE_S - self._fork_server.waiting_for_s)
        if self._fork_server is not None and not self._ready and self._import_patience_s is not None:
            return max(0.0, self._import_patience_s - self._fork_server.idle_s)
        return None

    def ask(self, wanted: Iterable[StartRequest]) -> None:
        self._wanted = True
        self._forked.clear()
        self._waiting.extend(wanted)

    def forget(self) -> None:
        """Start none of those that wait. Ranks that are being forked at this moment may still appear."""
        self._wanted = False
        self._not_wanted += [NotWanted(wanted.rank.global_rank) for wanted in self._waiting]
        self._waiting.clear()

    def take(self) -> list[Told]:
        """Return what became of requests since the last call. Never blocks for longer than a fork takes."""
        told = self._hear()
        told += self._not_wanted
        self._not_wanted.clear()
        if self._fork_server is None:
            return told + ([self._start(self._waiting.popleft())] if self._waiting else [])
        if self._closing and not self._forking:
            self._kill_nursery()
        elif self._ready and self._waiting:
            self._fork_server.fork([self._request(wanted) for wanted in self._waiting])
            self._forking |= {wanted.rank.global_rank: wanted for wanted in self._waiting}
            self._waiting.clear()
        return told

    def note_ends(self, pids: Collection[int]) -> None:
        """Take note that these children have been reaped: from now on their pids may be anyone's."""
        if self._fork_server is not None and self._fork_server.pid in pids:
            self._fork_server.note_reaped()

    def reason_of(self, pid: int) -> str | None:
        """Return why the process `pid`, already reaped, never became its program; None if it did."""
        return self._forked_in_vain.pop(pid, None) or self._complaints.reason_of(pid)

    def end_preloading(self) -> None:
        """No rank will be asked for any more: the preload process ends as soon as it has told of those it forks."""
        self._closing = True
        if self._fork_server is not None and not self._forking:
            self._kill_nursery()

    def close(self) -> None:
        if self._fork_server is not None:
            self._kill_nursery()
        self._complaints.close()
        with suppress(OSError):
            if self._run_dir.preload_log.stat().st_size == 0:
                self._run_dir.preload_log.unlink()

    # --- the preload process ---

    def _program(self, environments: list[dict[str, str]]) -> tuple[PythonCommand | None, dict[str, str]]:
        """Return the Python program that ranks run, or None, and the variables that all ranks share."""
        shared = common(environments)
        argv = {rank.argv for rank in self._spec.ranks}
        if len(argv) != 1 or not environments:
            return None, shared
        return parse_python(argv.pop(), shared.get("PATH"), self._spec.cwd), shared

    def _may_preload(self, environments: list[dict[str, str]]) -> bool:
        """Return False if the preload process would read a variable too early that has another value in each rank."""
        differing = read_at_import(environments)
        if differing:
            what = ", ".join(differing)
            self._event_log.record(
                Trouble(f"ranks start one by one: {what} differs between them, and is read by imports")
            )
        return not differing

    def _begin_preloading(
        self, program: PythonCommand, modules: tuple[str, ...], environment: Mapping[str, str]
    ) -> None:
        try:
            self._fork_server = ForkServer(
                program,
                modules,
                argv_shown=self._spec.ranks[0].argv,
                common_environment=environment,
                cwd=self._spec.cwd,
                log=self._run_dir.preload_log,
            )
        except OSError as error:
            self._event_log.record(Trouble(f"no preload process could be made: {error.strerror}"))
            return
        self._event_log.record(Preloading(self._fork_server.pid, modules))

    def _kill_nursery(self) -> None:
        assert self._fork_server is not None, "there is one"
        self._fork_server.kill()
        self._fork_server.close()
        self._fork_server = None

    def _hear(self) -> list[Told]:
        told: list[Told] = []
        for news in self._news():
            match news:
                case Ready(seconds=seconds):
                    self._ready = True
                    self._event_log.record(Preloaded(seconds))
                case ForkResult(global_rank=global_rank, pid=pid):
                    self._forking.pop(global_rank, None)
                    self._forked[global_rank] = pid
                    told.append(StartResult(global_rank, pid))
                case ForkFailed(global_rank=global_rank, reason=reason):
                    told += self._note_failed_fork(global_rank, reason)
                case Unusable():
                    self._do_without(news)
        return told

    def _news(self) -> list[fork_server.Told]:
        if self._fork_server is None:
            return []
        told = self._fork_server.take()
        if told and isinstance(told[-1], Ready | Unusable):
            return told
        if (
            not self._ready
            and self._import_patience_s is not None
            and self._fork_server.idle_s >= self._import_patience_s
        ):
            reason = (
                f"the preload process imports, and has done nothing for {self._import_patience_s:g} s (--hang-timeout)"
            )
            told += self._fork_server.give_up(reason, died=False)
        if self._fork_server.waiting_for_s > FORK_PATIENCE_S:
            told += self._fork_server.give_up(f"the preload process has not answered for {FORK_PATIENCE_S:g} s")
        return told

    def _note_failed_fork(self, global_rank: int, reason: str) -> list[NotStarted]:
        """Return the rank as not started, unless it has a process already, whose end will be seen."""
        if global_rank in self._forked and global_rank not in self._forking:
            self._forked_in_vain[self._forked[global_rank]] = reason
        if self._forking.pop(global_rank, None) is None:
            return []
        return [NotStarted(global_rank, reason)]

    def _do_without(self, news: Unusable) -> None:
        """Ranks that it has not forked by now are started one by one."""
        assert self._fork_server is not None, "it has just spoken"
        self._imitable = self._ready or not news.died
        self._fork_server.close()
        self._fork_server = None
        self._waiting.extendleft(reversed(self._forking.values()))
        self._forking.clear()
        if not self._wanted:
            self.forget()
        else:
            self._event_log.record(Trouble(f"ranks start one by one: {news.reason}"))

    def _request(self, wanted: StartRequest) -> ForkRequest:
        rank = wanted.rank
        return ForkRequest(
            rank.global_rank,
            wanted.environment,
            self._run_dir.train_log(rank.global_rank),
            self._run_dir.device(rank.global_rank),
            rank.cpus,
        )

    # --- one by one ---

    def _start(self, wanted: StartRequest) -> StartResult | NotStarted:
        rank = wanted.rank
        log = self._run_dir.train_log(rank.global_rank)
        descriptors = self._descriptors.get(rank.global_rank, ())
        program = Program(
            self._argv(rank), wanted.environment, self._spec.cwd, log, cpus=rank.cpus, descriptors=descriptors
        )
        try:
            return StartResult(rank.global_rank, spawn(program, self._complaints))
        except OSError as error:
            return NotStarted(rank.global_rank, f"no process could be made: {error.strerror}")

    def _argv(self, rank: RankSpec) -> tuple[str, ...]:
        """Python programs get the failure hook this way too."""
        if self._python is None or not self._imitable:
            return rank.argv
        return bootstrap_argv(self._python, self._run_dir.device(rank.global_rank))
