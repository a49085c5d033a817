"""v2.0: every rule with a table that breaks it and one that does not, what the rows become, and strange documents."""

from __future__ import annotations

import copy
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.core.records import Device
from launcher.rank_table.catalogue import CATALOGUE
from launcher.rank_table.formats.rank_list import rules as rank_list
from launcher.rank_table.table_format import Format

EID = "000000000000002000100000df001001"


def make_address(number, kind="IPV4"):
    addr = {
        "IPV4": f"172.16.{number // 250}.{number % 250 + 1}",
        "IPV6": f"fd00::{number + 1:x}",
        "EID": f"{number:032x}",
    }
    return {"addr_type": kind, "addr": addr[kind], "ports": ["0/1", "1/1"], "plane_id": "plane0"}


def make_level(layer, instance, number, addresses=1):
    return {
        "net_layer": layer,
        "net_instance_id": instance,
        "net_type": "CLOS" if layer else "TOPO_FILE_DESC",
        "net_attr": "",
        "rank_addr_list": [make_address(number + index) for index in range(addresses)],
    }


def make_table(servers=1, devices=2):
    """A valid v2.0 table: each rank in a network of its server and in one of all servers."""
    ranks = [
        {
            "rank_id": server * devices + device,
            "device_id": device,
            "local_id": device,
            "level_list": [make_level(0, f"rack{server}", server * 100 + device), make_level(1, "all", device, 2)],
        }
        for server in range(servers)
        for device in range(devices)
    ]
    return {"version": "2.0", "status": "completed", "rank_count": len(ranks), "rank_list": ranks}


def rank(table, number=0):
    return table["rank_list"][number]


def level(table, number=0, layer=0):
    return rank(table, number)["level_list"][layer]


def address(table, number=0, layer=0, index=0):
    return level(table, number, layer)["rank_addr_list"][index]


def put(holder, **values):
    """Set values, or take keys away where the value is None."""
    for key, value in values.items():
        if value is None:
            holder.pop(key, None)
        else:
            holder[key] = value


def with_control_plane(table, **values):
    rank(table)["control_plane"] = {"addr_type": "IPV4", "addr": "10.0.0.1", "listen_port": 8000, **values}


def as_draft(entry):
    """The keys of a draft instead of those of today, and addresses left out."""
    layer, instance = entry["net_layer"], entry["net_instance_id"]
    entry.clear()
    entry.update(level=layer, id=instance, fabric_type="INNER", rank_addrs=[])


def addresses_of(count):
    return [make_address(index) for index in range(count)]


def v1_0_servers():
    return [{"server_id": "10.0.0.1", "device": [{"device_id": "0", "rank_id": "0"}]}]


