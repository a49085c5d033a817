"""When lines came that carry no time, by the records of an agent."""

import os

import pytest

from launcher.core.line_times import RECORD
from launcher.logs import times as arrivals_module
from launcher.logs.lines import Line
from launcher.logs.times import APART_NS, Arrivals, Clock

S = 1_000_000_000
WRITTEN = 99 * S  # when the log was written last


@pytest.fixture(name="noted")
def _noted(tmp_path, monkeypatch):
    """A function that appends records, with the length of the log; gives a reader."""
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
    """Whether its records do or not, and whether the reader has seen the former ones or not."""
    assert noted((10, 5), (20, 9), size=9).of(6) == 20
    assert noted((30, 3), size=3).of(1) == 30
    assert noted((40, 4), anew=True, size=4).of(3) == 40
    assert Arrivals(noted.reader._path, noted.reader._log).of(0) == 40


def test_a_part_of_a_record_is_none(noted):
    assert noted((10, 5), raw=b"part", size=9).of(7) == WRITTEN


# --- the times of lines ---


def stamped(reader, *texts):
    """The second and whether it is its own, of each line in turn."""
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
    """Though a look came between them; not if it came much later, as where all lines are indented."""
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
