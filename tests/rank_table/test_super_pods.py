"""v1.2: the records that super pods become, and where they do not matter. Their rules are in test_rules.py."""

from __future__ import annotations

import pytest

from launcher.rank_table.table_format import Format


def device(table, server=0, index=0):
    return table["server_list"][server]["device"][index]


def pod(table, number=0):
    return table["super_pod_list"][number]


def test_super_pods_become_records(pods, report):
    """Servers know their super pod, and devices their number in it, as written."""
    found = report(pods())
    assert (found.format, found.servers, found.devices) == (Format.V1_2, 4, 8)
    assert [server.super_pod_id for server in found.cluster.servers] == ["0", "0", "1", "1"]
    assert [one.super_device_id for one in found.cluster.servers[3].devices] == ["2", "3"]


def test_server_of_two_super_pods_is_in_the_last(pods, report):
    """HCCL takes the last super pod that names a server, and so do the records."""
    table = pods(2, 1, 2)
    pod(table, 0)["server_list"].append({"server_id": "10.0.0.2"})
    found = report(table)
    assert [problem.code for problem in found.problems] == ["RT421"]
    assert [server.super_pod_id for server in found.cluster.servers] == ["0", "1"]


def test_two_super_pods_without_names_get_different_ones(pods, report):
    """Following both hints does not give two super pods one name."""
    table = pods()
    pod(table, 0)["super_pod_id"] = ""
    pod(table, 1)["super_pod_id"] = ""
    hints = [problem.hint.split('"')[1] for problem in report(table).problems]
    assert hints == ["0", "1"]


def test_single_super_pod_needs_no_device_ip(pods, report):
    """Inside one super pod devices do not talk over their network cards."""
    table = pods(1, 3, 2)
    for server in table["server_list"]:
        for one in server["device"]:
            del one["device_ip"]
    assert report(table).problems == ()


def test_without_super_pods_nothing_is_asked_for(pods, report):
    """A v1.2 table may leave super_pod_list and super_device_id out."""
    table = pods()
    del table["super_pod_list"]
    for server in table["server_list"]:
        for one in server["device"]:
            del one["super_device_id"]
    found = report(table)
    assert found.problems == ()
    assert [server.super_pod_id for server in found.cluster.servers] == [None] * 4


@pytest.mark.parametrize("chip", ["910", "a2", "300i"])
def test_other_chips_skip_super_pods(chip, pods, report):
    """HCCL reads super_pod_list on an A3 alone, so its faults are none elsewhere."""
    table = pods()
    pod(table, 1)["server_list"][0]["server_id"] = "unknown"
    del device(table)["super_device_id"]
    assert report(table, chip="a3").cluster is None
    assert report(table, chip=chip).problems == ()


def test_v1_0_table_with_super_pods_is_told_the_version(pods, report):
    """HCCL skips super pods in a v1.0 table; the hint names the version that has them."""
    table = pods()
    table["version"] = "1.0"
    found = report(table)
    assert [(problem.code, problem.pointer) for problem in found.problems] == [("RT423", "/super_pod_list")]
    assert [server.super_pod_id for server in found.cluster.servers] == [None] * 4
    table["version"] = found.problems[0].hint.split('"')[1]
    assert report(table).problems == ()


def test_unknown_keys_of_super_pods_are_said(pods, report):
    """A misspelt key inside super_pod_list is found as it is elsewhere."""
    table = pods()
    pod(table)["superpod_id"] = "0"
    (problem,) = report(table).problems
    assert (problem.code, problem.pointer) == ("RT401", "/super_pod_list/0/superpod_id")
    assert "super_pod_id" in problem.hint
