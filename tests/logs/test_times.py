"""Find the time in a log line."""

import os
import time
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.line_times import RECORD
from launcher.logs import times as arrivals_module
from launcher.logs.lines import Line
from launcher.logs.times import APART_NS, FIRST_CHARS, Arrivals, Clock, time_in

from .conftest import lines_of

NEAR = int(datetime(2026, 11, 22, tzinfo=timezone.utc).timestamp()) * 10**9


def time_of(raw, near_ns):
    """Return the time written in a line, in nanoseconds since 1970."""
    line = Clock(near_ns).stamped(Line(0, 0, raw))
    return line.time_ns if line.dated else None


@pytest.fixture(autouse=True)
def _none_that_a_machine_of_tests_has(zone):
    """Use a time zone with daylight saving time."""
    zone("America/New_York")


def local(*calendar, ns=0):
    return int(time.mktime((*(*calendar, 0, 0, 0)[:6], 0, 0, -1))) * 10**9 + ns


def utc(*calendar, ns=0):
    return int(datetime(*calendar, tzinfo=timezone.utc).timestamp()) * 10**9 + ns


@pytest.mark.parametrize(("line", "ns"), [
    ("2026-11-21 12:00:00", 0),
    ("2026-11-21 12:00:00,123 INFO root: step 3", 123_000_000),
    ("2026-11-21T12:00:00.123456 x", 123_456_000),
    ("2026-11-21 12:00:00.1234567890123 x", 123_456_789),
    ("2026/11/21 12:00:00 nginx", 0),
    ("[2026-11-21 12:00:00] x", 0),
    ("[2026-11-21 12:00:00,5][train][INFO] - x", 500_000_000),
    ("\x1b[32m2026-11-21 12:00:00.123\x1b[0m | INFO", 123_000_000),
    ("2026-11-21-12:00:00.123.456", 123_456_000),
    ("[WARNING] DEVICE(123,7f01,python):2026-11-21-12:00:00.123.456 [mindspore/a.cc:3]", 123_456_000),
    ("I1121 12:00:00.123456 1234 x.cc:3] y", 123_456_000),
    ("[rank0]:[W1121 12:00:00.123456789 ProcessGroupNCCL.cpp:1] y", 123_456_789),
    ("E20261121 12:00:00.000001 x", 1_000),
    ("\x1b[33mW1121 12:00:00.5\x1b[0m x", 500_000_000),
    ("2026-11-21 12:00:00 - 3 - x", 0),
    ("2026-11-21 12:00:00 -1 is the loss", 0),
    ("11/21/2026 12:00:00 - INFO - x", 0),
    ("[11/21/26 12:00:00] INFO     x", 0),
    ("11/21/2026, 12:00:00.5 x", 500_000_000),
    ("20261121 12:00:00 x", 0),
    ("20261121-12:00:00.123 x", 123_000_000),
    ("INFO:     2026-11-21 12:00:00 x", 0),
    ("warning 2026-11-21 12:00:00 x", 0),
    ("train - 2026-11-21 12:00:00,5 - x", 500_000_000),
    ("node-1 2026-11-21 12:00:00 x", 0),
    ("my host I1121 12:00:00 x", 0),
    ("(Worker pid=1, ip=10.0.0.1 of a job) 2026-11-21 12:00:00 x", 0),
    ("[rank 3 of many] 2026-11-21 12:00:00 x", 0),
    ("[1,0]<stdout>:2026-11-21 12:00:00 x", 0),
    ("level=info msg=the words time=2026-11-21T12:00:00", 0),
    ('{"message": "many words", "time": "2026-11-21 12:00:00"}', 0),
])  # fmt: skip
def test_a_time_without_an_offset_is_local(line, ns):
    assert time_in(line, NEAR).time_ns == local(2026, 11, 21, 12, ns=ns)
    assert time_of(line.encode(), NEAR) == local(2026, 11, 21, 12, ns=ns)


