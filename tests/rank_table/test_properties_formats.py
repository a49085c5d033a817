"""Every format: a valid table with one thing broken gives one code, at the right line and column."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.rank_table import parse_rank_table

MARK = "the value to be broken stands here"
PATH = Path("table.json")
ALL = ("servers", "pods", "nodes", "ranks", "lab", "cloud")
STRINGS = ("servers", "pods", "nodes", "lab", "cloud")
RANKED = ("servers", "pods", "nodes", "ranks", "lab")
LISTS = ("server_list", "group_list", "node_list", "rank_list")
one_of = st.sampled_from


def rows(values):
    """The devices as the reader sees them, with their pointers."""
    report = parse_rank_table(json.dumps(values).encode(), PATH)
    assert not report.problems, report.render()
    return report.table.devices


def held(values, pointer):
    for name in pointer:
        values = values[name]
    return values


def changed(values, pointer, value):
    copied = copy.deepcopy(values)
    held(copied, pointer[:-1])[pointer[-1]] = value
    return copied


# Each fault: from a way to draw, a table and its devices, the pointer and what is written there.


def wrong_type(draw, values, devices):
    keys = [key for key in ("device_id", "rank_id") if key == "device_id" or "group_count" not in values]
    pointer = draw(one_of(devices)).at(draw(one_of(keys)))
    return pointer, draw(one_of([1.5, None, True, 0 if isinstance(held(values, pointer), str) else "0"]))


def beyond_the_last(draw, values, devices):
    pointer, beyond = draw(one_of(devices)).at("rank_id"), len(devices) + draw(st.integers(0, 1000))
    return pointer, type(held(values, pointer))(beyond)


def repeated(key):
    def fault(draw, values, devices):
        if key == "device_id":
            chosen = draw(one_of(devices)).server
            devices = [row for row in devices if row.server == chosen]
        later = draw(st.integers(1, len(devices) - 1))
        earlier = draw(st.integers(0, later - 1))
        return devices[later].at(key), held(values, devices[earlier].at(key))

    return fault


def device(key, *wrong):
    return lambda draw, _, devices: (draw(one_of(devices)).at(key), draw(one_of(wrong)))


def server(key, *wrong):
    return lambda draw, _, devices: ((*draw(one_of(devices)).pointer[:2], key), draw(one_of(wrong)))


def whole(keys, *wrong):
    return lambda draw, values, _: ((next(key for key in keys if key in values),), draw(one_of(wrong)))


NO_ADDRESSES = ("10.*.*.*", "-.-.-.-", "1.2.3", "[device_ip]", "::1::")
FAULTS = {
    "a number of the wrong type": (ALL, wrong_type, "RT205"),
    "a rank that does not exist": (RANKED, beyond_the_last, "RT301"),
    "a rank used twice": (RANKED, repeated("rank_id"), "RT302"),
    "a device used twice": (("servers", "pods", "lab", "cloud"), repeated("device_id"), "RT323"),
    "an address used twice": (("servers",), repeated("device_ip"), "RT332"),
    "an address that is none": (STRINGS, device("device_ip", *NO_ADDRESSES), "RT331"),
    "a table that is not completed": (STRINGS, whole(["status"], "initializing", "", "Completed"), "RT311"),
    "a list that is none": (ALL, whole(LISTS, None, {}, "1", 1), "RT205"),
    "a rank that is no number": (("servers",), device("rank_id", "", "x", "-1"), "RT321"),
    "a device that is no number": (("servers",), device("device_id", "", "x", "-1"), "RT321"),
    "a device that no chip has": (("servers",), device("device_id", "32", "1000000"), "RT322"),
    "a name of the wrong type": (("servers",), server("server_id", 5), "RT205"),
    "a count that differs": (("servers",), whole(["server_count"], "7", "0"), "RT312"),
}


@st.composite
def tables(draw, make, kind):
    """A valid table of several servers as JSON values."""
    servers, devices = draw(st.integers(2, 3)), draw(one_of([2, 4, 8]))
    return make(1, servers, devices) if kind == "pods" else make(servers, devices)


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, (kinds, *_) in FAULTS.items() for kind in kinds])
@settings(max_examples=15)
@given(data=st.data())
def test_one_fault_is_named_at_its_line_and_column(name, kind, data, makers):
    """One error with its code and its pointer, at the line and column where the value stands, in any layout."""
    _, fault, code = FAULTS[name]
    values = data.draw(tables(makers[kind], kind))
    pointer, value = fault(data.draw, values, rows(values))
    indent = data.draw(one_of([None, 1, 4]))
    report = parse_rank_table(json.dumps(changed(values, pointer, value), indent=indent).encode(), PATH)
    before = json.dumps(changed(values, pointer, MARK), indent=indent).split(json.dumps(MARK))[0]
    place = (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
    named = "".join(f"/{part}" for part in pointer)
    assert [(problem.code, problem.pointer) for problem in report.errors] == [(code, named)], report.render()
    assert (report.errors[0].line, report.errors[0].column) == place
    assert report.errors[0].hint
    assert not report.valid


@pytest.mark.parametrize("kind", ALL)
def test_an_entry_that_is_no_object(kind, makers):
    """A device that is no object is named, whatever else follows from it."""
    values = makers[kind](2, 2)
    for row in rows(values):
        report = parse_rank_table(json.dumps(changed(values, row.pointer, 7)).encode(), PATH)
        named = "".join(f"/{part}" for part in row.pointer)
        assert ("RT205", named) in [(problem.code, problem.pointer) for problem in report.errors]
