"""Ends the ranks of one attempt and all their child processes, except processes that are still needed."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from launcher.core.events import Killing
from launcher.core.records import Supervision
from launcher.supervise.rank_group import RankGroup
from launcher.supervise.scheduler import Scheduler
from launcher.supervise.tree import Ending, RunGroup, descendants


class RankEnder(Ending):
    """The shutdown of an attempt's ranks and their child processes, except processes that must outlive them.

    With `may_repeat`, ranks may be forked again after this attempt, so the fork server is kept. MindSpore's scheduler
    is kept until no rank is running.
    """

    def __init__(
        self,
        rank_group: RankGroup,
        supervision: Supervision,
        *,
        group: RunGroup,
        scheduler: Scheduler,
        may_repeat: bool,
    ) -> None:
        super().__init__(
            None,
            lambda: rank_group.leaders,
            on_kill=lambda count: rank_group.event_log.record(Killing(count)),
            kill_group=self._kill_all_but_spared,
        )
        self._supervision = supervision
        self._spawner = rank_group.spawner
        self._group = group
        self._scheduler = scheduler
        self.may_repeat = may_repeat

    def end_ranks(self) -> None:
        """End all processes of the ranks. Keep the fork server and the scheduler if needed."""
        if not self.may_repeat:
            self._spawner.end_preloading()
        self.spared = self._outliving
        self.begin(self._supervision.grace_from(time.time()))

    def forget_repeat(self) -> None:
        self.may_repeat = False
        self._spawner.end_preloading()
        self.spared = self._outliving

    def left(self) -> list[int]:
        return descendants(self._outliving)

    @property
    def _outliving(self) -> Collection[int]:
        return (*self._spawner.processes, *self._scheduler.processes)

    def _kill_all_but_spared(self) -> None:
        spared = [self._group.let_out(pid) for pid in (os.getpid(), *self.spared)]
        if all(spared):
            self._group.kill()