# code, (servers, devices, chip), how to break the table, how to make its valid twin, where it shows
CASES = {
    "a3": (
        ("RT207", 1, 1, "a3"),
        lambda t: None,
        lambda t: None,
        "/version",
    ),
    "rank beyond the last": (
        ("RT301", 1, 2, "auto"),
        lambda t: put(rank(t, 1), rank_id=2),
        lambda t: None,
        "/rank_list/1/rank_id",
    ),
    "rank below the first": (
        ("RT301", 1, 2, "auto"),
        lambda t: put(rank(t, 1), rank_id=-1),
        lambda t: t["rank_list"].reverse(),
        "/rank_list/1/rank_id",
    ),
    "rank twice": (
        ("RT302", 1, 2, "auto"),
        lambda t: put(rank(t, 1), rank_id=0),
        lambda t: None,
        "/rank_list/1/rank_id",
    ),
    "not completed": (
        ("RT427", 1, 1, "auto"),
        lambda t: put(t, status="initializing"),
        lambda t: put(t, status=None),
        "/status",
    ),
    "servers of v1.0": (
        ("RT351", 1, 1, "auto"),
        lambda t: t.update(server_list=v1_0_servers()) or put(t, rank_list=None, rank_count=None),
        lambda t: (
            t.update(version="1.0", server_count="1", server_list=v1_0_servers())
            or put(t, rank_list=None, rank_count=None)
        ),
        "/version",
    ),
    "rank_count": (
        ("RT371", 1, 2, "auto"),
        lambda t: put(t, rank_count=3),
        lambda t: None,
        "/rank_count",
    ),
    "rank_id beyond 32 bits": (
        ("RT372", 1, 1, "auto"),
        lambda t: put(rank(t), rank_id=2**32),
        lambda t: None,
        "/rank_list/0/rank_id",
    ),
    "device_id": (
        ("RT372", 1, 1, "auto"),
        lambda t: put(rank(t), device_id=65),
        lambda t: put(rank(t), device_id=64),
        "/rank_list/0/device_id",
    ),
    "local_id": (
        ("RT372", 1, 1, "auto"),
        lambda t: put(rank(t), local_id=65),
        lambda t: put(rank(t), local_id=63),
        "/rank_list/0/local_id",
    ),
    "device_port 0": (
        ("RT372", 1, 1, "auto"),
        lambda t: put(rank(t), device_port=0),
        lambda t: put(rank(t), device_port=1),
        "/rank_list/0/device_port",
    ),
    "host_port beyond 16 bits": (
        ("RT372", 1, 1, "auto"),
        lambda t: put(rank(t), host_port=65536),
        lambda t: put(rank(t), host_port=65535),
        "/rank_list/0/host_port",
    ),
    "listen_port": (
        ("RT372", 1, 1, "auto"),
        lambda t: with_control_plane(t, listen_port=0),
        with_control_plane,
        "/rank_list/0/control_plane/listen_port",
    ),
    "two backup devices": (
        ("RT373", 1, 3, "auto"),
        lambda t: (
            put(rank(t, 1), local_id=64, replaced_local_id=1) or put(rank(t, 2), local_id=64, replaced_local_id=2)
        ),
        lambda t: put(rank(t, 1), local_id=64, replaced_local_id=1),
        "/rank_list/2/local_id",
    ),
    "backup for nobody": (
        ("RT374", 1, 2, "auto"),
        lambda t: put(rank(t, 1), local_id=64),
        lambda t: put(rank(t, 1), replaced_local_id=10),  # only the backup's is read
        "/rank_list/1",
    ),
    "backup for itself": (
        ("RT374", 1, 2, "auto"),
        lambda t: put(rank(t, 1), local_id=64, replaced_local_id=64),
        lambda t: put(rank(t, 1), local_id=64, replaced_local_id=63),
        "/rank_list/1/replaced_local_id",
    ),
    "replaced device still there": (
        ("RT375", 1, 2, "auto"),
        lambda t: put(rank(t, 1), local_id=64, replaced_local_id=0),
        lambda t: put(rank(t, 1), local_id=64, replaced_local_id=1),
        "/rank_list/1/replaced_local_id",
    ),
    "local_id twice": (
        ("RT376", 2, 2, "auto"),
        lambda t: put(rank(t, 1), local_id=0),
        lambda t: put(rank(t, 1), device_id=0),  # one network of layer 0 may span servers
        "/rank_list/1/local_id",
    ),
    "nine layers": (
        ("RT377", 1, 1, "auto"),
        lambda t: put(rank(t), level_list=[make_level(layer, "all", 0) for layer in (*range(8), 7)]),
        lambda t: put(rank(t), level_list=[make_level(layer, "all", 0) for layer in range(8)]),
        "/rank_list/0/level_list",
    ),
    "layer 8": (
        ("RT378", 1, 1, "auto"),
        lambda t: put(level(t, 0, 1), net_layer=8),
        lambda t: put(level(t, 0, 1), net_layer=7),
        "/rank_list/0/level_list/1/net_layer",
    ),
    "layer below 0": (
        ("RT378", 1, 1, "auto"),
        lambda t: put(level(t), net_layer=-1),
        lambda t: None,
        "/rank_list/0/level_list/0/net_layer",
    ),
    "layer twice": (
        ("RT379", 1, 1, "auto"),
        lambda t: put(level(t, 0, 1), net_layer=0),
        lambda t: put(level(t, 0, 1), net_layer=3),
        "/rank_list/0/level_list/1/net_layer",
    ),
    "layers the wrong way around": (
        ("RT379", 1, 1, "auto"),
        lambda t: rank(t)["level_list"].reverse(),
        lambda t: rank(t)["level_list"].pop(),
        "/rank_list/0/level_list/1/net_layer",
    ),
    "no name of a network": (
        ("RT380", 1, 1, "auto"),
        lambda t: put(level(t), net_instance_id=""),
        lambda t: put(level(t), net_instance_id="n"),
        "/rank_list/0/level_list/0/net_instance_id",
    ),
    "long name of a network": (
        ("RT380", 1, 1, "auto"),
        lambda t: put(level(t), net_instance_id="n" * 1025),
        lambda t: put(level(t), net_instance_id="n" * 1024),
        "/rank_list/0/level_list/0/net_instance_id",
    ),
    "net_type": (
        ("RT381", 1, 1, "auto"),
        lambda t: put(level(t, 0, 1), net_type="clos"),
        lambda t: put(level(t, 0, 1), net_type=None),  # CLOS then
        "/rank_list/0/level_list/1/net_type",
    ),
    "addr_type": (
        ("RT382", 1, 1, "auto"),
        lambda t: put(address(t), addr_type="ipv4"),
        lambda t: put(address(t), addr_type="EID", addr=EID),
        "/rank_list/0/level_list/0/rank_addr_list/0/addr_type",
    ),
    "addr_type of the control plane": (
        ("RT382", 1, 1, "auto"),
        lambda t: with_control_plane(t, addr_type="IP"),
        lambda t: with_control_plane(t, addr_type="IPV6", addr="fd00::1"),
        "/rank_list/0/control_plane/addr_type",
    ),
    "IPv6 as IPV4": (
        ("RT383", 1, 1, "auto"),
        lambda t: put(address(t), addr="fd00::1"),
        lambda t: put(address(t), addr="fd00::1", addr_type="IPV6"),
        "/rank_list/0/level_list/0/rank_addr_list/0/addr",
    ),
    "IPv6 with a zone": (
        ("RT383", 1, 1, "auto"),
        lambda t: put(address(t), addr="fe80::1%eth0", addr_type="IPV6"),
        lambda t: put(address(t), addr="fe80::1", addr_type="IPV6"),
        "/rank_list/0/level_list/0/rank_addr_list/0/addr",
    ),
    "IPv6 with :: for one group": (
        ("RT383", 1, 1, "auto"),
        lambda t: put(address(t), addr="1:2:3::5:6:7:8", addr_type="IPV6"),
        lambda t: put(address(t), addr="1:2:3::6:10.0.0.1", addr_type="IPV6"),
        "/rank_list/0/level_list/0/rank_addr_list/0/addr",
    ),
    "EID of 31 digits": (
        ("RT383", 1, 1, "auto"),
        lambda t: put(address(t), addr=EID[1:], addr_type="EID"),
        lambda t: put(address(t), addr=EID.upper(), addr_type="EID"),
        "/rank_list/0/level_list/0/rank_addr_list/0/addr",
    ),
    "EID with another letter": (
        ("RT383", 1, 1, "auto"),
        lambda t: put(address(t), addr=EID[:-1] + "g", addr_type="EID"),
        lambda t: put(address(t), addr=EID, addr_type="EID"),
        "/rank_list/0/level_list/0/rank_addr_list/0/addr",
    ),
    "25 addresses": (
        ("RT384", 1, 1, "auto"),
        lambda t: put(level(t), rank_addr_list=addresses_of(25)),
        lambda t: put(level(t), rank_addr_list=addresses_of(24)),
        "/rank_list/0/level_list/0/rank_addr_list",
    ),
    "one address and two": (
        ("RT385", 1, 2, "auto"),
        lambda t: put(level(t, 1), rank_addr_list=addresses_of(2)),
        lambda t: put(level(t, 1, 0), rank_addr_list=[]) or put(level(t, 0, 0), rank_addr_list=[]),
        "/rank_list/1/level_list/0/rank_addr_list",
    ),
    "no port": (
        ("RT386", 1, 1, "auto"),
        lambda t: put(address(t), ports=[]),
        lambda t: put(address(t), ports=["d2h"]),
        "/rank_list/0/level_list/0/rank_addr_list/0/ports",
    ),
    "17 ports": (
        ("RT386", 1, 1, "auto"),
        lambda t: put(address(t), ports=[f"0/{port}" for port in range(17)]),
        lambda t: put(address(t), ports=[*(f"0/{port}" for port in range(16)), "0/0"]),  # equal ones count once
        "/rank_list/0/level_list/0/rank_addr_list/0/ports",
    ),
    "port as a number": (
        ("RT386", 1, 1, "auto"),
        lambda t: put(address(t), ports=["0/1", 4]),
        lambda t: put(address(t), ports=["0/1", "p" * 32]),
        "/rank_list/0/level_list/0/rank_addr_list/0/ports/1",
    ),
    "port of 33 bytes": (
        ("RT386", 1, 1, "auto"),
        lambda t: put(address(t), ports=["é" * 16 + "p"]),
        lambda t: put(address(t), ports=["é" * 16]),
        "/rank_list/0/level_list/0/rank_addr_list/0/ports/0",
    ),
    "backup_addr is no list": (
        ("RT392", 1, 1, "auto"),
        lambda t: put(address(t), backup_addr="172.16.9.9"),
        lambda t: put(address(t), backup_addr=["172.16.9.9"]),
        "/rank_list/0/level_list/0/rank_addr_list/0/backup_addr",
    ),
    "17 backups": (
        ("RT392", 1, 1, "auto"),
        lambda t: put(address(t), backup_addr=[f"172.16.9.{n}" for n in range(17)]),
        lambda t: put(address(t), backup_addr=[f"172.16.9.{n}" for n in range(16)]),
        "/rank_list/0/level_list/0/rank_addr_list/0/backup_addr",
    ),
    "backup of an EID": (
        ("RT392", 1, 1, "auto"),
        lambda t: put(address(t), addr_type="EID", addr=EID, backup_addr=[EID]),
        lambda t: put(address(t), addr_type="EID", addr=EID, backup_addr=[]),
        "/rank_list/0/level_list/0/rank_addr_list/0/backup_addr",
    ),
    "backup of another kind": (
        ("RT392", 1, 1, "auto"),
        lambda t: put(address(t), backup_addr=["172.16.9.9", "fd00::9"]),
        lambda t: put(address(t), addr_type="IPV6", addr="fd00::8", backup_addr=["fd00::9"]),
        "/rank_list/0/level_list/0/rank_addr_list/0/backup_addr/1",
    ),
    "backup that is no text": (
        ("RT392", 1, 1, "auto"),
        lambda t: put(address(t), backup_addr=[None]),
        lambda t: None,
        "/rank_list/0/level_list/0/rank_addr_list/0/backup_addr/0",
    ),
    "pcie_fallback is no bool": (
        ("RT205", 1, 1, "auto"),
        lambda t: put(level(t), pcie_fallback="true"),
        lambda t: put(level(t), pcie_fallback=True),
        "/rank_list/0/level_list/0/pcie_fallback",
    ),
    "net_instance_id of 1025 bytes": (
        ("RT380", 1, 1, "auto"),
        lambda t: put(level(t), net_instance_id="é" * 512 + "p"),
        lambda t: put(level(t), net_instance_id="é" * 512),
        "/rank_list/0/level_list/0/net_instance_id",
    ),
    "plane_id of 1025 bytes": (
        ("RT387", 1, 1, "auto"),
        lambda t: put(address(t), plane_id="é" * 512 + "p"),
        lambda t: put(address(t), plane_id="é" * 512),
        "/rank_list/0/level_list/0/rank_addr_list/0/plane_id",
    ),
    "plane_id long": (
        ("RT387", 1, 1, "auto"),
        lambda t: put(address(t), plane_id="p" * 1025),
        lambda t: put(address(t), plane_id=None),
        "/rank_list/0/level_list/0/rank_addr_list/0/plane_id",
    ),
    "detour": (
        ("RT388", 1, 1, "auto"),
        lambda t: put(t, detour="True"),
        lambda t: put(t, detour="true"),
        "/detour",
    ),
    "only a higher layer": (
        ("RT391", 1, 1, "auto"),
        lambda t: rank(t)["level_list"].pop(0),
        lambda t: rank(t)["level_list"].pop(1),
        "/rank_list/0/level_list/0/net_layer",
    ),
    "interleaved": (
        ("RT403", 2, 2, "auto"),
        lambda t: put(rank(t, 1), rank_id=2) or put(rank(t, 2), rank_id=1),
        lambda t: t["rank_list"].sort(key=lambda entry: -entry["rank_id"]),
        "/rank_list/1/rank_id",
    ),
}
NAMES = list(CASES)
# What only people know: an address, a device that is broken, which entries were meant.
UNKNOWABLE = {"RT207", "RT373", "RT374", "RT375", "RT377", "RT378", "RT379", "RT380", "RT383", "RT384", "RT385"}
UNKNOWABLE |= {"RT205", "RT386", "RT387", "RT391", "RT392", "RT403"}


