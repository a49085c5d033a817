"""What differs between two documents, and whether their checksums would."""

import copy
import json
from pathlib import Path

from hypothesis import given, settings

from launcher.rank_table import parse_rank_table
from launcher.rank_table.difference import Kind, canonical, compare

from .tables import VALUES


def report(value, **options):
    text = value if isinstance(value, str) else json.dumps(value, indent=1, **options)
    return parse_rank_table(text.encode(), Path("-"))


def kinds(before, after):
    return [(found.kind, found.pointer) for found in compare(report(before), report(after)).differences]


@settings(max_examples=25)
@given(VALUES)
def test_writing_does_not_matter(value):
    document = {"a": value, "b": 1}
    turned = json.dumps({"b": 1, "a": value}, ensure_ascii=False, separators=(",", ":"))
    comparison = compare(report(document), report(turned))
    assert comparison.would_match
    assert comparison.checksums[0] == comparison.checksums[1]


@settings(max_examples=25)
@given(VALUES, VALUES)
def test_a_difference_is_found_exactly_where_checksums_differ(one, other):
    comparison = compare(report({"a": one}), report({"a": other}))
    assert comparison.would_match == (canonical({"a": one}) == canonical({"a": other}))
    assert bool(comparison.differences) != comparison.would_match


@settings(max_examples=25)
@given(VALUES, VALUES)
def test_differences_lead_from_one_to_the_other(one, other):
    patched = copy.deepcopy({"a": one})
    found = compare(report(patched), report({"a": other})).differences
    for difference in reversed(found):  # what is removed from a list's end must not move what is still to come
        if difference.kind is not Kind.ADDED:
            apply(patched, difference)
    for difference in found:
        if difference.kind is Kind.ADDED:
            apply(patched, difference)
    assert canonical(patched) == canonical({"a": other})


def apply(document, difference):
    *way, last = [name.replace("~1", "/").replace("~0", "~") for name in difference.pointer.split("/")[1:]]
    for name in way:
        document = document[int(name) if isinstance(document, list) else name]
    if isinstance(document, list):
        last = int(last)
    if difference.kind is Kind.REMOVED:
        del document[last]
    elif difference.kind is Kind.ADDED and isinstance(document, list):
        document.append(difference.after)
    else:
        document[last] = difference.after


def test_kinds_have_pointers_in_the_order_of_the_first_file():
    before = {"gone": 1, "list": [1, 2], "same": 0, "kept": {"x": "1"}}
    after = {"kept": {"x": "2"}, "list": [1, 3, 4], "same": 0, "new": 5}
    assert kinds(before, after) == [
        (Kind.REMOVED, "/gone"), (Kind.CHANGED, "/list/1"), (Kind.ADDED, "/list/2"), (Kind.CHANGED, "/kept/x"),
        (Kind.ADDED, "/new"),
    ]  # fmt: skip


def test_lists_in_another_order_are_one_difference():
    before = {"a": [{"b": [1, 2, 3]}, {"b": [4]}]}
    assert kinds(before, {"a": before["a"][::-1]}) == [(Kind.REORDERED, "/a")]
    assert kinds(before, {"a": [{"b": [3, 2, 1]}, {"b": [4]}]}) == [(Kind.REORDERED, "/a/0/b")]
    assert kinds({"a": [1, 1, 2]}, {"a": [1, 2, 2]}) == [(Kind.CHANGED, "/a/1")]


def test_types_differ_although_python_calls_them_equal():
    for one, other in ((1, 1.0), (1, True), (1, "1"), (0.0, -0.0)):
        assert kinds({"a": one}, {"a": other}) == [(Kind.CHANGED, "/a")]


def test_lines_are_those_of_each_file():
    comparison = compare(report('{\n"a": 1,\n"b": 2}'), report('{"c": 3,\n\n\n"a": 9}'))
    lines = {found.pointer: (found.before_line, found.after_line) for found in comparison.differences}
    assert lines == {"/a": (2, 4), "/b": (3, None), "/c": (None, 1)}


def test_the_last_of_repeated_keys_counts():
    assert compare(report('{"a": 1, "a": 2}'), report('{"a": 2}')).would_match


def test_ranks_that_move_are_reported(table):
    before, after = table(servers=2), table(servers=2)
    after["server_list"].reverse()
    assert compare(report(before), report(after)).rank_changes == ()
    for server, name in zip(after["server_list"], ("10.0.0.2", "10.0.0.3"), strict=True):
        server["server_id"] = name
    changes = compare(report(before), report(after)).rank_changes
    assert [(change.global_rank, change.name, change.before, change.after) for change in changes] == [
        (0, "server_id", "10.0.0.1", "10.0.0.3"),
        (1, "server_id", "10.0.0.1", "10.0.0.3"),
    ]


def test_ranks_of_one_table_only_are_reported(table):
    changes = compare(report(table(servers=1)), report(table(servers=2))).rank_changes
    assert [(change.global_rank, change.name, change.before) for change in changes] == [
        (2, "rank", None),
        (3, "rank", None),
    ]
    assert changes[0].after == "device 0 of server 10.0.0.2"
