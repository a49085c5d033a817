"""Any valid cluster is written and read back; any damaged text and any JSON gives a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import Severity, load_cluster, read_rank_table, render_table
from launcher.rank_table.document import parse_document


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
