"""When lines without a time were written, to within a second, as recorded by an agent (launcher/core/line_times.py)."""

from __future__ import annotations

import os
import sys
import time
from array import array
from bisect import bisect_right
from contextlib import suppress
from itertools import islice
from operator import lt
from pathlib import Path

from launcher.core.line_times import NOTE_EVERY_S, RECORD
from launcher.logs.log_file import bytes_between, opened

MAX_BYTES = 32 << 20  # of the records: enough for three weeks


class Arrivals:
    """The arrival times of one log. Reads more of the records when asked about later bytes."""

    def __init__(self, path: Path, log: Path) -> None:
        """`path`: the file of records, which may never appear."""
        self._path, self._log = path, log
        self._ends, self._times_ns = array("q"), array("q")
        self._read_bytes = 0
        self._is_cut = False  # the first records were not read
        self._is_there = False
        self._first, self._behind = 0, 0  # offsets between which everything was written at `_time_ns`
        self._time_ns: int | None = None
        self._missing_until_s = 0.0  # monotonic; the file is not opened before

    def of(self, offset: int) -> int | None:
        """Return when the byte at `offset` was written, in nanoseconds since 1970; None if unknown."""
        if not self._first <= offset < self._behind:
            self._find(offset)
        return self._time_ns

    def _find(self, offset: int) -> None:
        self._first, self._behind, self._time_ns = 0, 0, None
        if time.monotonic() < self._missing_until_s:
            return
        with suppress(OSError):
            self._read_more()
            self._is_there = True
        at = bisect_right(self._ends, offset)
        first = self._ends[at - 1] if at else 0
        if self._is_cut and not at:
            return
        if at < len(self._ends):
            self._first, self._behind, self._time_ns = first, self._ends[at], self._times_ns[at]
        elif self._is_there:
            with suppress(OSError):
                found = self._log.stat()
                self._first, self._behind, self._time_ns = first, max(found.st_size, offset + 1), found.st_mtime_ns
        else:
            self._missing_until_s = time.monotonic() + NOTE_EVERY_S

    def _read_more(self) -> None:
        with opened(self._path) as descriptor:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes < self._read_bytes:  # the file was truncated
                self._read_bytes = 0
            end = size_bytes - size_bytes % RECORD.size
            begin = max(self._read_bytes, end - MAX_BYTES)
            data = bytes_between(descriptor, begin, end)
        if begin != self._read_bytes or not begin:
            self._ends, self._times_ns = array("q"), array("q")
            self._is_cut = begin > 0
        self._read_bytes = begin + len(data)
        values = array("q")  # not all at once: a month has millions of records
        values.frombytes(data)
        if sys.byteorder == "big":
            values.byteswap()
        self._times_ns += values[::2]
        self._ends += values[1::2]
        if not all(map(lt, self._ends, islice(self._ends, 1, None))):
            since = max(at for at in range(1, len(self._ends)) if self._ends[at] <= self._ends[at - 1])
            del self._ends[:since], self._times_ns[:since]
