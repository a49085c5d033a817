"""v1.2: the records that super pods become, and where they do not matter. Their rules are in test_rules.py."""

import pytest

from launcher.rank_table.table_format import Format

from .tables import DROP, pods


def of_devices(key, value, servers, devices=2):
    return {f"d{server}.{device}/{key}": value for server in range(servers) for device in range(devices)}


@pytest.mark.parametrize(("table", "codes", "super_pods"), [
    (pods().make(), [], ["0", "0", "1", "1"]),
    (pods(2, 1, 2).make({"p0/server_list": lambda old: [*old, {"server_id": "10.0.0.2"}]}), ["RT421"], ["0", "1"]),
    (pods(0, 4).make(of_devices("super_device_id", DROP, 4)), [], [None] * 4),
    (pods(1, 3, 2).make(of_devices("device_ip", DROP, 3)), [], ["0"] * 3),
], ids=["two", "the last one that names a server", "none is asked for", "a single one needs no device_ip"])  # fmt: skip
def test_servers_know_their_super_pod(table, codes, super_pods, report):
    found = report(table)
    assert [problem.code for problem in found.problems] == codes
    assert [server.super_pod_id for server in found.cluster.servers] == super_pods


def test_devices_know_their_number_in_a_super_pod(report):
    found = report(pods().make())
    assert (found.format, found.servers, found.devices) == (Format.V1_2, 4, 8)
    assert [one.super_device_id for one in found.cluster.servers[3].devices] == ["2", "3"]


def test_two_super_pods_without_names_get_different_ones(report):
    problems = report(pods().make({"p0/super_pod_id": "", "p1/super_pod_id": ""})).problems
    assert [problem.hint.split('"')[1] for problem in problems] == ["0", "1"]


@pytest.mark.parametrize("chip", ["910", "a2", "300i"])
def test_other_chips_skip_super_pods(chip, report):
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
    (problem,) = report(pods().make({"p0/superpod_id": "0"})).problems
    assert (problem.code, problem.pointer) == ("RT401", "/super_pod_list/0/superpod_id")
    assert "super_pod_id" in problem.hint
