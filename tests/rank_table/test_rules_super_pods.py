"""v1.2: the super pods of a table, what breaks them, and the records they become."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rank_table import Profile, parse_rank_table
from launcher.rank_table.catalogue import CATALOGUE
from launcher.rank_table.formats.server_list import super_pods
from launcher.rank_table.table_format import Format


def put(holder, key, value):
    """Set a value, or take the key away when the value is None."""
    if value is None:
        holder.pop(key, None)
    else:
        holder[key] = value


def make_pods(make_table, pods=2, servers=2, devices=2):
    """A valid v1.2 table: `pods` super pods of `servers` servers each. Every super pod counts its devices from 0."""
    table = make_table(pods * servers, devices)
    table["version"] = "1.2"
    for number, server in enumerate(table["server_list"]):
        for index, device in enumerate(server["device"]):
            device["super_device_id"] = str(number % servers * devices + index)
    names = [server["server_id"] for server in table["server_list"]]
    table["super_pod_list"] = [
        {
            "super_pod_id": str(number),
            "server_list": [{"server_id": name} for name in names[number * servers :][:servers]],
        }
        for number in range(pods)
    ]
    return table


@pytest.fixture
def pods(table):
    return lambda *sizes: make_pods(table, *sizes)


def device(table, server=0, index=0):
    return table["server_list"][server]["device"][index]


def pod(table, number=0):
    return table["super_pod_list"][number]


# code, how to break a table of two super pods, how to follow the hint (which also makes the twin), where it shows
CASES = {
    "super_device_id is no number": (
        "RT345",
        lambda t: put(device(t, 0, 1), "super_device_id", "one"),
        lambda t: put(device(t, 0, 1), "super_device_id", "7"),
        "/server_list/0/device/1/super_device_id",
    ),
    "super_device_id is empty": (
        "RT345",
        lambda t: put(device(t, 0, 1), "super_device_id", ""),
        lambda t: put(device(t, 0, 1), "super_device_id", "1"),
        "/server_list/0/device/1/super_device_id",
    ),
    "super_device_id is HCCL's none": (
        "RT345",
        lambda t: put(device(t, 3, 1), "super_device_id", str(2**32 - 1)),
        lambda t: put(device(t, 3, 1), "super_device_id", str(2**32 - 2)),
        "/server_list/3/device/1/super_device_id",
    ),
    "super_device_id missing": (
        "RT346",
        lambda t: put(device(t, 2, 0), "super_device_id", None),
        lambda t: put(device(t, 2, 0), "super_device_id", "0"),
        "/server_list/2/device/0",
    ),
    "super_device_id twice": (
        "RT347",
        lambda t: put(device(t, 1, 0), "super_device_id", "1"),
        lambda t: put(device(t, 1, 0), "super_device_id", "2"),  # the other super pod has a 2 as well
        "/server_list/1/device/0/super_device_id",
    ),
    "super_pod_id empty": (
        "RT348",
        lambda t: put(pod(t, 1), "super_pod_id", ""),
        lambda t: put(pod(t, 1), "super_pod_id", "1"),
        "/super_pod_list/1/super_pod_id",
    ),
    "super_pod_id long": (
        "RT348",
        lambda t: put(pod(t, 1), "super_pod_id", "p" * 128),
        lambda t: put(pod(t, 1), "super_pod_id", "p" * 127),
        "/super_pod_list/1/super_pod_id",
    ),
    "super_pod_id twice": (
        "RT349",
        lambda t: put(pod(t, 1), "super_pod_id", "0"),
        lambda t: put(pod(t, 1), "super_pod_id", "1"),
        "/super_pod_list/1/super_pod_id",
    ),
    "member unknown": (
        "RT350",
        lambda t: put(pod(t, 1)["server_list"][0], "server_id", "10.0.0.33"),
        lambda t: put(pod(t, 1)["server_list"][0], "server_id", "10.0.0.3"),
        "/super_pod_list/1/server_list/0/server_id",
    ),
    "server in no super pod": (
        "RT631",
        lambda t: pod(t, 1)["server_list"].pop(),
        lambda t: pod(t, 1)["server_list"].append({"server_id": "10.0.0.4"}),
        "/server_list/3/server_id",
    ),
    "server in two super pods": (
        "RT421",
        lambda t: pod(t, 1)["server_list"].insert(0, {"server_id": "10.0.0.4"}),
        lambda t: pod(t, 1)["server_list"].pop(0),
        "/super_pod_list/1/server_list/2/server_id",
    ),
    "device_ip missing between super pods": (
        "RT333",
        lambda t: put(device(t, 1, 1), "device_ip", None),
        lambda t: put(device(t, 1, 1), "device_ip", "192.2.0.2"),
        "/server_list/1/device/1",
    ),
    "unusual super_device_id": (
        "RT404",
        lambda t: put(device(t, 0, 1), "super_device_id", "01"),
        lambda t: put(device(t, 0, 1), "super_device_id", "1"),
        "/server_list/0/device/1/super_device_id",
    ),
    "super_device_id without quotes": (
        "RT205",
        lambda t: put(device(t, 0, 1), "super_device_id", 1),
        lambda t: put(device(t, 0, 1), "super_device_id", "1"),
        "/server_list/0/device/1/super_device_id",
    ),
    "super_pod_id missing": (
        "RT204",
        lambda t: put(pod(t), "super_pod_id", None),
        lambda t: put(pod(t), "super_pod_id", "0"),
        "/super_pod_list/0",
    ),
    "super pod without servers": (
        "RT206",
        lambda t: put(pod(t, 1), "server_list", []),
        lambda t: put(pod(t, 1), "server_list", [{"server_id": f"10.0.0.{n}"} for n in (3, 4)]),
        "/super_pod_list/1/server_list",
    ),
    "no super pods in the list": (
        "RT206",
        lambda t: put(t, "super_pod_list", []),
        lambda t: put(t, "super_pod_list", None),
        "/super_pod_list",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_broken_table_shows_one_problem(name, pods, report):
    """A table that breaks one rule of super pods shows that rule's code, where it is broken, and nothing else."""
    code, break_it, _, pointer = CASES[name]
    broken = pods()
    break_it(broken)
    problems = report(broken).problems
    assert [(problem.code, problem.pointer) for problem in problems] == [(code, pointer)]
    assert problems[0].hint or code == "RT205"


