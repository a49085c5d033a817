"""Which interface ranks reach other servers by: decided from addresses alone, and what this machine's kernel tells."""

import os
import shutil
import socket
import subprocess
import sys
from ipaddress import ip_address

import psutil
import pytest

from launcher.core.machine import interfaces
from launcher.core.records import Device, Server

LOOPBACK = ("lo", "127.0.0.1/8"), ("lo", "::1/128")
ETHERNET = ("eth0", "10.77.0.1/24")
FABRIC = ("ib0", "10.88.0.1/24")
FABRIC_6 = ("ib0", "fd00:88::1/64")


def held(*entries):
    made = []
    for label, text in (*entries, *LOOPBACK):
        address, _, prefix = text.partition("/")
        made.append(interfaces.Held(label.partition(":")[0], label, ip_address(address), int(prefix)))
    return made


def means(**names):
    return {name: frozenset(map(ip_address, addresses)) for name, addresses in names.items()}


BOTH = (ETHERNET, FABRIC)


@pytest.mark.parametrize(("called", "entries", "meanings", "expected"), [
    (("10.88.0.1",), BOTH, {}, "ib0"), (("10.77.0.1",), BOTH, {}, "eth0"),
    (("h1", "10.88.0.1"), BOTH, means(h1=["10.77.0.1"]), "ib0"),  # an address before a name
    (("10.88.0.1", "10.77.0.1"), BOTH, {}, "ib0"),  # the first address
    (("203.0.113.7", "10.88.0.1"), BOTH, {}, "ib0"),  # the first that is here
    (("h1",), BOTH, means(h1=["10.88.0.1"]), "ib0"),  # what the name means
    (("h1",), BOTH, means(h1=["127.0.1.1"]), None),  # Debian's own name
    (("h1",), BOTH, means(h1=["127.0.1.1", "10.88.0.1"]), "ib0"),
    (("h1",), BOTH, means(h1=["10.77.0.1", "10.88.0.1"]), None),  # a name of two networks
    (("h1",), BOTH, means(h1=[]), None),
    (("h1",), BOTH, {}, None),  # nobody has asked for its meaning
    (("203.0.113.7",), BOTH, {}, None),  # a translated address
    (("10.88.0.1",), (FABRIC, ("ib1", "10.88.0.1/24")), {}, None),  # an address of two interfaces
    (("10.88.0.1",), (ETHERNET, ("bond0.7", "10.88.0.1/24")), {}, "bond0.7"),  # a virtual network
    (("fd00:88:0::1",), (ETHERNET, FABRIC_6), {}, "ib0"),  # IPv6, written otherwise
    (("fd00:88::1",), (FABRIC, FABRIC_6), {}, None),  # IPv6, where libraries would take IPv4
    (("10.77.0.9",), (ETHERNET, ("eth0:1", "10.77.0.9/24")), {}, "eth0"),  # an alias in the same network
    (("10.88.0.1",), (ETHERNET, ("eth0:1", "10.88.0.1/24")), {}, None),  # an alias in another network
    (("10.88.0.1",), (ETHERNET, ("eth0", "10.88.0.1/24")), {}, None),  # the second network of a card
    (("127.0.0.1",), (ETHERNET,), {}, None),  # loopback among other servers
    ((), (ETHERNET,), {}, None),
    (("10.88.0.1",), (), {}, None),
])  # fmt: skip
def test_the_interface_is_the_one_that_alone_has_the_address_of_the_table(called, entries, meanings, expected):
    assert interfaces.interface_of(called, held(*entries), meanings) == expected


@pytest.mark.parametrize(("names", "loopback"), [
    (("127.0.0.1", "127.0.0.2"), True), (("::1", "localhost"), True), (("127.0.0.1", "10.0.0.2"), False),
    (("h1", "h2"), False),
])  # fmt: skip
def test_servers_that_are_all_on_loopback_reach_each_other_by_it(names, loopback):
    servers = [Server(name, (Device(0, rank),)) for rank, name in enumerate(names)]
    assert interfaces.are_on_loopback(servers) is loopback
    own = ("127.0.0.1", "127.0.0.2")
    assert all(interfaces.interface_of((address,), held(ETHERNET), {}, on_loopback=True) == "lo" for address in own)


def test_each_library_is_told_the_whole_name_as_it_reads_it():
    """Of NCCL and HCCL ib1 would be ib10 too."""
    assert interfaces.interface_variables("ib1") == {
        "GLOO_SOCKET_IFNAME": "ib1", "TP_SOCKET_IFNAME": "ib1", "NCCL_SOCKET_IFNAME": "=ib1", "HCCL_SOCKET_IFNAME": "=ib1",
    }  # fmt: skip
    assert interfaces.interface_variables(None) == {}


def test_the_kernel_tells_what_getifaddrs_tells_in_its_order():
    families = {socket.AF_INET, socket.AF_INET6}
    expected = {
        name: [entry.address.partition("%")[0] for entry in entries if entry.family in families]
        for name, entries in psutil.net_if_addrs().items()
    }
    found = {name: [str(one.address) for one in interfaces.held_addresses() if one.label == name] for name in expected}
    assert found == expected
    assert {one.prefix for one in interfaces.held_addresses() if str(one.address) == "127.0.0.1"} == {8}


def test_an_alias_is_an_address_of_its_interface():
    if os.geteuid() or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("making interfaces needs root, unshare and ip")
    setup = 'ip addr add 10.9.0.1/24 dev lo && ip addr add 10.9.1.1/16 dev lo label lo:1 && exec "$@"'
    program = (
        "from launcher.core.machine.interfaces import held_addresses as held\n"
        "print(*[(one.interface, one.label, str(one.address), one.prefix) for one in held()])"
    )
    words = ["unshare", "--net", "sh", "-c", setup, "sh", sys.executable, "-c", program]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no interface can be made here: {done.stderr}")
    assert done.stdout == "('lo', 'lo', '10.9.0.1', 24) ('lo', 'lo:1', '10.9.1.1', 16)\n"


def test_traffic_is_counted_both_ways(tmp_path):
    written = tmp_path / "dev"
    written.write_text(
        "Inter-|   Receive                    |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls\n"
        "    lo:     100 1 0 0 0 0 0 0      100 1 0 0 0 0 0 0\n"
        "enp129s0f0: 7 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n"
    )
    assert interfaces.traffic(written) == {"lo": 200, "enp129s0f0": 12}
    assert interfaces.traffic(tmp_path / "none") == {}
    assert "lo" in interfaces.traffic()
