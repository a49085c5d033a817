"""Hints: a table changed as a hint says has fewer errors."""

from __future__ import annotations

import json

import pytest

from launcher.rank_table import Profile
from launcher.rank_table.document import parse_document
from launcher.rank_table.table_format import Format

from .tables import cloud, nodes


def codes(report):
    return [problem.code for problem in report.problems]


def hint_obeyed(text, fault):
    """`text` changed as the hint of a bracket that matches none says."""
    at, hint = fault.offset, fault.hint
    before, after = text[:at], text[at + 1 :]
    if "comma before it" in hint or "no comma before" in hint:
        before = before.rstrip().removesuffix(",")
    if hint.startswith("remove it"):
        return before + (after.lstrip().removeprefix(",") if "comma after it" in hint else after)
    bracket = hint.removeprefix("write ")[0]
    return before + bracket + text[at + ("in its place" in hint) :]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[{"a": 1},\n}\n,{"b": 2}]', "remove it and the comma after it"),
        ('[{"a": 1},\n },\n {"b": 2}]', "remove it and the comma after it"),
        ('[{"a": 1},\n}\n]', "remove it and the comma before it"),
        ('[{"a": 1},\n {"b": 2}}\n]', "remove it"),
        ('[{"a": 1},\n } {"b": 2}]', "remove it"),
        ('{"a": 1,\n ]\n "b": 2}', "remove it"),
        ("[}, 1]", "remove it and the comma after it"),
        ('{"a": [1, 2}}', "write ] in its place"),
        ('{"a": {"b": 1]}', "write } in its place"),
        ('[{"b": 1,\n]]', "write } in its place, and no comma before that"),
        ('{"a": [{"b": 1}}', "write ] before it, where that list ends"),
        ('{"a": [{"b": 1},\n}', "write ] before it, where that list ends, and no comma before that"),
        ('[{"b": 1,\n]', "write } before it, where that object ends, and no comma before that"),
    ],
)
def test_a_bracket_that_matches_none_goes_where_the_hint_says(text, hint):
    """Of removing it, replacing it and closing what is open before it, the hint names what mends the text for good."""
    (fault,) = parse_document(text.encode()).faults
    assert (fault.code, fault.hint) == ("RT112", hint)
    assert not parse_document(hint_obeyed(text, fault).encode()).faults


@pytest.mark.parametrize(
    ("text", "hint", "mended"),
    [
        ('{"a": "1" : "b": "2"}', "write a comma in its place", '{"a": "1" , "b": "2"}'),
        ('[{"a": 1}: {"b": 2}]', "write a comma in its place", '[{"a": 1}, {"b": 2}]'),
        ('{"a": [1]: }', "remove it", '{"a": [1] }'),
        ('[{"a": 1}: ]', "remove it", '[{"a": 1} ]'),
    ],
)
def test_a_colon_after_a_value_is_taken_for_no_key(text, hint, mended):
    """The message names no open list where there is none, or where no key could stand."""
    (fault,) = parse_document(text.encode()).faults
    assert (fault.code, text[fault.offset], fault.hint) == ("RT102", ":", hint)
    assert not parse_document(mended.encode()).faults


def test_a_key_in_a_list_that_is_still_open_is_one():
    """Where a string stands before the colon, the list has no end."""
    (fault,) = parse_document(b'{"a": [1, "b": 2}').faults
    assert fault.code == "RT112"


def test_a_number_without_its_opening_quote_is_marked_with_the_closing_one():
    """What is marked is what the hint's text stands for."""
    text = '{"rank_id": 7", "device_id": "7"}'
    (fault,) = parse_document(text.encode()).faults
    assert fault.hint == 'write "7"'
    assert text[fault.offset : fault.offset + fault.width] == '7"'


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[\n "  {\n"a": 1}]', "remove this quote"),
        ('["a\n]', 'write the missing "'),
        ('{"a: [\n1]}', 'write the missing "'),
    ],
)
def test_a_quote_before_mere_brackets_is_one_too_many(text, hint):
    """Another quote would make a string of the brackets."""
    (fault,) = parse_document(text.encode()).faults
    assert fault.code == "RT106"
    assert fault.hint.startswith(hint)


def test_a_stray_bracket_in_a_table_is_its_only_fault(table, report):
    """Doing what is said about a stray bracket leaves a valid table."""
    text = json.dumps(table(2, 2), indent=1)
    broken = text.replace('"rank_id": "0"\n    },', '"rank_id": "0"\n    },\n   }', 1)
    assert broken != text
    (problem,) = report(broken).errors
    assert (problem.code, problem.hint) == ("RT112", "remove it")
    assert report(broken.replace("\n   }", "", 1)).valid


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "2.0"])
def test_a_version_over_the_groups_of_a_legacy_table_is_named_as_the_mix_up(version, report):
    """A group_list belongs to tables without a version; without it the table is valid."""
    table = cloud(1, 1).make()
    (problem,) = report({"version": version, **table}).problems
    assert (problem.code, problem.pointer) == ("RT351", "/version")
    assert "group_list" in problem.message
    assert "leave version out" in problem.hint
    assert report(table).valid


