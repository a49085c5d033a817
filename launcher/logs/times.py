"""Read the time written in a log line, in the formats that loggers use.

    2026-11-21 12:00:00,123            Python's logging; also with T, `.`, no fraction, `Z` or an offset from UTC, slashes
    20261121 12:00:00                  also with T or `-` between
    11/21/2026 12:00:00 [11/21/26 ...  month first, as transformers' examples and rich write it
    2026-11-21-12:00:00.123.456        MindSpore and CANN
    I1121 12:00:00.123456              glog, absl and torch: no year, so the year nearest to the run
    1795262400.123                     seconds since 1970, at the start of a line or after a key such as "ts":
    "time":1795262400123               milliseconds (micro-, nanoseconds) since 1970, after a key only

A time without an offset is local time. It must begin in a line's first 64 characters. A time that a line only mentions
does not count: `lease ends 2026-11-30 00:00:00`, `1895825408 parameters`. Therefore only words of loggers may precede a
date (a level, a name and a colon, anything in brackets), unless the rank's lines all have their dates after words. A
number without a key must be near the time of the run.
"""

from __future__ import annotations

import os
import re
import sys
import time
from array import array
from bisect import bisect_right
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import islice
from operator import lt
from pathlib import Path
from typing import Any

from launcher.core.frozen import frozen
from launcher.core.line_times import NOTE_EVERY_S, RECORD
from launcher.logs.levels import LEVEL_NAMES
from launcher.logs.lines import Line
from launcher.logs.log_file import bytes_between, opened

FIRST_CHARS = 64
MAX_TIME_CHARS = 40
MAX_ARRIVAL_BYTES = 32 << 20  # of the records of arrivals: enough for three weeks
SECOND_NS = 1_000_000_000
# Lines that arrived less than this apart may have been written together; so may indented lines.
APART_NS, APART_INDENTED_NS = SECOND_NS // 2, 3 * SECOND_NS // 2
_INDENTS = (b" ", b"\t")
_YEAR_S = 365.2425 * 86400

_NEAR_NS = 60 * 86400 * SECOND_NS  # runs are long and clocks can be wrong; one in a hundred other numbers is this near

