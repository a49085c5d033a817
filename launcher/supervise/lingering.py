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
RECORD_AFTER_S = 5.0  # Python may need seconds to shut down, for example on a busy machine


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

        An event is recorded if the rank is still running after `RECORD_AFTER_S`, or after half of a shorter grace
        period. Ranks that failed soon after it are recorded at the same time.
        """
        now = time.monotonic()
        if now < self._looks_at:
            return False
        self._looks_at = now + LOOK_S
        is_over, lasted_s = False, 0.0
        unrecorded = {pid: rank for rank, pid in self._rank_group.running.items() if pid not in self._recorded}
        for pid in self._rank_group.running.values():
            since = self._since.get(pid, now)
            is_over |= since < now and now - since >= self._grace_s
            lasted_s = max(lasted_s, now - since if pid in unrecorded else 0.0)
        record_after_s = min(RECORD_AFTER_S, self._grace_s / 2)
        for pid, global_rank in unrecorded.items():
            is_due = lasted_s >= record_after_s and now - self._since.get(pid, now) >= record_after_s / 2
            self._look_at(global_rank, pid, now, is_due=is_due)
        return is_over

    def resume(self) -> None:
        """Restart the grace periods after a pause, because paused ranks could not exit."""
        self._since = dict.fromkeys(self._since, time.monotonic())

    def _look_at(self, global_rank: int, pid: int, now: float, *, is_due: bool) -> None:
        """Note whether a rank has recorded a failure. Record an event about it if `is_due`."""
        path = self._rank_group.run_dir.failure(global_rank)
        if not os.path.lexists(path):  # reading needs modules that successful runs do not load
            return
        from launcher.supervise.diagnosis import evidence, failure_files  # noqa: PLC0415 - see above

        failure = failure_files.read_failure(path, pid)
        if failure is None or failure.time_ns is None:  # another program wrote the file
            return
        self._since.setdefault(pid, now)
        if not is_due:
            return
        self._recorded.add(pid)
        found = evidence.summarize(evidence.RankEvidence(global_rank, None, None, None, failure=failure))
        what = found.what if found.where is None else f"{found.what}, at {found.where}"
        self._rank_group.event_log.record(NotExiting(global_rank, what, self._grace_s))
