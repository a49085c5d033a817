"""v1.1: every rule with a table that breaks it and one that does not, what the rows become, and strange documents."""

from __future__ import annotations

import copy
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.catalogue import CATALOGUE
from launcher.rank_table.formats.node_list import rules as node_list
from launcher.rank_table.table_format import Format


def make_table(nodes=1, ranks=2, sub_version=None):
    """A valid v1.1 table. With `sub_version` it has all keys, and the last rank of each node is one on the host."""
    table = {
        "version": "1.1",
        "status": "completed",
        "collective_id": "job",
        "node_list": [
            {
                "node_addr": f"10.0.0.{node + 1}",
                "ranks": [
                    {"rank_id": str(node * ranks + rank), "device_id": str(rank), "rank_ip": f"192.0.{node}.{rank}"}
                    for rank in range(ranks)
                ],
            }
            for node in range(nodes)
        ],
    }
    if sub_version:
        table["heterog_sub_version"] = sub_version
        for node in table["node_list"]:
            for number, rank in enumerate(node["ranks"]):
                rank.update(port="0", sdid=str(number))
            rank.update(device_id="-1", sdid="-1", bind_device_id="0")
    return table


def node(table, number=0):
    return table["node_list"][number]


def rank(table, number=0, index=0):
    return node(table, number)["ranks"][index]


def put(holder, **values):
    """Set values, or take keys away where the value is None."""
    for key, value in values.items():
        if value is None:
            holder.pop(key, None)
        else:
            holder[key] = value


