"""Which servers are reached, over real sockets, and that nothing else is taken for one."""

import os
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count

import pytest

from launcher.core.codec import decode, encode
from launcher.doctor import reach
from launcher.doctor.listener import ACKNOWLEDGED, ANSWER_BYTES, CALL_BYTES, GREETING, LARGE, Listener, answer_to
from launcher.doctor.reach import Attempt, Outcome, Target, try_reach
from tests.conftest import refusing_port

SECRET = "of this examination"
PATIENCE_S = 30.0  # never waited for where something answers
SHORT_S = 0.3  # for what never answers
HERE = ("127.0.0.1",)


@contextmanager
def listening(server, secret=SECRET):
    """A listener that is served by a thread, as another process would."""
    ended = threading.Event()
    with closing(Listener(server, secret)) as listener, ThreadPoolExecutor() as pool:

        def serve():
            while not ended.is_set():
                if select.select([listener], [], [], 0.01)[0]:
                    listener.serve()

        served = pool.submit(serve)
        try:
            yield listener
        finally:
            ended.set()
            served.result()


@contextmanager
def answering(answer):
    """The port of another program, which answers one call with that function."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:

        def serve():
            with server.accept()[0] as connection, suppress(OSError):  # the caller leaves when it has heard enough
                answer(connection)

        pool.submit(serve)
        yield server.getsockname()[1]


def tried(port, timeout_s=PATIENCE_S, addresses=HERE, *, gets_large=False):
    (attempt,) = try_reach([Target(1, "h2", port, addresses, gets_large=gets_large)], SECRET, timeout_s)
    assert decode(Attempt, encode(attempt)) == attempt
    return attempt


def test_a_server_that_answers_is_reached():
    with listening(1) as other:
        found = [tried(other.port, gets_large=large) for large in (True, False, True)]
    assert [(one.outcome, one.address, one.got_large) for one in found] == [
        (Outcome.REACHED, "127.0.0.1", large) for large in (True, False, True)
    ]
    assert 0 < found[0].round_trip_s < PATIENCE_S


@pytest.mark.parametrize(("then", "steps", "expected"), [
    (b"", 3, Outcome.LOSES_THERE),  # it connects, and hears the answer
    (ACKNOWLEDGED, 4, Outcome.LOSES_BACK),
    (ACKNOWLEDGED + LARGE, None, Outcome.REACHED),
    (None, None, Outcome.REACHED),  # it hangs up, as one that has no room does: that says nothing of packets
])  # fmt: skip
def test_which_way_loses_large_packets_is_known(monkeypatch, then, steps, expected):
    usual, number = reach._Call.proceed, count(1)

    def hurried(call, selector, **came):
        if next(number) == steps:  # once it has heard what comes, it waits for SHORT_S only
            call._timeout_s = SHORT_S
        usual(call, selector, **came)

    monkeypatch.setattr(reach._Call, "proceed", hurried)

    def answer(connection):
        connection.sendall(answer_to(connection.recv(CALL_BYTES, socket.MSG_WAITALL)[len(GREETING) :], 1, SECRET))
        connection.recv(1)
        connection.sendall(then or b"")
        while then is not None and connection.recv(len(LARGE)):
            pass

    with answering(answer) as port:
        found = tried(port, gets_large=True)
    assert found.outcome is expected
    assert (found.loses, found.reached) == (expected is not Outcome.REACHED, expected is Outcome.REACHED)


def test_servers_that_try_each_other_at_once_answer_meanwhile():
    with closing(Listener(0, SECRET)) as first, closing(Listener(1, SECRET)) as second, ThreadPoolExecutor() as pool:
        ends = ((first, Target(1, "other", second.port, HERE)), (second, Target(0, "other", first.port, HERE)))
        tries = [pool.submit(try_reach, [target], SECRET, PATIENCE_S, listener) for listener, target in ends]
        while not all(each.done() for each in tries):
            for each, (listener, _) in zip(tries, ends, strict=True):
                if each.done():  # the other still needs its listener
                    listener.serve()
            wait(tries, 0.001)
    assert [attempt.outcome for each in tries for attempt in each.result()] == [Outcome.REACHED] * 2


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"x" * (ANSWER_BYTES * 4)])
def test_another_program_is_a_wrong_answer(says):
    with answering(lambda connection: (connection.recv(CALL_BYTES), connection.sendall(says))) as port:
        assert tried(port).outcome is Outcome.WRONG_ANSWER


def test_what_is_not_the_listener_of_that_server():
    for of_another in (listening(2), listening(1, secret="another")):
        with of_another as found:
            assert tried(found.port).outcome is Outcome.WRONG_ANSWER
    with refusing_port() as port:
        assert tried(port).outcome is Outcome.REFUSED


def test_a_program_that_says_nothing_is_a_wrong_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = tried(server.getsockname()[1], SHORT_S)
    assert (found.outcome, found.trouble) == (Outcome.WRONG_ANSWER, "it sends no data")
    assert found.round_trip_s is not None


def test_what_never_answers_times_out():
    """A listener whose queue is full drops connections, as a firewall does."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        with ExitStack() as fillers:
            for _ in range(4):
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            found = tried(port, SHORT_S)
    assert found.outcome is Outcome.TIMED_OUT


