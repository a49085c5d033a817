"""What a loop listens to: real descriptors."""

import selectors
import socket
from contextlib import ExitStack

import pytest

from launcher.supervise.event_loop import Listening


@pytest.fixture
def selector():
    with selectors.DefaultSelector() as made:
        yield made


@pytest.fixture
def make():
    with ExitStack() as stack:
        yield lambda: tuple(map(stack.enter_context, socket.socketpair()))


def heard(selector):
    return [key.fileobj for key, _ in selector.select(0)]


def test_what_is_opened_in_the_place_of_what_was_closed_is_heard(selector, make):
    """Whichever of the two is named first: descriptors' numbers are given out again at once."""
    listening = Listening(selector)
    old, _ = make()
    listening.choose({"new": (None, selectors.EVENT_READ, print), "old": (old, selectors.EVENT_READ, print)})
    number = old.fileno()
    old.close()
    new, writes = make()
    assert new.fileno() == number
    listening.choose({"new": (new, selectors.EVENT_READ, print), "old": (None, selectors.EVENT_READ, print)})
    writes.send(b".")
    assert heard(selector) == [new]


def test_what_is_not_wanted_any_more_is_not_heard(selector, make):
    listening = Listening(selector)
    end, _ = make()
    for event, expected in ((selectors.EVENT_WRITE, [end]), (selectors.EVENT_WRITE, [end]), (selectors.EVENT_READ, [])):
        listening.choose({"end": (end, event, print)})
        assert heard(selector) == expected
    listening.forget("end")
    listening.forget("end")
    assert not selector.get_map()
