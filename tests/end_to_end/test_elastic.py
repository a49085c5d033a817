"""Elastic runs over servers that are started by hand: one is lost, the others go on; it comes back, and the run grows."""

import os
import re
import signal
import sys

import pytest

from launcher.core.events import AttemptStarted, Cause, Joined

from .conftest import PROGRAMS, kill_all, tlaunch

COMMAND = [sys.executable, PROGRAMS / "elastic.py"]
LOST_AFTER = ("--lost-after", 8)

pytestmark = [pytest.mark.slow]


def devices(servers):
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
    kill_all([second.pid, servers.agent(1), *(servers.pids(4)[rank] for rank in (2, 3))])
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


@pytest.mark.parametrize("how", ["its launcher is killed", "its agent is held up"])
def test_a_server_comes_back_once_the_ranks_that_it_had_have_ended(servers, how):
    """They ignore SIGTERM, and two on one device would fail; the run goes on without them meanwhile."""
    arguments = ("--elastic", "--grace", 1000, *LOST_AFTER)
    first = servers.start(1, *arguments, command=COMMAND)
    stubborn = {"SERVER": "2", "STUBBORN": "1"}
    second = servers.start(2, *arguments, command=COMMAND, variables=stubborn)
    wait_attempt(servers, 0, 4)
    agent = servers.agent(1)
    if how == "its launcher is killed":
        second.kill()
    else:
        os.kill(agent, signal.SIGSTOP)
        wait_attempt(servers, 1, 2)
    again = servers.start(2, *arguments, command=COMMAND, variables={"SERVER": "2"})
    servers.wait_until(lambda: "previous ranks" in servers.said(again), "why it waits")
    if how == "its agent is held up":
        os.kill(agent, signal.SIGCONT)
    (servers.directory / "leave").touch()
    wait_attempt(servers, 2, 4)
    (servers.directory / "go").touch()
    assert servers.end(first, again) == [0, 0], servers.said(first) + servers.said(again)
    second.wait()
    assert devices(servers) == [(0, 1, 2, 3), (0, 1), (0, 1, 2, 3)]


def test_a_server_that_joins_without_an_effect_learns_that_and_how_the_run_ends(servers, snapshot):
    arguments = ("--elastic", "--dp", 2, *LOST_AFTER)
    first, second = servers.both(*arguments, command=COMMAND)
    wait_attempt(servers, 0, 2)
    kill_all([second.pid, servers.agent(1)])
    second.wait()
    servers.wait_until(lambda: "is lost" in servers.said(first), "its loss")
    again = servers.start(2, *arguments, command=COMMAND)
    servers.wait_until(lambda: servers.events(Joined), "it joins")
    (servers.directory / "go").touch()
    assert servers.end(first, again) == [0, 0], servers.said(first) + servers.said(again)
    told = [line for line in servers.said(again).splitlines() if line.startswith(("joined", "the run"))]
    assert "\n".join(told).replace(servers.latest.resolve().name, "<run>") == snapshot
    assert servers.report().cause is Cause.FINISHED


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
    told = tlaunch("logs", "--server", "127.0.0.2", "--prefix", "{server}/{device} ", cwd=servers.directory).stdout
    shown = [line for line in told.splitlines() if "ready" in line]
    assert [line.split()[::2][:2] for line in shown] == [
        [f"127.0.0.2/{device}", rank] for rank, device in [("0", 0), ("1", 1), ("2", 0), ("3", 1)]
    ]


@pytest.mark.parametrize("console", ["rank0", "all"])
def test_a_launcher_shows_the_ranks_that_its_server_has_in_each_attempt(servers, console, snapshot):
    """They have other numbers after a change, and others' logs go on under the former ones; the coordinator shows all."""
    assert shown_by_second(servers, console) == snapshot


def test_a_launcher_collapses_what_these_ranks_say(servers):
    ranks = {}
    for line in shown_by_second(servers, "collapse"):
        first, last = re.match(r"\[(\d)(?:-(\d))?\] ready", line).groups()
        ranks.setdefault(line[-1], set()).update(range(int(first), int(last or first) + 1))
    assert ranks == {"0": {2, 3}, "1": {1, 2}, "3": {2, 3}}


def shown_by_second(servers, console):
    """The lines of ranks that the second launcher shows of an elastic run of four attempts, by attempt."""
    first, second = servers.both("--elastic", command=COMMAND, console=console)
    wait_attempt(servers, 0, 4)
    for number, (left_out, ranks) in enumerate([("127.0.0.1/0", 3), ("127.0.0.2", 2), ("", 4)], 1):
        (servers.latest / "excluded").write_text(f"{left_out}\n")
        wait_attempt(servers, number, ranks)
    (servers.directory / "go").touch()
    assert servers.end(first, second) == [0, 0], servers.said(first) + servers.said(second)
    assert devices(servers) == [(0, 1, 2, 3), (1, 2, 3), (0, 1), (0, 1, 2, 3)]
    shown = [line for line in servers.shown(second).splitlines() if "ready" in line]
    return sorted(shown, key=lambda line: (line[-1], line))


def test_one_that_is_lost_when_nothing_else_fits_ends_the_run(servers, snapshot):
    first, second = servers.both("--elastic", "--mp", 4, *LOST_AFTER, command=COMMAND)
    wait_attempt(servers, 0, 4)
    kill_all([second.pid, servers.agent(1), *(servers.pids(4)[rank] for rank in (2, 3))])
    wait_attempt(servers, 1, 2)  # mp shrinks
    os.kill(servers.agent(0), signal.SIGKILL)
    [code] = servers.end(first)
    assert code == 1
    second.wait()
    report = servers.report()
    assert devices(servers) == [(0, 1, 2, 3), (0, 1)]
    assert [(each.cause, each.verdict.server) for each in report.attempts] == [
        (Cause.FAILED, "127.0.0.2"),
        (Cause.FAILED, "127.0.0.1"),
    ]
    assert (report.cause, report.exit_code) == (Cause.FAILED, 1)
    assert report.not_restarting == snapshot


def test_a_server_that_was_started_without_elastic_is_refused(servers):
    first = servers.start(1, "--elastic", command=COMMAND)
    second = servers.start(2, command=COMMAND)
    assert 0 not in servers.end(first, second)
    assert "--elastic" in servers.said(first) + servers.said(second)
