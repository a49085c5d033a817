"""Detects hanging ranks of an attempt from heartbeats; before the first heartbeat, from logs and CPU time.

A rank makes progress if its heartbeat file (launcher/core/heartbeat.py) has changed since the last check. Until its
first heartbeat with a step, a growing log or CPU usage of at least 2 % of a core also counts as progress. This covers
programs without heartbeats, and programs that still import, load or compile.

A rank without progress for the hang timeout hangs. Each check adds at most a fixed interval to the measured time, so a
stopped agent or a suspended machine does not make ranks look hung. Wall clocks may jump, so only changes of file times
count, not their values. Time during which the disk does not respond does not count either, nor does time during which
the rank of `--stdin` waits for the user's input.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.core.events import Hung, Slow
from launcher.core.heartbeat import read_heartbeat
from launcher.core.machine.proc import TICKS_PER_S, core_wait_s, stat, usage_of
from launcher.core.records import Layout
from launcher.core.run_dir import RunDir
from launcher.supervise.slowness import Slowness

LOOKS_PER_HANG_TIMEOUT = 10
# Heartbeats are checked every half second, and less often for many ranks: every two seconds for 256 ranks.
LOOK_S = 0.5
LOOK_S_PER_RANK = 0.006
LOOK_S_WITHOUT_BEATS = 5.0  # maximum interval without heartbeats and without a hang timeout
MIN_LOOK_S = 0.02
STANDS_STILL = 0.5  # fraction of the hang timeout after which other ranks are reported together with a hung one
LATE = 2  # a late check counts for at most this number of intervals
WORKS = 0.02  # CPU usage that counts as progress, in cores

_Signature = tuple[int, int, int, int]


@dataclass
class _Watched:
    heartbeat: str  # paths, as strings for speed
    log: str
    signature: _Signature | None  # of the heartbeat file at the last read; initially that of an earlier attempt
    log_bytes: int
    pid: int | None = None  # None: not running
    step: int | None = None  # the last reported step
    highest: int | None = None  # the highest reported step
    has_beaten: bool = False  # True after a heartbeat in this attempt, even without a step
    progressed: bool = False  # True if there was progress since the last check
    hangs: bool = False  # True if reported as hung
    idle_s: float = 0.0
    # Of its working process at the last step with a busy time: pid, step, and how long it had waited for a core.
    waits: tuple[int, int, float] | None = None


class ProgressMonitor:
    """Monitors the progress of the ranks on one server. Create it before the first rank starts.

    The owner calls `look` after `timeout_s`. It reads small files for each rank and never waits.
    """

    def __init__(
        self,
        run_dir: RunDir,
        global_ranks: Iterable[int],
        hang_timeout_s: float | None = None,
        layout: Layout | None = None,
        is_excused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._is_excused = is_excused
        self._slowness = Slowness(layout)
        self._ranks: dict[int, _Watched] = {}
        for global_rank in global_ranks:
            heartbeat, log = os.fspath(run_dir.heartbeat(global_rank)), os.fspath(run_dir.train_log(global_rank))
            self._ranks[global_rank] = _Watched(heartbeat, log, _signature(heartbeat), _size(log))
        self._scanned_at = self._looked_at = time.monotonic()
        self._ticks: dict[int, int] = {}  # by pid: CPU ticks of each rank's process tree at that scan
        self._look_s = self._without_beats_s = LOOK_S + LOOK_S_PER_RANK * len(self._ranks)
        self._paused = False

    def started(self, global_rank: int, pid: int) -> None:
        if not self._living:
            self._looked_at = time.monotonic()
        self._ranks[global_rank].pid = pid

    def ended(self, global_rank: int) -> None:
        self._ranks[global_rank].pid = None
        self._slowness.forget(global_rank)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._looked_at = time.monotonic()

    @property
    def timeout_s(self) -> float | None:
        """The seconds until the next check, or None if there is nothing to check."""
        is_idle = self._paused or not self._living
        return None if is_idle else max(0.0, self._looked_at + self._interval_s - time.monotonic())

    def look(self, now: float) -> list[Slow | Hung]:
        """Check the progress of all ranks. Return the ranks that have become slow or hung since the last check.

        A hang is reported one interval after the first rank has reached the timeout. The report includes all ranks
        that have been idle for half of the timeout, because any of them may be the cause. Each rank is reported once
        until it makes progress again.
        """
        living = self._living
        if self._paused or not living:
            return []
        counted_s = 0.0 if self._is_excused() else min(now - self._looked_at, LATE * self._interval_s)
        self._looked_at = now
        self._read_beats(living)
        self._notice_work(living, now)
        for watched in living.values():
            watched.idle_s = 0.0 if watched.progressed else watched.idle_s + counted_s
            watched.hangs = watched.hangs and not watched.progressed
            watched.progressed = False
        self._without_beats_s = min(2 * self._without_beats_s, LOOK_S_WITHOUT_BEATS)
        return [*self._newly_hung(living), *self._slowness.newly_slow()]

    def steps(self) -> Mapping[int, int | None]:
        self._read_beats(self._ranks)
        return {global_rank: watched.step for global_rank, watched in self._ranks.items()}

    def highest_step(self) -> int | None:
        """Return the highest step that any rank has reported in this attempt, or None if there is none."""
        self._read_beats(self._ranks)
        return max((watched.highest for watched in self._ranks.values() if watched.highest is not None), default=None)

    @property
    def _living(self) -> dict[int, _Watched]:
        return {global_rank: watched for global_rank, watched in self._ranks.items() if watched.pid is not None}

    @property
    def _interval_s(self) -> float:
        if self._hang_timeout_s is not None:
            return max(MIN_LOOK_S, min(self._hang_timeout_s / LOOKS_PER_HANG_TIMEOUT, self._look_s))
        has_beaten = any(watched.has_beaten for watched in self._ranks.values())
        return self._look_s if has_beaten else self._without_beats_s

    def _read_beats(self, ranks: Mapping[int, _Watched]) -> None:
        for global_rank, watched in ranks.items():
            signature = _signature(watched.heartbeat)
            # A missing file is not a heartbeat: it is removed when the next attempt starts.
            if signature is None or signature == watched.signature:
                continue
            watched.signature = signature
            watched.has_beaten = watched.progressed = True
            heartbeat = read_heartbeat(Path(watched.heartbeat))
            if heartbeat is None or (step := heartbeat.beat.step) is None:
                continue
            watched.step = step
            watched.highest = step if watched.highest is None else max(step, watched.highest)
            if heartbeat.beat.busy_s is not None and watched.pid is not None:
                core_wait_s = _core_wait_of_step(watched, watched.pid, heartbeat.pid, step)
                self._slowness.note(global_rank, step, heartbeat.beat.busy_s, core_wait_s)

    def _notice_work(self, living: Mapping[int, _Watched], now: float) -> None:
        """For ranks that report no steps, detect progress from their logs and CPU time."""
        if self._hang_timeout_s is None:
            return
        silent = [watched for watched in living.values() if watched.step is None]
        for watched in silent:
            log_bytes = _size(watched.log)
            watched.progressed |= log_bytes != watched.log_bytes
            watched.log_bytes = log_bytes
        passed_s = now - self._scanned_at
        if silent and passed_s >= self._hang_timeout_s / LOOKS_PER_HANG_TIMEOUT:
            usages = usage_of({watched.pid for watched in silent if watched.pid is not None})
            before, self._ticks = self._ticks, {pid: usage.ticks for pid, usage in usages.items()}
            self._scanned_at = now
            enough = max(1, WORKS * TICKS_PER_S * passed_s)
            for watched in silent:
                pid = watched.pid or 0
                watched.progressed |= self._ticks.get(pid, 0) - before.get(pid, 0) >= enough

    def _newly_hung(self, living: Mapping[int, _Watched]) -> list[Hung]:
        timeout_s = self._hang_timeout_s
        if timeout_s is None:
            return []
        hung = {rank: one for rank, one in living.items() if one.idle_s >= STANDS_STILL * timeout_s and not one.hangs}
        longest_s = max((one.idle_s for one in hung.values()), default=0.0)
        if longest_s < timeout_s + self._interval_s:
            return []
        for one in hung.values():
            one.hangs = True
        return [Hung(tuple(sorted(hung)), longest_s)]


def _core_wait_of_step(watched: _Watched, rank_pid: int, beating_pid: int | None, step: int) -> float:
    """Return the average seconds per step that a rank waited for a CPU core, or 0 if this is unknown.

    Uses the process that writes the heartbeat if it is in the rank's session. Otherwise uses the rank's own process
    `rank_pid`, which may be a shell that only waits.
    """
    found = None if beating_pid is None or beating_pid == rank_pid else stat(beating_pid)
    worker = rank_pid if found is None or found.session != rank_pid else found.pid
    waited_s = core_wait_s(worker)
    before, watched.waits = watched.waits, None if waited_s is None else (worker, step, waited_s)
    if before is None or waited_s is None or before[0] != worker or step <= before[1]:
        return 0.0
    return max(0.0, waited_s - before[2]) / (step - before[1])


def _signature(path: str) -> _Signature | None:
    """Return a value that changes with every write to a file, or None if the file does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a str path is three times as fast
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _size(path: str) -> int:
    signature = _signature(path)
    return 0 if signature is None else signature[2]
