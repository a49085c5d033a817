"""Rules for the formats without a version: a small table that breaks each, a twin that does not, and its hint."""

from __future__ import annotations

import copy
import json
import re

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.catalogue import CATALOGUE
from launcher.rank_table.formats.group_list import rules as group_list
from launcher.rank_table.formats.group_list.write import write_cloud, write_lab

WRITERS = {"lab": write_lab, "cloud": write_cloud}


def make(kind, servers=1, devices=2):
    """A valid table as plain JSON values, to be broken by a test."""
    cluster = Cluster(
        tuple(
            Server(
                f"10.0.0.{server + 1}",
                tuple(
                    Device(device, server * devices + device, f"192.{device % 4 + 1}.0.{server * 8 + device + 1}")
                    for device in range(devices)
                ),
            )
            for server in range(servers)
        )
    )
    return json.loads(WRITERS[kind](cluster))


def group(table, number=0):
    return table["group_list"][number]


def instance(table, number=0, in_group=0):
    return group(table, in_group)["instance_list"][number]


def device(table, of_instance=0, number=0):
    return instance(table, of_instance)["devices"][number]


def put(holder, key, value):
    """Set a value, or take the key away when the value is None."""
    if value is None:
        holder.pop(key, None)
    else:
        holder[key] = value


def split(table, sizes, names=("", "second")):
    """Make one group into several, with counts that fit."""
    old = group(table)
    rest = iter(old["instance_list"])
    groups = []
    for size, name in zip(sizes, names, strict=True):
        instances = [next(rest) for _ in range(size)]
        count = str(sum(len(one["devices"]) for one in instances))
        new = {"group_name": name, "instance_count": str(size), "instance_list": instances}
        servers = str(len({one["server_id"] for one in instances}))
        new |= {"device_num": count, "server_num": servers} if "device_num" in old else {"device_count": count}
        groups.append(new)
    table["group_list"], table["group_count"] = groups, str(len(groups))


def join_first_two(table):
    """One instance with two devices out of two instances with one each, counted as one."""
    group(table)["instance_list"].pop(1)
    instance(table)["devices"].append({"device_id": "1", "device_ip": ""})
    group(table).update(instance_count="1", device_num="1")


