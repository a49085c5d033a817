"""The ranks of one server: which wait, which run, how the others ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launcher.core.events import RankEnded, RankExit, RankStarted, Trouble
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.supervise.environment import overlaid, write_environment
from launcher.supervise.journal import Journal
from launcher.supervise.order import EndOrder
from launcher.supervise.spawn import EXIT_NOT_EXECUTABLE, Complaints, Program, spawn


@dataclass(frozen=True)
class _Running:
    global_rank: int
    started_ns: int


class Crew:
    """Starts ranks in order and keeps account of them. Knows nothing about why or when a run ends."""

    def __init__(self, spec: RunSpec, server_index: int, inherited: Mapping[str, str], journal: Journal) -> None:
        self._spec = spec
        self._run_dir = RunDir(spec.run_dir)
        self._inherited = inherited
        self._journal = journal
        self._complaints = Complaints()
        self._end_order = EndOrder()
        self._running: dict[int, _Running] = {}  # by pid. Invariant: not reaped yet, so the pid is the rank's own
        self.waiting = deque(rank for rank in spec.ranks if rank.server_index == server_index)
        self.exits: list[RankExit] = []  # in the order in which they ended

    @property
    def leaders(self) -> Iterable[int]:
        """The pids of running ranks; each leads a session and a process group of its own."""
        return tuple(self._running)

    @property
    def all_ended(self) -> bool:
        return not self.waiting and not self._running

    def start_next(self) -> RankExit | None:
        """Start the rank that has waited longest; how it ended, if there could be no process at all."""
        rank = self.waiting.popleft()
        environment = overlaid(self._inherited, rank.env)
        self._write_environment(rank, environment)
        program = Program(rank.argv, environment, self._spec.cwd, self._run_dir.train_log(rank.global_rank))
        try:
            pid = spawn(program, self._complaints)
        except OSError as error:
            reason = f"no process could be made: {error.strerror}"
            return self._keep(RankExit(rank.global_rank, None, EXIT_NOT_EXECUTABLE, None, time.time_ns(), reason))
        self._end_order.watch(pid)
        self._running[pid] = _Running(rank.global_rank, self._journal.record(RankStarted(rank.global_rank, pid)))
        return None

    def note_ends(self, statuses: Mapping[int, int], time_ns: int) -> list[RankExit]:
        """Account for reaped processes, by pid; the ranks among them, in the order in which they ended.

        Others are what ranks had left behind.
        """
        ranks = [pid for pid in statuses if pid in self._running]
        ordered, known = self._end_order.sort(ranks)
        return [self._note_end(pid, statuses[pid], time_ns, len(ranks) == 1 or pid in known) for pid in ordered]

    def close(self) -> None:
        self._complaints.close()
        self._end_order.close()

    def _note_end(self, pid: int, status: int, time_ns: int, order_known: bool) -> RankExit:
        running = self._running.pop(pid)
        reason = self._complaints.reason_of(pid)
        return self._keep(
            RankExit(running.global_rank, pid, status, running.started_ns, time_ns, reason, order_known=order_known)
        )

    def _keep(self, ended: RankExit) -> RankExit:
        self._journal.record(RankEnded(ended.global_rank, ended.pid, ended.status, ended.reason), ended.ended_ns)
        self.exits.append(ended)
        return ended

    def _write_environment(self, rank: RankSpec, environment: Mapping[str, str]) -> None:
        """A rank can live without its env.log; a person should hear of it."""
        path = self._run_dir.env_log(rank.global_rank)
        try:
            write_environment(path, environment)
        except OSError as error:
            self._journal.record(Trouble(f"cannot write {path}: {error.strerror}"))
