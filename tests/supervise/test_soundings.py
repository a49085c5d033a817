"""Whether others are reached: real connections on this machine."""

import os
import resource
import socket
import time

import pytest

from launcher.core.messages import ProbeTarget
from launcher.supervise.soundings import ReachProbes, listening_ports

PATIENCE_S = 60.0


@pytest.fixture(name="two")
def _two():
    both = ReachProbes(), ReachProbes()
    yield both
    for each in both:
        each.close()


def answer_of(soundings, *others):
    ends = time.monotonic() + PATIENCE_S
    while (answer := soundings.step()) is None:
        for other in others:
            other.step()
        assert time.monotonic() < ends
    return answer


def test_whoever_listens_is_reached(two):
    """Nobody has to take the connection for that; the other one lets it go."""
    asking, asked = two
    asking.begin(7, [ProbeTarget(3, ("127.0.0.1",), (asked.port,))], PATIENCE_S)
    answer = answer_of(asking, asked)
    assert (answer.number, answer.unreached) == (7, ())
    assert asking.timeout_s is None


def test_nobody_to_be_tried_is_answered_at_once(two):
    asking, _ = two
    asking.begin(1, [], PATIENCE_S)
    assert answer_of(asking).unreached == ()


def test_who_refuses_is_not_reached_unless_in_another_way(two):
    """By any address and any port will do."""
    asking, asked = two
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refusing = closed.getsockname()[1]
    asking.begin(1, [ProbeTarget(1, ("127.0.0.1",), (refusing,)), ProbeTarget(2, (), (asked.port,))], PATIENCE_S)
    assert answer_of(asking).unreached == ((1, "Connection refused"), (2, "no answer"))
    asking.begin(2, [ProbeTarget(1, ("127.0.0.2", "127.0.0.1"), (refusing, asked.port))], PATIENCE_S)
    assert answer_of(asking).unreached == ()


def test_without_a_descriptor_nothing_is_known(two):
    """Least of all that a server is not reached."""
    asking, asked = two
    free = os.dup(asked.fileno())
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        asking.begin(1, [ProbeTarget(3, ("127.0.0.1",), (asked.port,))], PATIENCE_S)
        assert answer_of(asking).unreached == ()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_is_no_address_is_not_reached(two):
    """Whoever has sent it."""
    asking, _ = two
    asking.begin(1, [ProbeTarget(3, ("127.0.0.1",), (1 << 40,)), ProbeTarget(4, ("a:b",), (1,))], PATIENCE_S)
    assert answer_of(asking).unreached == ((3, "no answer"), (4, "no answer"))


def test_who_says_nothing_is_given_up_in_time(two):
    """A queue that is full answers nobody."""
    asking, _ = two
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        asking.begin(1, [ProbeTarget(1, ("127.0.0.1",), (full.getsockname()[1],))], 0.2)
        assert answer_of(asking).unreached == ((1, "no answer"),)
        for filler in fillers:
            filler.close()


def test_ports_on_which_processes_listen_are_found():
    """Of both families, and of those processes only."""
    with socket.create_server(("127.0.0.1", 0)) as four, socket.socket() as no_listener:
        no_listener.bind(("127.0.0.1", 0))
        found = listening_ports([os.getpid(), 1 << 30])
        assert four.getsockname()[1] in found
        assert no_listener.getsockname()[1] not in found
    assert listening_ports([]) == ()
