"""Elastic runs over servers that are started by hand: one is lost, the others go on; it comes back, and the run grows."""

import os
import re
import signal
import sys

import pytest

from launcher.core.events import AttemptStarted, Cause, Joined

from .conftest import PROGRAMS

COMMAND = [sys.executable, PROGRAMS / "elastic.py"]
LOST_AFTER = ("--lost-after", 8)

pytestmark = [pytest.mark.slow]


def devices(servers):
    """Those of each attempt."""
    return [event.allotment.devices for event in servers.events(AttemptStarted)]


def wait_attempt(servers, number, ranks):
    def runs():
        last = [servers.log(rank).splitlines()[-1:] for rank in range(ranks)]
        return all(line and re.fullmatch(rf"ready .* {number}", line[0]) for line in last)

    servers.wait_until(runs, f"attempt {number} on {ranks} ranks")


def test_a_server_is_lost_and_comes_back(servers):
    """Its launcher, agent and ranks are killed; the same command is started there again. Nothing counts as a failure."""
    first, second = servers.both("--elastic", *LOST_AFTER, command=COMMAND)
    wait_attempt(servers, 0, 4)
    gone = [second.pid, servers.agent(1), *(servers.pids()[rank] for rank in (2, 3))]
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    wait_attempt(servers, 1, 2)
    again = servers.start(2, "--elastic", *LOST_AFTER, command=COMMAND)
    wait_attempt(servers, 2, 4)
    (servers.directory / "go").touch()
    assert servers.end(first, again) == [0, 0], servers.said(first) + servers.said(again)
    second.wait()
    assert devices(servers) == [(0, 1, 2, 3), (0, 1), (0, 1, 2, 3)]
    assert [event.server for event in servers.events(Joined)] == ["127.0.0.2"]
    causes = [attempt.cause for attempt in servers.report().attempts]
    assert causes == [Cause.FAILED, Cause.RESIZED, Cause.FINISHED]
    assert servers.report().attempts[0].verdict.server == "127.0.0.2"


def test_ranks_meet_where_rank_0_is(servers):
    """All devices of the server that coordinates are left out: rank 0 is on the other one, at a port that is held there."""
    first, second = servers.both("--elastic", command=COMMAND)
    wait_attempt(servers, 0, 4)
    (servers.latest / "excluded").write_text("127.0.0.1\n")
    wait_attempt(servers, 1, 2)
    (servers.directory / "go").touch()
    assert servers.end(first, second) == [0, 0], servers.said(first) + servers.said(second)
    assert devices(servers) == [(0, 1, 2, 3), (2, 3)]
    assert servers.log(0).splitlines()[-1] == "ready 0 2 0 2 2 1"


def test_one_that_is_lost_when_nothing_else_fits_ends_the_run(servers):
    """As any failure does; the exit code says so."""
    first, second = servers.both("--elastic", "--mp", 4, *LOST_AFTER, command=COMMAND)
    wait_attempt(servers, 0, 4)
    for pid in [second.pid, servers.agent(1), *(servers.pids()[rank] for rank in (2, 3))]:
        os.kill(pid, signal.SIGKILL)
    wait_attempt(servers, 1, 2)  # mp shrinks
    os.kill(servers.agent(0), signal.SIGKILL)
    [code] = servers.end(first)
    assert code == 1
    second.wait()


def test_a_server_that_was_started_without_elastic_is_refused(servers):
    """All servers have to agree."""
    first = servers.start(1, "--elastic", command=COMMAND)
    second = servers.start(2, command=COMMAND)
    assert 0 not in servers.end(first, second)
    assert "--elastic" in servers.said(first) + servers.said(second)
