"""Clocks of other servers, and which server an agent is on."""

import re
import select
import socket
import time
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest

from launcher.cluster import agent_connection
from launcher.cluster.agent_connection import AgentConnection, Clock, differences, listen, server_of
from launcher.control.events import AttemptEnded, EvidenceReport, ProbeResult, SignalReceived
from launcher.control.messages import Done, Hello, Ping, Pong
from launcher.core.errors import RefusedLayoutError, TlaunchError, UsageError
from launcher.core.machine.interfaces import addresses_of
from launcher.engines.host_match import ServerIndex
from launcher.supervise.channel import Channel
from tests.conftest import PATIENCE_S
from tests.servers import servers

SERVERS = servers("10.0.0.1", "h2", "10.0.0.3")


def hello(host="somewhere", addresses=(), **more):
    return Hello("", "", "0.1", "", "3.11", host, addresses, **more)


DRIFTED = [(1000 * number + 105, 10, 1000 * number + 10) for number in range(32)]


@pytest.mark.parametrize(("answers", "ahead_ns", "error_ns"), [
    ([], 0, 0),
    ([(500, 90, 90)], 455, 45),
    ([(500, 90, 90), (162, 4, 104), (350, 100, 300)], 60, 2),  # asked at 100, answered at 104, 162 there
    ([(162, 4, 104), *DRIFTED], 100, 5),
    ([(162, 4, 104), (5_300, 100, 300)], 5_050, 50),  # both cannot be true: the quicker one is of the time before
    ([(2, 4, 1004)], -1000, 2),
    ([(5, -100, 900)], 0, 0),  # an answer before its question proves nothing
], ids=["none", "slow", "quickest", "drifted", "set", "behind", "impossible"])  # fmt: skip
def test_the_quickest_of_the_last_answers_says_how_far_a_clock_is_ahead(answers, ahead_ns, error_ns):
    clock = Clock()
    for here_ns, round_trip_ns, now_ns in answers:
        clock.take(here_ns, round_trip_ns=round_trip_ns, now_ns=now_ns)
    assert (clock.ahead_ns, clock.error_ns, clock.known) == (ahead_ns, error_ns, error_ns > 0)


def questions(agent):
    return (each for each in agent.wait_for(time.monotonic() + PATIENCE_S) if isinstance(each, Ping))


def test_a_coordinator_that_is_held_up_does_not_take_a_clock_for_another(monkeypatch, connected):
    clock = SimpleNamespace(now_ns=0, held_up_ns=0)

    def read():
        clock.now_ns += clock.held_up_ns
        return clock.now_ns - clock.held_up_ns

    clocks = SimpleNamespace(monotonic=lambda: 0.0, monotonic_ns=read, time_ns=read)
    monkeypatch.setattr(agent_connection, "time", clocks)
    peer, agent = AgentConnection(connected[0]), Channel(connected[1])
    peer.ask()
    agent.send(Pong(next(questions(agent)).sent_ns, clock.now_ns))  # by a clock that is alike
    clock.now_ns, clock.held_up_ns = 1000, 10**9
    select.select([peer], [], [], PATIENCE_S)
    peer.take()
    assert peer.pings.clock.known
    assert abs(peer.pings.clock.ahead_ns) <= peer.pings.clock.error_ns


def test_when_a_server_was_there_is_known_by_what_it_has_answered(connected):
    peer, agent = AgentConnection(connected[0]), Channel(connected[1])
    assert (peer.pings.answered_ns, peer.pings.unanswered_ns) == (None, None)
    peer.ask()
    peer.ask()
    asked = list(islice(questions(agent), 2))
    agent.send(Pong(asked[0].sent_ns, 1))
    select.select([peer], [], [], PATIENCE_S)
    peer.take()
    assert (peer.pings.answered_ns, peer.pings.unanswered_ns) == (asked[0].sent_ns, asked[1].sent_ns)


@pytest.mark.parametrize(("who", "index"), [
    (hello(addresses=("127.0.0.1", "10.0.0.3")), 2), (hello("h2", ("10.9.9.9",)), 1), (hello("h2.example.org"), 1),
    (hello("h2", ("10.0.0.1",), said="10.0.0.3"), 2), (hello("h2", ("10.0.0.1",), said="h2", index=0), 1),
    (hello(index=2), 2), (hello("h2", index=0), 1), (hello(addresses=("10.5.5.5",)), 1),
], ids=repr)  # fmt: skip
def test_a_server_is_known(who, index):
    assert server_of(who, ServerIndex(SERVERS, [("h2", addresses_of({"10.5.5.5"}))])) == index


@pytest.mark.parametrize(("who", "message", "hint"), [
    *((hello(index=index), "somewhere is not one of the table's servers 10.0.0.1, h2, 10.0.0.3", "")
      for index in (None, 3, -1)),
    # Whatever its place among the engine's processes; the hint says how to tell.
    (hello("h2", ("127.0.0.1", "10.0.0.1"), index=0), "h2 (10.0.0.1) matches several of", "TLAUNCH_SERVER"),
    (hello(said="h9"), "--server h9 is not a server in the rank table", "10.0.0.1, h2, 10.0.0.3"),
], ids=["none", "too high", "negative", "several", "said"])  # fmt: skip
def test_a_machine_that_is_not_one_server_of_the_table_is_refused(who, message, hint):
    with pytest.raises(TlaunchError, match=re.escape(message)) as caught:
        server_of(who, ServerIndex(SERVERS))
    assert hint in caught.value.hint
    assert isinstance(caught.value, UsageError if who.said else RefusedLayoutError)


@pytest.mark.parametrize(("theirs", "differs"), [
    (None, None),
    ({}, None),
    ({"layout": None}, "a different layout: nothing there, dp=2 on the first server"),
    ({"layout": "dp=4"}, "a different layout: dp=4 there, dp=2 on the first server"),
    # Digests are never shown; nor is a comparison by them alone taken for one of words.
    ({"rank table": "4 devices on 2 servers (3f)"}, "a different rank table: 4 devices on 2 servers, with different values"),
    ({"set of --env variables": "A (4f)"}, "a different set of --env variables: A there, none on the first server"),
])  # fmt: skip
def test_what_differs_is_named_with_both_sides(theirs, differs):
    ours = {"rank table": "4 devices on 2 servers (1f)", "layout": "dp=2", "set of --env variables": "none (2f)"}
    known = None if theirs is None else {name: value for name, value in {**ours, **theirs}.items() if value}
    error = differences(hello(agreement=known), ours, "h2")
    if differs is None:
        assert error is None
    else:
        assert error.message.startswith(f"server h2 was started with {differs}")
        assert error.exit_code == 3
        assert ("`tlaunch table diff`" if "table" in differs else "same options") in error.hint


def test_an_endpoint_is_open_to_both_families():
    with listen() as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()
        with pytest.raises(OSError, match="Address already in use"):
            listen(port)


def test_an_agent_speaks_for_its_own_server_alone(connected):
    agent, peer = Channel(connected[0]), AgentConnection(connected[1])
    peer.server_index = 1
    own = [AttemptEnded(1, 0), EvidenceReport(1, 0, {}), ProbeResult(1, 1, ()), SignalReceived(15, 1)]
    for message in own:
        for server in (0, -1, 2, *([None] if isinstance(message, SignalReceived) else [])):
            agent.send(replace(message, server=server))
        agent.send(message)
    agent.send(Done())
    taken = []
    while Done() not in taken:
        assert select.select([peer], [], [], PATIENCE_S)[0]
        taken += peer.take()
    assert taken == [*own, Done()]
    agent.close()
    peer.close()
