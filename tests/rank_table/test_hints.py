"""Hints: a table changed as a hint says has fewer errors."""

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
    if "comma before it" in hint or "remove the comma before" in hint:
        before = before.rstrip().removesuffix(",")
    if hint.startswith("remove it"):
        return before + (after.lstrip().removeprefix(",") if "comma after it" in hint else after)
    return before + hint.removeprefix("write ")[0] + text[at + ("in its place" in hint) :]


@pytest.mark.parametrize(("text", "hint"), [
    ('[{"a": 1},\n}\n,{"b": 2}]', "remove it and the comma after it"),
    ('[{"a": 1},\n },\n {"b": 2}]', "remove it and the comma after it"),
    ('[{"a": 1},\n}\n]', "remove it and the comma before it"),
    ('[{"a": 1},\n {"b": 2}}\n]', "remove it"), ('[{"a": 1},\n } {"b": 2}]', "remove it"),
    ('{"a": 1,\n ]\n "b": 2}', "remove it"),
    ("[}, 1]", "remove it and the comma after it"),
    ('{"a": [1, 2}}', "write ] in its place"), ('{"a": {"b": 1]}', "write } in its place"),
    ('[{"b": 1,\n]]', "write } in its place, and remove the comma before that"),
    ('{"a": [{"b": 1}}', "write ] at the end of that list"),
    ('{"a": [{"b": 1},\n}', "write ] at the end of that list, and remove the comma before that"),
    ('[{"b": 1,\n]', "write } at the end of that object, and remove the comma before that"),
])  # fmt: skip
def test_a_bracket_that_matches_none_goes_where_the_hint_says(text, hint):
    (fault,) = parse_document(text.encode()).faults
    assert (fault.code, fault.hint) == ("RT112", hint)
    assert not parse_document(hint_obeyed(text, fault).encode()).faults


@pytest.mark.parametrize(("text", "hint", "mended"), [
    ('{"a": "1" : "b": "2"}', "write a comma in its place", '{"a": "1" , "b": "2"}'),
    ('[{"a": 1}: {"b": 2}]', "write a comma in its place", '[{"a": 1}, {"b": 2}]'),
    ('{"a": [1]: }', "remove it", '{"a": [1] }'),
    ('[{"a": 1}: ]', "remove it", '[{"a": 1} ]'),
])  # fmt: skip
def test_a_colon_after_a_value_is_taken_for_no_key(text, hint, mended):
    (fault,) = parse_document(text.encode()).faults
    assert (fault.code, text[fault.offset], fault.hint) == ("RT102", ":", hint)
    assert not parse_document(mended.encode()).faults


def test_a_key_in_a_list_that_is_still_open_is_one():
    (fault,) = parse_document(b'{"a": [1, "b": 2}').faults
    assert fault.code == "RT112"


def test_a_number_without_its_opening_quote_is_marked_with_the_closing_one():
    text = '{"rank_id": 7", "device_id": "7"}'
    (fault,) = parse_document(text.encode()).faults
    assert fault.hint == 'write "7"'
    assert text[fault.offset : fault.offset + fault.width] == '7"'


@pytest.mark.parametrize(("text", "hint"), [
    ('[\n "  {\n"a": 1}]', "remove this quote"), ('["a\n]', 'write the missing "'),
    ('{"a: [\n1]}', 'write the missing "'),
])  # fmt: skip
def test_a_quote_before_mere_brackets_is_one_too_many(text, hint):
    (fault,) = parse_document(text.encode()).faults
    assert fault.code == "RT106"
    assert fault.hint.startswith(hint)


def test_a_stray_bracket_in_a_table_is_its_only_fault(table, report):
    text = json.dumps(table(2, 2), indent=1)
    broken = text.replace('"rank_id": "0"\n    },', '"rank_id": "0"\n    },\n   }', 1)
    assert broken != text
    (problem,) = report(broken).errors
    assert (problem.code, problem.hint) == ("RT112", "remove it")
    assert report(broken.replace("\n   }", "", 1)).valid


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "2.0"])
def test_a_version_over_the_groups_of_a_legacy_table_is_named_as_the_mix_up(version, report):
    table = cloud(1, 1).make()
    (problem,) = report({"version": version, **table}).problems
    assert (problem.code, problem.pointer) == ("RT351", "/version")
    assert "group_list" in problem.message
    assert "remove version" in problem.hint
    assert report(table).valid


