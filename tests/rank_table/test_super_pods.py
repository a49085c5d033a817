"""v1.2: the records that super pods become, and where they do not matter. Their rules are in test_rules.py."""

from __future__ import annotations

import pytest

from launcher.rank_table.table_format import Format

from .tables import DROP, pods


def of_devices(key, value, servers, devices=2):
    return {f"d{server}.{device}/{key}": value for server in range(servers) for device in range(devices)}


def test_super_pods_become_records(report):
    """Servers know their super pod, and devices their number in it, as written."""
    found = report(pods().make())
    assert (found.format, found.servers, found.devices) == (Format.V1_2, 4, 8)
    assert [server.super_pod_id for server in found.cluster.servers] == ["0", "0", "1", "1"]
    assert [one.super_device_id for one in found.cluster.servers[3].devices] == ["2", "3"]


def test_server_of_two_super_pods_is_in_the_last(report):
    """HCCL takes the last super pod that names a server, and so do the records."""
    found = report(pods(2, 1, 2).make({"p0/server_list": lambda old: [*old, {"server_id": "10.0.0.2"}]}))
    assert [problem.code for problem in found.problems] == ["RT421"]
    assert [server.super_pod_id for server in found.cluster.servers] == ["0", "1"]


def test_two_super_pods_without_names_get_different_ones(report):
    """Following both hints does not give two super pods one name."""
    problems = report(pods().make({"p0/super_pod_id": "", "p1/super_pod_id": ""})).problems
    assert [problem.hint.split('"')[1] for problem in problems] == ["0", "1"]


def test_single_super_pod_needs_no_device_ip(report):
    """Inside one super pod devices do not talk over their network cards."""
    assert report(pods(1, 3, 2).make(of_devices("device_ip", DROP, 3))).problems == ()


def test_without_super_pods_nothing_is_asked_for(report):
    """A v1.2 table may leave super_pod_list and super_device_id out."""
    found = report(pods(0, 4).make(of_devices("super_device_id", DROP, 4)))
    assert found.problems == ()
    assert [server.super_pod_id for server in found.cluster.servers] == [None] * 4


@pytest.mark.parametrize("chip", ["910", "a2", "300i"])
def test_other_chips_skip_super_pods(chip, report):
    """HCCL reads super_pod_list on an A3 alone, so its faults are none elsewhere."""
    table = pods().make({"m1.0/server_id": "unknown", "d0.0/super_device_id": DROP})
    assert report(table, chip="a3").cluster is None
    assert report(table, chip=chip).problems == ()


def test_v1_0_table_with_super_pods_is_told_the_version(report):
    """HCCL skips super pods in a v1.0 table; the hint names the version that has them."""
    found = report(pods().make({"version": "1.0"}))
    assert [(problem.code, problem.pointer) for problem in found.problems] == [("RT423", "/super_pod_list")]
    assert [server.super_pod_id for server in found.cluster.servers] == [None] * 4
    assert report(pods().make({"version": found.problems[0].hint.split('"')[1]})).problems == ()


def test_unknown_keys_of_super_pods_are_said(report):
    """A misspelt key inside super_pod_list is found as it is elsewhere."""
    (problem,) = report(pods().make({"p0/superpod_id": "0"})).problems
    assert (problem.code, problem.pointer) == ("RT401", "/super_pod_list/0/superpod_id")
    assert "super_pod_id" in problem.hint
