"""What becomes of tables without a version: rows, servers put together, ranks of a cloud, and strange documents."""

import json
from pathlib import Path

import pytest

from launcher.rank_table import Profile, parse_rank_table
from launcher.rank_table.formats.group_list import group_list_reader as group_list
from launcher.rank_table.schema import Shapes
from launcher.rank_table.table_format import Format

from . import tables
from .tables import BOARD, make_groups


def read(document, **profile):
    text = document if isinstance(document, str) else json.dumps(document)
    return parse_rank_table(text.encode(), Path("-"), Profile(**profile))


def pod(name, server_id, *devices):
    entries = [{"device_id": str(device), "device_ip": f"192.{device % 4 + 1}.0.{ord(name)}"} for device in devices]
    return {"pod_name": name, "server_id": server_id, "devices": entries}


def cloud(*groups):
    """A cloud's table with these lists of pods."""
    return make_groups([(f"group{number}", list(pods)) for number, pods in enumerate(groups)], "device_count")


def lab(*instances, chip_info="910"):
    """A lab's table of these (rank, server_id, device_id)."""
    entries = [
        {"rank_id": str(rank), "server_id": server_id, "devices": [{"device_id": str(device), "device_ip": ""}]}
        for rank, server_id, device in instances
    ]
    return {**BOARD, "chip_info": chip_info, **make_groups([("", entries)], "device_num", "server_num")}


def test_ranks_of_a_cloud_follow_names_and_devices():
    found = read(cloud([pod("b", "10.0.0.9", 1, 0), pod("a", "10.0.0.10", 5, 4)]))
    assert found.format is Format.CLOUD
    assert found.problems == ()
    ranks = [(server.server_id, [(one.device_id, one.global_rank) for one in server.devices])
             for server in found.cluster.servers]  # fmt: skip
    assert ranks == [("10.0.0.9", [(0, 2), (1, 3)]), ("10.0.0.10", [(4, 0), (5, 1)])]


def test_pods_of_one_server_become_one_server():
    found = read(cloud([pod("a", "host", 0, 1)], [pod("b", "host", 2, 3)]))
    assert found.problems == ()
    assert [server.server_id for server in found.cluster.servers] == ["host"]
    assert [one.global_rank for one in found.cluster.servers[0].devices] == [0, 1, 2, 3]
    assert (found.servers, found.devices) == (1, 4)


def test_addresses_of_a_lone_pod_are_not_looked_at():
    table = cloud([pod("a", "host", 0, 1, 2, 3)])
    devices = table["group_list"][0]["instance_list"][0]["devices"]
    for one, value in zip(devices, ["x", 5, "x"], strict=False):
        one["device_ip"] = value
    del devices[3]["device_ip"]
    assert read(table).problems == ()


def test_rank_in_a_device_of_a_cloud_means_nothing():
    table = cloud([pod("a", "host", 0)])
    table["group_list"][0]["instance_list"][0]["devices"][0]["rank_id"] = "first"
    found = read(table)
    assert [problem.code for problem in found.problems] == ["RT401"]
    assert found.cluster is not None


def test_ranks_of_a_lab_are_those_of_its_instances():
    table = lab((3, "b", 1), (0, "a", 0), (1, "a", 1), (2, "b", 0))
    # The network cards that may be listed with the servers are left alone, whatever they are.
    card = {"eth0": "192.168.200.2"}
    table["group_list"][0]["server_list"] = [{"server_id": "b", "para_plane_info": [card, card]}]
    found = read(table)
    assert found.format is Format.LAB
    assert found.problems == ()
    ranks = [(server.server_id, [(one.device_id, one.global_rank) for one in server.devices])
             for server in found.cluster.servers]  # fmt: skip
    assert ranks == [("b", [(0, 2), (1, 3)]), ("a", [(0, 0), (1, 1)])]


def test_row_of_a_lab_points_at_both_of_its_objects():
    (device,) = group_list.read_lab(lab((0, "a", 4)), Shapes()).devices
    assert device.at("device_id") == ("group_list", 0, "instance_list", 0, "devices", 0, "device_id")
    assert device.at("rank_id") == ("group_list", 0, "instance_list", 0, "rank_id")
    assert (device.written("rank_id"), device.written("device_id")) == ("0", "4")


@pytest.mark.parametrize(("chip_info", "chip", "valid"), [
    ("910", "auto", False), ("910", "300i", True), ("310P3", "auto", True), ("310P3", "910", False),
    ("910B", "auto", False),
])  # fmt: skip
def test_chip_info_says_what_to_check_for(chip_info, chip, valid):
    table = lab(*((rank, "10.0.0.10", rank * 2) for rank in range(5)), chip_info=chip_info)
    assert read(table, chip=chip).valid is valid


def test_instance_moved_to_another_server_is_no_fault_of_server_num(report):
    broken = tables.lab(2, 8).make({"i0.3/server_id": "10.0.0.15"})
    codes = {problem.code for problem in report(broken).errors}
    assert "RT342" in codes
    assert "RT604" not in codes
