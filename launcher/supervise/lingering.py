"""Detects ranks that have recorded a failure but do not exit, because of a thread, an exit handler or a destructor.

Other ranks would wait for them forever. Some programs take seconds to save or upload files before they exit, so such a
rank counts as failed only after the grace period.
"""

from __future__ import annotations

import os
import time

from launcher.core.events import NotExiting
from launcher.supervise.rank_group import RankGroup

LOOK_S = 0.5


class LingeringRanks:
    """Detects ranks that have failed but do not exit. Call `look` each time `timeout_s` has passed."""

    def __init__(self, rank_group: RankGroup, grace_s: float) -> None:
        self._rank_group = rank_group
        self._grace_s = grace_s
        self._looks_at = time.monotonic() + LOOK_S
        self._since: dict[int, float] = {}  # monotonic, by pid: when the failure was first noticed
        self._recorded: set[int] = set()  # pids

    @property
    def timeout_s(self) -> float:
        return max(0.0, self._looks_at - time.monotonic())

    def look(self) -> bool:
        """Return True if a failed rank has not exited within the grace period.

        An event is recorded when a second check still finds the rank running.
        """
        now = time.monotonic()
        if now < self._looks_at:
            return False
        self._looks_at = now + LOOK_S
        is_over = False
        for global_rank, pid in self._rank_group.running.items():
            since = self._since.get(pid)
            is_over |= since is not None and now - since >= self._grace_s
            if pid not in self._recorded:
                self._look_at(global_rank, pid, now)
        return is_over

    def resume(self) -> None:
        """Restart the grace periods after a pause, because paused ranks could not exit."""
        self._since = dict.fromkeys(self._since, time.monotonic())

    def _look_at(self, global_rank: int, pid: int, now: float) -> None:
        path = self._rank_group.run_dir.failure(global_rank)
        if not os.path.lexists(path):  # reading needs modules that successful runs do not load
            return
        from launcher.supervise.diagnosis import evidence, failure_files  # noqa: PLC0415 - see above

        failure = failure_files.read_failure(path, pid)
        if failure is None or failure.time_ns is None:  # another program wrote the file
            return
        if pid not in self._since:
            self._since[pid] = now
            return
        self._recorded.add(pid)
        found = evidence.summarize(evidence.RankEvidence(global_rank, None, None, None, failure=failure))
        what = found.what if found.where is None else f"{found.what}, at {found.where}"
        self._rank_group.event_log.record(NotExiting(global_rank, what, self._grace_s))
