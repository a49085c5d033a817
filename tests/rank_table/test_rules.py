"""Every rule of the catalogue: a small table that breaks it and nothing else, and a twin that does not."""

from __future__ import annotations

import copy
import re

import pytest

from launcher.rank_table.catalogue import CATALOGUE
from launcher.rank_table.model import read_decimal


def servers(table):
    return table["server_list"]


def device(table, server=0, index=0):
    return servers(table)[server]["device"][index]


def put(holder, key, value):
    """Set a value, or take the key away when the value is None."""
    if value is None:
        holder.pop(key, None)
    else:
        holder[key] = value


def ring_of_two_pairs(table):
    """Devices 0 1 4 5, with 4 in the network of 0 and 5 in that of 1."""
    for index, (device_id, network) in enumerate(((0, 1), (1, 2), (4, 1), (5, 2))):
        device(table, 0, index).update(device_id=str(device_id), device_ip=f"192.{network}.0.{index + 1}")


# code, number of servers, devices on each, chip, how to break the table, how to make its valid twin, where it shows
CASES = {
    "rank beyond the last": (
        ("RT301", 1, 2, "auto"),
        lambda t: put(device(t, 0, 1), "rank_id", "2"),
        lambda t: None,
        "/server_list/0/device/1/rank_id",
    ),
    "rank twice": (
        ("RT302", 2, 2, "auto"),
        lambda t: put(device(t, 1, 0), "rank_id", "1"),
        lambda t: None,
        "/server_list/1/device/0/rank_id",
    ),
    "not completed": (
        ("RT311", 1, 2, "auto"),
        lambda t: put(t, "status", "initializing"),
        lambda t: put(t, "status", "completed"),
        "/status",
    ),
    "server_count": (
        ("RT312", 2, 1, "auto"),
        lambda t: put(t, "server_count", "1"),
        lambda t: put(t, "server_count", "2"),
        "/server_count",
    ),
    "server_count is no number": (
        ("RT312", 1, 1, "auto"),
        lambda t: put(t, "server_count", "one"),
        lambda t: put(t, "server_count", "1"),
        "/server_count",
    ),
    "server_id empty": (
        ("RT313", 1, 1, "auto"),
        lambda t: put(servers(t)[0], "server_id", ""),
        lambda t: put(servers(t)[0], "server_id", "any name"),
        "/server_list/0/server_id",
    ),
    "server_id long": (
        ("RT313", 1, 1, "auto"),
        lambda t: put(servers(t)[0], "server_id", "s" * 65),
        lambda t: put(servers(t)[0], "server_id", "s" * 64),
        "/server_list/0/server_id",
    ),
    "server_id twice": (
        ("RT314", 2, 1, "auto"),
        lambda t: put(servers(t)[1], "server_id", "10.0.0.1"),
        lambda t: put(servers(t)[1], "server_id", "10.0.0.10"),
        "/server_list/1/server_id",
    ),
    "device_id is no number": (
        ("RT321", 1, 2, "auto"),
        lambda t: put(device(t, 0, 1), "device_id", "one"),
        lambda t: put(device(t, 0, 1), "device_id", "1"),
        "/server_list/0/device/1/device_id",
    ),
    "rank_id is negative": (
        ("RT321", 1, 1, "auto"),
        lambda t: put(device(t), "rank_id", "-1"),
        lambda t: None,
        "/server_list/0/device/0/rank_id",
    ),
    "rank_id has 33 bits": (
        ("RT321", 1, 1, "auto"),
        lambda t: put(device(t), "rank_id", str(2**32)),
        lambda t: None,
        "/server_list/0/device/0/rank_id",
    ),
    "device_id beyond every chip": (
        ("RT322", 1, 1, "auto"),
        lambda t: put(device(t), "device_id", "32"),
        lambda t: put(device(t), "device_id", "31"),
        "/server_list/0/device/0/device_id",
    ),
    "device_id beyond a 910": (
        ("RT322", 1, 1, "910"),
        lambda t: put(device(t), "device_id", "8"),
        lambda t: put(device(t), "device_id", "7"),
        "/server_list/0/device/0/device_id",
    ),
    "device_id twice": (
        ("RT323", 2, 2, "auto"),
        lambda t: put(device(t, 1, 1), "device_id", "0"),
        lambda t: None,  # the same ids on another server are fine
        "/server_list/1/device/1/device_id",
    ),
    "port 0": (
        ("RT324", 1, 1, "auto"),
        lambda t: put(device(t), "device_port", "0"),
        lambda t: put(device(t), "device_port", "1"),
        "/server_list/0/device/0/device_port",
    ),
    "port above 16 bits": (
        ("RT324", 1, 1, "auto"),
        lambda t: put(device(t), "host_port", "65536"),
        lambda t: put(device(t), "host_port", "65535"),
        "/server_list/0/device/0/host_port",
    ),
    "placeholder as device_ip": (
        ("RT331", 1, 1, "auto"),
        lambda t: put(device(t), "device_ip", "192.1.*.6"),
        lambda t: put(device(t), "device_ip", ""),
        "/server_list/0/device/0/device_ip",
    ),
    "hole in a list of addresses": (
        ("RT331", 1, 1, "auto"),
        lambda t: put(device(t), "device_ip", "192.1.0.1,,192.2.0.1"),
        lambda t: put(device(t), "device_ip", "192.1.0.1,192.2.0.1,"),
        "/server_list/0/device/0/device_ip",
    ),
    "IPv6 with nine parts": (
        ("RT331", 1, 1, "auto"),
        lambda t: put(device(t), "device_ip", "1:2:3:4:5:6:7:8:9"),
        lambda t: put(device(t), "device_ip", "fe80::1%eth0"),
        "/server_list/0/device/0/device_ip",
    ),
    "zone without a name": (
        ("RT331", 1, 1, "auto"),
        lambda t: put(device(t), "device_ip", "fe80::1%"),
        lambda t: put(device(t), "device_ip", "fe80::1"),
        "/server_list/0/device/0/device_ip",
    ),
    "host_ip is empty": (
        ("RT331", 1, 1, "auto"),
        lambda t: put(servers(t)[0], "host_ip", ""),
        lambda t: put(servers(t)[0], "host_ip", "10.0.0.1"),
        "/server_list/0/host_ip",
    ),
    "device_ip twice": (
        ("RT332", 2, 2, "auto"),
        lambda t: put(device(t, 1, 0), "device_ip", "192.2.0.1"),
        lambda t: put(device(t, 1, 0), "device_ip", "192.2.0.9"),
        "/server_list/1/device/0/device_ip",
    ),
    "device_ip twice on one device": (
        ("RT332", 1, 1, "auto"),
        lambda t: put(device(t), "device_ip", "192.1.0.1,192.1.0.1"),
        lambda t: put(device(t), "device_ip", "192.1.0.1,192.1.0.2"),
        "/server_list/0/device/0/device_ip",
    ),
    "device_ip missing on two servers": (
        ("RT333", 2, 1, "auto"),
        lambda t: put(device(t, 1, 0), "device_ip", None),
        lambda t: None,
        "/server_list/1/device/0",
    ),
    "device_ip empty on two servers": (
        ("RT333", 2, 1, "auto"),
        lambda t: put(device(t, 1, 0), "device_ip", ""),
        lambda t: [put(server, "host_ip", f"10.0.0.{n}") or put(server["device"][0], "device_ip", None)
                   for n, server in enumerate(servers(t))],
        "/server_list/1/device/0/device_ip",
    ),
    "one address and two": (
        ("RT334", 1, 2, "auto"),
        lambda t: put(device(t, 0, 1), "device_ip", "192.2.0.1,192.2.0.2"),
        lambda t: put(device(t, 0, 1), "device_ip", ""),  # unset counts as one
        "/server_list/0/device/1/device_ip",
    ),
    "two kinds of address": (
        ("RT335", 2, 1, "auto"),
        lambda t: put(device(t, 1, 0), "device_ip", "fd00::2"),
        lambda t: put(device(t, 0, 0), "device_ip", "fd00::1") or put(device(t, 1, 0), "device_ip", "fd00::2"),
        "/server_list/1/device/0/device_ip",
    ),
    "host_ip missing": (
        ("RT336", 2, 1, "auto"),
        lambda t: put(servers(t)[0], "host_ip", "10.0.0.1") or put(device(t, 0, 0), "device_ip", None),
        lambda t: put(servers(t)[0], "host_ip", "10.0.0.1"),
        "/server_list/1",
    ),
    "three devices of a 910": (
        ("RT341", 1, 3, "910"),
        lambda t: None,
        lambda t: servers(t)[0]["device"].pop(),
        "/server_list/0/device",
    ),
    "910 servers of two and one": (
        ("RT342", 2, 2, "910"),
        lambda t: servers(t)[1]["device"].pop(),
        lambda t: None,
        "/server_list/1/device",
    ),
    "four unconnected devices of a 910": (
        ("RT343", 1, 4, "910"),
        lambda t: put(device(t, 0, 2), "device_id", "6") or put(device(t, 0, 3), "device_id", "7"),
        ring_of_two_pairs,
        "/server_list/0/device",
    ),
    "halves of an A2 with different devices": (
        ("RT428", 1, 3, "a2"),
        lambda t: put(device(t, 0, 2), "device_id", "8"),
        lambda t: put(device(t, 0, 1), "device_id", "8") or servers(t)[0]["device"].pop(),
        "/server_list/0/device",
    ),
    "halves of an A2 with devices at different places": (
        ("RT428", 1, 2, "a2"),
        lambda t: put(device(t, 0, 1), "device_id", "9"),
        lambda t: put(device(t, 0, 0), "device_id", "9") or put(device(t, 0, 1), "device_id", "8"),
        "/server_list/0/device",
    ),
    "unknown key": (
        ("RT401", 1, 2, "auto"),
        lambda t: put(device(t, 0, 1), "device_prt", "1"),
        lambda t: put(device(t, 0, 1), "device_port", "1"),
        "/server_list/0/device/1/device_prt",
    ),
    "dictionary order": (
        ("RT402", 2, 1, "auto"),
        lambda t: put(servers(t)[0], "server_id", "10.0.0.9") or put(servers(t)[1], "server_id", "10.0.0.10"),
        lambda t: servers(t).reverse(),  # the order in the file does not matter, only the ranks do
        "/server_list/1/server_id",
    ),
    "interleaved": (
        ("RT403", 2, 2, "auto"),
        lambda t: put(device(t, 0, 1), "rank_id", "2") or put(device(t, 1, 0), "rank_id", "1"),
        lambda t: servers(t)[0]["device"].reverse(),
        "/server_list/0/device/1/rank_id",
    ),
    "number with a zero before it": (
        ("RT404", 1, 2, "auto"),
        lambda t: put(device(t, 0, 1), "rank_id", "01"),
        lambda t: put(device(t, 0, 1), "rank_id", "1"),
        "/server_list/0/device/1/rank_id",
    ),
    "number with text after it": (
        ("RT404", 1, 1, "auto"),
        lambda t: put(t, "server_count", "1 server"),
        lambda t: put(t, "server_count", "1"),
        "/server_count",
    ),
    "server_count missing": (
        ("RT407", 1, 1, "auto"),
        lambda t: put(t, "server_count", None),
        lambda t: None,
        "",
    ),
}  # fmt: skip
NAMES = list(CASES)