def test_the_best_of_several_addresses_counts():
    """Multicast, which no TCP goes to, has no route; a name without addresses is unknown."""
    with listening(1) as other:
        found = tried(other.port, addresses=("224.0.0.1", "127.0.0.1"))
    assert (found.outcome, found.address) == (Outcome.REACHED, "127.0.0.1")
    assert tried(9, addresses=("224.0.0.1",)).outcome is Outcome.NO_ROUTE
    assert tried(9, addresses=()).outcome is Outcome.UNKNOWN_NAME


def test_a_server_that_is_held_up_listens_to_the_answer_nevertheless(monkeypatch):
    usual = reach._Call.proceed

    def late(call, selector, **came):
        call.deadline = 0.0
        usual(call, selector, **came)

    monkeypatch.setattr(reach._Call, "proceed", late)
    with listening(1) as other:
        assert tried(other.port).outcome is Outcome.REACHED


def test_more_targets_than_are_tried_at_once_are_all_tried(monkeypatch):
    monkeypatch.setattr(reach, "MAX_AT_ONCE", 3)
    with listening(0) as other, refusing_port() as dead:
        targets = [Target(0, str(number), dead if number % 3 else other.port, HERE) for number in range(20)]
        found = try_reach(targets, SECRET, PATIENCE_S)
    assert [attempt.host for attempt in found] == [str(number) for number in range(20)]
    assert [attempt.reached for attempt in found] == [number % 3 == 0 for number in range(20)]


def test_an_answer_that_was_overheard_is_worth_nothing():
    answers = {answer_to(word, server, secret) for word in (b"a", b"b") for server in (1, 2) for secret in ("x", "y")}
    assert len(answers) == 8


@pytest.fixture
def limits(monkeypatch):
    """Give a function that sets how many callers a listener keeps, and when one is silent."""

    def limit(callers, silence_s):
        monkeypatch.setattr("launcher.doctor.listener.MAX_CALLERS", callers)
        monkeypatch.setattr("launcher.doctor.listener.SILENCE_S", silence_s)

    return limit


def call(listener):
    return socket.create_connection(("127.0.0.1", listener.port), PATIENCE_S)


def test_a_listener_drops_a_caller_that_does_not_greet_it_or_sends_without_end():
    with listening(1) as other:
        with call(other) as scanner:
            scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert scanner.recv(1) == b""
        with call(other) as slow:
            challenge = os.urandom(24)
            for piece in (GREETING[:3], GREETING[3:] + challenge[:5], challenge[5:]):
                slow.sendall(piece)
            assert slow.recv(ANSWER_BYTES, socket.MSG_WAITALL) == answer_to(challenge, 1, SECRET)
            with pytest.raises(OSError, match=r"reset|Broken pipe"):
                slow.sendall(LARGE * 1000)


def test_callers_that_stay_silent_give_way(limits):
    """They hold a descriptor each."""
    limits(2, 0.05)
    with listening(1) as other, ExitStack() as silent:
        callers = [silent.enter_context(call(other)) for _ in range(5)]
        assert tried(other.port).reached
        assert callers[0].recv(1) == b""


def test_a_caller_that_has_sent_something_is_heard_before_one_is_dropped(limits):
    limits(1, PATIENCE_S)
    with closing(Listener(1, SECRET)) as listener, call(listener) as caller:
        listener.serve()
        limits(1, 0.0)
        with call(listener):
            caller.sendall(GREETING + bytes(24))
            listener.serve()
        assert caller.recv(ANSWER_BYTES, socket.MSG_WAITALL) == answer_to(bytes(24), 1, SECRET)


def test_many_servers_that_call_at_once_are_all_answered(limits):
    limits(3, PATIENCE_S)  # a caller that is held up here is not silent
    with listening(1) as other:
        found = try_reach([Target(1, str(number), other.port, HERE) for number in range(100)], SECRET, PATIENCE_S)
    assert all(attempt.reached for attempt in found)
