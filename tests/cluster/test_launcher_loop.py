"""What the launcher does for an agent that is lost."""

import os
import threading
import time
from dataclasses import replace

from launcher.cluster.launcher_loop import OrphanCleanup, _Shelter
from launcher.core.events import RankStarted, Stopping, TimestampedEvent, Trouble
from launcher.core.records import Supervision
from launcher.supervise.tree import RunGroup


def test_what_a_lost_agent_left_has_no_longer_than_a_batch_system_leaves(spec):
    until = replace(spec, supervision=Supervision(grace_s=1000, killed_at_s=time.time() + 60))
    [read, write] = os.pipe()
    child = os.fork()  # for it ends whatever its process has started
    if child == 0:
        told = []
        group = RunGroup(os.getpid())
        OrphanCleanup(until, group, 1, lambda stamped: told.append(stamped.event)).run()
        group.remove()
        [stopping] = [event for event in told if isinstance(event, Stopping)]
        os.write(write, str(stopping.grace_s).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        grace_s = float(answer.read())
    os.waitpid(child, 0)
    assert 0 < grace_s < 60


class Reader:
    def __init__(self):
        self.answers, self.seen = threading.Event(), []

    def event(self, stamped):
        self.seen.append(stamped.event)

    def interrupted(self, number, *, at_once):
        self.seen.append(number)

    def tick(self):
        self.answers.wait()
        self.seen.append("tick")
        return True


def test_trouble_is_shown_while_logs_cannot_be_read_and_everything_else_after_that(monkeypatch):
    monkeypatch.setattr("launcher.cluster.launcher_loop.STUCK_S", 0.05)
    reader = Reader()
    shelter = _Shelter(reader)
    assert not shelter.tick()
    for event in (RankStarted(0, 7), Trouble("the disk"), RankStarted(1, 8)):
        shelter.event(TimestampedEvent(1, 0, event))
    shelter.interrupted(2, at_once=False)
    assert not shelter.tick()
    assert reader.seen == [Trouble("the disk"), 2]
    reader.answers.set()
    while not shelter.tick():
        pass
    shelter.close()
    assert reader.seen[:5] == [Trouble("the disk"), 2, "tick", RankStarted(0, 7), RankStarted(1, 8)]


def test_the_end_waits_for_logs_that_are_being_read():
    reader = Reader()
    shelter = _Shelter(reader)
    assert not shelter.tick(0.05)
    shelter.event(TimestampedEvent(1, 0, RankStarted(0, 7)))
    threading.Timer(0.2, reader.answers.set).start()
    shelter.close()
    assert reader.seen == ["tick", RankStarted(0, 7)]
