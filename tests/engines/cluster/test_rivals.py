"""Coordinators that each wait for the other: two real doors at one port, and whoever else may answer there."""

import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from launcher.core.channel import Channel, ChannelClosedError
from launcher.core.errors import RefusedLayoutError
from launcher.core.events import Cause
from launcher.core.messages import PROTOCOL, Challenge, Finish, Refused, Welcome
from launcher.core.records import Device, Server
from launcher.engines.cluster import rivals
from launcher.engines.cluster.rivals import Knocks

HERE, THERE = "127.0.0.1", "127.0.0.2"
ALIKE = {"command": "python train.py (0123)"}
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(rivals, "FIRST_ROUND_S", 0.0)


def table(*names):
    return tuple(Server(name, (Device(0, rank),)) for rank, name in enumerate(names))


@pytest.fixture
def doors():
    """Listeners on two addresses at one port, as of two machines."""
    with socket.create_server((HERE, 0)) as here, socket.create_server((THERE, here.getsockname()[1])) as there:
        for each in (here, there):
            each.setblocking(False)
        yield here, there


class Side:
    """A coordinator that waits for the servers of its table that are not at its own address."""

    def __init__(self, house, listener, names, **options):
        self.house = house(listener=listener, servers=table(*names), **{"agreement": ALIKE, **options})
        self.rivalry = self.house.registration.rivalry
        self.knocks = Knocks(self.house.plan, self.rivalry)
        self.missing = self.house.servers[1:]
        self.error = None  # what its own knocks have brought
        self.looks = True

    def step(self):
        self.house._step()
        if self.looks and self.error is None:
            self.error = self.knocks.look(self.missing)

    @property
    def refused(self):
        return self.error or next(iter(self.house.errors), None)


@pytest.fixture
def side(house):
    made = []

    def make(*arguments, **options):
        made.append(Side(house, *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.knocks.close()


def attend(sides, until):
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline, [(each.error, each.house.errors) for each in sides]
        for each in sides:
            each.step()
        time.sleep(0.01)


@pytest.mark.parametrize("who", ["one", "both"])
def test_each_of_two_with_another_first_server_refuses(side, doors, who):
    """Though only one has knocked, or both at once. Each names the other, and both first servers."""
    here, there = side(doors[0], (HERE, THERE)), side(doors[1], (THERE, HERE))
    there.looks = who == "both"
    attend([here, there], lambda: here.refused and there.refused)
    for each, other, own in ((here, THERE, HERE), (there, HERE, THERE)):
        assert isinstance(each.refused, RefusedLayoutError)
        assert each.refused.message.startswith(f"server {other} (")
        assert (
            f"its rank table has rank 0 there, that of {os.uname().nodename} has it on server {own}"
            in each.refused.message
        )


def test_each_of_two_that_are_the_same_server_refuses(side, doors):
    """The second one's table is the same: it has been started as the first server."""
    here, there = side(doors[0], (HERE, THERE)), side(doors[1], (HERE, THERE))
    there.looks = False  # it would knock at its own door
    attend([here, there], lambda: here.refused and there.refused)
    for each in (here, there):
        assert f"were both started as server {HERE} of the rank table" in each.refused.message
        assert each.refused.exit_code == 3


def test_who_knocks_after_a_refusal_is_answered_too(side, doors):
    """Of three coordinators two have found each other, and go."""
    here, there = side(doors[0], (HERE, THERE)), side(doors[1], (THERE, HERE), joining=False)
    there.looks = False
    there.house.registration.refusal = RefusedLayoutError("server h3 coordinates a run of its own")
    attend([here, there], lambda: here.refused)
    assert here.refused.message.startswith(f"server {THERE} (")


@pytest.mark.parametrize(
    ("names", "options"),
    [
        ((THERE, HERE), {"agreement": {"command": "python train.py (4567)"}}),
        ((THERE, HERE), {"agreement": {}}),
        ((THERE, "h3"), {}),
        ((THERE, HERE), {"shared_token": "another"}),
        ((THERE, HERE), {"joining": False}),
        ((THERE, HERE), {"brings_all": True}),
    ],
    ids=["command", "no command", "servers", "token", "it has begun", "engine"],
)
def test_a_coordinator_of_another_run_is_no_reason_to_refuse(side, doors, names, options):
    """It waits for others, or for nobody; the server may come yet."""
    here, there = side(doors[0], (HERE, THERE)), side(doors[1], names, **options)
    there.looks = False
    attend([here, there], lambda: there.house.dismissed and not here.knocks._open)
    assert (here.refused, there.refused) == (None, None)


def test_a_coordinator_that_knocks_at_its_own_door_knows_itself(side, doors, monkeypatch):
    """A server's address may lead to this machine: it is not asked again."""
    monkeypatch.setattr(rivals, "ROUND_S", 0.2)
    here = side(doors[1], (HERE, THERE))
    attend([here], lambda: here.knocks._own == {THERE})
    rounds = here.knocks._next_round
    attend([here], lambda: here.knocks._next_round > rounds)
    assert here.knocks._open == []
    assert here.refused is None


def test_a_door_that_does_not_answer_is_left_and_asked_again(side, doors, monkeypatch):
    """A coordinator that begins to answer later is found."""
    monkeypatch.setattr(rivals, "ROUND_S", 0.2)
    here, there = side(doors[0], (HERE, THERE)), side(doors[1], (THERE, HERE))
    rounds = here.knocks._next_round
    attend([here], lambda: here.knocks._next_round > rounds + 0.4)  # the kernel accepts, and nobody speaks
    monkeypatch.setattr(rivals, "ROUND_S", 3.0)
    attend([here, there], lambda: here.refused and there.refused)


HONEST = Challenge(PROTOCOL, "n")


@pytest.mark.parametrize(
    "words",
    [
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
        [b"x" * (3 << 20)],
        [b""],
        [Challenge(PROTOCOL + 1, "n")],
        [Refused("no", None, 3)],
        [HONEST, HONEST],
        [HONEST, Welcome("", 0, "run", 1.0)],
        [HONEST, Finish(Cause.FAILED, 3)],
        [HONEST, "its own words"],
        [HONEST, "a guess"],
    ],
    ids=lambda words: repr(words[-1])[:30],
)
def test_what_is_no_coordinator_is_none(side, doors, words, monkeypatch):
    """Whatever else answers at that port, be it with our own words."""
    monkeypatch.setattr(rivals, "ROUND_S", PATIENCE_S)  # a second knock would find nobody who speaks
    here = side(doors[0], (HERE, THERE))
    thread = threading.Thread(target=answer, args=(doors[1], words))
    thread.start()
    attend([here], lambda: not thread.is_alive() and not here.knocks._open)
    assert here.refused is None


def answer(listener, words):
    """To the first caller, until it goes. What it said is sent back, or sent back as if by another."""
    listener.setblocking(True)
    connection, _ = listener.accept()
    channel = Channel(connection)
    with suppress(ChannelClosedError):
        for word in words:
            if isinstance(word, bytes):
                connection.setblocking(True)
                connection.sendall(word) if word else connection.shutdown(socket.SHUT_WR)
                connection.setblocking(False)
            elif isinstance(word, str):
                said = next(channel.wait_for(time.monotonic() + PATIENCE_S))
                channel.send(said if word == "its own words" else replace(said, coordinator="other", first=THERE))
            else:
                channel.send(word)
        for _ in channel.wait_for(time.monotonic() + PATIENCE_S):
            pass
    channel.close()
