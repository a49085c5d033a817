"""Items that a thread makes ahead of their use."""

import threading
import time

import pytest

from launcher.trainer.programs.resnet50 import ahead
from launcher.trainer.telemetry.step_time import Timer


def threads_of_ahead():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_items_come_in_order(depth):
    assert list(ahead(range(50), depth)) == list(range(50))
    assert not threads_of_ahead()


def test_no_more_are_made_than_have_a_place(wait_until):
    made = []
    items = ahead((made.append(number) or number for number in range(50)), 3)
    next(items)
    wait_until(lambda: len(made) == 3, "three items")
    next(items)
    wait_until(lambda: len(made) == 4, "one item more")
    items.close()
    assert len(made) == 4


def test_the_thread_makes_items_while_others_are_used():
    second = threading.Event()

    def items():
        yield 1
        second.set()
        yield 2

    iterator = ahead(items(), 2)
    next(iterator)
    assert second.wait(60)
    assert next(iterator) == 2
    iterator.close()


def test_an_error_is_raised_where_the_item_would_have_come():
    def items():
        yield 1
        raise OSError("no disk")

    iterator = ahead(items(), 4)
    assert next(iterator) == 1
    with pytest.raises(OSError, match="no disk") as caught:
        next(iterator)
    assert [frame.name for frame in caught.traceback][-1] == "items"
    assert not threads_of_ahead()


def test_closing_ends_the_thread():
    iterator = ahead(iter(int, 1), 2)
    next(iterator)
    assert threads_of_ahead()
    iterator.close()
    assert not threads_of_ahead()


def test_the_time_that_is_waited_for_an_item_is_counted():
    timer = Timer()

    def items():
        time.sleep(0.05)  # begins when the first item is asked for
        yield 1

    assert list(timer.over(ahead(items(), 1))) == [1]
    assert timer.seconds > 0.02
