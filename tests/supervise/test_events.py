"""The formats of events.jsonl and report.json."""

import json

import pytest

from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    Cause,
    Killing,
    Leftovers,
    RankEnded,
    RankExit,
    RankStarted,
    Report,
    Stamped,
    Stopping,
    Trouble,
    Unkillable,
    from_line,
    to_line,
)

EVENTS = [
    AgentStarted(7, 8),
    RankStarted(3, 99),
    RankEnded(3, 99, -9),
    RankEnded(3, None, 126, "no process could be made"),
    Stopping(Cause.STOPPED, 1.5, 15),
    Leftovers(2),
    Killing(3),
    Unkillable((4, 5)),
    Trouble("disk"),
    AgentEnded(Cause.HEAD_LOST, 1),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_survives_its_line(event):
    """Reading a line gives the event that was written, on exactly one line."""
    line = to_line(Stamped(123456789, 1, event))
    assert line.count("\n") == 1
    assert from_line(line) == Stamped(123456789, 1, event)


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "3", "{}", '{"schema": 2, "time_ns": 1, "server_index": 0, "event": "Killing", "count": 1}',
     '{"schema": 1, "time_ns": 1, "server_index": 0, "event": "Killing", "number": 1}'],
)  # fmt: skip
def test_anything_else_is_refused(line):
    """A torn line, another schema or a missing field is a ValueError, nothing else."""
    with pytest.raises(ValueError):
        from_line(line)


def test_what_a_later_version_added_is_skipped():
    """A reader passes over an event it does not know, and over an unknown field of one that it does know."""
    head = '{"schema": 1, "time_ns": 1, "server_index": 0, "event": '
    assert from_line(head + '"Unheard", "cause": "unheard"}') is None
    assert from_line(head + '"Killing", "count": 2, "pids": 3}') == Stamped(1, 0, Killing(2))


def test_a_report_survives_its_file():
    """Reading report.json gives the report that was written."""
    exits = (RankExit(1, 10, -15, 5, 9), RankExit(0, None, 126, None, 7, "no process could be made"))
    report = Report("name", 0, Cause.FAILED, 126, 1, 10, 0, exits, killed=2, unkillable=(3,), events_lost=1)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"schema": 1, "exits": [{}]})])
def test_no_report_is_refused(text):
    """What is no report is a ValueError, nothing else."""
    with pytest.raises(ValueError):
        Report.from_json(text)
