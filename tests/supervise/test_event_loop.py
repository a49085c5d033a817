"""What a loop listens to: real descriptors."""

import os
import selectors
from contextlib import ExitStack, closing

import pytest

from launcher.supervise.event_loop import Listening


class End:
    """The end of a pipe that can be read, closed by whoever owns it, as a selector takes it."""

    def __init__(self, at=None):
        self.number, self.writes = os.pipe()
        if at not in {None, self.number}:
            os.dup2(self.number, at)
            os.close(self.number)
            self.number = at

    def fileno(self):
        return self.number

    def close(self):
        """May be called twice."""
        if self.number >= 0:
            os.close(self.number)
        self.number = -1

    def write(self):
        os.write(self.writes, b".")


@pytest.fixture
def selector():
    with selectors.DefaultSelector() as made:
        yield made


@pytest.fixture
def make():
    """Gives a function that makes an end; all are closed at the end."""
    with ExitStack() as stack:

        def make_end(at=None):
            end = End(at)
            stack.callback(os.close, end.writes)
            return stack.enter_context(closing(end))

        yield make_end


def heard(selector):
    return [key.fileobj for key, _ in selector.select(0)]


def test_what_is_opened_in_the_place_of_what_was_closed_is_heard(selector, make):
    """Whichever of the two is named first: descriptors' numbers are given out again at once."""
    listening = Listening(selector)
    old = make()
    listening.choose({"new": (None, selectors.EVENT_READ, print), "old": (old, selectors.EVENT_READ, print)})
    number = old.number
    old.close()
    new = make(number)
    assert new.number == number
    listening.choose({"new": (new, selectors.EVENT_READ, print), "old": (None, selectors.EVENT_READ, print)})
    new.write()
    assert heard(selector) == [new]


def test_what_is_not_wanted_any_more_is_not_heard(selector, make):
    """Also where only the event is another one; and forgetting twice is no error."""
    listening = Listening(selector)
    end = make()
    end.write()
    for event, expected in ((selectors.EVENT_READ, [end]), (selectors.EVENT_READ, [end]), (selectors.EVENT_WRITE, [])):
        listening.choose({"end": (end, event, print)})
        assert heard(selector) == expected
    listening.forget("end")
    listening.forget("end")
    assert not selector.get_map()
