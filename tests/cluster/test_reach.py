"""Which servers reach each other: real connections on this machine, asked for as a coordinator does."""

import socket
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from launcher.cluster.agent_connection import addresses_to_try
from launcher.control import evidence_collection as inquiry
from launcher.control.events import ProbeResult
from launcher.control.evidence_collection import ALL_PAIRS, ReachCheck, cut_off, pairs_of
from launcher.control.messages import Hello
from launcher.supervise.reach_probes import ReachProbes
from tests.conftest import PATIENCE_S
from tests.servers import server

HERE, NOWHERE = "127.0.0.1", "255.255.255.255"  # to which no connection can be made


class Agent:
    """The agent of a server: it carries out what the check orders. `deaf`: it answers nothing."""

    def __init__(self, *, deaf=False, ports=()):
        self.reach_probes, self.deaf, self.ports, self.asked = ReachProbes(), deaf, ports, []

    def probe(self, order, server_ids):
        self.asked.append(order)
        targets = [replace(target, addresses=(server_ids[target.server],)) for target in order.targets]
        if not self.deaf:
            self.reach_probes.begin(replace(order, targets=tuple(targets)))


@pytest.fixture
def check():
    """Gives a function: what is found among servers with these addresses. Time passes once no answer is to come."""
    agents = {}

    def check(*server_ids, ports=None, deaf=(), master_port=1, refuses=False):
        for agent in agents.values():
            agent.reach_probes.close()
        agents.update(
            {index: Agent(deaf=index in deaf, ports=(ports or {}).get(index, ())) for index in range(len(server_ids))}
        )
        endpoints = {index: 1 if refuses else agent.reach_probes.port for index, agent in agents.items()}
        begun = ReachCheck(endpoints, first_server=0, master_port=master_port)
        now_s, awaited, ends = 0.0, set(), time.monotonic() + PATIENCE_S
        orders = begun.begin(now_s)
        while not begun.over:
            for order in orders:
                agents[order.server].probe(order, server_ids)
                awaited.add(order.server)
            for index, agent in agents.items():
                if (answer := agent.reach_probes.step()) is not None:
                    begun.take(replace(answer, ports=agent.ports))
                    awaited.remove(index)
            now_s += 0.0 if awaited - set(deaf) else inquiry.TRY_S + inquiry.ANSWER_S
            orders = begun.step(agents, now_s)
            assert time.monotonic() < ends
        return begun.apart, agents

    yield check
    for agent in agents.values():
        agent.reach_probes.close()


def test_servers_that_reach_each_other_are_asked_once(check):
    apart, agents = check(HERE, HERE, HERE)
    assert apart == ()
    asked = [[target.server for order in agent.asked for target in order.targets] for agent in agents.values()]
    assert asked == [[1, 2], [2], []]


def test_servers_of_which_neither_reaches_the_other_are_apart(check):
    assert check(NOWHERE, NOWHERE, deaf={0})[0] == check(NOWHERE, NOWHERE, deaf={1})[0] == ()
    apart, agents = check(NOWHERE, NOWHERE, HERE, deaf={2})
    [found] = apart
    assert (found.pair, found.ports) == ((0, 1), (agents[0].reach_probes.port, agents[1].reach_probes.port))
    assert found.why


def test_one_way_or_a_port_on_which_ranks_listen_is_enough(check):
    """A firewall may stop new connections of one way only, or let through what ranks use, and nothing else."""
    assert check(HERE, NOWHERE)[0] == ()
    with socket.create_server((HERE, 0)) as used:
        of_ranks = used.getsockname()[1]
        assert check(HERE, HERE, refuses=True)[0] != ()
        assert check(HERE, HERE, refuses=True, ports={1: (of_ranks,)})[0] == ()
        assert check(HERE, HERE, refuses=True, master_port=of_ranks)[0] == ()


