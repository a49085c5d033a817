"""Whether others are reached: real connections on this machine."""

import os
import resource
import select
import socket
from contextlib import closing, suppress

import pytest

from launcher.control.orders import ProbeReach, ProbeTarget
from launcher.supervise.reach_probes import ReachProbes, listening_ports
from tests.conftest import PATIENCE_S, refusing_port, wait_until


@pytest.fixture(name="two")
def _two():
    both = ReachProbes(), ReachProbes()
    yield both
    for each in both:
        each.close()


def begin(reach_probes, *targets, number=1, timeout_s=PATIENCE_S):
    reach_probes.begin(ProbeReach(0, number, targets, timeout_s))


def answer_of(reach_probes, *others):
    return wait_until(lambda: ([other.step() for other in others], reach_probes.step())[-1], "an answer")


def test_servers_are_reached_by_any_address_and_port(two):
    asking, asked = two
    here = ("127.0.0.1",)
    with refusing_port() as refusing:
        for number, targets, unreached in (
            (7, [(3, (asked.port,), here)], ()),
            (8, [], ()),
            (9, [(1, (refusing,), here), (2, (asked.port,), ())], ((1, "Connection refused"), (2, "no answer"))),
            (10, [(1, (refusing, asked.port), ("127.0.0.2", "127.0.0.1"))], ()),
            (11, [(3, (1 << 40,), here), (4, (1,), ("a:b",))], ((3, "no answer"), (4, "no answer"))),
        ):
            begin(asking, *(ProbeTarget(*each) for each in targets), number=number)
            answer = answer_of(asking, asked)
            assert (answer.server, answer.number, answer.unreached) == (0, number, unreached)
            assert asking.timeout_s is None


def test_without_a_descriptor_nothing_is_known(two):
    asking, asked = two
    free = os.dup(asked.fileno())
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        begin(asking, ProbeTarget(3, (asked.port,), ("127.0.0.1",)))
        assert answer_of(asking).unreached == ()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_server_that_does_not_answer_is_given_up_in_time(two):
    asking, _ = two
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        begin(asking, ProbeTarget(1, (full.getsockname()[1],), ("127.0.0.1",)), timeout_s=0.2)
        assert answer_of(asking).unreached == ((1, "no answer"),)
        for filler in fillers:
            filler.close()


@pytest.fixture(name="peer")
def _peer():
    """Gives a function: what is found of a server that answers so much of a probe, and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener, closing(ReachProbes()) as asking:
        listener.settimeout(PATIENCE_S)

        def peer(*answers, timeout_s):
            begin(asking, ProbeTarget(1, (listener.getsockname()[1],), ("127.0.0.1",)), timeout_s=timeout_s)
            connection, _ = listener.accept()
            with connection:
                for answer in answers:
                    connection.setblocking(False)
                    wait_until(lambda: (asking.step(), select.select([connection], [], [], 0)[0])[-1], "words")
                    connection.recv(1 << 20)
                    connection.sendall(answer)
                return answer_of(asking)

        yield peer


@pytest.mark.parametrize(
    ("answers", "lossy"), [((b"+",), (1,)), ((b"+", b"+"), (1,)), ((b"+", b"++"), ())], ids=["there", "back", "none"]
)
def test_large_packets_that_are_lost_on_a_connection_that_stands_are_noticed(peer, answers, lossy):
    found = peer(*answers, timeout_s=1.5 if lossy else PATIENCE_S)
    assert (found.unreached, found.lossy) == ((), lossy)


def test_of_a_server_that_is_too_busy_to_answer_nothing_is_known(peer):
    assert peer(timeout_s=0.3).lossy == ()


def test_large_packets_arrive_here(two):
    asking, asked = two
    with socket.create_server(("127.0.0.1", 0)) as rank:
        ports = (asked.port, rank.getsockname()[1])
        begin(asking, ProbeTarget(3, ports, ("127.0.0.1", "127.0.0.2")))
        found = answer_of(asking, asked)
        assert (found.unreached, found.lossy) == ((), ())
        rank.settimeout(PATIENCE_S)
        with rank.accept()[0] as connection:
            connection.settimeout(PATIENCE_S)
            assert connection.recv(1) == b""


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"?" * (1 << 20)], ids=["none", "HTTP", "many"])
def test_strangers_at_the_port_are_let_go(two, words):
    asked, _ = two
    with socket.create_connection(("127.0.0.1", asked.port)) as stranger, suppress(ConnectionError):
        stranger.setblocking(False)
        with suppress(BlockingIOError):
            stranger.send(words)
        wait_until(lambda: asked.step() is None and asked._callers, "the caller")
        stranger.shutdown(socket.SHUT_WR)
        wait_until(lambda: asked.step() is None and not asked._callers, "its end")


def test_ports_on_which_processes_listen_are_found():
    with socket.create_server(("127.0.0.1", 0)) as four, socket.socket() as no_listener:
        no_listener.bind(("127.0.0.1", 0))
        found = listening_ports([os.getpid(), 1 << 30])
        assert four.getsockname()[1] in found
        assert no_listener.getsockname()[1] not in found
    assert listening_ports([]) == ()
