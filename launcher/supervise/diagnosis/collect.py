"""Collects evidence from every rank after the first failure, before ranks are terminated."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from launcher.core.events import Trouble
from launcher.core.machine.proc import is_full
from launcher.core.run_report import RankExit
from launcher.supervise.diagnosis.child_errors import is_of_child
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import last_traceback, log_tail, read_failure, tracebacks_of_children
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
    """Collects evidence without blocking. Call `step` each time `timeout_s` has passed, until `done` is True."""

    def __init__(self, rank_group: RankGroup, hung: Collection[int] = ()) -> None:
        self._rank_group, self._run_dir = rank_group, rank_group.run_dir
        self._record = rank_group.event_log.record
        self.done = False  # the evidence is complete, or collecting more has failed
        self._hung = hung
        self._settled_s = time.monotonic() + SETTLE_S
        targets = {rank: Target(pid, self._run_dir.stacks_log(rank)) for rank, pid in rank_group.running.items()}
        self._gathering = Gathering(targets, LIMIT_S)

    @property
    def timeout_s(self) -> float:
        settling_s = max(0.0, self._settled_s - time.monotonic())
        return settling_s if self._gathering.done else self._gathering.timeout_s

    def step(self) -> None:
        """Continue to collect evidence. Never raises, because the ranks must be shut down in any case."""
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
        self._gathering.close()

    def evidence(self, steps: Mapping[int, int | None], highest_step: int | None) -> Evidence:
        """Return the evidence collected so far. Never raises.

        `steps` holds the last step of every rank that reports steps, `highest_step` the maximum over all ranks.
        """
        try:
            group, stacks = self._rank_group, self._gathering.stacks()
            found = [self._of_ended(ended, index) for index, ended in enumerate(group.exits)]
            found += [self._of_living(rank, pid, stacks.get(rank)) for rank, pid in group.running.items()]
            ranks = tuple(replace(one, step=steps.get(one.global_rank)) for one in found)
            return Evidence(ranks, tuple(self._hung), highest_step)
        except Exception as error:  # noqa: BLE001 - as in `step`
            self._record(Trouble(f"cannot read the evidence: {error!r}"))
            return Evidence(())

    def _of_living(self, global_rank: int, pid: int, stack: RankStack | None) -> RankEvidence:
        failure = read_failure(self._run_dir.failure(global_rank), pid)
        if failure is not None and failure.time_ns is None:  # not written by tlaunch's hook
            failure = None
        found = RankEvidence(global_rank, None, None, None, failure=failure, stack=stack)
        if failure is not None:  # if it called sys.exit, its log may contain the reason
            return self._with_log(found)
        retries = bool(self._hung) and joins(stack)  # its log may show why it cannot connect
        return replace(found, log_tail=self._log_tail(global_rank)) if retries else found

    def _of_ended(self, ended: RankExit, index: int) -> RankEvidence:
        global_rank = ended.global_rank
        failure = read_failure(self._run_dir.failure(global_rank), ended.pid)
        found = RankEvidence(
            global_rank=global_rank,
            status=ended.status,
            ended_ns=ended.ended_ns,
            ended_index=index,
            order_known=ended.order_known,
            late_s=max(LATE_S, ended.late_s),
            failure=failure,
            oom=global_rank in self._rank_group.oom_killed,
            forwarded=tuple(sorted(self._rank_group.forwarded)),
            open_mpi=global_rank in self._rank_group.open_mpi,
            meets_scheduler=self._rank_group.meets_scheduler,
            disk_full=ended.failed and failure is None and is_full(self._run_dir.device(global_rank)),
            exit_reason=ended.reason,
        )
        return self._with_log(found) if ended.failed else found

    def _with_log(self, rank: RankEvidence) -> RankEvidence:
        log, offset = self._run_dir.train_log(rank.global_rank), self._rank_group.log_offsets[rank.global_rank]
        logged = last_traceback(log, offset)
        types = (one.type for one in (rank.failure, logged) if one is not None)
        # If it failed because of a child process, the log may show the child's error above its own.
        is_of_a_child = any(kind is not None and is_of_child(kind) for kind in types)
        above = tracebacks_of_children(log, offset) if is_of_a_child else ()
        return replace(rank, logged=logged, above=above, log_tail=self._log_tail(rank.global_rank))

    def _log_tail(self, global_rank: int) -> str:
        offset = self._rank_group.log_offsets[global_rank]
        return log_tail(self._run_dir.train_log(global_rank), offset, TAIL_BYTES)