@pytest.mark.parametrize("name", NAMES)
def test_broken_table_shows_one_problem(name, table, report):
    """A table that breaks one rule shows that rule's code, at the value that breaks it, and nothing else."""
    (code, server_count, device_count, chip), break_it, _, pointer = CASES[name]
    broken = table(server_count, device_count)
    break_it(broken)
    problems = report(broken, chip=chip).problems
    assert [(problem.code, problem.pointer) for problem in problems] == [(code, pointer)]
    assert problems[0].hint


@pytest.mark.parametrize("name", NAMES)
def test_twin_shows_none(name, table, report):
    """The twin of a broken table, nearest to it among the valid ones, is accepted without a word."""
    (_, server_count, device_count, chip), _, make_twin, _ = CASES[name]
    twin = table(server_count, device_count)
    make_twin(twin)
    found = report(twin, chip=chip)
    assert found.problems == ()
    assert found.cluster is not None


@pytest.mark.parametrize("name", NAMES)
def test_hint_that_names_a_value_makes_the_table_valid(name, table, report):
    """Writing the value that a hint names removes the problem."""
    (_, server_count, device_count, chip), break_it, _, pointer = CASES[name]
    broken = table(server_count, device_count)
    break_it(broken)
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


@pytest.mark.parametrize(
    ("written", "number"),
    [
        *(("0", 0), ("7", 7), ("007", 7), (" +7", 7), ("\t7", 7), ("7x", 7), ("0" * 5000 + "7", 7)),
        *((str(2**32 - 1), 2**32 - 1), (str(2**32), None), ("9" * 5000, None)),
        *(("", None), ("-1", None), ("x7", None), ("+ 7", None), ("\N{ARABIC-INDIC DIGIT SEVEN}", None)),
    ],
)
def test_numbers_are_read_as_hccl_reads_them(written, number):
    """Blanks, a plus and zeros before a number and text after it are skipped; nothing beyond 32 bits is read."""
    assert read_decimal(written) == number


