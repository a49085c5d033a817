"""v1.1: what the rows become, keys that must be there, and strange documents. Its rules are in test_rules.py."""

from __future__ import annotations

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.table_format import Format


def node(table, number=0):
    return table["node_list"][number]


def rank(table, number=0, index=0):
    return node(table, number)["ranks"][index]


def put(holder, **values):
    """Set values, or take keys away where the value is None."""
    holder.update({key: value for key, value in values.items() if value is not None})
    for key in [key for key, value in values.items() if value is None]:
        holder.pop(key, None)


def test_nodes_may_have_different_numbers_of_ranks(nodes, report):
    """HCCL neither compares nor counts them in this format, not even on a 910, for a rank may compute on the host."""
    table = nodes(2, 3)
    node(table, 1)["ranks"].pop()
    assert report(table, chip="910").errors == ()


@pytest.mark.parametrize("key", ["device_id", "rank_ip", "port", "sdid"])
def test_sub_version_makes_keys_mandatory(key, nodes, report):
    """Each of the keys that a rank may lack is missed once the table has a heterog_sub_version."""
    table = nodes(1, 2, "1.2")
    del rank(table)[key]
    (problem,) = report(table).problems
    assert problem.message == f"{key} is missing here"
    put(table, heterog_sub_version=None)
    assert report(table).valid


def test_cluster_of_a_plain_table(nodes, report):
    """Nodes become servers; a rank without device_id is one on the host; port 0 and an empty rank_ip are unset."""
    table = nodes(2, 2)
    put(rank(table, 0, 0), port="45000", rank_ip="")
    put(rank(table, 0, 1), device_id=None, rank_ip=None, port="0", sdid="7", bind_device_id="0")
    table.update(mode="rdma", master_ip="10.0.0.1", master_port="18000")
    node(table, 1)["ranks"].reverse()
    found = report(table)
    assert found.format is Format.V1_1
    assert found.problems == ()
    assert found.cluster == Cluster(
        (
            Server("10.0.0.1", (Device(0, 0, options=(("device_port", "45000"),)), Device(-1, 1))),
            Server("10.0.0.2", (Device(0, 2, "192.0.1.0"), Device(1, 3, "192.0.1.1"))),
        ),
        options=(
            ("collective_id", "job"),
            ("master_ip", "10.0.0.1"),
            ("master_port", "18000"),
            ("mode", "rdma"),
        ),
    )


def test_cluster_of_a_table_for_super_pods(nodes, report):
    """With heterog_sub_version the super device and the bound device are kept, "-1" being none."""
    found = report(nodes(1, 2, "1.2"))
    assert found.cluster.servers[0].devices == (
        Device(0, 0, "192.0.0.0", "0"),
        Device(-1, 1, "192.0.0.1", None, (("bind_device_id", "0"),)),
    )
    assert ("heterog_sub_version", "1.2") in found.cluster.options


def test_version_of_super_pods_is_proposed(report):
    """Servers in super pods under version 1.1 belong to a table of version 1.2."""
    table = {"version": "1.1", "status": "completed", "server_list": [], "super_pod_list": []}
    (problem,) = report(table).problems
    assert (problem.code, problem.hint) == ("RT351", 'write "1.2"')