def broken_table(name):
    (_, servers, devices, _), break_it, _, _ = CASES[name]
    table = make_table(servers, devices)
    break_it(table)
    return table


@pytest.mark.parametrize("name", NAMES)
def test_broken_table_shows_one_problem(name, report):
    """A table that breaks one rule shows that rule's code, at the value that breaks it, and nothing else."""
    (code, *_, chip), _, _, pointer = CASES[name]
    problems = report(broken_table(name), chip=chip).problems
    assert [(problem.code, problem.pointer) for problem in problems] == [(code, pointer)]
    assert problems[0].hint


@pytest.mark.parametrize("name", NAMES)
def test_twin_shows_none(name, report):
    """The twin of a broken table, nearest to it among the valid ones, is accepted without a word."""
    (_, servers, devices, _), _, make_twin, _ = CASES[name]
    twin = make_table(servers, devices)
    make_twin(twin)
    found = report(twin)
    assert found.problems == ()
    assert found.valid


@pytest.mark.parametrize("name", NAMES)
def test_hint_makes_the_table_valid(name, report):
    """Writing the value that a hint names removes the problem, and JSON numbers are named without quotes."""
    broken = broken_table(name)
    (problem,) = report(broken, chip=CASES[name][0][-1]).problems
    written = re.match(r'write ("[^"]*"|\d+\b(?! address))', problem.hint)
    if written is None:
        assert problem.code in UNKNOWABLE or "that the driver shows" in problem.hint
        return
    mended = copy.deepcopy(broken)
    *way, key = (int(part) if part.isdigit() else part for part in problem.pointer.split("/")[1:])
    holder = mended
    for part in way:
        holder = holder[part]
    holder[key] = json.loads(written.group(1))
    found = report(mended)
    assert found.valid, found.render()
    assert problem.code not in {other.code for other in found.problems}