def test_every_rule_explains_itself():
    """Each entry has a title, and each rule a paragraph that says why."""
    for entry in CATALOGUE.values():
        assert entry.title
        assert entry.check is None or len(entry.explanation) > 40


def test_several_misplaced_ranks_get_different_hints(table, report):
    """Following all hints of a table whose ranks start at 2 numbers it from 0."""
    broken = table(1, 3)
    for number in range(3):
        put(device(broken, 0, number), "rank_id", str(number + 2))
    problems = report(broken).problems
    assert [problem.code for problem in problems] == ["RT301", "RT301"]
    assert [problem.hint.split(",")[0] for problem in problems] == ['write "0"', 'write "1"']


def test_second_use_names_the_line_of_the_first(table, report):
    """A repeated value says where it was used first."""
    broken = table(1, 2)
    put(device(broken, 0, 1), "device_ip", "192.1.0.1")
    text = report(broken)
    (problem,) = text.problems
    first = next(n for n, line in enumerate(text.document.text.split("\n"), 1) if "192.1.0.1" in line)
    assert problem.message.endswith(f"first on line {first}")


def test_repeated_placeholder_is_refused_once_each(table, report):
    """A placeholder on every device is an address that is none, not a repeated address as well."""
    broken = table(1, 2)
    for number in range(2):
        put(device(broken, 0, number), "device_ip", "10.*.*.*")
    assert [problem.code for problem in report(broken).problems] == ["RT331", "RT331"]


@pytest.mark.parametrize("value", ["", None])
def test_single_server_needs_no_device_ip(value, table, report):
    """On one server device_ip may be empty or missing, and is then unset in the records."""
    valid = table(1, 2)
    put(device(valid, 0, 1), "device_ip", value)
    found = report(valid)
    assert found.problems == ()
    assert [one.device_ip for one in found.cluster.servers[0].devices] == ["192.1.0.1", None]


def test_unknown_key_on_every_device_is_said_once(table, report):
    """One line for one misspelt key, however often it is written."""
    broken = table(1, 4)
    for number in range(4):
        put(device(broken, 0, number), "devce_port", "1")
    (problem,) = report(broken).problems
    assert "and 3 more like it" in problem.message
    assert 'did you mean "device_port"?' in problem.hint
