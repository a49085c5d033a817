"""Any damaged text and any JSON, in every format, give a report."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.rank_table import Profile, parse_rank_table
from launcher.rank_table.profile import CONSUMERS

from .tables import MAKERS

PATH = Path("table.json")
SIZES = {"servers": (2, 2), "pods": (2, 1, 2), "nodes": (1, 2, "1.2"), "ranks": (2, 1), "lab": (1, 2), "cloud": (2, 1)}
MARKS = ("version", "deploy_mode", "group_count")  # what a format is recognised by


def places(value, way=()):
    """All pointers into a JSON value, the root left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*way, key)
        yield from places(inner, (*way, key))


@cache
def shapes(keys):
    """Any JSON, most of whose keys are known ones."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
    named = st.sampled_from(keys) | st.text(max_size=3)
    return st.recursive(
        leaves | st.sampled_from(["0", "1", "2", "910", "completed", "10.0.0.1"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(named, inner, max_size=5),
        max_leaves=20,
    )


@pytest.mark.parametrize("kind", SIZES)
@settings(max_examples=25)
@given(data=st.data())
def test_no_shape_of_json_crashes_the_reader(kind, data):
    """Whatever stands at any place of a table, or in place of it, each problem lies in the file, and is shown once."""
    table = MAKERS[kind](*SIZES[kind])
    ways = list(places(table))
    shape = data.draw(shapes(tuple(sorted({way[-1] for way in ways if isinstance(way[-1], str)}))))
    if data.draw(st.booleans()):
        *way, key = data.draw(st.sampled_from(ways))
        holder = table
        for part in way:
            holder = holder[part]
        holder[key] = shape
    else:
        marks = {key: table[key] for key in MARKS if key in table}
        table = marks | shape if isinstance(shape, dict) else shape
    text = json.dumps(table, indent=1)
    consumer = data.draw(st.sampled_from(sorted(CONSUMERS)))
    report = parse_rank_table(text.encode(), PATH, Profile(consumer=consumer))
    assert all(1 <= problem.line <= text.count("\n") + 1 for problem in report.problems)
    assert len(report.errors) == len({(one.code, one.line, one.column, one.message) for one in report.errors})
    assert (report.cluster is None) == bool(report.errors)
    assert report.render() or report.valid


@given(data=st.data(), kind=st.sampled_from(sorted(SIZES)))
def test_one_deleted_character_is_refused_near_its_place(data, kind):
    """Without any one of its punctuation marks a table is no JSON; the first fault is not reported before it."""
    text = json.dumps(MAKERS[kind](*SIZES[kind]), indent=1)
    at = data.draw(st.sampled_from([n for n, char in enumerate(text) if char in '{}[]:,"']))
    report = parse_rank_table((text[:at] + text[at + 1 :]).encode(), PATH)
    assert report.cluster is None
    damage = next(problem for problem in report.problems if problem.code.startswith("RT1"))
    opening = text.rfind('"', 0, at) if text[at] == '"' else at
    line_of_damage = text.count("\n", 0, max(opening, 0)) + 1
    assert damage.line >= line_of_damage - 1