@pytest.mark.parametrize("name", list(CASES))
def test_following_the_hint_makes_the_table_valid(name, pods, report):
    """What the hint asks for removes the problem, and the table is then accepted without a word."""
    _, break_it, mend, _ = CASES[name]
    mended = pods()
    break_it(mended)
    mend(mended)
    found = report(mended)
    assert found.problems == ()
    assert found.cluster is not None


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][0] in ("RT348", "RT349", "RT350", "RT404")])
def test_hint_names_a_value_that_can_be_written(name, pods, report):
    """The value that such a hint names makes the table valid as it stands."""
    _, break_it, _, pointer = CASES[name]
    broken = pods()
    break_it(broken)
    (problem,) = report(broken).problems
    *way, key = pointer.split("/")[1:]
    holder = broken
    for part in way:
        holder = holder[int(part)] if isinstance(holder, list) else holder[part]
    holder[key] = problem.hint.split('"')[1]
    assert report(broken).problems == ()


def test_super_pods_become_records(pods, report):
    """Servers know their super pod, and devices their number in it, as written."""
    found = report(pods())
    assert (found.format, found.servers, found.devices) == (Format.V1_2, 4, 8)
    assert [server.super_pod_id for server in found.cluster.servers] == ["0", "0", "1", "1"]
    assert [one.super_device_id for one in found.cluster.servers[3].devices] == ["2", "3"]


def test_server_of_two_super_pods_is_in_the_last(pods, report):
    """HCCL takes the last super pod that names a server, and so do the records."""
    table = pods(2, 1, 2)
    pod(table, 0)["server_list"].append({"server_id": "10.0.0.2"})
    found = report(table)
    assert [problem.code for problem in found.problems] == ["RT421"]
    assert [server.super_pod_id for server in found.cluster.servers] == ["0", "1"]


def test_two_super_pods_without_names_get_different_ones(pods, report):
    """Following both hints does not give two super pods one name."""
    table = pods()
    put(pod(table, 0), "super_pod_id", "")
    put(pod(table, 1), "super_pod_id", "")
    hints = [problem.hint.split('"')[1] for problem in report(table).problems]
    assert hints == ["0", "1"]


def test_single_super_pod_needs_no_device_ip(pods, report):
    """Inside one super pod devices do not talk over their network cards."""
    table = pods(1, 3, 2)
    for server in table["server_list"]:
        for one in server["device"]:
            del one["device_ip"]
    assert report(table).problems == ()