# code, kind, servers, devices on each, chip; how to break the table, how to make its valid twin; where it shows
CASES = {
    "fewer groups than written": (
        ("RT601", "cloud", 2, 1, "auto"),
        lambda t: put(t, "group_count", "2"),
        lambda t: split(t, (1, 1)),
        "/group_count",
    ),
    "no groups": (
        ("RT601", "lab", 1, 1, "auto"),
        lambda t: put(t, "group_count", "0"),
        lambda t: put(t, "group_count", "1"),
        "/group_count",
    ),
    "instance_count": (
        ("RT602", "cloud", 2, 1, "auto"),
        lambda t: put(group(t), "instance_count", "1"),
        lambda t: put(group(t), "instance_count", "2"),
        "/group_list/0/instance_count",
    ),
    "instance_count of a lab is no number": (
        ("RT602", "lab", 1, 2, "auto"),
        lambda t: put(group(t), "instance_count", "two"),
        lambda t: None,
        "/group_list/0/instance_count",
    ),
    "device_num": (
        ("RT603", "lab", 1, 2, "auto"),
        lambda t: put(group(t), "device_num", "4"),
        lambda t: None,
        "/group_list/0/device_num",
    ),
    "device_count": (
        ("RT603", "cloud", 2, 2, "auto"),
        lambda t: put(group(t), "device_count", "2"),
        lambda t: split(t, (1, 1)),
        "/group_list/0/device_count",
    ),
    "server_num": (
        ("RT604", "lab", 2, 2, "auto"),
        lambda t: put(group(t), "server_num", "1"),
        lambda t: None,
        "/group_list/0/server_num",
    ),
    "server_num is 0": (
        ("RT604", "lab", 2, 2, "a2"),
        lambda t: put(group(t), "server_num", "0"),
        lambda t: None,
        "/group_list/0/server_num",
    ),
    "server_num too small for an A2": (
        ("RT604", "lab", 2, 2, "a2"),
        lambda t: put(group(t), "server_num", "1"),
        lambda t: None,
        "/group_list/0/server_num",
    ),
    "server_num too large for an A3": (
        ("RT604", "lab", 1, 4, "a3"),
        lambda t: put(group(t), "server_num", "2"),
        lambda t: None,
        "/group_list/0/server_num",
    ),
    "server_num where servers may differ": (
        ("RT604", "lab", 2, 2, "a2"),
        lambda t: put(instance(t, 1), "server_id", "10.0.0.2") or put(device(t, 1), "device_id", "2")
        or put(group(t), "server_num", "4"),
        lambda t: put(instance(t, 1), "server_id", "10.0.0.2") or put(device(t, 1), "device_id", "2"),
        "/group_list/0/server_num",
    ),
    "three devices on each server": (
        ("RT605", "lab", 2, 3, "a3"),
        lambda t: None,
        lambda t: [group(t)["instance_list"].pop() for _ in range(2)]
        and group(t).update(instance_count="4", device_num="4"),
        "/group_list/0/server_num",
    ),
    "devices that cannot be divided": (
        ("RT604", "lab", 2, 4, "a2"),
        lambda t: put(group(t), "server_num", "3"),
        lambda t: None,
        "/group_list/0/server_num",
    ),
    "server in two groups": (
        ("RT606", "lab", 1, 2, "auto"),
        lambda t: split(t, (1, 1)),
        lambda t: put(instance(t, 1), "server_id", "10.0.0.2") or split(t, (1, 1)),
        "/group_list/1/instance_list/0/server_id",
    ),
    "server in two groups of an A3": (
        ("RT606", "lab", 1, 2, "a3"),
        lambda t: split(t, (1, 1)),
        lambda t: put(instance(t, 1), "server_id", "10.0.0.2") or split(t, (1, 1)),
        "/group_list/1/instance_list/0/server_id",
    ),
    "version of a lab's table is no string": (
        ("RT205", "lab", 1, 1, "auto"),
        lambda t: put(t, "version", 1),
        lambda t: None,
        "/version",
    ),
    "version of a cloud's table is null": (
        ("RT205", "cloud", 1, 1, "auto"),
        lambda t: t.update(version=None),
        lambda t: None,
        "/version",
    ),
    "two devices for one rank": (
        ("RT607", "lab", 1, 2, "auto"),
        join_first_two,
        lambda t: None,
        "/group_list/0/instance_list/0/devices",
    ),
    "group_name twice": (
        ("RT611", "cloud", 2, 1, "auto"),
        lambda t: split(t, (1, 1), ("training", "training")),
        lambda t: split(t, (1, 1), ("training", "")),
        "/group_list/1/group_name",
    ),
    "empty group_name twice": (
        ("RT611", "lab", 2, 1, "auto"),
        lambda t: split(t, (1, 1), ("", "")),
        lambda t: split(t, (1, 1), ("group1", "")),
        "/group_list/1/group_name",
    ),
    "pod_name twice": (
        ("RT612", "cloud", 2, 1, "auto"),
        lambda t: put(instance(t, 1), "pod_name", "10.0.0.1"),
        lambda t: put(instance(t, 1), "pod_name", "10.0.0.10"),
        "/group_list/0/instance_list/1/pod_name",
    ),
    "pod_name twice in different groups": (
        ("RT612", "cloud", 2, 1, "auto"),
        lambda t: split(t, (1, 1)) or put(instance(t, 0, 1), "pod_name", "10.0.0.1"),
        lambda t: None,
        "/group_list/1/instance_list/0/pod_name",
    ),
    "pod_name empty": (
        ("RT613", "cloud", 1, 1, "auto"),
        lambda t: put(instance(t), "pod_name", ""),
        lambda t: put(instance(t), "pod_name", "0"),
        "/group_list/0/instance_list/0/pod_name",
    ),
    "pod_name long": (
        ("RT614", "cloud", 1, 1, "auto"),
        lambda t: put(instance(t), "pod_name", "é" * 64),
        lambda t: put(instance(t), "pod_name", "e" * 127),
        "/group_list/0/instance_list/0/pod_name",
    ),
    "group_name long": (
        ("RT614", "lab", 1, 1, "auto"),
        lambda t: put(group(t), "group_name", "g" * 128),
        lambda t: put(group(t), "group_name", "g" * 127),
        "/group_list/0/group_name",
    ),
    "network cards of the host": (
        ("RT615", "lab", 1, 1, "300i"),
        lambda t: put(t, "para_plane_nic_location", "host"),
        lambda t: None,
        "/para_plane_nic_location",
    ),
    "network cards of nobody on a 300I Duo": (
        ("RT615", "lab", 1, 1, "300i"),
        lambda t: put(t, "para_plane_nic_location", "reserved"),
        lambda t: None,
        "/para_plane_nic_location",
    ),
    "network cards of nobody": (
        ("RT615", "lab", 1, 1, "auto"),
        lambda t: put(t, "para_plane_nic_location", "reserved"),
        lambda t: None,
        "/para_plane_nic_location",
    ),
    "chip that nobody knows": (
        ("RT411", "lab", 1, 1, "auto"),
        lambda t: put(t, "chip_info", "Ascend910"),
        lambda t: put(t, "chip_info", None),
        "/chip_info",
    ),
    "number of network cards": (
        ("RT412", "lab", 1, 2, "auto"),
        lambda t: put(t, "para_plane_nic_num", "8"),
        lambda t: put(t, "para_plane_nic_name", []),
        "/para_plane_nic_num",
    ),
    # Rules shared with other formats, where these formats write the same things in other places.
    "rank of a lab twice": (
        ("RT302", "lab", 1, 2, "auto"),
        lambda t: put(instance(t, 1), "rank_id", "0"),
        lambda t: None,
        "/group_list/0/instance_list/1/rank_id",
    ),
    "rank of a lab beyond the last": (
        ("RT301", "lab", 2, 1, "auto"),
        lambda t: put(instance(t, 1), "rank_id", "2"),
        lambda t: None,
        "/group_list/0/instance_list/1/rank_id",
    ),
    "rank of a lab is no number": (
        ("RT321", "lab", 1, 2, "auto"),
        lambda t: put(instance(t, 1), "rank_id", "one"),
        lambda t: None,
        "/group_list/0/instance_list/1/rank_id",
    ),
    "cloud that is not ready": (
        ("RT311", "cloud", 1, 1, "auto"),
        lambda t: put(t, "status", "initializing"),
        lambda t: None,
        "/status",
    ),
    "server without a name": (
        ("RT313", "cloud", 1, 1, "auto"),
        lambda t: put(instance(t), "server_id", ""),
        lambda t: put(instance(t), "server_id", "any name"),
        "/group_list/0/instance_list/0/server_id",
    ),
    "ninth device of a cloud, whatever the chip": (
        ("RT322", "cloud", 1, 1, "a2"),
        lambda t: put(device(t), "device_id", "8"),
        lambda t: put(device(t), "device_id", "7"),
        "/group_list/0/instance_list/0/devices/0/device_id",
    ),
    "device_id of a lab twice": (
        ("RT323", "lab", 1, 2, "auto"),
        lambda t: put(device(t, 1), "device_id", "0"),
        lambda t: None,
        "/group_list/0/instance_list/1/devices/0/device_id",
    ),
    "device_id twice on two pods of a server": (
        ("RT323", "cloud", 2, 1, "auto"),
        lambda t: put(instance(t, 1), "server_id", "10.0.0.1"),
        lambda t: put(instance(t, 1), "server_id", "10.0.0.1") or put(device(t, 1), "device_id", "1"),
        "/group_list/0/instance_list/1/devices/0/device_id",
    ),
    "two addresses where there can be one": (
        ("RT331", "lab", 1, 1, "auto"),
        lambda t: put(device(t), "device_ip", "192.1.0.1,192.1.0.2"),
        lambda t: put(device(t), "device_ip", ""),
        "/group_list/0/instance_list/0/devices/0/device_ip",
    ),
    "address of no device in a lab": (
        ("RT331", "lab", 1, 2, "auto"),
        lambda t: put(device(t, 1), "device_ip", "0.0.0.0"),
        lambda t: put(device(t, 1), "device_ip", ""),
        "/group_list/0/instance_list/1/devices/0/device_ip",
    ),
    "address of no device in a cloud": (
        ("RT331", "cloud", 2, 1, "auto"),
        lambda t: put(device(t, 1), "device_ip", "::"),
        lambda t: put(device(t, 1), "device_ip", ""),
        "/group_list/0/instance_list/1/devices/0/device_ip",
    ),
    "placeholder in a cloud of two pods": (
        ("RT331", "cloud", 2, 1, "auto"),
        lambda t: put(device(t, 1), "device_ip", "-.-.-.-"),
        lambda t: split(t, (1, 1)) or put(instance(t, 0, 1)["devices"][0], "device_ip", "-.-.-.-"),
        "/group_list/0/instance_list/1/devices/0/device_ip",
    ),
    "device_ip missing in a cloud of two pods": (
        ("RT204", "cloud", 2, 1, "auto"),
        lambda t: put(device(t, 1), "device_ip", None),
        lambda t: split(t, (1, 1)) or put(instance(t, 0, 1)["devices"][0], "device_ip", None),
        "/group_list/0/instance_list/1/devices/0",
    ),
    "three devices of a 910": (
        ("RT341", "lab", 1, 3, "auto"),
        lambda t: None,
        lambda t: put(t, "chip_info", "310P3"),
        "/group_list/0/instance_list/0/server_id",
    ),
    "pods of two and one devices": (
        ("RT342", "cloud", 2, 2, "auto"),
        lambda t: instance(t, 1)["devices"].pop() and put(group(t), "device_count", "3"),
        lambda t: None,
        "/group_list/0/instance_list/1/devices",
    ),
    "instance that does not say where it is": (
        ("RT204", "lab", 2, 4, "auto"),
        lambda t: put(instance(t, 5), "server_id", None),
        lambda t: None,
        "/group_list/0/instance_list/5",
    ),
    "instance without devices": (
        ("RT206", "lab", 2, 4, "auto"),
        lambda t: put(instance(t, 7), "devices", []),
        lambda t: None,
        "/group_list/0/instance_list/7/devices",
    ),
    "pod without devices": (
        ("RT206", "cloud", 2, 2, "auto"),
        lambda t: put(instance(t, 1), "devices", []),
        lambda t: None,
        "/group_list/0/instance_list/1/devices",
    ),
    "zero before a count": (
        ("RT404", "cloud", 1, 1, "auto"),
        lambda t: put(group(t), "device_count", "01"),
        lambda t: None,
        "/group_list/0/device_count",
    ),
}  # fmt: skip
NAMES = list(CASES)


