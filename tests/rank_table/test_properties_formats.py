"""Every format: a valid table with one thing broken gives one code, at the right line and column."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import parse_rank_table
from launcher.rank_table.convert import convert_cluster
from launcher.rank_table.table_format import RANKED, Format

MARK = "the value to be broken stands here"
FORMATS = [Format.V1_0, Format.V1_1, Format.V1_2, Format.V2_0, Format.LAB, Format.CLOUD]
PATH = Path("table.json")
few = settings(max_examples=20)  # of each format


def server(table_format, number, size):
    """Devices whose networks are those of a 910; what only one format needs is added for that format."""
    devices = []
    for index in range(size):
        address = f"192.{index % 4 + 1}.{number}.{index // 4 + 1}"
        device = Device(index, number * size + index, address)
        if table_format is Format.V1_2:
            device = Device(index, device.global_rank, address, str(device.global_rank))
        if table_format is Format.V2_0:
            levels = [
                {
                    "net_layer": 0, "net_instance_id": f"10.0.0.{number + 1}", "net_type": "CLOS", "net_attr": "",
                    "rank_addr_list": [{"addr_type": "IPV4", "addr": address, "ports": ["0/1"]}],
                }
            ]  # fmt: skip
            options = (
                ("level_list", json.dumps(levels, separators=(",", ":"), sort_keys=True)),
                ("local_id", str(index)),
            )
            device = Device(index, device.global_rank, options=options)
        devices.append(device)
    pod = "0" if table_format is Format.V1_2 else None
    return Server(f"10.0.0.{number + 1}", tuple(devices), super_pod_id=pod)


@st.composite
def tables(draw, table_format, *, min_servers=1, min_devices=1):
    """A valid table of the format as JSON values."""
    count = draw(st.integers(min_servers, 3))
    size = draw(st.sampled_from([size for size in (1, 2, 4, 8) if size >= min_devices]))
    cluster = Cluster(tuple(server(table_format, number, size) for number in range(count)))
    return json.loads(convert_cluster(cluster, table_format.value).text)


def rows(values):
    """The devices as the reader sees them, with their pointers."""
    report = parse_rank_table(json.dumps(values).encode(), PATH)
    assert report.valid, report.render()
    assert not report.problems
    return report.table.devices


def held(values, pointer):
    for name in pointer:
        values = values[name]
    return values


def changed(values, pointer, value):
    copied = copy.deepcopy(values)
    held(copied, pointer[:-1])[pointer[-1]] = value
    return copied


def number(table_format, value):
    return value if table_format is Format.V2_0 else str(value)


def check(draw, values, pointer, value, code):
    """`value` at `pointer` gives exactly one error: its code, its pointer, its line and column."""
    indent = draw(st.sampled_from([None, 1, 4]))
    text = json.dumps(changed(values, pointer, value), indent=indent)
    report = parse_rank_table(text.encode(), PATH)
    before = json.dumps(changed(values, pointer, MARK), indent=indent).split(json.dumps(MARK))[0]
    place = (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
    named = "".join(f"/{part}" for part in pointer)
    assert [(problem.code, problem.pointer) for problem in report.errors] == [(code, named)], report.render()
    assert (report.errors[0].line, report.errors[0].column) == place
    assert report.errors[0].hint
    assert not report.valid


@pytest.mark.parametrize("table_format", FORMATS)
@few
@given(data=st.data())
def test_a_number_of_the_wrong_type(table_format, data):
    """A number where the format has strings, or the reverse, is refused at its place."""
    values = data.draw(tables(table_format))
    row = data.draw(st.sampled_from(rows(values)))
    key = data.draw(st.sampled_from(["device_id", *(["rank_id"] if table_format in RANKED else [])]))
    wrong = data.draw(st.sampled_from([1.5, None, True, "0" if table_format is Format.V2_0 else 0]))
    check(data.draw, values, row.at(key), wrong, "RT205")


@pytest.mark.parametrize("table_format", [one for one in FORMATS if one in RANKED])
@few
@given(data=st.data())
def test_a_rank_that_does_not_exist(table_format, data):
    """A rank beyond the last one is refused at its place."""
    values = data.draw(tables(table_format))
    devices = rows(values)
    beyond = len(devices) + data.draw(st.integers(0, 1000))
    row = data.draw(st.sampled_from(devices))
    check(data.draw, values, row.at("rank_id"), number(table_format, beyond), "RT301")


@pytest.mark.parametrize("table_format", [one for one in FORMATS if one in RANKED])
@few
@given(data=st.data())
def test_a_rank_used_twice(table_format, data):
    """A rank that an earlier device has is refused at the later one."""
    values = data.draw(tables(table_format, min_devices=2))
    devices = rows(values)
    later = data.draw(st.integers(1, len(devices) - 1))
    taken = data.draw(st.integers(0, later - 1))
    check(data.draw, values, devices[later].at("rank_id"), number(table_format, taken), "RT302")


@pytest.mark.parametrize("table_format", [one for one in FORMATS if one not in {Format.V1_1, Format.V2_0}])
@few
@given(data=st.data())
def test_a_device_used_twice(table_format, data):
    """A device id that an earlier entry of the server has is refused at the later one."""
    values = data.draw(tables(table_format, min_devices=2))
    devices = rows(values)
    chosen = data.draw(st.sampled_from(devices)).server
    on_server = [row for row in devices if row.server == chosen]
    later = data.draw(st.integers(1, len(on_server) - 1))
    check(data.draw, values, on_server[later].at("device_id"), on_server[0].fields["device_id"], "RT323")


@pytest.mark.parametrize("table_format", [one for one in FORMATS if one is not Format.V2_0])
@few
@given(data=st.data())
def test_an_address_that_is_none(table_format, data):
    """A placeholder as a device's address is refused at its place."""
    values = data.draw(tables(table_format, min_servers=2))
    row = data.draw(st.sampled_from(rows(values)))
    wrong = data.draw(st.sampled_from(["10.*.*.*", "-.-.-.-", "1.2.3", "[device_ip]", "::1::"]))
    check(data.draw, values, row.at("device_ip"), wrong, "RT331")


