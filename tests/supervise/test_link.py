"""An agent's end of its connection to the coordinator."""

import select
import socket
import struct
import threading
import time

import pytest

from launcher.control.messages import BeginAttempt, Done, EventReport, Finish, Ping, Pong, SignalReceived
from launcher.core.events import Cause
from launcher.core.run_dir import RunDir
from launcher.supervise.channel import Channel, ChannelClosedError
from launcher.supervise.disk import Disk
from launcher.supervise.event_log import EventLog
from launcher.supervise.link import Link
from launcher.supervise.remote_control import LinkServices
from tests.conftest import PATIENCE_S, wait_until


@pytest.fixture(name="pair")
def _pair(connected):
    links = []

    def make(silence_s=60.0, disk=None):
        links.append(Link(Channel(connected[0]), silence_s))
        links[0].begin(disk)
        return links[0], Channel(connected[1])

    yield make
    for link in links:
        link.close()


def take(link):
    while not (taken := link.take()) and link.lost is None:
        assert select.select([link], [], [], PATIENCE_S)[0]
    return taken


def test_a_question_is_answered_and_everything_else_handed_on(pair):
    link, other = pair()
    before_ns = time.time_ns()
    other.send(Ping(7))
    other.send(BeginAttempt(1, 2))
    assert take(link) == [BeginAttempt(1, 2)]
    link.report("line\n")
    link.send(SignalReceived(2, 0))
    link.say_farewell((5,), 3)
    messages = other.wait_for(time.monotonic() + PATIENCE_S)
    pong, *words = [next(messages) for _ in range(4)]
    assert (type(pong), pong.sent_ns) == (Pong, 7)
    assert before_ns <= pong.here_ns <= time.time_ns()
    assert words == [EventReport("line\n"), SignalReceived(2, 0), Done((5,), 3)]
    with pytest.raises(ChannelClosedError):
        next(messages)


def test_a_coordinator_that_leaves_is_lost_after_its_last_message(pair):
    link, other = pair()
    other.send(Finish(Cause.FAILED, 1))
    other.close()
    assert take(link) == [Finish(Cause.FAILED, 1)] or link.take() == [Finish(Cause.FAILED, 1)]
    take(link)
    assert (link.lost, link.timeout_s, link.take()) == ("the connection was closed", 0.0, [])
    link.report("line")
    link.say_farewell((), 0)


def test_a_silent_coordinator_is_lost(pair):
    began = time.monotonic()
    link, _ = pair(0.2)
    assert take(link) == []
    assert link.lost == "nothing was heard for 0.2 s"
    assert time.monotonic() - began >= 0.2


def test_last_messages_arrive_though_nothing_can_be_sent_any_more(pair):
    """A coordinator that leaves may say why, and then reset what comes to it."""
    link, other = pair()
    other.send(Finish(Cause.STOPPED, 143))
    other._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link._channel._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    link.report("unread\n" * 10)
    other.close()
    taken = take(link)
    while link.lost is None:
        link.report("more\n")
        taken += link.take()
    assert (taken, link.lost) == ([Finish(Cause.STOPPED, 143)], "the connection was closed")


def test_a_message_that_has_come_is_due_at_once(pair):
    link, other = pair()
    assert link.timeout_s is None
    other.send(BeginAttempt(0, 1))
    assert select.select([link], [], [], PATIENCE_S)[0]
    assert (link.timeout_s, link.take(), link.timeout_s) == (0.0, [BeginAttempt(0, 1)], None)


def test_pings_are_answered_while_the_loop_waits_and_say_how_long_the_disk_has_not_answered(pair, tmp_path):
    answers, disk = threading.Event(), Disk(tmp_path / "events.jsonl")
    disk.do(answers.wait)
    link, other = pair(PATIENCE_S, disk)
    wait_until(lambda: disk.silent_s > 0.3, "a silence")
    other.send(Ping(1, disk_stalls=True))
    pong = next(other.wait_for(time.monotonic() + PATIENCE_S))
    assert (pong.sent_ns, 0.3 < pong.disk_silent_s <= disk.silent_s) == (1, True)
    assert link.other_disk_stalls
    answers.set()
    disk.close()
    other.send(Ping(2))
    pong = next(other.wait_for(time.monotonic() + PATIENCE_S))
    assert (pong.sent_ns, pong.disk_silent_s, link.other_disk_stalls) == (2, 0.0, False)


def test_the_connection_to_a_lost_coordinator_is_closed(pair, tmp_path):
    """A coordinator that was only suspended learns at once that it was given up, whoever else keeps the link."""
    link, other = pair(silence_s=0.2)
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    services = LinkServices(link, RunDir(tmp_path), event_log, (), follows_another=False)
    wait_until(lambda: list(services.hear({})) or services.lose(), "the loss")
    with pytest.raises(ChannelClosedError):
        next(other.wait_for(time.monotonic() + PATIENCE_S))
    assert not services.lose()
    event_log.close()
