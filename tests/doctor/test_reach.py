"""Real sockets: whom a server reaches, and that nothing else is taken for it."""

import os
import socket
import threading
from contextlib import closing, contextmanager, suppress

import pytest

from launcher.core.codec import decode, encode
from launcher.doctor import reach
from launcher.doctor.listener import (
    ACKNOWLEDGED,
    ANSWER_BYTES,
    CALL_BYTES,
    GREETING,
    LARGE,
    Listener,
    answer_to,
)
from launcher.doctor.reach import Attempt, Outcome, Target, try_reach

SECRET = "of this examination"
PATIENCE_S = 30.0  # never waited for where something answers
SHORT_S = 0.3  # for what never answers


@contextmanager
def listening(server, secret=SECRET):
    """A listener that is served by a thread, as another process would."""
    listener, ended = Listener(server, secret), threading.Event()

    def serve():
        with reach.selectors.DefaultSelector() as selector:
            selector.register(listener, reach.selectors.EVENT_READ)
            while not ended.is_set():
                if selector.select(0.01):
                    listener.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener
    finally:
        ended.set()
        thread.join()
        listener.close()


def outcome(port, timeout_s=PATIENCE_S, addresses=("127.0.0.1",), server=1):
    (attempt,) = try_reach([Target(server, "h2", port, addresses)], SECRET, timeout_s)
    return attempt


def test_a_server_that_answers_is_reached():
    """With the address, and the time that the connection took."""
    with listening(1) as other:
        attempt = outcome(other.port)
    assert (attempt.outcome, attempt.address) == (Outcome.REACHED, "127.0.0.1")
    assert 0 < attempt.round_trip_s < PATIENCE_S
    assert decode(Attempt, encode(attempt)) == attempt


def with_large(port):
    (attempt,) = try_reach([Target(1, "h2", port, ("127.0.0.1",), gets_large=True)], SECRET, PATIENCE_S)
    return attempt


def test_large_packets_go_both_ways():
    """The listener hears them all, and goes on to answer others."""
    with listening(1) as other:
        found = [with_large(other.port), outcome(other.port), with_large(other.port)]
    assert [(one.outcome, one.got_large) for one in found] == [(Outcome.REACHED, large) for large in (1, 0, 1)]
    assert decode(Attempt, encode(found[0])) == found[0]


@pytest.fixture
def hurry_from(monkeypatch):
    """Gives a function: once a call has heard what that method of it takes, it waits for SHORT_S only; not before."""

    def hurry(method):
        usual = getattr(reach._Call, method)

        def hurried(call, connection):
            call._timeout_s = SHORT_S
            usual(call, connection)

        monkeypatch.setattr(reach._Call, method, hurried)

    return hurry


@pytest.mark.parametrize(
    ("then", "last_heard", "expected"),
    [
        (b"", "_answered", Outcome.LOSES_THERE),
        (ACKNOWLEDGED, "_hear_large", Outcome.LOSES_BACK),
        (ACKNOWLEDGED + LARGE, None, Outcome.REACHED),
        (None, None, Outcome.REACHED),  # it hangs up, as one that has no room does: that says nothing of packets
    ],
)
def test_a_way_that_loses_large_packets_is_told_from_the_way_back(hurry_from, then, last_heard, expected):
    """Only what is small arrives: the answer, and the acknowledgement where large packets arrived there."""
    if last_heard:
        hurry_from(last_heard)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection, suppress(OSError):  # the other end leaves when it has heard enough
                said = connection.recv(CALL_BYTES, socket.MSG_WAITALL)
                connection.sendall(answer_to(said[len(GREETING) :], 1, SECRET))
                connection.recv(1)
                connection.sendall(then or b"")
                while then is not None and connection.recv(len(LARGE)):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        found = with_large(server.getsockname()[1])
        thread.join()
    assert found.outcome is expected
    assert (found.loses, found.reached) == (expected is not Outcome.REACHED, expected is Outcome.REACHED)


def test_who_sends_without_end_is_dropped():
    """Nobody may keep a listener busy."""
    with listening(1) as other, socket.create_connection(("127.0.0.1", other.port), PATIENCE_S) as caller:
        caller.sendall(GREETING + bytes(24))
        assert len(caller.recv(ANSWER_BYTES, socket.MSG_WAITALL)) == ANSWER_BYTES
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            caller.sendall(LARGE * 1000)


def test_servers_that_try_each_other_at_once_answer_meanwhile():
    """Neither has a thread: each serves its listener while it tries."""
    found = {}
    with closing(Listener(0, SECRET)) as first, closing(Listener(1, SECRET)) as second:
        listeners = {0: first, 1: second}
        met = threading.Barrier(2)

        def go(own):
            target = Target(1 - own, "other", listeners[1 - own].port, ("127.0.0.1",))
            found[own] = try_reach([target], SECRET, PATIENCE_S, listeners[own])
            met.wait()  # the last one still needs the other's listener

        threads = [threading.Thread(target=go, args=(own,)) for own in listeners]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for own in tuple(found):  # who has ended its own tries
                listeners[own].serve()
            threads[0].join(0.001)
    assert [attempt.outcome for own in (0, 1) for attempt in found[own]] == [Outcome.REACHED] * 2


