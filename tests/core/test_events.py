"""The formats of events.jsonl and report.json."""

import json
import math

import pytest

from launcher.core import events
from launcher.core.events import Cause, Slow, Stopping, TimestampedEvent, from_line, to_line
from launcher.core.machine.proc import ProcessId
from launcher.core.run_report import Attempt, RankExit, Report
from launcher.core.verdict import Confidence, Failure, Role, StackGroup, Verdict

VERDICT = Verdict(
    culprit=3,
    confidence=Confidence.LIKELY,
    reason="it was first by 20 ms",
    failures=(
        Failure(3, Role.CAUSE, "ValueError: x", "own fault", 5, "train.py:88 in step", 1, "Traceback ..."),
        Failure(0, Role.CONSEQUENCE, "still running", "waited for rank 3"),
    ),
    stacks=(StackGroup((3,), "stopped (SIGSTOP)"), StackGroup((0, 1), "in all_reduce", ("train.py:40 in step",))),
    signature="ValueError at train.py:88",
)
EVENTS = [
    events.AgentStarted(ProcessId(7, 100, "host", "boot"), None, 8),
    events.AgentStarted(ProcessId(7, 100, "host", "boot"), ProcessId(6, 90, "host", "boot"), 8),
    events.Awaiting(("h1", "h2"), 30.5), events.Awaiting(("h1",), 30.5, 300.0),
    events.NotBegun("server h2 did not come", "is it there?"), events.NotBegun("refused"),
    events.Preloading(8, ("torch", "numpy")), events.Preloaded(2.5), events.AttemptStarted(1, 29500),
    events.RankStarted(3, 99, 12345, 678), events.RankEnded(3, 99, -9),
    events.RankEnded(3, None, 126, "no process could be made"), Slow(3, 0.9, 0.5, 5), events.Hung((1, 2), 30.0),
    events.Judged(VERDICT), Stopping(Cause.STOPPED, 1.5, 15), Stopping(Cause.STOPPED, 1.5, 15, server="h2"),
    Stopping(Cause.FAILED, 1.5, restarts=True), events.Leftovers(2), events.Killing(3), events.Unkillable((4, 5)),
    events.NotRestarting("the same failure came back"), events.Paused(), events.Continued(), events.Forwarded(10),
    events.Trouble("disk"), events.AgentEnded(Cause.HEAD_LOST, 1),
]  # fmt: skip


HEAD = '{"schema": 2, "time_ns": 1, "server_index": 0, "event": '


def later(value):
    """As a later version would write it: every record has a field more."""
    if isinstance(value, dict):
        return {**{name: later(inner) for name, inner in value.items()}, "unheard_of": [1]}
    return [later(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_survives_its_line(event):
    stamped = TimestampedEvent(123456789, 1, event)
    line = to_line(stamped)
    assert line.count("\n") == 1
    assert from_line(line) == from_line(json.dumps(later(json.loads(line)))) == stamped


@pytest.mark.parametrize(("read", "text"), [
    *((from_line, text) for text in ("", "{", "[]", "3", "{}", HEAD + '"Killing", "number": 1}')),
    (from_line, HEAD.replace("2", "1") + '"Killing", "count": 1}'),
    *((Report.from_json, text) for text in ("", "[]", "{}", json.dumps({"schema": 2, "attempts": [{}]}))),
])  # fmt: skip
def test_anything_else_is_refused(read, text):
    with pytest.raises(ValueError):
        read(text)


def test_what_a_later_version_added_is_skipped():
    assert from_line(HEAD + '"Unheard", "cause": "unheard"}') is None
    assert from_line(HEAD + '"Killing", "count": 2, "pids": 3}') == TimestampedEvent(1, 0, events.Killing(2))


def test_a_report_survives_its_file():
    exits = (RankExit(1, 10, -15, 5, 9), RankExit(0, None, 126, None, 7, "no process could be made"))
    attempts = (
        Attempt(0, 29500, 1, 10, Cause.FAILED, exits, VERDICT, killed=2),
        Attempt(1, 29501, 11, 20, Cause.STOPPED, exits[:1], killed=1),
    )
    report = Report("name", 0, Cause.STOPPED, 143, 1, 20, attempts, "in vain", unkillable=(3,), events_lost=1)
    text = report.to_json()
    assert Report.from_json(text) == Report.from_json(json.dumps(later(json.loads(text)))) == report
    assert (report.verdict, report.attempts[0].verdict) == (None, VERDICT)
    nothing = Report("name", 0, Cause.AGENT_LOST, 137, 1, 20, ())  # stopped before ranks were started
    assert Report.from_json(nothing.to_json()) == nothing


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_null(value):
    line = to_line(TimestampedEvent(1, 0, Slow(3, value, 0.5, 4)))
    assert json.loads(line, parse_constant=pytest.fail)["busy_s"] is None
    slow = from_line(line).event
    assert math.isnan(slow.busy_s)
    assert (slow.median_s, slow.steps) == (0.5, 4)
    text = Report("a", 0, Cause.FINISHED, 0, value, 1, ()).to_json()
    assert json.loads(text, parse_constant=pytest.fail)["started_ns"] is None


@pytest.mark.parametrize(("event", "field", "value"), [
    (events.RankStarted(0, 1, 2), "global_rank", "0"),
    (events.Judged(VERDICT), "verdict", {"culprit": 1}),
    (events.Paused(), "time_ns", 1.5), (events.Paused(), "time_ns", 1 << 63), (events.Paused(), "server_index", "0"),
])  # fmt: skip
def test_a_value_of_another_type_makes_no_event(event, field, value):
    fields = json.loads(to_line(TimestampedEvent(5, 0, event)))
    assert from_line(json.dumps(fields)) is not None
    with pytest.raises(ValueError, match="not a valid "):
        from_line(json.dumps({**fields, field: value}))


def test_who_asked_for_the_end_is_told_with_the_server():
    assert Stopping(Cause.FAILED, 1.0).asked_by is None
    assert Stopping(Cause.STOPPED, 1.0, 2).asked_by == "SIGINT"
    assert Stopping(Cause.STOPPED, 1.0, 63, server="h2").asked_by == "signal 63 at server h2"