_DATE = r"(?P<year>\d{4})(?P<slash>[-/]?)(?P<month>\d\d)(?P=slash)(?P<day>\d\d)[ T-]"
_MONTH_FIRST = r"(?P<us_month>\d\d)/(?P<us_day>\d\d)/(?P<us_year>(?:20)?\d\d),? "
# A letter precedes it; before that no other letter except the m that ends a colour.
_GLOG = r"(?<![\d.A-Za-ln-z][DIWEFC])(?<=[DIWEFC])(?P<glog_year>\d{4})??(?P<glog_month>\d\d?)(?P<glog_day>\d\d) "
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?!\d)"
_FRACTION = r"(?:[.,](?P<fraction>\d{1,9}(?:\.\d{3})?)\d*)?"
_ZONE = r"(?P<zone>Z\b| ?[+-][01]\d:?[0-5]\d\b| UTC\b|[+-][01]\d\b(?![:.\d]))?"
# The first group only makes the search faster.
_CALENDAR = re.compile(
    rf"(?=[\dDIWEFC])(?:(?<![\d.])(?:{_DATE}|(?<!/){_MONTH_FIRST})|{_GLOG}){_CLOCK}{_FRACTION}{_ZONE}"
)
_DAY_FIELDS = ("year", "month", "day", "glog_year", "glog_month", "glog_day", "us_year", "us_month", "us_day")
_MINUTE_FIELDS = (*_DAY_FIELDS, "hour", "minute", "zone")
_KEY = r"""\b(?:ts|time|timestamp|asctime|created)["']?[=:] ?["']?"""
_EPOCH = re.compile(
    rf"(?:(?P<key>{_KEY})|^[\[(<]?|\[)(?P<epoch>1\d{{9}})(?:(?P<small>\d{{3}}|\d{{6}}|\d{{9}})(?![\d.])"
    r"|(?:\.(?P<fraction>\d{1,9})\d*)?(?![\w.-]))"
)
_AFTER_EPOCH = re.compile(r"[\]:,)>]")
_KEY_BEFORE = re.compile(rf"{_KEY}$")
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]?|\([^()]*\)?|<[^<>]*>|\x1b\[[0-9;]*m")
# A word of prose: another word or the date follows. A level is not one, nor a name such as node-1, train.py or web_1.
_PROSE = re.compile(rf"(?<![\w.-])(?!(?i:{'|'.join(LEVEL_NAMES)})\b)[A-Za-z]*[a-z](?: +(?=\w)| +$)")
_QUICK = re.compile(rb"\d:\d\d|1\d{9}")  # without either there is no time


@frozen
class Found:
    start: int
    end: int
    time_ns: int
    behind_words: bool = False  # the line probably just mentions it


def time_in(text: str, near_ns: int) -> Found | None:
    """Find the time that a logger wrote at the start of a line. If it has no year, use the one nearest to `near_ns`."""
    found = _first_in(text[: FIRST_CHARS + MAX_TIME_CHARS], near_ns)
    return None if found is None or found.behind_words else found


def _first_in(head: str, near_ns: int) -> Found | None:
    """Find the first time in the head of a line. A date after words of prose counts only if there is no other time."""
    match = _CALENDAR.search(head)
    if match is None or (start := match.start()) >= FIRST_CHARS or int(match["second"]) > 60:
        return _epoch_in(head, near_ns)
    minute_ns = _found_minute_ns(match.group(*_MINUTE_FIELDS), near_ns)
    if minute_ns is None:  # no such day or time exists
        return _epoch_in(head, near_ns)
    time_ns = minute_ns + int(match["second"]) * SECOND_NS + _fraction_ns(match["fraction"])
    if start > 1 and match["glog_month"] is None and _ends_in_words(head[:start]):
        return _epoch_in(head, near_ns) or Found(start, match.end(), time_ns, behind_words=True)
    return Found(start, match.end(), time_ns)


def _epoch_in(head: str, near_ns: int) -> Found | None:
    match = _EPOCH.search(head)
    if match is None or match.start("epoch") >= FIRST_CHARS:
        return None
    time_ns = int(match["epoch"]) * SECOND_NS + _fraction_ns(match["small"] or match["fraction"])
    if not match["key"]:  # it may be any number, so it must be followed as a time is and be near the run
        follows = match["fraction"] or _AFTER_EPOCH.match(head, match.end())
        if match["small"] is not None or not follows or abs(time_ns - near_ns) >= _NEAR_NS:
            return None
    return Found(match.start("epoch"), match.end(), time_ns)


@lru_cache(maxsize=1024)
def _ends_in_words(before: str) -> bool:
    """Return True if the text before a date contains prose and is not just a logger's prefix."""
    return _KEY_BEFORE.search(before) is None and _PROSE.search(_IN_BRACKETS.sub("", before)) is not None


class Arrivals:
    """The recorded arrival times of a log's lines, accurate to one second (launcher/core/line_times.py)."""

    def __init__(self, path: Path, log: Path) -> None:
        """Read arrival times of the lines in `log` from the file `path`, which may not exist yet."""
        self._path, self._log = path, log
        self._ends, self._times_ns = array("q"), array("q")
        self._read_bytes = 0
        self._is_cut = False  # the first records were not read
        self._is_there = False
        self._first, self._behind = 0, 0  # offsets between which everything was written at `_time_ns`
        self._time_ns: int | None = None
        self._missing_until_s = 0.0  # monotonic; the file is not opened before

    def of(self, offset: int) -> int | None:
        """Return the time at which the byte at `offset` was written, in nanoseconds since 1970, or None if unknown."""
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
            begin = max(self._read_bytes, end - MAX_ARRIVAL_BYTES)
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


class Clock:
    """Adds times to the lines of one rank. A line without a time gets the time of the line before."""

    def __init__(self, near_ns: int, arrivals: Arrivals | None = None) -> None:
        """Start without a time. Times without a year get the year that brings them nearest to `near_ns`.

        With `arrivals`, a line without a time gets its arrival time, unless it arrived with the line before.
        """
        self._time_ns: int | None = None
        self._arrivals = arrivals
        self._arrived_ns: int | None = None  # arrival of the line whose time the clock has
        self._is_arrival = False  # the clock has the arrival time
        self._near_ns = near_ns
        self._within_line = False
        self._column_of_words: int | None = None  # position of the last date after words; -1: such dates do not count

    def stamped(self, line: Line) -> Line:
        """Return `line` with its time. All pieces of a long line get the time of the first piece."""
        own_ns = None if self._within_line else self._own_ns(line.raw)
        if self._arrivals is not None and not self._within_line:
            own_ns = self._or_arrival(line, own_ns, self._arrivals.of(line.offset))
        self._within_line = not line.ends
        if own_ns is None and self._time_ns is None:
            return line
        self._time_ns = self._time_ns if own_ns is None else own_ns
        dated = own_ns is not None
        return Line(
            line.global_rank, line.offset, line.raw, self._time_ns, line.attempt, dated, line.ends, line.overwritten
        )

    def _or_arrival(self, line: Line, own_ns: int | None, arrived_ns: int | None) -> int | None:
        """Return the line's own time, or else its arrival time. Return None if the line continues the previous line."""
        if own_ns is not None:
            self._arrived_ns, self._is_arrival = arrived_ns, False
            return own_ns
        if arrived_ns is None:
            return None
        if self._arrived_ns is not None:
            apart_ns = APART_INDENTED_NS if line.raw.startswith(_INDENTS) else 0 if self._is_arrival else APART_NS
            if abs(arrived_ns - self._arrived_ns) <= apart_ns:
                return None
        self._arrived_ns, self._is_arrival = arrived_ns, True
        return arrived_ns

    def _own_ns(self, raw: bytes) -> int | None:
        """Return the time in a line, or None. A date after prose must be in the same column as the previous date."""
        if _QUICK.search(raw, 0, FIRST_CHARS + MAX_TIME_CHARS) is None:
            return None
        found = _first_in(raw[: FIRST_CHARS + MAX_TIME_CHARS].decode("latin-1"), self._near_ns)
        if found is None:
            return None
        if not found.behind_words:
            self._column_of_words = -1
        elif self._column_of_words != found.start:
            self._column_of_words = -1 if self._column_of_words == -1 else found.start
            return None
        return found.time_ns


@lru_cache(maxsize=1024)
def _found_minute_ns(fields: tuple[str | Any, ...], near_ns: int) -> int | None:
    """Convert a date with hour and minute to nanoseconds since 1970. Return None if the date or time does not exist."""
    *date, hour, minute, zone = fields
    year, month, day = (plain or glog or us for plain, glog, us in zip(date[:3], date[3:6], date[6:], strict=True))
    year = f"20{year}" if year and len(year) == 2 else year
    at = (int(month), int(day), int(hour), int(minute))
    try:
        return _minute_ns((int(year), *at), zone) if year else _nearest_ns(at, near_ns)
    except (ValueError, OverflowError, OSError):  # the last two: a year outside this system's range
        return None


def _minute_ns(minute: tuple[int, int, int, int, int], zone: str | None) -> int:
    """Convert a date with hour and minute to nanoseconds since 1970. Without `zone`, the time is local."""
    offset = None
    if zone is not None:
        digits = re.sub(r"\D", "", zone).ljust(4, "0")
        sign = -1 if "-" in zone else 1
        offset = timezone(sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))
    return int(datetime(*minute, tzinfo=offset).timestamp()) * SECOND_NS


def _nearest_ns(minute: tuple[int, int, int, int], near_ns: int) -> int:
    """Convert a date without a year to nanoseconds since 1970. Choose the year that brings it nearest to `near_ns`."""
    about = round(near_ns / SECOND_NS / _YEAR_S) + 1970
    possible: list[int] = []
    for year in range(about - 1, about + 2):
        with suppress(ValueError):  # February 29
            possible.append(_minute_ns((year, *minute), None))
    return min(possible, key=lambda time_ns: abs(time_ns - near_ns))


def _fraction_ns(digits: str | None) -> int:
    """Convert a fraction of a second to nanoseconds. `123.456`, as MindSpore writes it, equals `123456`."""
    return int(digits.replace(".", "").ljust(9, "0")[:9]) if digits else 0
