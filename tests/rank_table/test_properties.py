"""Any valid cluster, one thing broken: the right code at the right line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import Severity, load_cluster, read_rank_table, render_table
from launcher.rank_table.document import parse_document

MARK = "the value to be broken stands here"


@st.composite
def clusters(draw):
    """Valid clusters: any server names, any physical ids, ranks in any order, addresses where they are needed."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    names = draw(
        st.lists(st.text("abc.-0123é", min_size=1, max_size=12), min_size=len(sizes), max_size=len(sizes), unique=True)
    )
    ranks = iter(draw(st.permutations(range(sum(sizes)))))
    with_addresses = len(sizes) > 1 or draw(st.booleans())
    servers = []
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        ids = draw(st.lists(st.integers(0, 31), min_size=size, max_size=size, unique=True))
        devices = [Device(one, next(ranks), f"10.{number}.0.{one}" if with_addresses else None) for one in ids]
        servers.append(
            Server(
                name,
                tuple(sorted(devices, key=lambda device: device.global_rank)),
                draw(st.none() | st.just("reserve")),
            )
        )
    return Cluster(tuple(servers))  # fmt: skip


def write(tmp_path_factory, text):
    path = Path(tmp_path_factory.getbasetemp()) / "property.json"
    path.write_text(text, encoding="utf-8")
    return path


@given(cluster=clusters())
def test_any_cluster_survives_writing_and_reading(cluster, tmp_path_factory):
    """Whatever a cluster looks like, its table is valid and reads back as itself."""
    again, warnings = load_cluster(write(tmp_path_factory, render_table(cluster)))
    assert replace(again, source=None) == cluster
    assert {problem.code for problem in warnings} <= {"RT402", "RT403"}  # names and ranks were drawn without order


def one_of(draw, table):
    """A random device: its pointer, and its object."""
    server = draw(st.integers(0, len(table["server_list"]) - 1))
    devices = table["server_list"][server]["device"]
    index = draw(st.integers(0, len(devices) - 1))
    return ("server_list", server, "device", index), devices[index]


def other_device(table, device):
    return next((one for server in table["server_list"] for one in server["device"] if one is not device), None)


def break_rank_high(draw, table):
    pointer, _ = one_of(draw, table)
    count = sum(len(server["device"]) for server in table["server_list"])
    return "RT301", (*pointer, "rank_id"), str(count + draw(st.integers(0, 9)))


def break_rank_text(draw, table):
    pointer, _ = one_of(draw, table)
    return "RT321", (*pointer, draw(st.sampled_from(["rank_id", "device_id"]))), draw(st.sampled_from(["", "x", "-1"]))


def break_type(draw, table):
    pointer, _ = one_of(draw, table)
    key = draw(st.sampled_from(["rank_id", "device_id"]))
    return "RT205", (*pointer, key), draw(st.sampled_from([0, 1.5, None, True, [], {}]))


def break_device_id(draw, table):
    pointer, _ = one_of(draw, table)
    return "RT322", (*pointer, "device_id"), str(draw(st.integers(32, 10**6)))


def break_address(draw, table):
    pointer, device = one_of(draw, table)
    if "device_ip" not in device:
        return None
    return (
        "RT331",
        (*pointer, "device_ip"),
        draw(st.sampled_from(["10.*.*.*", "-.-.-.-", "1.2.3", "::1::", " 1.2.3.4"])),
    )


def break_status(draw, table):
    return "RT311", ("status",), draw(st.sampled_from(["initializing", "", "Completed"]))


def break_count(draw, table):
    return "RT312", ("server_count",), str(len(table["server_list"]) + draw(st.sampled_from([-1, 1, 5])))


def break_server_type(draw, table):
    server = draw(st.integers(0, len(table["server_list"]) - 1))
    return "RT205", ("server_list", server, "server_id"), 5


BREAKS = [
    break_rank_high,
    break_rank_text,
    break_type,
    break_device_id,
    break_address,
    break_status,
    break_count,
    break_server_type,
]


