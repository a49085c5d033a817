"""Whether a rank is on the server on which its table has it."""

import os
import re
import socket
import threading
from ipaddress import ip_address

import psutil
import pytest

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Cluster, RankSpec
from launcher.engines import host_match
from launcher.engines.host_match import Host, check_server, doubt, local_servers, own_interface, read_host
from tests.servers import server


def host(name="h1", addresses=("10.77.0.1", "127.0.0.1", "fe80::1"), **resolved):
    meant = tuple((name, frozenset(map(ip_address, found))) for name, found in resolved.items())
    return Host(name, frozenset(map(ip_address, addresses)), meant)


def is_here(one, host, *others):
    return one in local_servers((one, *others), host)


TWO = Cluster((server("10.77.0.1"), server("10.77.0.2", first=2)))


def check(cluster, global_rank, here, said=None, local_size=2):
    """Return what is said of a rank that is one of so many that the engine has started here."""
    places = {device.global_rank: place for place, each in enumerate(cluster.servers) for device in each.devices}
    place = places[global_rank]
    rank = RankSpec(global_rank, 0, cluster.servers[place].server_id, place, 0, ("true",), {})
    return check_server(rank, cluster, here, said, local_size)


@pytest.mark.parametrize("here", [
    server("10.77.0.1"), server("h1"), server("H1.example.org"), server("localhost"), server("127.0.0.1"),
    server("::1"), server("fe80::1%eth0"), server("node-a", host_ip="10.77.0.1"), server("ib0-of-h1"),
    server("node-a", host_nic_ip="10.77.0.1"), server("node-a", options=(("container_ip", "10.77.0.1"),)),
], ids=lambda each: each.server_id)  # fmt: skip
def test_a_server_is_known_by_addresses_and_names(here):
    machine = host(**{"ib0-of-h1": ["10.77.0.1"]})
    assert is_here(here, machine)
    assert doubt(here, machine) is None


@pytest.mark.parametrize("name", ["10.77.0.2", "fd00::7", "h2", "h11", "reserve", "0", "h9", "h1.b.org"])
def test_another_server_is_not_here(name):
    machine = host("h1.a.org", h9=["127.0.1.1"], h2=["10.77.0.2"])
    assert not is_here(server(name), machine)
    assert f"server {name} of the rank table does not seem to be this machine, h1.a.org" in doubt(server(name), machine)
    assert is_here(server("h1.A.org"), machine)


@pytest.mark.parametrize("name", ["", "0.0.0.0", "::", "10.*.*.1", "<server>", "-"])
def test_no_machine_is_called_like_a_placeholder(name):
    assert doubt(server(name), host()) is None


@pytest.mark.parametrize("name", ["container_ip", "host_ip"])
def test_an_address_of_two_servers_proves_nothing(name):
    """Each host has the bridge's address; only what is one server's own counts."""

    def bridged(server_id, first=0, address="172.17.0.1"):
        more = {"host_ip": address} if name == "host_ip" else {"options": (("container_ip", address),)}
        return server(server_id, first, **more)

    one, other = bridged("10.77.0.1"), bridged("10.77.0.2", 2)
    here = host(addresses=("10.77.0.1", "172.17.0.1", "127.0.0.1"))
    assert local_servers((one, other), here) == (one,)
    assert local_servers((bridged("10.9.0.1"), bridged("10.9.0.2", 2)), here) == ()
    loopback = bridged("10.77.0.2", 2, "127.0.0.1")
    assert not is_here(loopback, here, one)
    assert not is_here(loopback, here)


def test_a_short_name_that_two_servers_have_proves_nothing():
    one, other = server("h1.a.org"), server("h1.b.org", 2)
    assert local_servers((one, other), host("h1")) == ()
    assert local_servers((one, other), host("h1.a.org")) == (one,)
    told_apart = server("h1.b.org", 2, host_ip="10.77.0.1")
    assert local_servers((one, told_apart), host("h1")) == (told_apart,)
    with pytest.raises(RefusedLayoutError, match=r"matches several servers: h1\.a\.org, h1\.b\.org, but"):
        check(Cluster((one, other)), 0, host("h1"))


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "::1"])
def test_one_of_several_servers_cannot_be_known_by_loopback(name):
    assert not is_here(server(name), host(), server("10.77.0.2", 2))
    assert is_here(server(name), host())


def test_what_others_call_a_machine_counts_as_its_own_name_does():
    node, stranger = Host("h1", frozenset(), (), ("n7",)), Host("h1", frozenset(), (), ("n9",))
    table = Cluster((server("n7"), server("n8.example.org", 2)))
    assert local_servers(table.servers, node) == (table.servers[0],)
    assert local_servers((server("h1"), server("h2", 2)), node) == (server("h1"),)
    assert check(table, 0, node) is None
    with pytest.raises(RefusedLayoutError, match=r"rank 2 is on server n7 \(h1\), but the rank table has ranks 2-3 on"):
        check(table, 2, node)
    with pytest.raises(RefusedLayoutError, match=r"rank 0 is on n9 \(h1\), which is not one of the table's servers"):
        check(table, 0, stranger)
    assert "n9 (h1)" in check(Cluster(table.servers[:1]), 0, stranger)


