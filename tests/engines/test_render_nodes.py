"""Which nodes a job of Slurm asks for: what a rank table says that holds on its own servers alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.errors import UsageError
from launcher.core.records import Cluster, Device, Server
from launcher.engines.render.nodes import nodes_for, pods_note, unnamed_cluster
from tests.servers import server


def cluster(*servers):
    return Cluster(servers, Path("table.json"))


PLAIN = cluster(server("h2", 0, options=(("hardware_type", "gpu"),)), server("h1.example.org", 2))


def asked(of, *, pinned=False, chosen_by_hand=False, used=None):
    return nodes_for(of, used or of, pinned=pinned, chosen_by_hand=chosen_by_hand)


def test_a_table_of_names_and_counts_leaves_nodes_to_slurm():
    nodes = asked(PLAIN)
    assert (nodes.names, nodes.devices_per_node) == ((), 2)
    assert "any 2 nodes" in nodes.note
    assert "to run on h2,h1, add --pin-nodes" in nodes.note
    for chosen_by_hand in (False, True):
        nodes = asked(PLAIN, pinned=True, chosen_by_hand=chosen_by_hand)
        assert (nodes.names, nodes.devices_per_node, nodes.note) == (("h2", "h1"), None, "")


def with_device(**more):
    return Server("h1", (Device(**{"device_id": 0, "global_rank": 0, **more}),))


@pytest.mark.parametrize(
    "first",
    [
        with_device(device_ip="192.168.0.1"), with_device(super_device_id="7"), with_device(options=(("port", "1"),)),
        with_device(device_id=4), server("h1", 0, 1, host_ip="10.0.0.1"), server("h1", 0, 1, host_nic_ip="10.0.0.1"),
        server("h1", 0, 1, super_pod_id="0"), server("h1", 0, 1, options=(("container_ip", "10.0.0.1"),)),
    ],
    ids=["device_ip", "super_device_id", "port", "device_id", "host_ip", "host_nic_ip", "super_pod_id", "container_ip"],
)  # fmt: skip
def test_what_holds_on_the_table_s_own_servers_alone_keeps_the_job_there(first):
    """HCCL talks to these addresses, and a job on other nodes would be refused when it starts."""
    nodes = asked(cluster(first, server("h2", 1, 1)))
    assert (nodes.names, nodes.devices_per_node) == (("h1", "h2"), None)
    assert "runs only on h1,h2" in nodes.note
    assert "--nodes 2" in nodes.note


@pytest.mark.parametrize("servers", [
    (server("h1", 0, 2), server("h2", 2, 1)),
    (Server("h1", (Device(0, 0), Device(1, 2))), Server("h2", (Device(0, 1), Device(1, 3)))),
], ids=["unequal", "turns"])  # fmt: skip
def test_ranks_that_any_nodes_would_not_get_so_keep_the_job_there(servers):
    assert asked(cluster(*servers)).names == ("h1", "h2")


@pytest.mark.parametrize("more", [{}, {"host_ip": "\x1b]0;x"}], ids=["any", "kept"])
def test_a_terminal_is_told_of_odd_names_as_they_are_written(more):
    table = replace(cluster(server("h\x1b[2J", 0, **more)), source=Path("t\x1b[1m.json"))
    note = asked(table).note
    assert "h\\x1b[2J" in note
    assert "\x1b" not in note


def test_addresses_cannot_be_asked_for():
    table = cluster(server("10.0.0.1", 0), server("10.0.0.2", 2))
    nodes = asked(table)
    assert (nodes.names, nodes.devices_per_node) == ((), None)
    assert nodes.note.startswith("warning: ")
    assert "--nodelist" in nodes.note
    assert asked(table, chosen_by_hand=True).note == ""
    with pytest.raises(UsageError) as refused:
        asked(table, pinned=True)
    assert "10.0.0.1" in refused.value.message


def test_only_servers_with_ranks_are_asked_for():
    used = replace(PLAIN, servers=PLAIN.servers[:1])
    assert asked(PLAIN, pinned=True, used=used).names == ("h2",)
    assert asked(PLAIN, used=used).devices_per_node == 2
    made = unnamed_cluster(3, 4)
    assert [len(each.devices) for each in made.servers] == [4, 4, 4]
    assert asked(made).devices_per_node == 4
    with pytest.raises(UsageError):
        asked(made, pinned=True)
    with pytest.raises(UsageError, match="2,000,000"):
        unnamed_cluster(2000, 1000)


@pytest.mark.parametrize(("first", "told"), [
    (with_device(device_ip="192.168.0.1"), "device_ip 192.168.0.1"),
    (server("h1", 0, 1, host_ip="10.0.0.1"), "host_ip 10.0.0.1"),
    (server("h1", 0, 1, host_nic_ip="10.0.0.9"), "host_nic_ip 10.0.0.9"),
    (server("h1", 0, 1, options=(("container_ip", "10.0.0.1"),)), "container_ip 10.0.0.1"),
])  # fmt: skip
def test_addresses_of_other_machines_in_pods_are_told(first, told):
    note = pods_note(cluster(server("h2", 1, 1), first))
    assert note.startswith(f"warning: the rank table has {told}, but Kubernetes may place")
    assert pods_note(PLAIN) == pods_note(cluster(with_device(super_device_id="7"))) == ""
    assert pods_note(cluster(server("10.0.0.1"))) == ""  # it is no more than a label there