# code, (nodes, ranks, heterog_sub_version, chip), how to break the table, how to make its valid twin, where it shows
CASES = {
    "a5": (
        ("RT207", 1, 2, None, "a5"),
        lambda t: None,
        lambda t: None,
        "/version",
    ),
    "gap in the ranks": (
        ("RT301", 2, 1, None, "auto"),
        lambda t: put(rank(t, 1), rank_id="2"),
        lambda t: None,
        "/node_list/1/ranks/0/rank_id",
    ),
    "rank twice": (
        ("RT302", 2, 1, None, "auto"),
        lambda t: put(rank(t, 1), rank_id="0"),
        lambda t: t["node_list"].reverse(),
        "/node_list/1/ranks/0/rank_id",
    ),
    "not completed": (
        ("RT311", 1, 1, None, "auto"),
        lambda t: put(t, status="initializing"),
        lambda t: None,
        "/status",
    ),
    "node_addr twice": (
        ("RT314", 2, 1, None, "auto"),
        lambda t: put(node(t, 1), node_addr="10.0.0.1"),
        lambda t: put(node(t, 1), node_addr="10.0.0.10"),
        "/node_list/1/node_addr",
    ),
    "device_id below a host rank's": (
        ("RT321", 1, 1, None, "auto"),
        lambda t: put(rank(t), device_id="-2"),
        lambda t: put(rank(t), device_id="-1"),
        "/node_list/0/ranks/0/device_id",
    ),
    "rank_id of a host rank is no number": (
        ("RT321", 1, 1, None, "auto"),
        lambda t: put(rank(t), device_id="-1", rank_id="first"),
        lambda t: put(rank(t), device_id="-1"),
        "/node_list/0/ranks/0/rank_id",
    ),
    "device_id beyond every chip": (
        ("RT322", 1, 1, None, "auto"),
        lambda t: put(rank(t), device_id="32"),
        lambda t: put(rank(t), device_id="31"),
        "/node_list/0/ranks/0/device_id",
    ),
    "rank_ip is a placeholder": (
        ("RT331", 2, 1, None, "auto"),
        lambda t: put(rank(t), rank_ip="192.0.*.*"),
        lambda t: put(rank(t), rank_ip=""),
        "/node_list/0/ranks/0/rank_ip",
    ),
    "two addresses in rank_ip": (
        ("RT331", 1, 1, None, "auto"),
        lambda t: put(rank(t), rank_ip="192.0.0.1,192.0.0.2"),
        lambda t: put(rank(t), rank_ip="fe80::1%eth0"),
        "/node_list/0/ranks/0/rank_ip",
    ),
    "servers of v1.0": (
        ("RT351", 1, 1, None, "auto"),
        lambda t: t.update(server_list=v1_0_servers()) or put(t, node_list=None, collective_id=None),
        lambda t: (
            t.update(version="1.0", server_count="1", server_list=v1_0_servers())
            or put(t, node_list=None, collective_id=None)
        ),
        "/version",
    ),
    "collective_id long": (
        ("RT352", 1, 1, None, "auto"),
        lambda t: put(t, collective_id="c" * 128),
        lambda t: put(t, collective_id="c" * 127),
        "/collective_id",
    ),
    "heterog_sub_version": (
        ("RT353", 1, 2, "1.2", "auto"),
        lambda t: put(t, heterog_sub_version="1.3"),
        lambda t: None,
        "/heterog_sub_version",
    ),
    "mode": (
        ("RT354", 1, 1, None, "auto"),
        lambda t: put(t, mode="TCP"),
        lambda t: put(t, mode="rdma"),
        "/mode",
    ),
    "node_addr is a name": (
        ("RT355", 1, 1, None, "auto"),
        lambda t: put(node(t), node_addr="worker-0"),
        lambda t: put(node(t), node_addr="fd00::1"),
        "/node_list/0/node_addr",
    ),
    "node_addr is empty": (
        ("RT355", 1, 1, None, "auto"),
        lambda t: put(node(t), node_addr=""),
        lambda t: None,
        "/node_list/0/node_addr",
    ),
    "node_addr of no node": (
        ("RT355", 2, 1, None, "auto"),
        lambda t: put(node(t), node_addr="0.0.0.0"),
        lambda t: t["node_list"].pop() and put(node(t), node_addr="0.0.0.0"),
        "/node_list/0/node_addr",
    ),
    "port beyond 16 bits": (
        ("RT356", 1, 1, None, "auto"),
        lambda t: put(rank(t), port="65536"),
        lambda t: put(rank(t), port="65535"),
        "/node_list/0/ranks/0/port",
    ),
    "port is empty": (
        ("RT356", 1, 2, "1.2", "auto"),
        lambda t: put(rank(t), port=""),
        lambda t: put(rank(t), port="0"),
        "/node_list/0/ranks/0/port",
    ),
    "sdid is empty": (
        ("RT357", 1, 2, "1.2", "auto"),
        lambda t: put(rank(t), sdid=""),
        lambda t: put(rank(t), sdid="-1"),
        "/node_list/0/ranks/0/sdid",
    ),
    "host rank without a device": (
        ("RT358", 1, 2, "1.2", "auto"),
        lambda t: put(rank(t, 0, 1), bind_device_id=None),
        lambda t: put(t, heterog_sub_version=None) or put(rank(t, 0, 1), bind_device_id=None),
        "/node_list/0/ranks/1",
    ),
    "host rank bound to a number": (
        ("RT358", 1, 2, "1.2", "auto"),
        lambda t: put(rank(t, 0, 1), bind_device_id=0),
        lambda t: put(rank(t, 0, 0), bind_device_id=0),  # nobody reads it on a device
        "/node_list/0/ranks/1/bind_device_id",
    ),
    "two kinds of nodes": (
        ("RT359", 2, 1, None, "auto"),
        lambda t: put(node(t, 1), node_addr="fd00::1"),
        lambda t: put(node(t, 0), node_addr="fd00::1") or put(node(t, 1), node_addr="fd00::2"),
        "/node_list/1/node_addr",
    ),
    "two kinds of ranks": (
        ("RT359", 2, 1, None, "auto"),
        lambda t: put(rank(t, 1), rank_ip="fd00::1"),
        lambda t: put(rank(t, 0), rank_ip="fd00::1") or put(rank(t, 1), rank_ip="fd00::1"),  # and may be used twice
        "/node_list/1/ranks/0/rank_ip",
    ),
    "dictionary order": (
        ("RT402", 2, 1, None, "auto"),
        lambda t: put(node(t, 0), node_addr="10.0.0.9") or put(node(t, 1), node_addr="10.0.0.10"),
        lambda t: None,
        "/node_list/1/node_addr",
    ),
    "interleaved": (
        ("RT403", 2, 2, None, "auto"),
        lambda t: put(rank(t, 0, 1), rank_id="2") or put(rank(t, 1, 0), rank_id="1"),
        lambda t: node(t)["ranks"].reverse(),
        "/node_list/0/ranks/1/rank_id",
    ),
    "unusual number": (
        ("RT404", 1, 1, None, "auto"),
        lambda t: put(rank(t), device_id="-01"),
        lambda t: put(rank(t), device_id="-1"),
        "/node_list/0/ranks/0/device_id",
    ),
}
NAMES = list(CASES)


def v1_0_servers():
    return [{"server_id": "10.0.0.1", "device": [{"device_id": "0", "rank_id": "0"}]}]


def broken_table(name):
    (_, nodes, ranks, sub_version, _), break_it, _, _ = CASES[name]
    table = make_table(nodes, ranks, sub_version)
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
    """The twin of a broken table, nearest to it among the valid ones, is accepted without an error."""
    (_, nodes, ranks, sub_version, _), _, make_twin, _ = CASES[name]
    twin = make_table(nodes, ranks, sub_version)
    make_twin(twin)
    found = report(twin)
    assert found.problems == ()
    assert found.valid