@pytest.mark.parametrize("name", ["UTC", "Europe/Paris", "Asia/Kolkata"])
def test_local_is_where_the_machine_is(zone, name):
    zone(name)
    noon = local(2026, 11, 21, 12)
    for line in (b"2026-11-21 12:00:00 x", b"I1121 12:00:00 x", b"11/21/2026 12:00:00 - x"):
        assert time_of(line, NEAR) == noon
    assert time_of(b"2026-11-21T12:00:00Z x", NEAR) == utc(2026, 11, 21, 12)


@pytest.mark.parametrize(("line", "ns"), [
    ("2026-11-21T12:00:00Z x", utc(2026, 11, 21, 12)),
    ("2026-11-21 12:00:00.5Z x", utc(2026, 11, 21, 12, ns=5 * 10**8)),
    ("2026-11-21 12:00:00 UTC x", utc(2026, 11, 21, 12)),
    ("2026-11-21T12:00:00+01:00", utc(2026, 11, 21, 11)),
    ("2026-11-21T12:00:00-0800", utc(2026, 11, 21, 20)),
    ("2026-11-21 12:00:00 +0200 x", utc(2026, 11, 21, 10)),
    ("2026-11-21 12:00:00+02 x", utc(2026, 11, 21, 10)),
])  # fmt: skip
def test_an_offset_from_utc_counts(line, ns):
    assert time_in(line, NEAR).time_ns == ns


SECONDS = 1795262400 * 10**9


@pytest.mark.parametrize(("line", "ns"), [
    # At the start of a line, in brackets, or after a key that says so; elsewhere a number is a number.
    *((line, SECONDS + 5 * 10**8)
      for line in ("1795262400.5 x", "[1795262400.5] x", '{"ts": 1795262400.5, "a": 1}', "time=1795262400.5 x",
                   "[1795262400.5] lease ends 2026-11-30 00:00:00")),
    *((line, SECONDS) for line in ("1795262400: x", "[1795262400] x", '{"ts":1795262400}', "1795262400, x")),
    *((line, None)
      for line in ("got 1795262400 bytes", "17952624001 x", "1795262400-1 x", "1795262400.5.1", "1795262400 bytes")),
    # Those without a key are near the run: other numbers of ten digits are sizes, counts and seeds.
    *((line, None)
      for line in ("1895825408 parameters", "1073741824, 3", "1073741824: x", "[1895825408] x", "1073741824.5 x")),
    ('{"ts": 1495262400.5}', 1495262400_500_000_000),
    # Smaller units come after a key only, as pino and bunyan write them.
    *((f'{{"level":30,"time":1795262400{digits},"pid":1}}', SECONDS + int(digits.ljust(9, "0")))
      for digits in ("123", "123456", "123456789")),
    *((f"1795262400{digits}: x", None) for digits in ("123", "123456", "123456789")),
])  # fmt: skip
def test_seconds_since_1970(line, ns):
    assert time_of(line.encode(), NEAR) == ns


@pytest.mark.parametrize("line", [
    "", "step 12:00:00", "epoch: 1 step: 20, loss is 6.6276, 1252 tokens/s", "2026-13-21 12:00:00", "2026-11-31 12:00:00",
    "2026-11-21 24:00:00", "2026-11-21 12:00:61", "2026-11-21 12:60:00", "12026-11-21 12:00:00", "0000-11-21 12:00:00",
    "XI1121 12:00:00", "I1321 12:00:00", "I0230 12:00:00", "2026-11-21 12:00:001", "21/11/2026 12:00:00",
    "1/11/21/26 12:00:00", "x" * FIRST_CHARS + "2026-11-21 12:00:00", "x" * FIRST_CHARS + " 1795262400",
    "lease ends 2026-11-30 00:00:00", "[rank0]: lease ends: 2026-11-30 00:00:00", "INFO: lease ends 2026-11-30 00:00:00",
    "resuming from checkpoint of 2025-01-02 03:04:05",
])  # fmt: skip
def test_what_is_no_time(line):
    assert time_of(line.encode(), NEAR) is None


