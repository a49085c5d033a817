"""The ranks of one server in one attempt: waiting, running and ended ones."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launcher.core import env
from launcher.core.events import RankStarted, Trouble
from launcher.core.machine.engine_rank import may_use_open_mpi
from launcher.core.machine.proc import stat
from launcher.core.records import RankSpec
from launcher.core.run_dir import RunDir
from launcher.core.run_report import RankExit
from launcher.supervise.fork_server import ForkFailed, ForkResult, StartRequest
from launcher.supervise.rank_ends import ExitOrder, OomWatch
from launcher.supervise.spawn import EXIT_NOT_EXECUTABLE, begin_log, overlaid, write_environment
from launcher.supervise.spawner import Spawner


class RankGroup:
    """The ranks of one attempt on this server, and their state."""

    def __init__(
        self,
        ranks: Sequence[RankSpec],
        run_dir: RunDir,
        attempt: int,
        variables: Mapping[str, str],
        *,
        inherited: Mapping[str, str],
        spawner: Spawner,
    ) -> None:
        """Request the start of all ranks. The attempt's environment `variables` override the variables of each rank."""
        self.run_dir = run_dir
        self.spawner, self.event_log = spawner, spawner.event_log
        self._exit_order = ExitOrder()
        self._oom = OomWatch()
        # Global rank and start time, by pid. Invariant: not reaped yet, so pids cannot have been reused.
        self._running: dict[int, tuple[int, int]] = {}
        # By pid of reaped processes that may turn out to be ranks: status, time and lateness.
        self._unclaimed: dict[int, tuple[int, int, float]] = {}
        self._looked_s = self._looks_s = time.monotonic()  # start of the previous and the current check for ends
        self._expected = {rank.global_rank for rank in ranks}  # neither started nor failed to start
        self.log_offsets = {rank.global_rank: begin_log(run_dir.train_log(rank.global_rank), attempt) for rank in ranks}
        self.exits: list[RankExit] = []  # in the order in which they ended
        self.oom_killed: set[int] = set()  # global ranks
        self.forwarded: set[int] = set()  # signals that were forwarded to every rank
        self.meets_scheduler = env.MS_SCHED_PORT in variables
        wanted = [self._wanted(rank, overlaid(inherited, {**rank.env, **variables})) for rank in ranks]
        self.open_mpi = {one.global_rank for one in wanted if may_use_open_mpi(one.environment)}
        spawner.ask(wanted)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a rank has exited, or -1 if pidfds are not available."""
        return self._exit_order.fileno()

    @property
    def leaders(self) -> tuple[int, ...]:
        """The pids of running ranks. Each one leads its own session and process group."""
        return tuple(self._running)

    @property
    def running(self) -> dict[int, int]:
        return {global_rank: pid for pid, (global_rank, _) in self._running.items()}

    @property
    def all_started(self) -> bool:
        return not self._expected

    @property
    def all_ended(self) -> bool:
        return not self._expected and not self._running

    def cancel(self) -> None:
        """Cancel all pending starts. `start` may still return ranks that are already being forked."""
        self.spawner.forget()

    def start(self) -> tuple[list[int], list[RankExit]]:
        """Return the pids of ranks that have just started, and the exits of ranks that could not be started."""
        pids, exits = [], []
        for result in self.spawner.take():
            rank = result.global_rank
            if rank not in self._expected:
                continue
            self._expected.discard(rank)
            match result:
                case ForkResult(pid=pid):
                    exits += self._note_start(rank, pid)
                    pids.append(pid)
                case ForkFailed(reason=why):
                    exits.append(self._keep(RankExit(rank, None, EXIT_NOT_EXECUTABLE, None, time.time_ns(), why)))
        return pids, exits

    def look_at_the_dead(self) -> None:
        """Record which exited ranks were killed by the OOM killer. Call this before the ranks are reaped."""
        self._looks_s = time.monotonic()
        for pid in self._exit_order.collect():
            if pid in self._running and self._oom.killed(pid):
                self.oom_killed.add(self._running[pid][0])

    def note_ends(self, statuses: Mapping[int, int], time_ns: int) -> list[RankExit]:
        """Record the exit statuses of reaped processes, and return the exits of ranks in order of exit.

        The other processes are child processes of ranks, or ranks whose pid the fork server has not reported yet.
        """
        late_s, self._looked_s = time.monotonic() - self._looked_s, self._looks_s
        if self._expected:
            others = statuses.keys() - self._running.keys()
            self._unclaimed |= {pid: (statuses[pid], time_ns, late_s) for pid in others}
        ordered, known = self._exit_order.sort(pid for pid in statuses if pid in self._running)
        return [self._note_end(pid, statuses[pid], time_ns, late_s, order_known=known) for pid in ordered]

    def close(self) -> None:
        self._exit_order.close()
        self._oom.close()

    # --- one rank ---

    def _wanted(self, rank: RankSpec, environment: Mapping[str, str]) -> StartRequest:
        run_dir, number = self.run_dir, rank.global_rank
        path = run_dir.env_log(number)
        try:
            write_environment(path, environment)
        except OSError as error:  # start the rank anyway
            self.event_log.record(Trouble(f"cannot write {path}: {error.strerror}"))
        for stale in (run_dir.heartbeat(number), run_dir.failure(number)):
            with suppress(OSError):
                stale.unlink()
        return StartRequest(
            number, rank.argv, environment, run_dir.train_log(number), run_dir.device(number), rank.cpus
        )

    def _note_start(self, global_rank: int, pid: int) -> list[RankExit]:
        ended = self._unclaimed.pop(pid, None)
        if ended is None:
            self._exit_order.watch(pid)  # immediately, so the order of ends is known
            self._oom.note(pid)
        found = stat(pid)
        event = RankStarted(global_rank, pid, found.started if found else 0, self.log_offsets[global_rank])
        started_ns = self.event_log.record(event, ended[1] if ended else None)  # not later than its end
        self._running[pid] = global_rank, started_ns
        return [] if ended is None else [self._note_end(pid, *ended, order_known=False)]

    def _note_end(self, pid: int, status: int, time_ns: int, late_s: float, *, order_known: bool) -> RankExit:
        global_rank, started_ns = self._running.pop(pid)
        if status == -signal.SIGKILL and self._oom.killed(pid):  # it may have ended after `look_at_the_dead`
            self.oom_killed.add(global_rank)
        reason = self.spawner.reason_of(pid)
        late_s = round(late_s, 3)
        return self._keep(
            RankExit(global_rank, pid, status, started_ns, time_ns, reason, order_known=order_known, late_s=late_s)
        )

    def _keep(self, ended: RankExit) -> RankExit:
        self.event_log.record(ended.event, ended.ended_ns)
        self.exits.append(ended)
        return ended
