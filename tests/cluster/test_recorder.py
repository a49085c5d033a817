"""Which words of a server's agent are the run's."""

import pytest

from launcher.cluster.recorder import passed_on
from launcher.core import events
from launcher.core.events import Cause, Hung, Leftovers, RankEnded, RankStarted, TimestampedEvent, Trouble, to_line
from launcher.core.machine.proc import ProcessId
from launcher.core.verdict import Confidence, Verdict
from tests.servers import server

PASSED_ON = (
    events.AgentStarted(ProcessId(1, 2, "h", "b"), None, 4), events.Preloading(1, ("m",)), events.Preloaded(0.5),
    RankStarted(3, 9), RankEnded(3, 9, -15), events.Slow(1, 2.0, 1.0, 5), Hung((1, 2), 30.0), Leftovers(2),
    events.Killing(1), events.Unkillable((5,)),
)  # fmt: skip
OWN = (
    events.AttemptStarted(0, 1), events.Judged(Verdict(None, Confidence.UNSURE, "x")), events.NotRestarting("x"),
    events.Stopping(Cause.FAILED, 1.0), events.Paused(), events.Continued(), events.Forwarded(10),
    events.AgentEnded(Cause.FAILED, 1),
)  # fmt: skip
H2 = server("h2", 1, 3)  # ranks 1 to 3


def heard(event, server_index=1):
    return list(passed_on(to_line(TimestampedEvent(1000, server_index, event)), 400, H2, 1))


@pytest.mark.parametrize("event", [*PASSED_ON, *OWN], ids=repr)
def test_what_happens_to_ranks_is_told_by_the_coordinator_s_clock_and_what_it_has_said_is_not_told_twice(event):
    assert heard(event) == ([TimestampedEvent(600, 1, event)] if event in PASSED_ON else [])


def test_trouble_names_its_server():
    assert heard(Trouble("disk full")) == [TimestampedEvent(600, 1, Trouble("server h2: disk full"))]


@pytest.mark.parametrize(
    "line",
    ["", "x", "[]", "null", "{}", '{"schema": 1}', '{"schema":2,"time_ns":1,"server_index":0,"event":"New"}',
     # nested too deeply to be decoded
     '{"schema":2,"time_ns":1,"server_index":0,"event":"Trouble","message":' + "[" * 100_000],
    ids=lambda line: line[:20],
)  # fmt: skip
def test_what_is_no_event_of_this_version_is_passed_over(line):
    assert list(passed_on(line, 0, H2, 1)) == []


def test_a_server_speaks_of_itself_and_its_own_ranks_only():
    assert heard(Leftovers(2), server_index=-1) == [TimestampedEvent(600, 1, Leftovers(2))]
    assert heard(RankEnded(0, 9, 0)) == heard(RankStarted(4, 9)) == heard(Hung((0, 1), 30.0)) == []
