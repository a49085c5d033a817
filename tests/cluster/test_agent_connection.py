"""Clocks of other servers, and which server somebody is."""

import select
import socket
import time
from itertools import islice
from types import SimpleNamespace

import pytest

from launcher.cluster import agent_connection
from launcher.cluster.agent_connection import AgentConnection, Clock, differences, listen, server_of
from launcher.core.channel import Channel
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.interfaces import addresses_of
from launcher.core.messages import Hello, Ping, Pong
from launcher.core.records import Device, Server
from launcher.engines.host_match import ServerIndex

PATIENCE_S = 60
SERVERS = tuple(Server(name, (Device(0, rank),)) for rank, name in enumerate(["10.0.0.1", "h2", "10.0.0.3"]))


def hello(host="somewhere", addresses=(), **more):
    return Hello("", "", "0.1", "", "3.11", host, addresses, **more)


DRIFTED = [(1000 * number + 105, 10, 1000 * number + 10) for number in range(32)]


@pytest.mark.parametrize(
    ("answers", "ahead_ns", "error_ns"),
    [
        ([], 0, 0),
        ([(500, 90, 90)], 455, 45),
        ([(500, 90, 90), (162, 4, 104), (350, 100, 300)], 60, 2),  # asked at 100, answered at 104, 162 there
        ([(162, 4, 104), *DRIFTED], 100, 5),
        ([(162, 4, 104), (5_300, 100, 300)], 5_050, 50),  # both cannot be true: the quicker one is of the time before
        ([(2, 4, 1004)], -1000, 2),
        ([(5, -100, 900)], 0, 0),  # an answer before its question proves nothing
    ],
    ids=["none", "slow", "quickest", "drifted", "set", "behind", "impossible"],
)
def test_the_quickest_of_the_last_answers_says_how_far_a_clock_is_ahead(answers, ahead_ns, error_ns):
    """Slower answers are worth less, and change nothing, unless they cannot be true together with it."""
    clock = Clock()
    for here_ns, round_trip_ns, now_ns in answers:
        clock.take(here_ns, round_trip_ns=round_trip_ns, now_ns=now_ns)
    assert (clock.ahead_ns, clock.error_ns, clock.known) == (ahead_ns, error_ns, error_ns > 0)


def test_a_coordinator_that_is_held_up_does_not_take_a_clock_for_another(monkeypatch):
    """After whatever it has just read: the clock is as far ahead as it is, give or take the error that is told."""
    clock = SimpleNamespace(now_ns=0, held_up_ns=0)

    def read():
        clock.now_ns += clock.held_up_ns
        return clock.now_ns - clock.held_up_ns

    monkeypatch.setattr(
        agent_connection, "time", SimpleNamespace(monotonic=lambda: 0.0, monotonic_ns=read, time_ns=read)
    )
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as theirs:
        peer, agent = AgentConnection(server.accept()[0]), Channel(theirs)
        peer.ask()
        ping = next(message for message in agent.wait_for(time.monotonic() + PATIENCE_S) if isinstance(message, Ping))
        agent.send(Pong(ping.sent_ns, clock.now_ns))  # by a clock that is alike
        clock.now_ns, clock.held_up_ns = 1000, 10**9
        select.select([peer], [], [], PATIENCE_S)
        peer.take()
        peer.close()
    assert peer.pings.clock.known
    assert abs(peer.pings.clock.ahead_ns) <= peer.pings.clock.error_ns


