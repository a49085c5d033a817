"""Warnings about names, ports, backup cards and network segments: a table that earns one, and a twin that does not."""

from __future__ import annotations

import pytest

from launcher.rank_table.catalogue import CATALOGUE


def put(holder, key, value):
    """Set a value, or take the key away when the value is None."""
    if value is None:
        holder.pop(key, None)
    else:
        holder[key] = value


def server(table, number=0):
    return table["server_list"][number]


def device(table, number=0, index=0):
    return server(table, number)["device"][index]


def dies(table, first, second):
    """Give the two devices of server 0 these backups."""
    put(device(table, 0, 0), "backup_device_ip", first)
    put(device(table, 0, 1), "backup_device_ip", second)


# code, servers, devices on each, how to break the table, how to make the valid twin, where it shows
CASES = {
    "name is a wildcard": (
        ("RT408", 1, 1),
        lambda t: put(server(t), "server_id", "10.*.*.*"),
        lambda t: put(server(t), "server_id", "any-name"),
        "/server_list/0/server_id",
    ),
    "name is made of x": (
        ("RT408", 1, 1),
        lambda t: put(server(t), "server_id", "xx.xx.xx.xx"),
        lambda t: put(server(t), "server_id", "xx.example.com"),
        "/server_list/0/server_id",
    ),
    "name is partly made of x": (
        ("RT408", 1, 1),
        lambda t: put(server(t), "server_id", "10.xxx.xxx.1"),
        lambda t: put(server(t), "server_id", "10.x1.x2.1"),
        "/server_list/0/server_id",
    ),
    "name is a slot": (
        ("RT408", 1, 1),
        lambda t: put(server(t), "server_id", "<ip>"),
        lambda t: put(server(t), "server_id", "ip"),
        "/server_list/0/server_id",
    ),
    "name is loopback": (
        ("RT409", 2, 1),
        lambda t: put(server(t, 1), "server_id", "127.0.1.1"),
        lambda t: put(server(t, 1), "server_id", "127-0-1-1"),
        "/server_list/1/server_id",
    ),
    "name is localhost": (
        ("RT409", 2, 1),
        lambda t: put(server(t, 1), "server_id", "localhost"),
        lambda t: put(server(t, 1), "server_id", "localhost2"),
        "/server_list/1/server_id",
    ),
    "device_ip is loopback": (
        ("RT424", 2, 1),
        lambda t: put(device(t, 1), "device_ip", "127.0.0.1"),
        lambda t: put(device(t, 1), "device_ip", "128.0.0.1"),
        "/server_list/1/device/0/device_ip",
    ),
    "host_port twice": (
        ("RT425", 1, 2),
        lambda t: [put(one, "host_port", "16666") for one in server(t)["device"]],
        lambda t: [put(one, "host_port", f"1666{n}") for n, one in enumerate(server(t)["device"])],
        "/server_list/0/device/1/host_port",
    ),
    "backup is the own card": (
        ("RT426", 1, 2),
        lambda t: dies(t, "192.1.0.1", None),
        lambda t: dies(t, "192.2.0.1", "192.1.0.1"),
        "/server_list/0/device/0/backup_device_ip",
    ),
    "backup is none": (
        ("RT426", 1, 2),
        lambda t: dies(t, "-.-.-.-", None),
        lambda t: dies(t, "10.1.1.1", ""),
        "/server_list/0/device/0/backup_device_ip",
    ),
    "backup is the address of no device": (
        ("RT426", 1, 2),
        lambda t: dies(t, "0.0.0.0", None),
        lambda t: dies(t, "10.1.1.1", ""),
        "/server_list/0/device/0/backup_device_ip",
    ),
    "backup is no text": (
        ("RT426", 1, 2),
        lambda t: dies(t, 7, None),
        lambda t: dies(t, "192.2.0.1", None),
        "/server_list/0/device/0/backup_device_ip",
    ),
    "backup of two devices": (
        ("RT426", 1, 2),
        lambda t: dies(t, "10.1.1.1", "10.1.1.1"),
        lambda t: dies(t, "10.1.1.1", "10.1.1.2"),
        "/server_list/0/device/1/backup_device_ip",
    ),
    "backup of another NPU": (
        ("RT426", 1, 3),
        lambda t: dies(t, "192.3.0.1", None),
        lambda t: dies(t, "192.2.0.1", None),
        "/server_list/0/device/0/backup_device_ip",
    ),
    "backup port 0": (
        ("RT426", 1, 2),
        lambda t: dies(t, "192.2.0.1", None) or put(device(t), "backup_device_port", "0"),
        lambda t: dies(t, "192.2.0.1", None) or put(device(t), "backup_device_port", "16667"),
        "/server_list/0/device/0/backup_device_port",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_table_earns_one_warning(name, table, report):
    """A table against one convention shows that warning at its place, nothing else, and stays valid."""
    (code, servers, devices), break_it, _, pointer = CASES[name]
    broken = table(servers, devices)
    break_it(broken)
    found = report(broken)
    assert [(problem.code, problem.pointer) for problem in found.problems] == [(code, pointer)]
    assert found.problems[0].hint
    assert found.valid


@pytest.mark.parametrize("name", list(CASES))
def test_twin_earns_none(name, table, report):
    """The twin, nearest to it among the tables that keep the convention, is accepted without a word."""
    (_, servers, devices), _, make_twin, _ = CASES[name]
    twin = table(servers, devices)
    make_twin(twin)
    assert report(twin).problems == ()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_single_server_may_be_called_by_any_address(name, table, report):
    """On one server a loopback name, and a loopback device_ip, mislead nobody."""
    single = table(1, 1)
    put(server(single), "server_id", name)
    put(device(single), "device_ip", "127.0.0.1")
    assert report(single).problems == ()


def test_unset_address_gets_a_hint_of_its_own(table, report):
    """Where hccn_tool has no address, the hint says how to give the device one instead of asking for it again."""
    broken = table(2, 1)
    put(device(broken, 1), "device_ip", "-.-.-.-")
    (problem,) = report(broken).problems
    assert problem.code == "RT331"
    assert "hccn_tool -i 0 -ip -s address" in problem.hint


def addressed(make_table, pattern, servers=2, devices=8):
    """A table whose device_ip follow `pattern`, given the index of the server and of the device."""
    table = make_table(servers, devices)
    for number in range(servers):
        for index, one in enumerate(server(table, number)["device"]):
            one["device_ip"] = pattern(number, index)
    return table


# What the segments look like, devices on each server, and which chips find that unusual.
SEGMENTS = {
    "four segments, pairs in each": (lambda s, d: f"192.{d % 4 + 1}.{s}.{d + 1}", 8, set()),
    "the same, but close together": (lambda s, d: f"10.0.0.{d % 4 * 64 + s * 8 + d + 1}", 8, set()),
    "all in one segment": (lambda s, d: f"10.0.0.{s * 8 + d + 1}", 8, {"910"}),
    "a segment for each server": (lambda s, d: f"10.{s}.0.{d + 1}", 8, {"910"}),
    "eight segments": (lambda s, d: f"192.{d + 1}.0.{s + 1}", 8, {"910", "auto"}),
    "positions of another server elsewhere": (lambda s, d: f"10.{s * 100 + d % 4}.0.{d + 1}", 8, {"910", "auto"}),
    "four devices in four segments": (lambda s, d: f"192.{d + 1}.0.{s + 1}", 4, set()),
    "four devices in one segment": (lambda s, d: f"10.0.0.{s * 4 + d + 1}", 4, {"910"}),
}


@pytest.mark.parametrize("name", list(SEGMENTS))
@pytest.mark.parametrize("chip", ["910", "auto", "a2", "a3"])
def test_segments_are_unusual_where_no_netmask_fits(name, chip, table, report):
    """A warning where no netmask gives the segments of a 910, or, without a named chip, those of a later one either."""
    pattern, devices, unusual = SEGMENTS[name]
    found = report(addressed(table, pattern, devices=devices), chip=chip)
    assert [problem.code for problem in found.problems] == (["RT410"] if chip in unusual else [])
    assert found.valid


def test_unusual_segments_name_the_devices(table, report):
    """The message shows the two addresses that belong together and the two that do not."""
    found = report(addressed(table, lambda s, d: f"192.{d + 1}.0.{s + 1}"))
    (problem,) = found.problems
    assert "joins 192.4.0.1 (device 3) and 192.8.0.2 (device 7)" in problem.message
    assert "keeps 192.2.0.1 (device 1) and 192.3.0.1 (device 2) apart" in problem.message


@pytest.mark.parametrize("written", ["", "fd00::1", "10.0.0.1"])
def test_segments_say_nothing_about_what_cannot_be_compared(written, table, report):
    """Missing, repeated and IPv6 addresses are left to the rules that know them."""
    single = addressed(table, lambda _, d: f"192.{d + 1}.0.1", servers=1)
    put(device(single), "device_ip", written)
    put(device(single, 0, 1), "device_ip", "10.0.0.1")
    assert "RT410" not in {problem.code for problem in report(single, chip="910").problems}


def test_every_rule_has_a_case():
    """No rule of these modules is without a table that breaks it."""
    own = {code for code, entry in CATALOGUE.items() if entry.check and entry.check.__module__ in OWN}
    assert own - OTHERS <= {case[0][0] for case in CASES.values()} | {"RT410"}  # by the tests above


OWN = {f"launcher.rank_table.rules.{name}" for name in ("backups", "conventions", "segments")}
OTHERS = {"RT402", "RT403", "RT404", "RT407"}  # in test_rules.py