def test_every_rule_has_a_case():
    """No rule for this format alone is without a table that breaks it."""
    own = {code for code, entry in CATALOGUE.items() if entry.formats == rank_list.V2_0}
    assert own - {"RT389"} <= {case[0][0] for case in CASES.values()}


@pytest.mark.parametrize(
    ("holder", "key"),
    [
        *((lambda t: t, key) for key in ("version", "rank_count", "rank_list")),
        *((rank, key) for key in ("rank_id", "device_id", "local_id", "level_list")),
        *((level, key) for key in ("net_layer", "net_instance_id", "rank_addr_list")),
        *((address, key) for key in ("addr_type", "addr", "ports")),
        *((lambda t: rank(t)["control_plane"], key) for key in ("addr_type", "addr", "listen_port")),
    ],
)
def test_missing_keys_are_named(holder, key, report):
    """A key that HCCL cannot do without is missed at its object, with an example."""
    table = make_table(1, 1)
    with_control_plane(table)
    del holder(table)[key]
    (problem,) = report(table).problems
    assert problem.code == "RT204"
    assert problem.message == f"{key} is missing here"
    assert problem.hint.startswith(f'add "{key}": ')


def test_numbers_in_quotes_are_refused(report):
    """Where the older formats write numbers as strings, this one writes numbers, and the hint shows how."""
    table = make_table(1, 2)
    put(table, rank_count="2")
    put(rank(table, 1), rank_id="1", local_id="1")
    problems = report(table).problems
    assert {problem.code for problem in problems} == {"RT205"}
    assert [problem.hint.split(":")[0] for problem in problems] == ["write 2", "write 1", "write 1"]


