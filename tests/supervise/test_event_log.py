"""The event log keeps events where it can, and never stands in the way."""

import os
from contextlib import suppress

import pytest

from launcher.core.events import AgentEnded, Cause, RankStarted, Trouble, from_line
from launcher.supervise.event_log import EventLog


@pytest.fixture(name="pipe")
def _pipe():
    """Descriptors to read from and to write to, as of a launcher. A test may close them."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def lines(path):
    return [from_line(line).event for line in path.read_text().splitlines()]


def test_events_are_appended_one_a_line(tmp_path):
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    events = [RankStarted(0, 1234), Trouble('with "quotes"\nand lines'), AgentEnded(Cause.FAILED, 7)]
    for event in events:
        event_log.record(event)
    event_log.close()
    assert (lines(tmp_path / "events.jsonl"), event_log.lost) == (events, 0)


@pytest.mark.parametrize("path", ["/dev/full", "gone/events.jsonl"])
def test_a_file_that_cannot_be_written_costs_events_only(tmp_path, pipe, path):
    reader, writer = pipe
    event_log = EventLog(tmp_path / path, 0, writer)
    event_log.record(RankStarted(0, 1))
    event_log.close()
    assert (from_line(os.read(reader, 4096)).event, event_log.lost) == (RankStarted(0, 1), 1)


def test_a_launcher_that_does_not_read_is_waited_for_only_at_the_end(tmp_path, pipe):
    reader, writer = pipe
    event_log = EventLog(tmp_path / "events.jsonl", 0, writer)
    for rank in range(1500):
        event_log.record(RankStarted(rank, rank))
    assert event_log.backlog
    received = b""
    while event_log.backlog:
        received += os.read(reader, 1 << 16)
        event_log.send()
    event_log.close()
    os.close(writer)
    while chunk := os.read(reader, 1 << 16):
        received += chunk
    assert [from_line(line).event.global_rank for line in received.splitlines()] == list(range(1500))
    assert len(lines(tmp_path / "events.jsonl")) == 1500


def test_a_launcher_that_has_gone_is_forgotten(tmp_path, pipe):
    reader, writer = pipe
    os.close(reader)
    event_log = EventLog(tmp_path / "events.jsonl", 0, writer)
    event_log.record(RankStarted(0, 1))
    assert not event_log.backlog
    event_log.close()
    assert lines(tmp_path / "events.jsonl") == [RankStarted(0, 1)]


def test_closing_gives_up_on_a_launcher_that_goes_away(tmp_path, pipe):
    death_reader, death_writer = os.pipe()
    event_log = EventLog(tmp_path / "events.jsonl", 0, pipe[1])
    for rank in range(1500):
        event_log.record(RankStarted(rank, rank))
    os.close(death_writer)
    event_log.close(death_reader)
    assert not event_log.backlog
    os.close(death_reader)
