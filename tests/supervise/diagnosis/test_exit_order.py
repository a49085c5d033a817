"""The order in which processes ended."""

import os
import signal

import pytest

from launcher.supervise.diagnosis.rank_ends import ExitOrder


def sleepers(count):
    """Pids of children that wait to be killed, in fork order."""
    return [os.posix_spawnp("sleep", ["sleep", "1000"], os.environ) for _ in range(count)]


def end(pid):
    """Kill and wait for the end, but leave the child to be reaped."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_children_that_nobody_looked_at_come_in_the_order_in_which_they_ended():
    """Neither fork order nor the order in which they are asked for decides; unwatched ones come last, unknown."""
    order = ExitOrder()
    pids = sleepers(5)
    for pid in pids[1:]:
        order.watch(pid)
    ended = [pids[index] for index in (3, 0, 1, 4, 2)]
    for pid in ended:
        end(pid)
    watched = [pid for pid in ended if pid != pids[0]]
    try:
        assert order.sort(pids) == ([*watched, pids[0]], False)
    finally:
        for pid in pids:
            os.waitpid(pid, 0)
        order.close()


def test_an_end_seen_early_keeps_its_place():
    """A child that had ended before it was asked for comes before one that ended after."""
    order = ExitOrder()
    pids = sleepers(3)
    for pid in pids:
        order.watch(pid)
    for pid in reversed(pids):
        end(pid)
    try:
        assert order.sort([pids[1]]) == ([pids[1]], True)
        assert order.sort([pids[0], pids[2]]) == ([pids[2], pids[0]], True)
    finally:
        for pid in pids:
            os.waitpid(pid, 0)
        order.close()


@pytest.mark.parametrize(
    ("ends", "late", "told"),
    [((0,), (1,), [0, 1]), ((1,), (0,), [1, 0]), ((), (1, 0), [1, 0])],
    ids=["before", "after", "two"],
)
def test_a_child_that_had_ended_before_it_was_watched_has_no_known_place(ends, late, told):
    """It may have ended before those that came first: the agent learns of a rank only after it was forked."""
    order = ExitOrder()
    pids = sleepers(2)
    for index in ends:
        order.watch(pids[index])
        end(pids[index])
    for index in late:
        end(pids[index])
        order.watch(pids[index])
    try:
        assert order.sort(pids) == ([pids[index] for index in told], False)
    finally:
        for pid in pids:
            os.waitpid(pid, 0)
        order.close()


def test_whoever_ends_after_a_late_one_was_watched_has_a_known_place():
    """And it is told of once, before it is asked for too."""
    order = ExitOrder()
    late, other = sleepers(2)
    order.watch(other)
    end(late)
    order.watch(late)
    end(other)
    try:
        assert order.collect() == [late, other]
        assert order.sort([other, late]) == ([late, other], True)
        assert order.collect() == []
    finally:
        for pid in (late, other):
            os.waitpid(pid, 0)
        order.close()