def test_a_server_whose_name_means_nothing_is_tried_where_it_comes_from():
    """Of its many own addresses most lead nowhere from another machine, and only some are tried."""
    inner = tuple(f"172.17.0.{number}" for number in range(1, 9))
    peer = SimpleNamespace(hello=Hello("", "", "", "", "", "h2", (*inner, "10.0.0.2")), address="10.0.0.2")
    assert addresses_to_try(server("h2"), peer, {"h2": ("127.0.1.1",)})[0] == "10.0.0.2"


def test_what_is_reported_of_servers_that_were_not_to_be_tried_parts_none():
    begun = ReachCheck({0: 1, 1: 1}, first_server=0, master_port=1)
    begun.begin(0.0)
    begun.take(ProbeResult(0, 1, ((0, "no answer"), (7, "no answer"), (-1, "no answer"))))
    begun.take(ProbeResult(1, 1, ((0, "no answer"),)))
    assert begun.step({0, 1}, 0.0) == []
    assert begun.over
    assert begun.apart == ()


LOSSY_ROUNDS = {  # by the servers that say so in each round: what is found
    "both, both": ({0: (1,)}, {0: (1,), 1: (0,)}, ((0, 1),)),
    "whom no request reaches": ({0: (1,)}, {0: (1,)}, ((0, 1),)),
    "not again": ({0: (1,)}, {0: (), 1: ()}, ()),
    "not on the way back": ({0: (1,)}, {0: (1,), 1: ()}, ()),
    "nobody answers again": ({0: (1,)}, {}, ()),
    "two of three": ({0: (2,), 1: (2,)}, {0: (2,), 1: (2,), 2: (0, 1)}, ((0, 2), (1, 2))),
    "a server that was not to be tried": ({0: (7, -1)}, {}, ()),
}


@pytest.mark.parametrize(("first", "second", "lossy"), LOSSY_ROUNDS.values(), ids=LOSSY_ROUNDS)
def test_large_packets_are_lost_where_all_who_answer_say_so_twice(first, second, lossy):
    servers = {0, 1, 2}
    begun = ReachCheck(dict.fromkeys(servers, 1), first_server=0, master_port=1)
    begun.begin(0.0)
    for number, found in ((1, first), (2, second)):
        for index in servers if number == 1 else found:
            begun.take(ProbeResult(index, number, (), lossy=found.get(index, ())))
        begun.step(servers, number * 100.0)
    assert begun.over
    assert tuple(one.pair for one in begun.apart) == lossy
    assert all(one.loses_large for one in begun.apart)


def test_where_no_connection_can_be_made_that_is_told(check):
    begun = ReachCheck({0: 1, 1: 1, 2: 1}, first_server=0, master_port=1)
    begun.begin(0.0)
    for number in (1, 2):
        begun.take(ProbeResult(0, number, ((1, "no answer"),), lossy=(2,)))
        begun.take(ProbeResult(1, number, ((0, "no answer"),)))
        begun.take(ProbeResult(2, number, (), lossy=(0,)))
        begun.step({0, 1, 2}, number * 100.0)
    assert [(one.pair, one.why, one.loses_large) for one in begun.apart] == [((0, 1), "no answer", False)]


def test_of_many_servers_few_pairs_are_tried():
    many = range(2000)
    pairs = pairs_of(many, 0, [(5, 900), (5, 5), (7, 4000)])
    assert len(pairs) <= 2 * len(many) + 1
    assert {(3, 4), (1999, 0), (1000, 0), (5, 900)} <= set(pairs)
    assert not {(5, 5), (7, 4000)} & set(pairs)
    assert len(pairs_of(range(ALL_PAIRS), 0, [])) == ALL_PAIRS * (ALL_PAIRS - 1) // 2


@pytest.mark.parametrize(("pairs", "count", "alone"), [
    ([(0, 1)], 2, None), ([(0, 1)], 3, None), ([(0, 1), (1, 2)], 3, 1), ([(0, 1), (1, 2)], 4, None),
    ([(0, 2), (0, 3), (1, 2), (1, 3)], 4, None), ([(16, 17), (17, 18), (17, 0)], 40, 17), ([], 3, None),
])  # fmt: skip
def test_one_server_is_cut_off_where_it_reaches_no_other(pairs, count, alone):
    assert cut_off(pairs, count) == alone
