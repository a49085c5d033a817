"""Find ranks that have been silent for much longer than usual, or than the other ranks.

The result is only displayed; supervision detects hangs in another way. Ranks that seldom print are not silent. Ranks of
a program that prints only on rank 0 are not silent either: if no more ranks write than are silent, no rank is named.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from itertools import pairwise
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.line_times import RECORD
from launcher.core.run_dir import RunDir
from launcher.logs.log_file import bytes_between, opened

SILENT_FROM_S = 15.0
TIMES_LONGER = 5
# A rank has a usual pause after this many writes over at least `SILENT_FROM_S`, which excludes the lines of a start.
MIN_RECORDS = 8
LAST_RECORDS = 32


@frozen
class Silences:
    # The last write to each existing log, in nanoseconds since 1970.
    written_ns: Mapping[int, int] = field(default_factory=dict)
    # How long unusually silent ranks have been silent.
    silent_s: Mapping[int, float] = field(default_factory=dict)
    # Inode, size and time of each log, to detect changes.
    logs: tuple[tuple[int, int, int], ...] = ()

    @property
    def all_are_silent(self) -> bool:
        return bool(self.silent_s) and self.silent_s.keys() == self.written_ns.keys()


class SilenceReader:
    """Finds silent ranks from the times at which their logs were last written."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        # By global rank: start and last write, and the longest pause between them.
        self._usual: dict[int, tuple[tuple[int, int], float | None]] = {}

    def look(self, beats_ns: Mapping[int, int | None], started_ns: Mapping[int, int]) -> Silences:
        """Find the silent ranks among the running ranks, given the times of their last heartbeats. Never raises.

        `started_ns`: the start of each rank's current attempt, if known. Pauses in earlier attempts are ignored.
        """
        now_ns = time.time_ns()
        logs: dict[int, os.stat_result] = {}
        for rank in beats_ns:
            with suppress(OSError):
                logs[rank] = os.stat(self._run_dir.train_log(rank))  # noqa: PTH116 - there may be a thousand
        written_ns = {rank: log.st_mtime_ns for rank, log in logs.items()}
        signs_ns = {
            rank: max(time_ns, beats_ns[rank] or 0, started_ns.get(rank, 0)) for rank, time_ns in written_ns.items()
        }
        ages_s = {rank: (now_ns - time_ns) / 1e9 for rank, time_ns in signs_ns.items()}
        silent_s = {
            rank: age_s
            for rank, age_s in ages_s.items()
            if age_s >= SILENT_FROM_S and self._is_unusual(rank, started_ns.get(rank, 0), written_ns[rank], ages_s)
        }
        talking = sum(age_s < SILENT_FROM_S for age_s in ages_s.values())
        if 0 < talking <= len(silent_s):  # all ranks print while they start, then only rank 0
            silent_s = {}
        return Silences(
            written_ns, silent_s, tuple((log.st_ino, log.st_size, log.st_mtime_ns) for log in logs.values())
        )

    def _is_unusual(self, rank: int, started_ns: int, written_ns: int, ages_s: Mapping[int, float]) -> bool:
        known = self._usual.get(rank)
        if known is None or known[0] != (started_ns, written_ns):
            pause_s = usual_pause_s(self._run_dir.arrivals(rank), started_ns)
            known = self._usual[rank] = (started_ns, written_ns), pause_s
        if known[1] is not None:
            return ages_s[rank] > TIMES_LONGER * known[1]
        # It never wrote regularly. It is unusual if most ranks write.
        talking = sum(age_s < ages_s[rank] / TIMES_LONGER for age_s in ages_s.values())
        return 2 * talking > len(ages_s)


def usual_pause_s(arrivals: Path, started_ns: int) -> float | None:
    """Return the longest recent pause, in seconds, between two writes to a log, or None after too few writes."""
    with suppress(OSError), opened(arrivals) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
        end = size_bytes - size_bytes % RECORD.size
        data = bytes_between(descriptor, max(0, end - LAST_RECORDS * RECORD.size), end)
        times_ns: list[int] = [time_ns for time_ns, _ in RECORD.iter_unpack(data) if time_ns >= started_ns]
        if len(times_ns) >= MIN_RECORDS and times_ns[-1] - times_ns[0] >= SILENT_FROM_S * 1e9:
            return max(after - before for before, after in pairwise(times_ns)) / 1e9
    return None