def with_value(table, pointer, value):
    """A copy of the table with one value replaced."""
    copy = json.loads(json.dumps(table))
    holder = copy
    for part in pointer[:-1]:
        holder = holder[part]
    holder[pointer[-1]] = value
    return copy


@given(data=st.data(), cluster=clusters(), indent=st.sampled_from([None, 1, 4]))
def test_one_broken_value_is_found_at_its_line_and_column(data, cluster, indent, tmp_path_factory):
    """One wrong value gives one code, at the line and column where the value stands."""
    table = json.loads(render_table(cluster))
    broken = data.draw(st.sampled_from(BREAKS))(data.draw, table)
    if broken is None:
        return
    code, pointer, value = broken
    text = json.dumps(with_value(table, pointer, value), indent=indent)
    before = json.dumps(with_value(table, pointer, MARK), indent=indent).split(json.dumps(MARK))[0]
    expected = (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
    report = read_rank_table(write(tmp_path_factory, text))
    found = [(problem.code, (problem.line, problem.column)) for problem in report.errors]
    assert found == [(code, expected)]
    assert report.errors[0].pointer == "".join(f"/{part}" for part in pointer)
    assert report.cluster is None


@given(data=st.data(), cluster=clusters().filter(lambda cluster: cluster.device_count > 1))
def test_one_repeated_value_is_found_at_its_second_use(data, cluster, tmp_path_factory):
    """A rank, an address or a server's name used twice is reported at the later of the two lines."""
    table = json.loads(render_table(cluster))
    key, code = data.draw(st.sampled_from([("rank_id", "RT302"), ("device_ip", "RT332")]))
    everyone = [
        (server, index, device)
        for server, entry in enumerate(table["server_list"])
        for index, device in enumerate(entry["device"])
    ]
    first, second = sorted(
        data.draw(st.lists(st.sampled_from(range(len(everyone))), min_size=2, max_size=2, unique=True))
    )
    if key not in everyone[first][2]:
        return
    target = ("server_list", everyone[second][0], "device", everyone[second][1], key)
    text = json.dumps(with_value(table, target, everyone[first][2][key]), indent=2)
    report = read_rank_table(write(tmp_path_factory, text))
    line = json.dumps(with_value(table, target, MARK), indent=2).split(MARK)[0].count("\n") + 1
    assert [(problem.code, problem.line) for problem in report.errors] == [(code, line)]


@given(data=st.data(), cluster=clusters())
def test_one_deleted_character_is_refused_near_its_place(data, cluster, tmp_path_factory):
    """Without any one of its punctuation marks a table is no JSON; the first fault is not reported before it."""
    text = render_table(cluster)
    at = data.draw(st.sampled_from([n for n, char in enumerate(text) if char in '{}[]:,"']))
    report = read_rank_table(write(tmp_path_factory, text[:at] + text[at + 1 :]))
    assert report.cluster is None
    damage = next(problem for problem in report.problems if problem.code.startswith("RT1"))
    opening = text.rfind('"', 0, at) if text[at] == '"' else at
    line_of_damage = text.count("\n", 0, max(opening, 0)) + 1
    assert damage.line >= line_of_damage - 1


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["version", "status", "server_list", "server_id", "device", "device_id", "rank_id", "device_ip"])
        | st.text(max_size=3),
        inner, max_size=5),
    max_leaves=25,
), st.booleans())  # fmt: skip
def test_no_shape_of_json_crashes_the_reader(tmp_path_factory, value, versioned):
    """Any JSON at all gives a report whose problems all lie inside the file."""
    if versioned and isinstance(value, dict):
        value = {**value, "version": "1.0"}
    report = read_rank_table(write(tmp_path_factory, json.dumps(value, indent=1)))
    lines = parse_document(json.dumps(value, indent=1).encode()).text.count("\n") + 1
    assert all(1 <= problem.line <= lines for problem in report.problems)
    assert (report.cluster is None) == any(problem.severity is Severity.ERROR for problem in report.problems)
    assert report.render()
