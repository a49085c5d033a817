"""v2.0: what the rows become, keys that must be there, and strange documents. Its rules are in test_rules.py."""

import json
import re

from launcher.core.records import Device
from launcher.rank_table.formats.rank_list import rank_list_rules as rules
from launcher.rank_table.table_format import Format

from .tables import ranks


def as_draft(level, **more):
    """The keys of a draft instead of those of today, and addresses left out."""
    layer, instance = level["net_layer"], level["net_instance_id"]
    return {"level": layer, "id": instance, "fabric_type": "INNER", "rank_addrs": [], **more}


def test_numbers_in_quotes_are_refused(report):
    problems = report(ranks(1, 2).make({"rank_count": "2", "r1/rank_id": "1", "r1/local_id": "1"})).problems
    assert {problem.code for problem in problems} == {"RT205"}
    assert [problem.hint.split(":")[0] for problem in problems] == ["write 2", "write 1", "write 1"]


def test_keys_of_a_draft_get_their_names_of_today(report):
    table = ranks(1, 2).make({"l0.0": as_draft, "l1.0": as_draft})
    problems = report(table).problems
    assert [problem.code for problem in problems] == ["RT389"] * 4
    assert all("/rank_list/0/level_list/0/" in problem.pointer for problem in problems)
    assert all("(and 1 more like it)" in problem.message for problem in problems)
    for draft in (rank["level_list"][0] for rank in table["rank_list"]):
        for problem in problems:
            key, value = problem.pointer.rsplit("/", 1)[1], re.match(r'write "(\w+)"(?:: "(\w+)")?', problem.hint)
            draft[value.group(1)] = draft.pop(key) if value.group(2) is None else value.group(2)
            draft.pop(key, None)
    assert report(table).problems == ()


def test_draft_key_for_the_kind_of_addresses_moves_into_the_entries(report):
    table = ranks(1, 1).make({"l0.0": lambda level: as_draft(level, rank_addr_type="EID")})
    (problem,) = [problem for problem in report(table).problems if problem.pointer.endswith("rank_addr_type")]
    assert '"addr_type"' in problem.hint


def test_more_ranks_than_hccl_takes_are_refused(report, monkeypatch):
    assert rules.RANK_LIMIT == 65536
    monkeypatch.setattr(rules, "RANK_LIMIT", 4)
    assert report(ranks(1, 4).make()).errors == ()
    errors = report(ranks(1, 5).make()).errors
    assert [(problem.code, problem.pointer) for problem in errors] == [("RT371", "/rank_list")]


def test_servers_are_networks_of_layer_zero(report):
    control_plane = {"addr_type": "IPV4", "addr": "10.0.0.1", "listen_port": 8000}
    of_first = {"device_port": 16667, "host_port": 60001, "replaced_local_id": 9, "control_plane": control_plane}
    table = ranks(2, 2).make({"detour": "true", **{f"r0/{key}": value for key, value in of_first.items()}})
    found = report(table)
    assert found.format is Format.V2_0
    assert found.problems == ()
    assert found.cluster.options == (("detour", "true"),)
    assert [server.server_id for server in found.cluster.servers] == ["rack0", "rack1"]
    first = found.cluster.servers[0].devices[0]
    options = dict(first.options)
    assert first == Device(0, 0, options=tuple(sorted(options.items())))
    assert json.loads(options.pop("level_list")) == table["rank_list"][0]["level_list"]
    assert options == {
        "control_plane": '{"addr":"10.0.0.1","addr_type":"IPV4","listen_port":8000}',
        "device_port": "16667",
        "host_port": "60001",
        "local_id": "0",
        "replaced_local_id": "9",
    }


def test_devices_are_sorted_by_rank_whatever_the_file_does(report):
    turned = {"rank_list": lambda entries: [dict(reversed(entry.items())) for entry in reversed(entries)]}
    assert report(ranks(1, 3).make(turned)).cluster == report(ranks(1, 3).make()).cluster


def test_empty_lists_are_refused_where_hccl_needs_an_entry(report):
    for changes in ({"r0/level_list": []}, {"rank_list": [], "rank_count": 0}):
        assert [problem.code for problem in report(ranks(1, 1).make(changes)).errors] == ["RT206"]
