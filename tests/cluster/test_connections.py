"""Servers are asked for signs of life whatever the coordinator's loop waits for."""

import time
from contextlib import closing
from selectors import DefaultSelector
from types import SimpleNamespace

import pytest

from launcher.cluster.agent_connection import AgentConnection
from launcher.cluster.connections import BEATS, Connections
from launcher.control.messages import Challenge, Ping, Pong
from launcher.supervise.channel import Channel
from tests.conftest import PATIENCE_S

SILENCE_S = 1.0


@pytest.fixture(name="joined")
def _joined(connected):
    """A coordinator's side with one server, and that server's channel."""
    peer, channel = AgentConnection(connected[0]), Channel(connected[1])
    assert isinstance(next(channel.wait_for(time.monotonic() + PATIENCE_S)), Challenge)
    registration = SimpleNamespace(peers={0: peer}, unauthenticated=[], noticed=set())
    with closing(DefaultSelector()) as selector, closing(channel):
        connections = Connections(registration, selector, SILENCE_S, on_words=None, on_loss=None)
        yield connections, peer, channel
        connections.close()


def next_ping(channel):
    return next(message for message in channel.wait_for(time.monotonic() + PATIENCE_S) if isinstance(message, Ping))


def test_a_thread_asks_while_the_loop_does_not(joined):
    connections, peer, channel = joined
    began = time.monotonic()
    connections.begin()
    for _ in range(2 * BEATS):
        assert next_ping(channel).disk_stalls
    assert time.monotonic() - began > SILENCE_S
    connections.beat()  # at last: what has come meanwhile is not read yet, and the server not lost
    assert peer.lost is None


def test_the_thread_leaves_it_to_a_loop_that_does(joined):
    connections, peer, channel = joined
    connections.begin()
    end = time.monotonic() + SILENCE_S
    while time.monotonic() < end:
        connections.beat()
        peer.channel.heard_at = time.monotonic()
        time.sleep(SILENCE_S / BEATS / 20)
    channel.receive()
    assert not any(ping.disk_stalls for ping in channel.receive())
    assert peer.lost is None


@pytest.mark.parametrize(
    ("still_s", "answers", "expected_s"),
    [(0.9, False, 0.9), (0.9, True, 0.0), (0.5, False, 0.0)],
    ids=["stood still", "it has answered since", "not for long enough"],
)
def test_how_long_this_process_stood_still_before_a_server_was_lost(joined, still_s, answers, expected_s):
    """Of a process that was stopped neither the loop nor the thread has had a turn."""
    connections, peer, channel = joined
    connections._turned_s = time.monotonic() - still_s
    connections._still = connections._last_still()
    connections._turned_s = time.monotonic()
    peer.ask()
    ping = next_ping(channel)
    if answers:
        channel.send(Pong(ping.sent_ns, 0))
        end = time.monotonic() + PATIENCE_S
        while peer.pings.answered_ns is None and time.monotonic() < end:
            peer.take()
    assert connections.stood_still_s(peer) == pytest.approx(expected_s, abs=0.3)
