"""Whether the ranks of every server would find rank 0's server by its name."""

import threading
from dataclasses import replace

import pytest

import launcher.cluster.meeting_check as module
from launcher.cluster.meeting_check import resolved_meeting, unresolved
from launcher.control.messages import Ready
from launcher.doctor import network_facts as network
from tests.cluster.test_agent_setup import REQUEST

IDS = ["h1", "h2", "h3", "h4"]
HOSTS = dict(enumerate(IDS))
THERE = ("10.0.0.1",)
SELF = ("127.0.0.1", "::1")


@pytest.mark.parametrize(("found", "told"), [
    ({0: THERE, 1: THERE, 2: ()}, "MASTER_ADDR h1 cannot be resolved on server h3"),
    ({0: THERE, 1: (), 2: ()}, "MASTER_ADDR h1 cannot be resolved on servers h2, h3"),
    ({0: (), 1: THERE}, "MASTER_ADDR h1 cannot be resolved on server h1"),
    ({0: SELF, 1: ()}, "MASTER_ADDR h1 cannot be resolved on server h2"),
    ({0: THERE, 2: (), 3: ("127.0.1.1",)}, "MASTER_ADDR h1 cannot be resolved on server h3"),
    ({0: ("127.0.1.1",), 1: ("127.0.0.1",)}, "MASTER_ADDR h1 is a loopback address on server h2: "),
    ({0: THERE, 1: ("10.0.0.1",), 2: SELF}, "MASTER_ADDR h1 is a loopback address on server h3: "),
])  # fmt: skip
def test_servers_that_do_not_know_the_name_are_named(found, told):
    error = unresolved("h1", found, HOSTS, 0, IDS)
    assert error.message.startswith(told)
    assert error.exit_code == 3


@pytest.mark.parametrize(("found", "hosts"), [
    ({}, HOSTS), ({0: THERE, 1: THERE}, HOSTS), ({0: SELF, 1: THERE}, HOSTS),
    ({0: ("127.0.1.1",), 1: ("10.9.9.9", "127.0.0.1")}, HOSTS), ({0: (), 1: (), 2: ()}, HOSTS),  # a label
    ({0: SELF, 1: SELF}, {0: "laptop", 1: "laptop"}),  # several servers of one machine meet on its loopback
])  # fmt: skip
def test_servers_that_know_it_begin(found, hosts):
    assert unresolved("h1", found, hosts, 0, IDS) is None


def test_what_every_server_has_found_is_compared(opened, agents):
    agents.join_both(opened)
    for index, meeting in ((0, THERE), (1, ())):
        opened.registration.peers[index].ready = Ready(meeting=meeting)
    assert "cannot be resolved on server h2" in opened.registration.unresolved(0).message
    for peer in opened.registration.peers.values():  # another version of an agent, or an address in the table
        peer.ready = Ready()
    assert opened.registration.unresolved(0) is None


def test_an_address_and_ranks_of_mpi_need_no_resolver(spec):
    assert resolved_meeting(spec, REQUEST) is None
    assert resolved_meeting(replace(spec, master_addr="x.invalid"), replace(REQUEST, mpi_ranks=True)) is None


def test_a_busy_name_server_is_asked_again(spec, monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    answers = iter([(), ("10.0.0.7",)])
    monkeypatch.setattr(network, "_addresses", lambda _name: next(answers))
    assert resolved_meeting(replace(spec, master_addr="h7"), REQUEST) == ("10.0.0.7",)


def test_a_resolver_that_hangs_is_not_waited_for_twice(spec, monkeypatch):
    held, asked = threading.Event(), []
    monkeypatch.setattr(network, "_addresses", lambda name: asked.append(name) or (held.wait(60) and ()))
    monkeypatch.setattr(module, "patience_s", lambda _count: 0.1)
    assert resolved_meeting(replace(spec, master_addr="h7"), REQUEST) == ()
    held.set()
    assert asked == ["h7"]
