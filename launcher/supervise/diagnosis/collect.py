"""Collects evidence from every rank after the first failure, before ranks are terminated."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from launcher.core.events import Event, Trouble
from launcher.core.machine.proc import is_full
from launcher.core.run_dir import RunDir
from launcher.core.run_report import RankExit
from launcher.logs.tracebacks import FoundTraceback
from launcher.supervise.diagnosis.child_errors import is_of_child
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import (
    FailureRecord,
    last_traceback,
    log_tail,
    read_failure,
    tracebacks_of_children,
)
from launcher.supervise.diagnosis.missing_rank import joins
from launcher.supervise.diagnosis.rank_stacks import Gathering, Target
from launcher.supervise.diagnosis.servers import Evidence
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.rank_ends import LATE_S
from launcher.supervise.rank_group import RankGroup

# Long enough for peers of a dead rank to fail too and record their failures.
SETTLE_S = 0.1
LIMIT_S = 1.5
TAIL_BYTES = 16 << 10


class EvidenceCollector:
    """A non-blocking collector of evidence. Call `step` after each `timeout_s` until `done`, then `evidence`."""

    def __init__(
        self, run_dir: RunDir, rank_group: RankGroup, record: Callable[[Event], object], hung: Collection[int] = ()
    ) -> None:
        self._run_dir = run_dir
        self._rank_group = rank_group
        self._record = record
        self.done = False  # the evidence is complete, or collecting more has failed
        self._hung = hung
        self._settled_s = time.monotonic() + SETTLE_S
        self._gathering = Gathering(
            {
                global_rank: Target(pid, run_dir.stacks_log(global_rank))
                for global_rank, pid in rank_group.running.items()
            },
            LIMIT_S,
        )

    @property
    def timeout_s(self) -> float:
        settling_s = max(0.0, self._settled_s - time.monotonic())
        return settling_s if self._gathering.done else self._gathering.timeout_s

    def step(self) -> None:
        """Continue collecting. Never raises, because ranks must be terminated even if the system is failing."""
        if self.done:
            return
        try:
            if not self._gathering.done:
                self._gathering.step()
            self.done = self._gathering.done and time.monotonic() >= self._settled_s
        except Exception as error:  # noqa: BLE001 - as above
            self._record(Trouble(f"cannot collect more evidence: {error!r}"))
            self.done = True

    def close(self) -> None:
        """Stop collecting, and release its resources."""
        self._gathering.close()

    def evidence(self, steps: Mapping[int, int | None], highest_step: int | None) -> Evidence:
        """Return the evidence collected so far. Never raises.

        `steps` holds the last step of every rank that reports steps, `highest_step` the maximum over all ranks.
        """
        try:
            return self._evidence(steps, highest_step)
        except Exception as error:  # noqa: BLE001 - as in `step`
            self._record(Trouble(f"cannot read the evidence: {error!r}"))
            return Evidence(())

    def _evidence(self, steps: Mapping[int, int | None], highest_step: int | None) -> Evidence:
        stacks = self._gathering.stacks()
        ended = [self._of_ended(ended, index, steps) for index, ended in enumerate(self._rank_group.exits)]
        living = [
            self._of_living(global_rank, pid, stacks.get(global_rank), steps.get(global_rank))
            for global_rank, pid in self._rank_group.running.items()
        ]
        return Evidence((*ended, *living), tuple(self._hung), highest_step)

    def _of_living(self, global_rank: int, pid: int, stack: RankStack | None, step: int | None) -> RankEvidence:
        log, offset = self._run_dir.train_log(global_rank), self._rank_group.log_offsets[global_rank]
        failure = read_failure(self._run_dir.failure(global_rank), pid)
        if failure is not None and failure.time_ns is None:  # not written by tlaunch's hook
            failure = None
        is_leaving = failure is not None  # if it called sys.exit, its log may contain the reason
        logged = last_traceback(log, offset) if is_leaving else None
        retries = bool(self._hung) and joins(stack)  # its log may show why it cannot connect
        return RankEvidence(
            global_rank=global_rank,
            status=None,
            ended_ns=None,
            ended_index=None,
            failure=failure,
            logged=logged,
            above=tracebacks_of_children(log, offset) if _is_of_child(failure, logged) else (),
            log_tail=log_tail(log, offset, TAIL_BYTES) if is_leaving or retries else "",
            stack=stack,
            step=step,
        )

    def _of_ended(self, ended: RankExit, index: int, steps: Mapping[int, int | None]) -> RankEvidence:
        global_rank = ended.global_rank
        log, offset = self._run_dir.train_log(global_rank), self._rank_group.log_offsets[global_rank]
        failure = read_failure(self._run_dir.failure(global_rank), ended.pid)
        logged = last_traceback(log, offset) if ended.failed else None
        return RankEvidence(
            global_rank=global_rank,
            status=ended.status,
            ended_ns=ended.ended_ns,
            ended_index=index,
            order_known=ended.order_known,
            late_s=max(LATE_S, ended.late_s),
            failure=failure,
            logged=logged,
            above=tracebacks_of_children(log, offset) if _is_of_child(failure, logged) else (),
            log_tail=log_tail(log, offset, TAIL_BYTES) if ended.failed else "",
            oom=global_rank in self._rank_group.oom_killed,
            forwarded=tuple(sorted(self._rank_group.forwarded)),
            open_mpi=global_rank in self._rank_group.open_mpi,
            meets_scheduler=self._rank_group.meets_scheduler,
            disk_full=ended.failed and failure is None and is_full(self._run_dir.device(global_rank)),
            step=steps.get(global_rank),
            exit_reason=ended.reason,
        )


def _is_of_child(failure: FailureRecord | None, logged: FoundTraceback | None) -> bool:
    """Return True if a rank failed because of a child process. The log may show the child's error above its own."""
    return any(one is not None and one.type is not None and is_of_child(one.type) for one in (failure, logged))