@pytest.mark.parametrize(("texts", "dated"), [
    (["train loop 2026-11-21 12:00:00 a", "train loop 2026-11-21 12:00:01 b", "lease ends on 2026-11-30 00:00:00"], [0, 1, 0]),
    (["2026-11-21 12:00:00 a", *["lease ends 2026-11-30 00:00:00"] * 2, "2026-11-21 12:00:01 b"], [1, 0, 0, 1]),
])  # fmt: skip
def test_dates_behind_words_count_where_a_rank_has_its_dates_there(texts, dated):
    """From the second on, unless its lines have them at the beginning."""
    assert [each.dated for each in map(Clock(NEAR).stamped, lines_of("\n".join(texts)))] == dated


def test_where_the_time_stands():
    text = "I1121 12:00:00.5 x"
    found = time_in(text, NEAR)
    assert text[found.start : found.end] == "1121 12:00:00.5"
    late = "x" * (FIRST_CHARS - 1) + "2026-11-21T12:00:00.123456+01:00"
    assert time_in(late, NEAR).time_ns == utc(2026, 11, 21, 11, ns=123_456_000)


@pytest.mark.parametrize(("text", "near", "year"), [
    ("I1231 23:59:59 x", (2027, 1, 1), 2026), ("I0101 00:00:01 x", (2026, 12, 31), 2027),
    ("I0715 12:00:00 x", (2026, 11, 21), 2026), ("W715 12:00:00 x", (2026, 11, 21), 2026),
    ("I0229 12:00:00 x", (2024, 3, 1), 2024),
])  # fmt: skip
def test_a_time_without_a_year_is_near_the_run(text, near, year):
    found = time_in(text, local(*near))
    assert time.localtime(found.time_ns / 1e9).tm_year == year


@given(st.integers(631152000 * 10**6, 2114380800 * 10**6), st.integers(-14, 14))
def test_what_python_writes_is_read_back(microseconds, hours):
    zone = timezone(timedelta(hours=hours))
    here = datetime(1970, 1, 1, tzinfo=timezone.utc).astimezone(zone) + timedelta(microseconds=microseconds)
    expected = microseconds * 1000
    assert time_of(here.isoformat().encode(), NEAR) == expected
    assert time_of(here.strftime("%Y-%m-%d %H:%M:%S.%f %z x").encode(), NEAR) == expected


@given(st.text(st.sampled_from("0123456789-: TZ.,+[]I")) | st.text())
def test_any_text_is_read(text):
    time_of(text.encode("utf-8", "surrogatepass"), NEAR)


def test_a_line_without_a_time_has_that_of_the_line_before():
    data = b"hello\n2026-11-21 12:00:00 a\n  more\n2026-11-21 12:00:01 b\n2026-11-21 12:00:00 c"
    lines = list(map(Clock(NEAR).stamped, lines_of(data.decode())))
    noon = local(2026, 11, 21, 12)
    assert [line.time_ns for line in lines] == [None, noon, noon, noon + 10**9, noon]
    assert [line.dated for line in lines] == [False, True, False, True, True]
    assert b"".join(line.raw + b"\n" * line.ends for line in lines) == data
    clock = Clock(NEAR)
    clock.stamped(Line(0, 0, b"2026-11-21 12:00:00 a", ends=False))
    piece = clock.stamped(Line(0, 21, b"2026-11-21 13:00:00 a"))
    assert (piece.time_ns, piece.dated) == (noon, False)
    assert clock.stamped(Line(0, 42, b"2026-11-21 13:00:00 a")).dated


# --- arrivals ---


S = 1_000_000_000
WRITTEN = 99 * S  # when the log was written last