@pytest.mark.parametrize("table_format", [one for one in FORMATS if one is not Format.V2_0])
@few
@given(data=st.data())
def test_a_table_that_is_not_completed(table_format, data):
    """In every format whose status HCCL reads, a status other than completed is refused."""
    values = data.draw(tables(table_format))
    check(data.draw, values, ("status",), data.draw(st.sampled_from(["initializing", "", "Completed"])), "RT311")


@pytest.mark.parametrize("table_format", FORMATS)
@few
@given(data=st.data())
def test_a_list_that_is_none(table_format, data):
    """Something else than the list of servers, groups, nodes or ranks is refused at its place."""
    values = data.draw(tables(table_format))
    key = next(key for key in ("server_list", "group_list", "node_list", "rank_list") if key in values)
    check(data.draw, values, (key,), data.draw(st.sampled_from([None, {}, "1", 1])), "RT205")


@pytest.mark.parametrize("table_format", FORMATS)
@few
@given(data=st.data())
def test_an_entry_that_is_no_object(table_format, data):
    """A device that is no object is named, whatever else follows from it."""
    values = data.draw(tables(table_format))
    pointer = data.draw(st.sampled_from(rows(values))).pointer
    report = parse_rank_table(json.dumps(changed(values, pointer, 7)).encode(), PATH)
    named = "".join(f"/{part}" for part in pointer)
    assert ("RT205", named) in [(problem.code, problem.pointer) for problem in report.errors]


@pytest.mark.parametrize(
    ("way", "wrong", "code"),
    [
        (("device", "rank_id"), ["", "x", "-1"], "RT321"),
        (("device", "device_id"), ["", "x", "-1"], "RT321"),
        (("device", "device_id"), ["32", "1000000"], "RT322"),
        (("server_id",), [5], "RT205"),
        ((), ["7", "0"], "RT312"),
    ],
)
@few
@given(data=st.data())
def test_a_value_that_v1_0_does_not_allow(way, wrong, code, data):
    """Ids that are unreadable or too large, a name of the wrong type and a count that differs are refused in place."""
    values = data.draw(tables(Format.V1_0))
    pointer = ("server_count",)
    if way:
        server = data.draw(st.integers(0, len(values["server_list"]) - 1))
        pointer = ("server_list", server, *way)
    if "device" in way:
        device = data.draw(st.integers(0, len(values["server_list"][server]["device"]) - 1))
        pointer = ("server_list", server, "device", device, way[-1])
    check(data.draw, values, pointer, data.draw(st.sampled_from(wrong)), code)


@few
@given(data=st.data())
def test_an_address_used_twice(data):
    """An address that an earlier device has is refused at the later one."""
    values = data.draw(tables(Format.V1_0, min_devices=2))
    devices = rows(values)
    later = data.draw(st.integers(1, len(devices) - 1))
    taken = data.draw(st.integers(0, later - 1))
    check(data.draw, values, devices[later].at("device_ip"), devices[taken].addresses[0], "RT332")