@pytest.mark.parametrize("version", ["1.0", "1.2", "2.0"])
def test_a_version_over_the_list_of_another_one_is_named_as_the_mix_up(version, report):
    (problem,) = report(nodes(1, 1).make({"version": version})).problems
    assert (problem.code, problem.hint) == ("RT351", 'write "1.1"')
    assert report(nodes(1, 1).make()).format is Format.V1_1


@pytest.mark.parametrize(
    ("version", "meant"), [("1", "1.0"), ("1.0", "1.0"), ("1.2", "1.2"), ("2", "1.0"), ("null", "1.0")]
)
def test_a_version_that_is_a_number_is_to_be_written_as_a_string(version, meant, table, report):
    text = json.dumps(table()).replace('"1.0"', version, 1)
    (problem,) = report(text).errors
    assert problem.code == "RT205"
    assert problem.hint.startswith(f'write "{meant}"')
    assert report(text.replace(version, f'"{meant}"', 1)).valid


def test_no_key_is_suggested_that_is_there_already(table, report):
    (problem,) = report({**table(), "server_lists": []}).problems
    assert (problem.code, problem.hint) == ("RT401", 'remove it: the object already has "server_list"')
    missing = {key: value for key, value in table().items() if key != "server_count"}
    assert 'did you mean "server_count"?' in [one.hint for one in report({**missing, "server_counts": "1"}).problems]


@pytest.mark.parametrize("number", ["9" * 25, "9" * 400, "1e999"])
def test_a_huge_number_is_not_called_infinity(number, table, report):
    found = report(json.dumps(table()).replace('"rank_id": "0"', f'"rank_id": {number}'))
    (problem,) = (one for one in found.errors if one.code == "RT205")
    assert "nfinity" not in found.render()
    assert ("digits" in problem.message) == number.isdecimal()


@pytest.mark.parametrize(("devices", "hint"), [
    (3, "remove 1 of these devices to use 2, or add 1 to use 4"),
    (5, "remove 1 of these devices to use 4, or add 3 to use 8"),
    (9, "remove 1 of these devices to use 8"),
])  # fmt: skip
def test_how_many_entries_to_add_or_remove_is_said(devices, hint, table, report):
    found = report(table(1, devices), profile=Profile("910"))
    assert hint in [problem.hint for problem in found.problems if problem.code == "RT341"]


@pytest.mark.parametrize(("name", "text"), [
    ("ddp.py", "import os\nimport torch\n"),
    ("table.json", '# setup\n"""What it does.\n\nMore."""\n\nfrom __future__ import annotations\n'),
    ("ddp.py", "print(1)\n"), ("run.sh", "#!/bin/bash\nset -e\n"),
    ("table.json", "#!/usr/bin/env python3\nprint(1)\n"),
])  # fmt: skip
def test_a_program_in_place_of_a_table_is_one_problem_that_says_so(name, text, report):
    (problem,) = report(text, name=name).problems
    assert (problem.code, problem.line) == ("RT116", 1)
    assert "script" in problem.message


@pytest.mark.parametrize("text", ['"' * 70_000, "#\n" * 40_000 + '"""', "# a table\n{", "'''" * 20_000])
def test_what_only_begins_like_a_program_is_none(text, report):
    assert "RT116" not in codes(report(text))


@pytest.mark.parametrize(("codec", "source"), [
    *(("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-16", "UTF-16")),
    *(("utf-32-le", "UTF-32LE"), ("utf-32-be", "UTF-32BE"), ("utf-32", "UTF-32")),
])  # fmt: skip
def test_the_order_of_bytes_is_in_the_advice_for_a_wide_encoding(codec, source, table):
    (fault,) = parse_document(json.dumps(table()).encode(codec)).faults
    assert fault.code == "RT101"
    assert f"encoded as {source}" in fault.message
    assert f"iconv -f {source} -t UTF-8" in fault.hint


def test_zeros_that_are_no_encoding_are_called_that():
    (fault,) = parse_document(b"\0" * 100).faults
    assert fault.code == "RT101"
    assert "NUL" in fault.message


def server_table(*servers, **more):
    return {"version": "1.0", "server_count": str(len(servers)), "server_list": servers, "status": "completed", **more}


