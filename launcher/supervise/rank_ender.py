"""The end of the ranks of one attempt, with all that they have started: what it spares, and when."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from launcher.core.events import Killing
from launcher.core.records import Supervision
from launcher.supervise.event_log import EventLog
from launcher.supervise.rank_group import RankGroup
from launcher.supervise.scheduler import Scheduler
from launcher.supervise.spawner import Spawner
from launcher.supervise.tree import Ending, RunGroup, descendants


class RankEnder(Ending):
    """Ends the ranks of one attempt, with all that they have started, but not what must outlive them.

    `may_repeat`: ranks may be forked once more after this attempt, so that the fork server lives on. MindSpore's scheduler
    lives on until no rank does.
    """

    def __init__(
        self,
        rank_group: RankGroup,
        supervision: Supervision,
        *,
        spawner: Spawner,
        group: RunGroup,
        scheduler: Scheduler,
        event_log: EventLog,
        may_repeat: bool,
    ) -> None:
        super().__init__(
            None,
            lambda: rank_group.leaders,
            on_kill=lambda count: event_log.record(Killing(count)),
            kill_group=self._kill_all_but_spared,
        )
        self._supervision = supervision
        self._spawner = spawner
        self._group = group
        self._scheduler = scheduler
        self.may_repeat = may_repeat

    def end_ranks(self) -> None:
        """End everything but what has to outlive the ranks."""
        if not self.may_repeat:
            self._spawner.end_preloading()
        self.spared = self._outliving
        self.begin(self._supervision.grace_from(time.time()))

    def forget_repeat(self) -> None:
        self.may_repeat = False
        self._spawner.end_preloading()
        self.spared = self._outliving

    def left(self) -> list[int]:
        """Return the pids of what is still there of the attempt."""
        return descendants(self._outliving)

    @property
    def _outliving(self) -> Collection[int]:
        return (*self._spawner.processes, *self._scheduler.processes)

    def _kill_all_but_spared(self) -> None:
        spared = [self._group.let_out(pid) for pid in (os.getpid(), *self.spared)]
        if all(spared):
            self._group.kill()