@pytest.mark.parametrize("version", ["1.0", "1.2", "2.0"])
def test_a_version_over_the_list_of_another_one_is_named_as_the_mix_up(version, report):
    """The hint names the version that the list belongs to."""
    (problem,) = report(nodes(1, 1).make({"version": version})).problems
    assert (problem.code, problem.hint) == ("RT351", 'write "1.1"')
    assert report(nodes(1, 1).make()).format is Format.V1_1


@pytest.mark.parametrize(
    ("version", "meant"), [("1", "1.0"), ("1.0", "1.0"), ("1.2", "1.2"), ("2", "1.0"), ("null", "1.0")]
)
def test_a_version_that_is_a_number_is_to_be_written_as_a_string(version, meant, table, report):
    """The hint is the whole string, and with it the table is valid."""
    text = json.dumps(table()).replace('"1.0"', version, 1)
    (problem,) = report(text).errors
    assert problem.code == "RT205"
    assert problem.hint.startswith(f'write "{meant}"')
    assert report(text.replace(version, f'"{meant}"', 1)).valid


def test_no_key_is_suggested_that_is_there_already(table, report):
    """A misspelt key beside the right one is one too many."""
    (problem,) = report({**table(), "server_lists": []}).problems
    assert (problem.code, problem.hint) == ("RT401", 'remove it: "server_list" is there as well')
    missing = {key: value for key, value in table().items() if key != "server_count"}
    assert 'did you mean "server_count"?' in [one.hint for one in report({**missing, "server_counts": "1"}).problems]


@pytest.mark.parametrize("number", ["9" * 25, "9" * 400, "1e999"])
def test_a_huge_number_is_not_called_infinity(number, table, report):
    """JSON has no infinity, and the table holds none."""
    found = report(json.dumps(table()).replace('"rank_id": "0"', f'"rank_id": {number}'))
    (problem,) = (one for one in found.errors if one.code == "RT205")
    assert "nfinity" not in found.render()
    assert ("digits" in problem.message) == number.isdecimal()


@pytest.mark.parametrize(
    ("devices", "hint"),
    [
        (3, "remove 1 of these entries to use 2, or add 1 to use 4"),
        (5, "remove 1 of these entries to use 4, or add 3 to use 8"),
        (9, "remove 1 of these entries to use 8"),
    ],
)
def test_how_many_entries_to_add_or_remove_is_said(devices, hint, table, report):
    """Where the numbers are known, the hint has them."""
    found = report(table(1, devices), profile=Profile("910"))
    assert hint in [problem.hint for problem in found.problems if problem.code == "RT341"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ddp.py", "import os\nimport torch\n"),
        ("table.json", '# setup\n"""What it does.\n\nMore."""\n\nfrom __future__ import annotations\n'),
        ("ddp.py", "print(1)\n"),
        ("run.sh", "#!/bin/bash\nset -e\n"),
        ("table.json", "#!/usr/bin/env python3\nprint(1)\n"),
    ],
)
def test_a_program_in_place_of_a_table_is_one_problem_that_says_so(name, text, report):
    """A script is neither quoted word by word nor renamed to .json."""
    (problem,) = report(text, name=name).problems
    assert (problem.code, problem.line) == ("RT116", 1)
    assert "script" in problem.message


@pytest.mark.parametrize("text", ['"' * 70_000, "#\n" * 40_000 + '"""', "# a table\n{", "'''" * 20_000])
def test_what_only_begins_like_a_program_is_none(text, report):
    """Comments and quotes alone make no program, however many there are."""
    assert "RT116" not in codes(report(text))


@pytest.mark.parametrize(
    ("codec", "source"),
    [
        *(("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-16", "UTF-16")),
        *(("utf-32-le", "UTF-32LE"), ("utf-32-be", "UTF-32BE"), ("utf-32", "UTF-32")),
    ],
)
def test_the_order_of_bytes_is_in_the_advice_for_a_wide_encoding(codec, source, table):
    """Without a byte order mark `iconv -f UTF-16` may guess wrong, so the hint names the very encoding."""
    (fault,) = parse_document(json.dumps(table()).encode(codec)).faults
    assert fault.code == "RT101"
    assert f"encoded as {source}" in fault.message
    assert f"iconv -f {source} -t UTF-8" in fault.hint


def test_zeros_that_are_no_encoding_are_called_that():
    """A file of NUL bytes, as a full disk leaves behind, is not taken for UTF-32."""
    (fault,) = parse_document(b"\0" * 100).faults
    assert fault.code == "RT101"
    assert "NUL" in fault.message
