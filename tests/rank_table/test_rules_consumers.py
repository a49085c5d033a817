"""What single readers of rank tables ask for: silent for HCCL, one problem for the reader, none after its hint."""

from __future__ import annotations

import pytest

from launcher.rank_table import Profile
from launcher.rank_table.catalogue import CATALOGUE


def device(table, server=0, index=0):
    return table["server_list"][server]["device"][index]


def swap_ranks(table):
    """The second server gets the first ranks."""
    for server, base in ((0, 2), (1, 0)):
        for index in range(2):
            device(table, server, index)["rank_id"] = str(base + index)


def swap_names(table):
    first, second = table["server_list"]
    first["server_id"], second["server_id"] = second["server_id"], first["server_id"]


def with_pods(table):
    for number, server in enumerate(table["server_list"]):
        server["pod_ip"] = f"10.0.0.{number + 1}"


def with_containers(table):
    for number, server in enumerate(table["server_list"]):
        server["container_ip"] = f"10.0.0.{number + 1}"


def reverse_devices(table):
    table["server_list"][0]["device"].reverse()


def reordered_and_named(table):
    """Ranks 2 3 0 1 in the file; the names follow the ranks, so that only the order in the file is unusual."""
    swap_ranks(table)
    swap_names(table)


def back_in_order(table):
    table["server_list"].reverse()


def put(*way, value):
    def do(table):
        holder = table
        for name in way[:-1]:
            holder = holder[name]
        holder[way[-1]] = value

    return do


def take(*way):
    def do(table):
        holder = table
        for name in way[:-1]:
            holder = holder[name]
        del holder[way[-1]]

    return do


def both(*steps):
    def do(table):
        for step in steps:
            step(table)

    return do


def nothing(table):
    del table


FIRST = ("server_list", 0)
FIRST_DEVICE = (*FIRST, "device", 0)
# consumer, code, servers, how to break the table, what the hint says to do, where it shows
CASES = {
    "rank order": ("mindspore", "RT501", 2, swap_ranks, swap_names, "/server_list/0/server_id"),
    "number with letters": (
        "mindspore",
        "RT502",
        1,
        put(*FIRST_DEVICE, "device_id", value="0x"),
        put(*FIRST_DEVICE, "device_id", value="0"),
        "/server_list/0/device/0/device_id",
    ),
    "no pod_ip": ("msrun", "RT511", 1, nothing, with_pods, "/server_list/0"),
    "pod_ip reserved": (
        "msrun",
        "RT512",
        1,
        put(*FIRST, "pod_ip", value="reserve"),
        with_pods,
        "/server_list/0/pod_ip",
    ),
    "devices out of place": (
        "msrun",
        "RT513",
        1,
        both(with_pods, reverse_devices),
        reverse_devices,
        "/server_list/0/device/0/device_id",
    ),
    "rank not its entry": (
        "serving",
        "RT521",
        2,
        reordered_and_named,
        back_in_order,
        "/server_list/0/device/0/rank_id",
    ),
    "leading zero": (
        "serving",
        "RT522",
        1,
        put(*FIRST_DEVICE, "rank_id", value="00"),
        put(*FIRST_DEVICE, "rank_id", value="0"),
        "/server_list/0/device/0/rank_id",
    ),
    "ninth device": (
        "serving",
        "RT523",
        1,
        put(*FIRST_DEVICE, "device_id", value="8"),
        put(*FIRST_DEVICE, "device_id", value="7"),
        "/server_list/0/device/0/device_id",
    ),
    "server by name": (
        "mindie",
        "RT531",
        1,
        put(*FIRST, "server_id", value="node_0"),
        put(*FIRST, "server_id", value="10.0.0.1"),
        "/server_list/0/server_id",
    ),
    "container by name": (
        "mindie",
        "RT532",
        1,
        put(*FIRST, "container_ip", value="box"),
        take(*FIRST, "container_ip"),
        "/server_list/0/container_ip",
    ),
    "container unknown": (
        "mindie",
        "RT533",
        2,
        both(with_containers, take(*FIRST, "container_ip")),
        with_containers,
        "/server_list/0",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_reader_asks_and_the_hint_satisfies_it(name, table, report):
    """HCCL has no error with the table; the reader has exactly one problem, and following its hint leaves none."""
    consumer, code, servers, damage, follow_hint, pointer = CASES[name]
    values = table(servers, 2)
    damage(values)
    assert not report(values).errors
    found = report(values, profile=Profile(consumer=consumer)).problems
    assert [(problem.code, problem.pointer) for problem in found] == [(code, pointer)]
    assert found[0].hint
    follow_hint(values)
    assert report(values, profile=Profile(consumer=consumer)).problems == ()


def test_serving_reads_no_cloud_tables(report):
    """A table without ranks is of no use to MindSpore Serving, and the hint names the command that helps."""
    values = {"version": "1.1", "status": "completed", "collective_id": "c", "node_list": [
        {"node_addr": "10.0.0.1", "ranks": [{"rank_id": "0", "device_id": "0"}]}]}  # fmt: skip
    found = report(values, profile=Profile(consumer="serving")).problems
    assert [problem.code for problem in found] == ["RT524"]
    assert "tlaunch table convert" in found[0].hint


def test_msrun_takes_no_ranks_from_other_formats(report):
    """Only v1.0 and v1.2 have the pod_ip under which msrun looks; other formats get one warning, not one per server."""
    values = {"version": "1.1", "status": "completed", "collective_id": "c", "node_list": [
        {"node_addr": "10.0.0.1", "ranks": [{"rank_id": "0", "device_id": "0"}]}]}  # fmt: skip
    found = report(values, profile=Profile(consumer="msrun"))
    assert [problem.code for problem in found.problems] == ["RT514"]
    assert found.valid


@pytest.mark.parametrize(("servers", "devices", "codes"), [(4, 8, []), (5, 1, ["RT534"]), (3, 12, ["RT534"])])
def test_mindie_is_documented_for_four_servers(servers, devices, codes, table, report):
    """More servers or devices than MindIE documents are a warning."""
    values = table(servers, devices)
    with_containers(values)
    found = report(values, profile=Profile(consumer="mindie"))
    assert [problem.code for problem in found.problems] == codes
    assert found.valid


def test_mindie_minds_the_mode_of_the_file(table, report):
    """A table that everybody may read is refused for MindIE; the hint gives the chmod that helps."""
    found = report(table(1, 1), profile=Profile(consumer="mindie"), mode=0o644)
    assert [problem.code for problem in found.problems] == ["RT535"]
    assert found.problems[0].hint == "chmod 640 table.json"
    assert report(table(1, 1), profile=Profile(consumer="mindie"), mode=0o640).problems == ()


def test_every_rule_of_a_reader_has_a_test():
    """No rule of a single reader enters the catalogue without a case above."""
    elsewhere = {"RT514", "RT524", "RT534"}
    of_readers = {entry.code for entry in CATALOGUE.values() if entry.consumer is not None}
    assert of_readers == {case[1] for case in CASES.values()} | elsewhere