def test_without_super_pods_nothing_is_asked_for(pods, report):
    """A v1.2 table may leave super_pod_list and super_device_id out."""
    table = pods()
    del table["super_pod_list"]
    for server in table["server_list"]:
        for one in server["device"]:
            del one["super_device_id"]
    found = report(table)
    assert found.problems == ()
    assert [server.super_pod_id for server in found.cluster.servers] == [None] * 4


@pytest.mark.parametrize("chip", ["910", "a2", "300i"])
def test_other_chips_skip_super_pods(chip, pods, report):
    """HCCL reads super_pod_list on an A3 alone, so its faults are none elsewhere."""
    table = pods()
    put(pod(table, 1)["server_list"][0], "server_id", "unknown")
    put(device(table), "super_device_id", None)
    assert report(table, chip="a3").cluster is None
    assert report(table, chip=chip).problems == ()


def test_faults_are_warnings_on_other_hardware(pods, report):
    """Processes on CPUs and GPUs have no super pods, so what only HCCL asks for is a warning."""
    table = pods()
    put(device(table), "super_device_id", None)
    found = report(table, chip="none")
    assert [problem.code for problem in found.warnings] == ["RT346"]
    assert found.cluster is not None


def test_mixed_order_of_super_pods_is_a_warning(pods, report):
    """HCCL's documentation asks for the servers of a super pod side by side; its parser takes any order."""
    table = pods(2, 2, 1)
    table["server_list"][1], table["server_list"][2] = table["server_list"][2], table["server_list"][1]
    for rank, server in enumerate(table["server_list"]):
        server["device"][0]["rank_id"] = str(rank)
        server["server_id"], server["host_ip"] = "abcd"[rank], f"10.0.0.{rank + 1}"
    table["super_pod_list"] = [
        {"super_pod_id": "0", "server_list": [{"server_id": "a"}, {"server_id": "c"}]},
        {"super_pod_id": "1", "server_list": [{"server_id": "b"}, {"server_id": "d"}]},
    ]
    found = report(table)
    assert [(problem.code, problem.pointer) for problem in found.problems] == [("RT422", "/server_list/2/server_id")]
    assert found.cluster is not None


def test_v1_0_table_with_super_pods_is_told_the_version(pods, report):
    """HCCL skips super pods in a v1.0 table; the hint names the version that has them."""
    table = pods()
    table["version"] = "1.0"
    found = report(table)
    assert [(problem.code, problem.pointer) for problem in found.problems] == [("RT423", "/super_pod_list")]
    assert [server.super_pod_id for server in found.cluster.servers] == [None] * 4
    table["version"] = found.problems[0].hint.split('"')[1]
    assert report(table).problems == ()


def test_unknown_keys_of_super_pods_are_said(pods, report):
    """A misspelt key inside super_pod_list is found as it is elsewhere."""
    table = pods()
    pod(table)["superpod_id"] = "0"
    (problem,) = report(table).problems
    assert (problem.code, problem.pointer) == ("RT401", "/super_pod_list/0/superpod_id")
    assert "super_pod_id" in problem.hint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["server_id", "server_list", "super_pod_id", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(pods=JSON, super_device=JSON, version=st.sampled_from(["1.0", "1.2"]))
def test_strange_super_pods_never_crash(pods, super_device, version):
    """Whatever JSON stands under the keys of super pods, there is a report, and records only without errors."""
    table = {
        "version": version,
        "status": "completed",
        "server_list": [
            {"server_id": "a", "device": [{"device_id": "0", "rank_id": "0", "super_device_id": super_device}]},
            {"server_id": pods, "device": [{"device_id": "0", "rank_id": "1", "super_device_id": "1"}]},
        ],
        "super_pod_list": pods,
    }
    found = parse_rank_table(json.dumps(table).encode(), Path("-"), Profile())
    assert (found.cluster is None) == bool(found.errors)


def test_every_rule_is_spoken_of_above():
    """No rule about super pods enters the catalogue without a test here."""
    own = {code for code, entry in CATALOGUE.items() if entry.check and entry.check.__module__ == super_pods.__name__}
    text = Path(__file__).read_text(encoding="utf-8")
    assert own
    assert all(f'"{code}"' in text for code in own)