@pytest.fixture(name="noted")
def _noted(tmp_path, monkeypatch):
    """Return a function that appends (time, offset) records and sets the log's size. It returns a reader."""
    monkeypatch.setattr(arrivals_module, "NOTE_EVERY_S", 0)
    log, path = tmp_path / "train.log", tmp_path / "arrivals"
    reader = Arrivals(path, log)

    def note(*records, size=0, raw=b"", anew=False):
        with path.open("wb" if anew else "ab") as file:
            file.write(b"".join(RECORD.pack(time_ns, end) for time_ns, end in records) + raw)
        log.write_bytes(b"x" * size)
        os.utime(log, ns=(WRITTEN, WRITTEN))
        return reader

    note.reader = reader
    return note


def test_a_byte_came_by_the_first_look_that_saw_it(noted):
    """What no look has seen came by the last write; offsets may be asked for in any order."""
    reader = noted((10, 5), (20, 8), size=12)
    assert [reader.of(offset) for offset in (0, 4, 5, 7, 8, 11, 3)] == [10, 10, 20, 20, WRITTEN, WRITTEN, 10]
    assert [noted((30, 12), size=12).of(offset) for offset in (8, 11)] == [30, 30]


def test_nothing_is_known_without_records(noted):
    assert noted.reader.of(0) is None
    assert noted(size=5).of(0) == WRITTEN
    assert noted((10, 6), size=6).of(5) == 10


def test_a_log_that_was_truncated_begins_anew(noted):
    assert noted((10, 5), (20, 9), size=9).of(6) == 20
    assert noted((30, 3), size=3).of(1) == 30
    assert noted((40, 4), anew=True, size=4).of(3) == 40
    assert Arrivals(noted.reader._path, noted.reader._log).of(0) == 40


def test_a_part_of_a_record_is_none(noted):
    assert noted((10, 5), raw=b"part", size=9).of(7) == WRITTEN


# --- the times of lines ---


def stamped(reader, *texts):
    """Return for each line its second, and True if the time is the line's own."""
    clock, offset, told = Clock(0, reader), 0, []
    for text in texts:
        line = clock.stamped(Line(0, offset, text.encode()))
        offset += len(text) + 1
        told.append((None if line.time_ns is None else line.time_ns // S, line.dated))
    return told


def test_lines_without_a_time_have_that_of_their_arrival(noted):
    """Those of one look are together, so that nothing of another rank stands between them."""
    reader = noted((10 * S, 4), (20 * S, 6), size=6)
    assert stamped(reader, "a", "b", "c") == [(10, True), (10, False), (20, True)]
    assert stamped(None, "a", "b") == [(None, False)] * 2


OWN = "1970-01-01 00:00:09Z x"


def test_an_indented_line_belongs_to_the_one_before(noted):
    reader = noted((10 * S, 2), (11 * S, 6), (12 * S, 9), size=9)
    assert stamped(reader, "a", " b", "c", " d") == [(10, True), (10, False), (11, True), (11, False)]
    reader = noted((10 * S, 3), (11 * S, 6), (12 * S, 9), anew=True, size=9)
    assert stamped(reader, " a", " b", " c") == [(10, True), (10, False), (12, True)]


def test_what_came_with_a_line_has_its_time(noted):
    """Though a look may have come between; what came later has that of its arrival, whatever zone the other is in."""
    first = len(OWN) + 1
    reader = noted(
        (3600 * S, first), (3600 * S + APART_NS, first + 2), (3700 * S, first + 4), (3701 * S, first + 99), size=200
    )
    assert stamped(reader, OWN, "b", "c", "d", OWN, "e") == [
        (9, True), (9, False), (3700, True), (3701, True), (9, True), (9, False),
    ]  # fmt: skip


def test_a_piece_of_a_line_has_the_time_of_the_first(noted):
    clock = Clock(0, noted((10 * S, 4), (20 * S, 8), size=8))
    pieces = [clock.stamped(Line(0, at, b"xxxx", ends=at > 0)) for at in (0, 4)]
    assert [piece.time_ns for piece in pieces] == [10 * S, 10 * S]
