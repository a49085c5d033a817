"""v1.1: what the rows become, keys that must be there, and strange documents. Its rules are in test_rules.py."""

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.table_format import Format

from .tables import DROP, backwards, nodes, without_last


def test_nodes_may_have_different_numbers_of_ranks(report):
    """HCCL neither compares nor counts them in this format, not even on a 910, for a rank may compute on the host."""
    assert report(nodes(2, 3).make({"n1/ranks": without_last}), chip="910").errors == ()


@pytest.mark.parametrize("key", ["device_id", "rank_ip", "port", "sdid"])
def test_sub_version_makes_keys_mandatory(key, report):
    lacking = {f"r0.0/{key}": DROP}
    (problem,) = report(nodes(1, 2, "1.2").make(lacking)).problems
    assert problem.message == f"{key} is missing here"
    assert report(nodes(1, 2, "1.2").make({**lacking, "heterog_sub_version": DROP})).valid


def test_cluster_of_a_plain_table(report):
    of_table = {"mode": "rdma", "master_ip": "10.0.0.1", "master_port": "18000", "n1/ranks": backwards}
    first = {"r0.0/port": "45000", "r0.0/rank_ip": ""}
    on_host = {"device_id": DROP, "rank_ip": DROP, "port": "0", "sdid": "7", "bind_device_id": "0"}
    second = {f"r0.1/{key}": value for key, value in on_host.items()}
    found = report(nodes(2, 2).make({**of_table, **first, **second}))
    assert found.format is Format.V1_1
    assert found.problems == ()
    assert found.cluster == Cluster(
        (
            Server("10.0.0.1", (Device(0, 0, options=(("device_port", "45000"),)), Device(-1, 1))),
            Server("10.0.0.2", (Device(0, 2, "192.0.1.0"), Device(1, 3, "192.0.1.1"))),
        ),
        options=(("collective_id", "job"), ("master_ip", "10.0.0.1"), ("master_port", "18000"), ("mode", "rdma")),
    )


def test_cluster_of_a_table_for_super_pods(report):
    found = report(nodes(1, 2, "1.2").make())
    assert found.cluster.servers[0].devices == (
        Device(0, 0, "192.0.0.0", "0"),
        Device(-1, 1, "192.0.0.1", None, (("bind_device_id", "0"),)),
    )
    assert ("heterog_sub_version", "1.2") in found.cluster.options


def test_version_of_super_pods_is_proposed(report):
    (problem,) = report({"version": "1.1", "status": "completed", "server_list": [], "super_pod_list": []}).problems
    assert (problem.code, problem.hint) == ("RT351", 'write "1.2"')
