"""Tables that say themselves that they are not for Ascend devices."""

from __future__ import annotations

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.convert import marked_without_ascend


def servers(*made):
    return Cluster(tuple(made))


def test_servers_without_addresses_are_marked():
    """Every server says cpu, but for one that says something itself; a note says so."""
    gpu = Server("b", (Device(0, 1),), options=(("hardware_type", "gpu"),))
    named = Server("a", (Device(0, 0),), options=(("server_ip", "10.0.0.1"),))
    cluster, notes = marked_without_ascend(servers(named, gpu), "v1.0")
    assert cluster.servers[0].options == (("hardware_type", "cpu"), ("server_ip", "10.0.0.1"))
    assert cluster.servers[1] == gpu
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("cluster", "target"),
    [
        (servers(Server("a", (Device(0, 0),))), "v1.0"),
        (servers(Server("a", (Device(0, 0),)), Server("b", (Device(0, 1),))), "v1.1"),
        (servers(Server("a", (Device(0, 0), Device(1, 1, "1.2.3.4"))), Server("b", (Device(0, 2),))), "v1.0"),
        (
            servers(Server("a", (Device(0, 0),), host_ip="1.2.3.4"), Server("b", (Device(0, 1),), host_ip="1.2.3.5")),
            "v1.2",
        ),
    ],
    ids=["one server", "no place for it", "a device has an address", "servers have addresses"],
)
def test_what_hccl_might_use_is_not_marked(cluster, target):
    """One server, addresses anywhere, or a format without the key: nothing changes, and nothing is said."""
    assert marked_without_ascend(cluster, target) == (cluster, ())
