"""The end of the ranks of one attempt, with all that they have started, and what must outlive them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from launcher.core.events import Killing
from launcher.core.records import Supervision
from launcher.supervise.cgroup import RunGroup
from launcher.supervise.event_log import EventLog
from launcher.supervise.rank_group import RankGroup
from launcher.supervise.spawner import Spawner
from launcher.supervise.tree import Ending, descendants


class RankEnder:
    """Ends them once, by the grace rule. Before that `begun` is False, and all that matters is what would be spared.

    `may_repeat`: ranks may be forked once more after this attempt, so that the preload process lives on.
    """

    def __init__(
        self,
        rank_group: RankGroup,
        supervision: Supervision,
        *,
        spawner: Spawner,
        group: RunGroup,
        event_log: EventLog,
        may_repeat: bool = False,
    ) -> None:
        self._rank_group = rank_group
        self._supervision = supervision
        self._spawner = spawner
        self._group = group
        self._event_log = event_log
        self._ending: Ending | None = None
        self.may_repeat = may_repeat

    @property
    def begun(self) -> bool:
        return self._ending is not None

    @property
    def in_vain(self) -> bool:
        """Return whether something has outlived SIGKILL for so long that waiting for it makes no sense."""
        return self._ending is not None and self._ending.in_vain

    @property
    def killed(self) -> int:
        return self._ending.killed if self._ending else 0

    @property
    def timeout_s(self) -> float | None:
        """The seconds until something is due; None if nothing is."""
        return None if self._ending is None else self._ending.timeout_s

    def begin(self) -> None:
        """End everything but what has to outlive the ranks."""
        if not self.may_repeat:
            self._spawner.end_preloading()
        self._ending = Ending(
            self._supervision.grace_from(time.time()),
            lambda: self._rank_group.leaders,
            on_kill=lambda count: self._event_log.record(Killing(count)),
            kill_group=self._kill_group,
            spared=self._spared,
        )

    def end_too(self, pid: int) -> None:
        """End a rank that was being forked when the end began."""
        if self._ending:
            self._ending.end_too(pid)

    def forget_repeat(self) -> None:
        """Keep nothing for another attempt."""
        self.may_repeat = False
        self._spawner.end_preloading()
        if self._ending:
            self._ending.spared = self._spared

    def kill_now(self) -> None:
        """Let no grace period pass."""
        if self._ending:
            self._ending.kill_now()

    def hurry(self, grace_s: float) -> None:
        """Let no more of it pass than that from now on."""
        if self._ending:
            self._ending.hurry(grace_s)

    def step(self) -> None:
        """Do what is due."""
        if self._ending:
            self._ending.step()

    def left(self) -> list[int]:
        """Return the pids of what is still there of the attempt."""
        return descendants(self._spared)

    @property
    def _spared(self) -> Collection[int]:
        """Processes of our own that must outlive the ranks."""
        return self._spawner.processes

    def _kill_group(self) -> None:
        """Kill all of it but this process, and what the next attempt is forked from."""
        assert self._ending is not None, "it is the one that kills"
        spared = [self._group.let_out(pid) for pid in (os.getpid(), *self._ending.spared)]
        if all(spared):
            self._group.kill()