def test_keys_of_a_draft_get_their_names_of_today(report):
    """Each key of the draft is named once, at its first use, and following the hints gives a valid table."""
    table = make_table(1, 2)
    for number in range(2):
        as_draft(level(table, number))
    problems = report(table).problems
    assert [problem.code for problem in problems] == ["RT389"] * 4
    assert all("/rank_list/0/level_list/0/" in problem.pointer for problem in problems)
    assert all("(and 1 more like it)" in problem.message for problem in problems)
    for number in range(2):
        draft = level(table, number)
        for problem in problems:
            key, value = problem.pointer.rsplit("/", 1)[1], re.match(r'write "(\w+)"(?:: "(\w+)")?', problem.hint)
            draft[value.group(1)] = draft.pop(key) if value.group(2) is None else value.group(2)
            draft.pop(key, None)
    assert report(table).problems == ()


def test_draft_key_for_the_kind_of_addresses_moves_into_the_entries(report):
    """rank_addr_type had one kind for all addresses; each address has its own today."""
    table = make_table(1, 1)
    as_draft(level(table))
    level(table)["rank_addr_type"] = "EID"
    (problem,) = [problem for problem in report(table).problems if problem.pointer.endswith("rank_addr_type")]
    assert '"addr_type"' in problem.hint


def test_more_ranks_than_hccl_takes_are_refused(report):
    """65,536 ranks are the most that a table may have."""
    layer = make_level(0, "rack", 0, addresses=0)
    ranks = [
        {
            "rank_id": number,
            "device_id": 0,
            "local_id": number % 64,
            "level_list": [{**layer, "net_instance_id": f"rack{number // 64}"}],
        }
        for number in range(65537)
    ]
    errors = report(json.dumps({"version": "2.0", "rank_count": 65537, "rank_list": ranks})).errors
    assert [(problem.code, problem.pointer) for problem in errors] == [("RT371", "/rank_list")]


