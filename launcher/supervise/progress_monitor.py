"""Detects hanging ranks of an attempt: by their heartbeats, and until these come by logs and CPU time.

A rank makes progress when its heartbeat file (launcher/core/heartbeat.py) has changed since the last look. Before its
first beat that names a step, a log that grows, or processes that use at least 2 % of a core, count as progress, too:
programs without heartbeats, and those that still import, load and compile, are judged by that.

A rank that makes no progress for the hang timeout hangs. The time is counted look by look: a look that comes late counts
as one that came in time, so neither a stopped agent nor a machine that stood still makes ranks hang. Wall clocks, which
may jump, are not used: it does not matter what a file's time says, only that it has changed. Nor does the time count
while a disk does not answer, which ranks may wait for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launcher.core.events import Hung, Slow
from launcher.core.heartbeat import Heartbeat, read_heartbeat
from launcher.core.machine.proc import TICKS_PER_S, core_wait_s, stat, usage_of
from launcher.core.records import Layout
from launcher.core.run_dir import RunDir
from launcher.supervise.slowness import Slowness

LOOKS_PER_HANG_TIMEOUT = 10
# Heartbeats are looked at every half second, less often where there are many: every two seconds for 256 ranks.
LOOK_S = 0.5
LOOK_S_PER_RANK = 0.006
LOOK_S_WITHOUT_BEATS = 5.0  # at last, while there is no heartbeat at all and no hang timeout
MIN_LOOK_S = 0.02
STANDS_STILL = 0.5  # of the hang timeout, when it is up for another rank
LATE = 2  # a look counts for so many intervals at most
WORKS = 0.02  # of a core

_Signature = tuple[int, int, int, int]


class _Waits(NamedTuple):
    """How long the process that works for a rank had waited for a core when it reported a step."""

    pid: int
    step: int
    waited_s: float


@dataclass
class _Watched:
    """The state of one rank in this attempt."""

    heartbeat: str  # paths, as strings for speed
    log: str
    signature: _Signature | None  # of the heartbeat file when it was last read; at first, what an earlier attempt left
    log_bytes: int
    pid: int | None = None  # None: it does not run
    step: int | None = None  # the last that it reported
    highest: int | None = None  # of all that it reported
    has_beaten: bool = False  # in this attempt, be it without a step
    progressed: bool = False  # a change was noticed since the last look
    hangs: bool = False  # that was reported
    idle_s: float = 0.0
    waits: _Waits | None = None  # at the last step with a busy time


class ProgressMonitor:
    """Watches the ranks of one attempt on one server. Make it before the first of them starts.

    Its owner sleeps for `timeout_s` and then calls `look`, which reads files, a little for each rank, and never waits.
    """

    def __init__(
        self,
        run_dir: RunDir,
        global_ranks: Iterable[int],
        hang_timeout_s: float | None = None,
        layout: Layout | None = None,
        waits_for_disk: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._waits_for_disk = waits_for_disk
        self._slowness = Slowness(layout)
        self._ranks: dict[int, _Watched] = {}
        for global_rank in global_ranks:
            heartbeat, log = os.fspath(run_dir.heartbeat(global_rank)), os.fspath(run_dir.train_log(global_rank))
            self._ranks[global_rank] = _Watched(heartbeat, log, _signature(heartbeat), _size(log))
        self._scanned_at = time.monotonic()
        self._ticks: dict[int, int] = {}  # of each rank's process tree at that scan, by pid
        self._look_s = LOOK_S + LOOK_S_PER_RANK * len(self._ranks)
        self._without_beats_s = self._look_s
        self._looked_at = time.monotonic()
        self._paused = False

    def started(self, global_rank: int, pid: int) -> None:
        """Take note that the rank runs as process `pid`."""
        if not self._living:
            self._looked_at = time.monotonic()
        self._ranks[global_rank].pid = pid

    def ended(self, global_rank: int) -> None:
        """Take note that the rank has ended. May be called for a rank that never started."""
        self._ranks[global_rank].pid = None
        self._slowness.forget(global_rank)

    def pause(self) -> None:
        """Let no time count until `resume`: all ranks are stopped on purpose."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._looked_at = time.monotonic()

    @property
    def timeout_s(self) -> float | None:
        """Seconds until the next look is due; None while there is nothing to look at."""
        if self._paused or not self._living:
            return None
        return max(0.0, self._looked_at + self._interval_s - time.monotonic())

    def look(self, now: float) -> list[Slow | Hung]:
        """See which ranks made progress since the last look. Return what is new. `now`: time.monotonic, in seconds.

        A hang is reported one interval after the first rank's time is up, together with all ranks that stand still for
        half of that time: they wait for the first, or the other way round. Each comes once, until it makes progress.
        """
        living = self._living
        if self._paused or not living:
            return []
        counted_s = 0.0 if self._waits_for_disk() else min(now - self._looked_at, LATE * self._interval_s)
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
        """Return the last step that each rank reported in this attempt, also of ranks that have ended. Reads the files."""
        self._read_beats(self._ranks)
        return {global_rank: watched.step for global_rank, watched in self._ranks.items()}

    def highest_step(self) -> int | None:
        """Return the highest step that any rank reported in this attempt; None before the first. Reads the files."""
        self._read_beats(self._ranks)
        return max((watched.highest for watched in self._ranks.values() if watched.highest is not None), default=None)

    @property
    def _living(self) -> dict[int, _Watched]:
        return {global_rank: watched for global_rank, watched in self._ranks.items() if watched.pid is not None}

    @property
    def _interval_s(self) -> float:
        if self._hang_timeout_s is not None:
            return max(MIN_LOOK_S, min(self._hang_timeout_s / LOOKS_PER_HANG_TIMEOUT, self._look_s))
        if any(watched.has_beaten for watched in self._ranks.values()):
            return self._look_s
        return self._without_beats_s

    def _read_beats(self, ranks: Mapping[int, _Watched]) -> None:
        for global_rank, watched in ranks.items():
            signature = _signature(watched.heartbeat)
            # One that is gone is no sign of life: the start of the next attempt removes it.
            if signature is None or signature == watched.signature:
                continue
            watched.signature = signature
            watched.has_beaten = watched.progressed = True
            heartbeat = read_heartbeat(Path(watched.heartbeat))
            step = heartbeat.beat.step if heartbeat else None
            if heartbeat is None or step is None:
                continue
            watched.step = step
            watched.highest = step if watched.highest is None else max(step, watched.highest)
            if heartbeat.beat.busy_s is not None and watched.pid is not None:
                self._slowness.note(
                    global_rank, step, heartbeat.beat.busy_s, _core_wait_of_step(watched, watched.pid, heartbeat, step)
                )

    def _notice_work(self, living: Mapping[int, _Watched], now: float) -> None:
        """Take note of logs and CPU time of ranks that have not reported a step yet."""
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
        hung = {
            global_rank: watched
            for global_rank, watched in living.items()
            if watched.idle_s >= STANDS_STILL * timeout_s and not watched.hangs
        }
        if max((watched.idle_s for watched in hung.values()), default=0.0) < timeout_s + self._interval_s:
            return []
        for watched in hung.values():
            watched.hangs = True
        return [Hung(tuple(sorted(hung)), max(watched.idle_s for watched in hung.values()))]


def _core_wait_of_step(watched: _Watched, rank_pid: int, heartbeat: Heartbeat, step: int) -> float:
    """Return how long a rank has waited for a core in each step since its last known one; 0 where that is not known.

    The waits of the process that beats count, where it is one of the rank's session, and else those of the rank's own
    process `rank_pid`: that may be a shell, which only waits for it.
    """
    pid = heartbeat.pid
    found = None if pid is None or pid == rank_pid else stat(pid)
    worker = rank_pid if found is None or found.session != rank_pid else found.pid
    waited_s = core_wait_s(worker)
    before, watched.waits = watched.waits, None if waited_s is None else _Waits(worker, step, waited_s)
    if before is None or waited_s is None or before.pid != worker or step <= before.step:
        return 0.0
    return max(0.0, waited_s - before.waited_s) / (step - before.step)


def _signature(path: str) -> _Signature | None:
    """Return a value that changes with every write or touch; None if there is no such file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - the path is a string, as that is three times as fast
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _size(path: str) -> int:
    signature = _signature(path)
    return 0 if signature is None else signature[2]
