"""Read an events file that anyone may have written: each event once, in bounded time and memory, without errors."""

import os
import tracemalloc

import pytest

from launcher.core.events import AttemptStarted, TimestampedEvent, to_line
from launcher.runs import event_reader
from launcher.runs.event_reader import EventReader


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def lines(numbers):
    return "".join(to_line(TimestampedEvent(1, 0, AttemptStarted(number, 2))) for number in numbers).encode()


def numbers(reader):
    return [stamped.event.number for stamped in reader.read()]


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name)]
)
def test_what_is_no_file_has_no_events(path, make):
    make(path)
    assert numbers(EventReader(path)) == []


def test_nothing_of_8_gib_holds_no_events(path):
    path.write_bytes(lines([1]))
    os.truncate(path, 8 << 30)
    reader = EventReader(path)
    tracemalloc.start()
    assert numbers(reader) == [1]
    assert tracemalloc.get_traced_memory()[1] < 150 << 20
    tracemalloc.stop()
    with path.open("ab") as file:
        file.write(b"\n" + lines([2]))
    assert numbers(reader) == [2]


def test_of_a_long_file_the_beginning_and_the_end_are_read(path, monkeypatch):
    """The end holds the last attempt, which tells how the run stands."""
    monkeypatch.setattr(event_reader, "HEAD_BYTES", 1000)
    monkeypatch.setattr(event_reader, "MAX_BYTES", 10_000)
    path.write_bytes(lines(range(1000)))
    reader = EventReader(path)
    found = numbers(reader)
    assert found[0] == 0
    assert found[-1] == 999
    assert found == sorted(found)
    assert len(found) < 150
    assert numbers(reader) == []
    with path.open("ab") as file:
        file.write(lines([1000]))
    assert numbers(reader) == [1000]


@pytest.mark.parametrize(
    "strange", [b"x" * 30_000, b"[" * 9000, b'{"schema": 2, "event": [], "time_ns": 1, "server_index": 0}', b"\xff\0"]
)
def test_a_strange_line_is_passed_over(path, monkeypatch, strange):
    monkeypatch.setattr(event_reader, "MAX_BYTES", 10_000)
    path.write_bytes(lines([1]) + strange + b"\n" + lines([2]))
    reader = EventReader(path)
    assert numbers(reader) == [1, 2]
    assert reader.strange == 1


def test_a_file_of_strange_lines_is_not_read_to_its_end(path, monkeypatch):
    monkeypatch.setattr(event_reader, "MAX_STRANGE", 10)
    path.write_bytes(lines([1]) + b"1\n" * 50 + lines([2]))
    reader = EventReader(path)
    assert numbers(reader) == [1]
    assert reader.strange == 11