def test_when_a_server_was_there_is_known_by_what_it_has_answered():
    """By the time of the question, however late the answer was read; and since when it owes one."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as theirs:
        peer, agent = AgentConnection(server.accept()[0]), Channel(theirs)
        assert (peer.pings.answered_ns, peer.pings.unanswered_ns) == (None, None)
        peer.ask()
        peer.ask()
        words = agent.wait_for(time.monotonic() + PATIENCE_S)
        asked = list(islice((each for each in words if isinstance(each, Ping)), 2))
        agent.send(Pong(asked[0].sent_ns, 1))
        select.select([peer], [], [], PATIENCE_S)
        peer.take()
        assert (peer.pings.answered_ns, peer.pings.unanswered_ns) == (asked[0].sent_ns, asked[1].sent_ns)
        peer.close()


@pytest.mark.parametrize(
    ("who", "index"),
    [
        (hello(addresses=("127.0.0.1", "10.0.0.3")), 2),
        (hello("h2", ("10.9.9.9",)), 1),
        (hello("h2.example.org"), 1),
        (hello("h2", ("10.0.0.1",), said="10.0.0.3"), 2),
        (hello("h2", ("10.0.0.1",), said="h2", index=0), 1),
        (hello(index=2), 2),
        (hello("h2", index=0), 1),
    ],
    ids=repr,
)  # fmt: skip
def test_a_server_is_known(who, index):
    """By its own word, else by addresses and name, else by its place among the engine's processes."""
    assert server_of(who, ServerIndex(SERVERS)) == index


def test_a_name_is_known_by_what_it_means_here():
    assert server_of(hello(addresses=("10.5.5.5",)), ServerIndex(SERVERS, [("h2", addresses_of({"10.5.5.5"}))])) == 1


@pytest.mark.parametrize("index", [None, 3, -1], ids=str)
def test_a_machine_that_the_table_does_not_have_is_refused(index):
    with pytest.raises(RefusedLayoutError, match=r"somewhere is not one of the table's servers 10.0.0.1, h2, 10.0.0.3"):
        server_of(hello(index=index), ServerIndex(SERVERS))


def test_a_machine_that_could_be_several_servers_is_refused():
    """Whatever its place among the engine's processes; the hint says how to tell."""
    with pytest.raises(RefusedLayoutError, match=r"h2 \(10.0.0.1\) could be any of .* 10.0.0.1, h2\n") as caught:
        server_of(hello("h2", ("127.0.0.1", "10.0.0.1"), index=0), ServerIndex(SERVERS))
    assert "TLAUNCH_SERVER" in caught.value.hint


def test_a_server_that_the_table_does_not_have_cannot_be_said():
    with pytest.raises(UsageError, match="--server h9: the rank table has no such server") as caught:
        server_of(hello(said="h9"), ServerIndex(SERVERS))
    assert "10.0.0.1, h2, 10.0.0.3" in caught.value.hint


def test_what_differs_is_named_with_both_sides():
    """The first that differs, also because one side does not know it. Whom an engine has brought is told what to do."""
    ours = {"rank table": "a", "layout": "dp=2"}
    assert differences(hello(agreement=ours), ours, "h2") is None
    assert differences(hello(), ours, "h2") is None
    error = differences(hello(agreement={"rank table": "a"}), ours, "h2")
    assert error.message == "server h2 was started with another layout: nothing there, dp=2 on the first server"
    error = differences(hello(agreement={"rank table": "a", "layout": "dp=4"}), ours, "h2")
    assert error.message == "server h2 was started with another layout: dp=4 there, dp=2 on the first server"
    assert error.exit_code == 3
    assert "same options" in error.hint


def test_digests_of_what_differs_are_never_shown():
    """Nor is a comparison by them alone taken for one of words."""
    ours = {"rank table": "4 devices on 2 servers (1f)", "set of --env variables": "none (2f)"}
    error = differences(hello(agreement={**ours, "rank table": "4 devices on 2 servers (3f)"}), ours, "h2")
    assert error.message.endswith("another rank table: 4 devices on 2 servers, of other values or words")
    assert "`tlaunch table diff`" in error.hint
    error = differences(hello(agreement={**ours, "set of --env variables": "A (4f)"}), ours, "h2")
    assert error.message.endswith("another set of --env variables: A there, none on the first server")


def test_a_endpoint_is_open_to_both_families():
    """And no second run can listen at the same port."""
    with listen() as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()
        with pytest.raises(OSError, match="Address already in use"):
            listen(port)
