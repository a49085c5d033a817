"""Messages over a real connection: in pieces, in heaps, and from the wrong people."""

import select
import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from launcher.control.messages import BeginAttempt, Done, EventReport, Ping, to_line
from launcher.supervise.channel import CHUNK_BYTES, Channel, ChannelClosedError
from tests.conftest import PATIENCE_S


@pytest.fixture(name="pair")
def _pair(connected):
    with closing(Channel(connected[0])) as channel:
        yield channel, connected[1]


def soon():
    return time.monotonic() + PATIENCE_S


def hear(channel, count):
    heard = []
    for message in channel.wait_for(soon()):
        heard.append(message)
        if len(heard) == count:
            return heard
    raise AssertionError(heard)


def wait_readable(channel):
    assert select.select([channel], [], [], PATIENCE_S)[0]


def tear_down(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def test_a_message_in_pieces_is_one_message(pair):
    channel, other = pair
    *first, last = to_line(Ping(7))
    for byte in first:
        before = channel.heard_at
        other.sendall(bytes([byte]))
        wait_readable(channel)
        assert (list(channel.receive()), channel.has_message, channel.heard_at > before) == ([], False, True)
    other.sendall(bytes([last]))
    assert hear(channel, 1) == [Ping(7)]


def test_messages_in_one_heap_are_told_one_by_one(pair):
    channel, other = pair
    other.sendall(to_line(BeginAttempt(0, 1)) + to_line(BeginAttempt(1, 2)) + to_line(BeginAttempt(2, 3))[:5])
    assert hear(channel, 1) == [BeginAttempt(0, 1)]
    assert channel.has_message
    assert hear(channel, 1) == [BeginAttempt(1, 2)]
    assert not channel.has_message


@pytest.mark.parametrize(("end", "reason"), [
    (to_line(Ping(1))[:-3], "the connection was closed"), (b"GET / HTTP/1.1\r\n", "not a valid message: b'GET"),
])  # fmt: skip
def test_a_message_before_the_end_is_told_before_it(pair, end, reason):
    channel, other = pair
    other.sendall(to_line(Done()) + end)
    if end.startswith(b"["):
        other.close()
    messages = channel.wait_for(soon())
    assert next(messages) == Done()
    with pytest.raises(ChannelClosedError, match=reason):
        next(messages)


def test_a_connection_that_is_torn_down_is_closed(pair):
    channel, other = pair
    assert channel.peer == "127.0.0.1"
    tear_down(other)
    with pytest.raises(ChannelClosedError, match="the connection was closed"):
        next(channel.wait_for(soon()))
    with pytest.raises(ChannelClosedError, match="the connection was closed"):
        channel.send(Ping(1))
    assert channel.peer == ""


def test_a_line_without_an_end_costs_little(pair):
    channel, other = pair

    def pour():
        with suppress(OSError):
            while True:
                other.sendall(b"x" * CHUNK_BYTES)

    channel.longest_line_bytes = 1 << 20
    flood = threading.Thread(target=pour)
    flood.start()
    with pytest.raises(ChannelClosedError, match="a message is too long"):
        next(channel.wait_for(soon()))
    assert len(channel._received) <= (1 << 20) + CHUNK_BYTES
    channel.close()
    flood.join()


def test_a_long_message_arrives(pair):
    channel, other = pair
    message = EventReport("x" * (8 << 20))
    sender = Channel(other)
    sender.send(message)
    assert sender.wants_write
    heard = []
    while not heard:
        sender.flush()
        heard = list(channel.receive())
    assert (heard, sender.wants_write) == ([message], False)


def test_waiting_ends_in_time(pair):
    with pytest.raises(TimeoutError):
        next(pair[0].wait_for(time.monotonic() + 0.05))