def test_servers_are_networks_of_layer_zero(report):
    """Ranks that share a network of layer 0 are one server, in the order in which the networks appear."""
    table = make_table(2, 2)
    table["detour"] = "true"
    put(rank(table), device_port=16667, host_port=60001, replaced_local_id=9)
    with_control_plane(table)
    found = report(table)
    assert found.format is Format.V2_0
    assert found.problems == ()
    assert found.cluster.options == (("detour", "true"),)
    assert [server.server_id for server in found.cluster.servers] == ["rack0", "rack1"]
    first = found.cluster.servers[0].devices[0]
    options = dict(first.options)
    assert first == Device(0, 0, options=tuple(sorted(options.items())))
    assert json.loads(options.pop("level_list")) == rank(table)["level_list"]
    assert options == {
        "control_plane": '{"addr":"10.0.0.1","addr_type":"IPV4","listen_port":8000}',
        "device_port": "16667",
        "host_port": "60001",
        "local_id": "0",
        "replaced_local_id": "9",
    }


def test_devices_are_sorted_by_rank_whatever_the_file_does(report):
    """The order of keys and ranks in the file changes nothing but the order of the servers."""
    table = make_table(1, 3)
    expected = report(table).cluster
    table["rank_list"] = [dict(reversed(entry.items())) for entry in reversed(table["rank_list"])]
    assert report(table).cluster == expected


def test_empty_lists_are_refused_where_hccl_needs_an_entry(report):
    """No ranks and no layers are faults; a layer without addresses is none."""
    table = make_table(1, 1)
    put(rank(table), level_list=[])
    assert [problem.code for problem in report(table).errors] == ["RT206"]
    put(table, rank_list=[], rank_count=0)
    assert [problem.code for problem in report(table).errors] == ["RT206"]


@pytest.mark.parametrize(
    ("chip", "valid"), [("auto", True), ("a5", True), ("none", True), ("910", False), ("a2", False)]
)
def test_only_a5_reads_the_format(chip, valid, report):
    """Every chip but A5 refuses the table, for one reason; where there is no HCCL it is no more than a warning."""
    found = report(make_table(1, 3), chip=chip)
    assert [problem.code for problem in found.problems] == ([] if valid else ["RT207"])
    assert found.valid is valid


KEYS = ["rank_id", "local_id", "level_list", "net_layer", "net_instance_id", "rank_addr_list", "level", "addr", "ports"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
HOLDERS = [
    *((lambda t: t, key) for key in ("rank_count", "rank_list", "detour", "status")),
    *((rank, key) for key in ("rank_id", "device_id", "local_id", "replaced_local_id", "level_list", "control_plane")),
    *((level, key) for key in ("net_layer", "net_instance_id", "net_type", "net_attr", "rank_addr_list")),
    *((address, key) for key in ("addr_type", "addr", "ports", "plane_id")),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.sampled_from(HOLDERS), value=JSON)
def test_strange_json_is_refused_without_a_crash(where, value, report):
    """Whatever stands at a known key, there is a report: either a cluster, or errors that say why not."""
    table = make_table(2, 1)
    holder, key = where
    holder(table)[key] = value
    found = report(table)
    assert found.valid or found.errors
    assert len(found.errors) == len({(error.code, error.pointer, error.message) for error in found.errors})