def broken_table(name):
    (_, kind, servers, devices, _), break_it, _, _ = CASES[name]
    table = make(kind, servers, devices)
    break_it(table)
    return table


@pytest.mark.parametrize("name", NAMES)
def test_broken_table_shows_one_problem(name, report):
    """A table that breaks one rule shows that rule's code, at the value that breaks it, and nothing else."""
    (code, _, _, _, chip), _, _, pointer = CASES[name]
    problems = report(broken_table(name), chip=chip).problems
    assert [(problem.code, problem.pointer) for problem in problems] == [(code, pointer)]
    assert problems[0].hint


@pytest.mark.parametrize("name", NAMES)
def test_twin_shows_none(name, report):
    """The twin of a broken table, nearest to it among the valid ones, is accepted without a word."""
    (_, kind, servers, devices, chip), _, make_twin, _ = CASES[name]
    twin = make(kind, servers, devices)
    make_twin(twin)
    found = report(twin, chip=chip)
    assert found.problems == ()
    assert found.cluster is not None


@pytest.mark.parametrize("name", NAMES)
def test_hint_that_names_a_value_makes_the_table_valid(name, report):
    """Writing the value that a hint names removes the problem."""
    (_, _, _, _, chip), _, _, pointer = CASES[name]
    broken = broken_table(name)
    (problem,) = report(broken, chip=chip).problems
    written = re.match(r'write "([^"]*)"', problem.hint)
    if written is None:
        assert problem.hint  # it asks for something that only the reader knows, such as an address
        return
    mended = copy.deepcopy(broken)
    *way, key = pointer.split("/")[1:]
    holder = mended
    for part in way:
        holder = holder[int(part)] if isinstance(holder, list) else holder[part]
    holder[key] = written.group(1)
    assert report(mended, chip=chip).problems == ()


def test_every_rule_of_these_formats_has_a_case():
    """No rule for these formats enters the catalogue without a table that breaks it."""
    own = {code for code, entry in CATALOGUE.items() if entry.check and entry.check.__module__ == group_list.__name__}
    assert own
    assert own <= {case[0][0] for case in CASES.values()}


def test_instance_moved_to_another_server_is_no_fault_of_server_num(report):
    """Where servers are unequal, the number of servers is not called wrong as well: writing another would not help."""
    broken = make("lab", 2, 8)
    put(instance(broken, 3), "server_id", "10.0.0.15")
    codes = {problem.code for problem in report(broken).errors}
    assert "RT342" in codes
    assert "RT604" not in codes


@pytest.mark.parametrize("code", ["RT605", "RT615"])
def test_what_only_an_accelerator_asks_for_is_a_warning_without_one(code, report):
    """On CPUs and GPUs a table may say what it wants about parts of servers and network cards."""
    name = next(name for name, case in CASES.items() if case[0][0] == code)
    found = report(broken_table(name), chip="none")
    assert [problem.code for problem in found.warnings] == [code]
    assert found.cluster is not None