@pytest.mark.parametrize("name", NAMES)
def test_hint_makes_the_table_valid(name, report):
    """Writing the value that a hint names removes the problem; hints without one ask for what only people know."""
    broken = broken_table(name)
    (problem,) = report(broken, chip=CASES[name][0][-1]).problems
    written = re.match(r'(?:write|add "\w+":|write digits only, as in) "([^"]*)"', problem.hint)
    if written is None:
        assert problem.code in {"RT207", "RT314", "RT322", "RT331", "RT352", "RT355", "RT359", "RT402", "RT403"}
        return
    mended = copy.deepcopy(broken)
    *way, key = (int(part) if part.isdigit() else part for part in problem.pointer.split("/")[1:])
    added = re.match(r'add "(\w+)"', problem.hint)
    if added:
        way, key = [*way, key], added.group(1)
    holder = mended
    for part in way:
        holder = holder[part]
    holder[key] = written.group(1)
    found = report(mended)
    assert found.valid, found.render()


def test_nodes_may_have_different_numbers_of_ranks(report):
    """HCCL does not compare them in this format, not even on a 910, for a rank may compute on the host."""
    table = make_table(2, 2)
    node(table, 1)["ranks"].pop()
    assert report(table, chip="910").errors == ()


def test_every_rule_has_a_case():
    """No rule for this format alone is without a table that breaks it."""
    own = {code for code, entry in CATALOGUE.items() if entry.formats == node_list.V1_1}
    assert own <= {case[0][0] for case in CASES.values()}
    assert "RT351" in {case[0][0] for case in CASES.values()}


@pytest.mark.parametrize(
    ("holder", "key", "code"),
    [
        *((lambda t: t, key, "RT204") for key in ("version", "status", "collective_id", "node_list")),
        *((node, key, "RT204") for key in ("node_addr", "ranks")),
        (rank, "rank_id", "RT204"),
    ],
)
def test_missing_keys_are_named(holder, key, code, report):
    """A key that HCCL cannot do without is missed at its object, with an example."""
    table = make_table(1, 1)
    del holder(table)[key]
    (problem,) = report(table).problems
    assert problem.code == code
    assert problem.message == f"{key} is missing here"
    assert problem.hint.startswith(f'add "{key}": ')


@pytest.mark.parametrize("key", ["device_id", "rank_ip", "port", "sdid"])
def test_sub_version_makes_keys_mandatory(key, report):
    """Each of the keys that a rank may lack is missed once the table has a heterog_sub_version."""
    table = make_table(1, 2, "1.2")
    del rank(table)[key]
    (problem,) = report(table).problems
    assert problem.message == f"{key} is missing here"
    put(table, heterog_sub_version=None)
    assert report(table).valid


def test_cluster_of_a_plain_table(report):
    """Nodes become servers; a rank without device_id is one on the host; port 0 and an empty rank_ip are unset."""
    table = make_table(2, 2)
    put(rank(table, 0, 0), port="45000", rank_ip="")
    put(rank(table, 0, 1), device_id=None, rank_ip=None, port="0", sdid="7", bind_device_id="0")
    table.update(mode="rdma", master_ip="10.0.0.1", master_port="18000")
    node(table, 1)["ranks"].reverse()
    found = report(table)
    assert found.format is Format.V1_1
    assert found.problems == ()
    assert found.cluster == Cluster(
        (
            Server("10.0.0.1", (Device(0, 0, options=(("device_port", "45000"),)), Device(-1, 1))),
            Server("10.0.0.2", (Device(0, 2, "192.0.1.0"), Device(1, 3, "192.0.1.1"))),
        ),
        options=(
            ("collective_id", "job"),
            ("master_ip", "10.0.0.1"),
            ("master_port", "18000"),
            ("mode", "rdma"),
        ),
    )


def test_cluster_of_a_table_for_super_pods(report):
    """With heterog_sub_version the super device and the bound device are kept, "-1" being none."""
    found = report(make_table(1, 2, "1.2"))
    assert found.cluster.servers[0].devices == (
        Device(0, 0, "192.0.0.0", "0"),
        Device(-1, 1, "192.0.0.1", None, (("bind_device_id", "0"),)),
    )
    assert ("heterog_sub_version", "1.2") in found.cluster.options


def test_version_of_super_pods_is_proposed(report):
    """Servers in super pods under version 1.1 belong to a table of version 1.2."""
    table = {"version": "1.1", "status": "completed", "server_list": [], "super_pod_list": []}
    (problem,) = report(table).problems
    assert (problem.code, problem.hint) == ("RT351", 'write "1.2"')


def test_sets_of_a_910_do_not_matter(report):
    """HCCL does not ask for 1, 2, 4 or 8 devices on each node of such a table."""
    assert report(make_table(1, 3), chip="910").errors == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["node_addr", "ranks", "rank_id", "device_id", "port", "sdid"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(node_list=JSON, rank_value=JSON, key=st.sampled_from(["rank_id", "device_id", "rank_ip", "port", "sdid"]))
def test_strange_json_is_refused_without_a_crash(node_list, rank_value, key, report):
    """Whatever stands where nodes, ranks or values are expected, there is a report, and no cluster without sense."""
    strange = {**make_table(1, 2, "1.2"), "node_list": node_list}
    assert not report(strange).valid
    table = make_table(1, 2, "1.2")
    rank(table)[key] = rank_value
    found = report(table)
    assert found.valid or found.errors