def entry(server_id, *devices, **more):
    return {"server_id": server_id, "device": list(devices), **more}


def test_the_renames_that_make_a_group_list_of_servers_a_table(report):
    devices = [{"device_id": "0", "rank_id": "0"}]
    wrong = {"group_count": "1", "group_list": [{"server_id": "10.0.0.1", "devices": devices}], "status": "completed"}
    for document in (wrong, {"version": "1.0", **wrong}):
        (problem,) = report(document).errors
        assert problem.code == "RT351"
        renames = dict(part.removeprefix("rename ").split(" to ") for part in problem.hint.split(", "))
        text = json.dumps({"version": "1.0", **wrong})
        for ours, theirs in renames.items():
            text = text.replace(f'"{ours}"', f'"{theirs}"')
        assert codes(report(json.loads(text))) == []


def test_keys_that_other_tools_write_are_known(report):
    known = {"server_name": "n", "server_sn": "x", "super_pod_id": "1", "pod_name": "p", "container_ids": ["c"]}
    table = server_table(entry("10.0.0.1", {"device_id": "0", "rank_id": "0"}, **known), total=1, IsMindIEEPJob=True)
    assert codes(report(table)) == []
    assert codes(report({**table, "totals": 1})) == ["RT401"]


@pytest.mark.parametrize(("devices", "free"), [
    ([{}, {}, {}], ["0", "1", "2"]),
    ([{"device_id": "1"}, {}, {"device_id": "0"}, {}], ["2", "3"]),
    ([{"device_id": "+1"}, {}, {}], ["0", "2"]),
])  # fmt: skip
def test_a_missing_device_id_gets_a_number_of_its_own(report, devices, free):
    servers = [
        entry(name, *({**device, "rank_id": str(first + index)} for index, device in enumerate(devices)))
        for name, first in (("10.0.0.1", 0), ("10.0.0.2", len(devices)))
    ]
    missing = [problem.hint for problem in report(server_table(*servers)).errors if problem.code == "RT204"]
    assert [hint.split('"')[3] for hint in missing] == free * 2


@pytest.mark.parametrize(("reader", "found"), [("hccl", ["RT402"]), ("mindspore", ["RT501"])])
def test_the_order_of_servers_matters_to_mindspore_alone(report, reader, found):
    servers = [
        entry(name, {"device_id": "0", "device_ip": f"192.1.0.{rank + 1}", "rank_id": str(rank)})
        for rank, name in enumerate(["10.0.0.9", "10.0.0.10"])
    ]
    seen = codes(report(server_table(*servers), profile=Profile("auto", reader)))
    assert [code for code in seen if code in {"RT402", "RT501"}] == found


def test_a_count_is_compared_with_most_servers_or_with_what_the_table_states(report):
    def device(server, number, rank):
        return {"device_id": str(number), "device_ip": f"192.{number + 1}.0.{server + 1}", "rank_id": str(rank)}

    sizes, rank, servers = (1, 2, 2), 0, []
    for server, size in enumerate(sizes):
        servers.append(entry(f"10.0.0.{server + 1}", *(device(server, each, rank + each) for each in range(size))))
        rank += size
    (problem,) = report(server_table(*servers), profile=Profile("910")).errors
    assert problem.pointer == "/server_list/0/device"
    assert '2 of 3 servers have 2 devices, but server "10.0.0.1" has 1' in problem.message
    assert problem.hint.startswith("add 1 here")


def test_the_device_that_is_marked_is_one_that_the_message_names(report):
    for changes in ({}, {(0, 1): "192.1.0.129"}, {(1, 5): "192.9.1.15"}):
        servers = [
            entry(
                f"10.0.0.{server + 1}",
                *(
                    {
                        "device_id": str(number),
                        "device_ip": changes.get((server, number), f"192.{number % 4 + 1}.{server}.{10 + number}"),
                        "rank_id": str(8 * server + number),
                    }
                    for number in range(8)
                ),
            )
            for server in range(2)
        ]
        for problem in report(server_table(*servers)).problems:
            assert problem.code == "RT410"
            at = problem.pointer.split("/")
            marked = servers[int(at[2])]["device"][int(at[4])]
            assert f"{marked['device_ip']} (device {marked['device_id']})" in problem.message