def test_a_port_without_a_listener_refuses():
    """At once, not after the timeout."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert outcome(bound.getsockname()[1]).outcome is Outcome.REFUSED


def test_the_listener_of_another_server_is_a_wrong_answer():
    """A forwarded port, or an address that two servers have."""
    with listening(2) as other:
        assert outcome(other.port).outcome is Outcome.WRONG_ANSWER


def test_the_listener_of_another_examination_is_a_wrong_answer():
    """Its number may be right by chance."""
    with listening(1, secret="another") as other:
        assert outcome(other.port).outcome is Outcome.WRONG_ANSWER


def test_an_answer_that_was_overheard_is_worth_nothing():
    """It is an answer to one word, of one server, in one examination."""
    answers = {answer_to(word, server, secret) for word in (b"a", b"b") for server in (1, 2) for secret in ("x", "y")}
    assert len(answers) == 8


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"x" * (ANSWER_BYTES * 4)])
def test_another_program_is_a_wrong_answer(says):
    """Whatever it says, and where it only hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(CALL_BYTES)
                connection.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        found = outcome(server.getsockname()[1])
        thread.join()
    assert found.outcome is Outcome.WRONG_ANSWER


def test_a_program_that_says_nothing_is_a_wrong_answer():
    """The connection stood, so that the way is open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = outcome(server.getsockname()[1], SHORT_S)
    assert (found.outcome, found.trouble) == (Outcome.WRONG_ANSWER, "it says nothing")
    assert found.round_trip_s is not None


def test_a_server_that_is_held_up_listens_to_the_answer_nevertheless(monkeypatch):
    """It finds the connection made, and the time over in which that was to happen."""
    usual = reach._Call._connected

    def late(call, connection):
        call.deadline = 0.0
        usual(call, connection)

    monkeypatch.setattr(reach._Call, "_connected", late)
    with listening(1) as other:
        assert outcome(other.port).outcome is Outcome.REACHED


def test_what_never_answers_times_out():
    """A listener whose queue is full drops connections, as a firewall does."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        found = outcome(port, SHORT_S)
        for filler in fillers:
            filler.close()
    assert found.outcome is Outcome.TIMED_OUT


def test_an_address_without_a_route_says_so():
    """An address that is no server's: multicast, which no TCP goes to."""
    assert outcome(9, addresses=("224.0.0.1",)).outcome is Outcome.NO_ROUTE


def test_a_name_without_a_meaning_is_unknown():
    """There is nothing to connect to."""
    assert outcome(9, addresses=()).outcome is Outcome.UNKNOWN_NAME


def test_the_best_of_several_addresses_counts():
    """Of a name with an old address beside the right one."""
    with listening(1) as other:
        found = outcome(other.port, addresses=("224.0.0.1", "127.0.0.1"))
    assert (found.outcome, found.address) == (Outcome.REACHED, "127.0.0.1")


def test_more_targets_than_are_tried_at_once_are_all_tried(monkeypatch):
    """In their order, whichever ends first."""
    monkeypatch.setattr(reach, "MAX_AT_ONCE", 3)
    with listening(0) as other, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        dead = bound.getsockname()[1]
        targets = [Target(0, str(number), dead if number % 3 else other.port, ("127.0.0.1",)) for number in range(20)]
        found = try_reach(targets, SECRET, PATIENCE_S)
    assert [attempt.host for attempt in found] == [str(number) for number in range(20)]
    assert [attempt.reached for attempt in found] == [number % 3 == 0 for number in range(20)]


def test_a_listener_drops_who_does_not_greet_it_and_answers_the_next():
    """A scanner of ports must not end it."""
    with listening(1) as other:
        with socket.create_connection(("127.0.0.1", other.port), PATIENCE_S) as scanner:
            scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert scanner.recv(1) == b""
        with socket.create_connection(("127.0.0.1", other.port), PATIENCE_S) as slow:
            challenge = os.urandom(24)
            for piece in (GREETING[:3], GREETING[3:] + challenge[:5], challenge[5:]):
                slow.sendall(piece)
            assert slow.recv(ANSWER_BYTES) == answer_to(challenge, 1, SECRET)


def test_callers_that_stay_silent_give_way(monkeypatch):
    """They hold a descriptor each."""
    monkeypatch.setattr("launcher.doctor.listener.MAX_CALLERS", 2)
    monkeypatch.setattr("launcher.doctor.listener.SILENCE_S", 0.05)
    with listening(1) as other:
        silent = [socket.create_connection(("127.0.0.1", other.port), PATIENCE_S) for _ in range(5)]
        assert outcome(other.port).reached
        assert silent[0].recv(1) == b""
        for one in silent:
            one.close()


def test_who_has_spoken_is_heard_before_anybody_has_to_give_way(monkeypatch):
    """However long ago the listener was served: whoever wants to come in may have come before the words did."""
    monkeypatch.setattr("launcher.doctor.listener.MAX_CALLERS", 1)
    with closing(Listener(1, SECRET)) as listener:
        address = ("127.0.0.1", listener.port)
        with socket.create_connection(address, PATIENCE_S) as caller:
            listener.serve()
            monkeypatch.setattr("launcher.doctor.listener.SILENCE_S", 0.0)
            with socket.create_connection(address, PATIENCE_S):
                caller.sendall(GREETING + bytes(24))
                listener.serve()
            assert caller.recv(ANSWER_BYTES, socket.MSG_WAITALL) == answer_to(bytes(24), 1, SECRET)


def test_many_servers_that_call_at_once_are_all_answered(monkeypatch):
    """More than a listener hears at a time: nobody who speaks is dropped."""
    monkeypatch.setattr("launcher.doctor.listener.MAX_CALLERS", 3)
    monkeypatch.setattr("launcher.doctor.listener.SILENCE_S", PATIENCE_S)  # who is held up here is not silent
    with listening(1) as other:
        targets = [Target(1, str(number), other.port, ("127.0.0.1",)) for number in range(100)]
        found = try_reach(targets, SECRET, PATIENCE_S)
    assert all(attempt.reached for attempt in found)