def test_this_machine_is_what_its_interfaces_say():
    found = read_host(["10.77.0.1", "n7", "no-such-host.invalid"], other_names=("n7",))
    addresses = {entry.address.partition("%")[0] for each in psutil.net_if_addrs().values() for entry in each}
    assert {str(address) for address in found.addresses} <= addresses
    assert ip_address("127.0.0.1") in found.addresses
    assert dict(found.resolved) == {"no-such-host.invalid": frozenset()}


def test_names_are_resolved_all_at_once(monkeypatch):
    """A name server that is silent costs the time of one name, not of all."""
    asked = threading.Barrier(8, timeout=20)

    def answer(name, *_arguments, **_options):
        asked.wait()  # for the others to be asked, too
        return [(0, 0, 0, "", (f"10.77.0.{name[1:]}", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    meant = {f"n{number}": frozenset({ip_address(f"10.77.0.{number}")}) for number in range(1, 9)}
    assert dict(read_host(list(meant)).resolved) == meant


STRANGER = host("h9", ["10.9.9.9"])


@pytest.mark.parametrize(("global_rank", "here", "said", "error", "hint"), [
    (
        3, host(), None, "rank 3 is on server 10.77.0.1 (h1), but the rank table has ranks 2-3 on server 10.77.0.2",
        "10.77.0.1 slots=2, 10.77.0.2 slots=2",
    ),
    (0, STRANGER, None, "rank 0 is on h9, which is not one of the table's servers", "--server or TLAUNCH_SERVER"),
    (3, STRANGER, "10.77.0.1", "rank 3 is on server 10.77.0.1 (--server), but the rank table has", ""),
    (3, STRANGER, "h2", "--server h2 is not a server in the rank table", "use one of its servers: 10.77.0.1, 10.77.0.2"),
], ids=["another", "unknown", "said another", "said none"])  # fmt: skip
def test_a_rank_that_is_not_on_its_server_is_refused(global_rank, here, said, error, hint):
    with pytest.raises(UsageError if said == "h2" else RefusedLayoutError, match=re.escape(error)) as refused:
        check(TWO, global_rank, here, said)
    assert hint in refused.value.hint


def test_ranks_on_their_servers_pass_without_a_word():
    for global_rank, address in ((0, "10.77.0.1"), (1, "10.77.0.1"), (2, "10.77.0.2"), (3, "10.77.0.2")):
        assert check(TWO, global_rank, host("h", [address])) is None
        assert check(TWO, global_rank, STRANGER, address) is None


def test_a_table_of_one_unknown_server_is_worth_a_warning():
    one = Cluster((server("10.0.40.11"),))
    assert check(one, 0, host()) == (
        "server 10.0.40.11 of the rank table does not seem to be this machine, h1 (to confirm that it is: --server 10.0.40.11)"
    )
    assert check(one, 0, host("a", ["10.0.40.11"]), local_size=1) is None


@pytest.mark.parametrize("name", ["10.0.40.11", "127.0.0.1", "localhost"])
def test_ranks_of_one_server_that_were_spread_are_refused(name):
    one = Cluster((server(name, count=4),))
    spread = "the rank table has one server with 4 ranks, but the engine started only 2 on this machine"
    with pytest.raises(RefusedLayoutError, match=spread):
        check(one, 0, host())
    assert check(one, 0, host(), name) is None


def test_many_servers_are_not_all_listed():
    many = Cluster(tuple(server(f"10.0.0.{index}", first=2 * index) for index in range(1, 10)))
    with pytest.raises(RefusedLayoutError) as error:
        check(many, 2, host())
    assert "10.0.0.4 slots=2 and 5 more" in error.value.hint


@pytest.mark.parametrize(("names", "index", "interface"), [
    (["127.0.0.1"], 0, None),  # the ranks of one server meet on loopback
    (["127.0.0.1", "127.0.0.2"], 1, "lo"),  # tried by hand; the kernel of this machine is asked which one that is
    (["localhost", "192.0.2.1"], 0, None),  # it is resolved to loopback, by which no other server is reached
])  # fmt: skip
def test_servers_reach_each_other_by_the_interface_of_their_addresses(names, index, interface):
    assert own_interface(list(map(server, names)), index) == interface


@pytest.mark.parametrize(
    ("name", "here"),
    [*((name, True) for name in ("127.0.0.1", "::1", "localhost", os.uname().nodename)),
     ("192.0.2.1", False), ("no-such-host.invalid", False)],
)  # fmt: skip
def test_this_machine_is_here_by_its_names_and_by_loopback(name, here):
    assert host_match.is_local(name) is here
