"""From one format to another and back, and what is refused on the way."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.core.errors import RefusedTableError, UsageError
from launcher.core.records import HOST_RANK, Cluster, Device, Server
from launcher.rank_table import Profile, parse_rank_table, table_format
from launcher.rank_table.convert import (
    SOURCES,
    TARGETS,
    convert_cluster,
    format_named,
    held_keys,
    marked_without_ascend,
    rewritten_format,
    without,
)
from launcher.rank_table.detect import read_plain
from launcher.rank_table.table_format import NEVER_READ, SUPER_POD


def servers(*sizes, names="abcdef"):
    made, first = [], 0
    for name, size in zip(names, sizes, strict=False):
        made.append(Server(name, tuple(Device(index, first + index) for index in range(size))))
        first += size
    return Cluster(tuple(made))


def on_a(*devices):
    return Cluster((Server("a", devices),))


def one_device(server_id="a", **more):
    return Cluster((Server(server_id, (Device(0, 0, **more),)),))


def refusal(cluster, target, drop=()):
    with pytest.raises(RefusedTableError) as caught:
        convert_cluster(cluster, target, drop)
    assert caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize(("target", "cluster", "reason"), [
    ("v1.0", on_a(Device(HOST_RANK, 0)), "rank 0 run on the host"),
    ("v1.2", on_a(Device(HOST_RANK, 0)), "which only v1.1 allows"),
    ("rankfile", on_a(Device(HOST_RANK, 0)), "which only v1.1 allows"),
    ("v2.0", on_a(Device(-1, 0), Device(-1, 1)), "ranks 0, 1 run on the host"),
    ("v1.0", on_a(Device(3, 0), Device(3, 1)), "device 3 of 'a' has two ranks"),
    ("v1.0", Cluster((Server("a", (Device(0, 0),), super_pod_id="p"),)), "only v1.2 has super pods"),
    ("v2.0", one_device(super_device_id="3"), "no key for super_device_id"),
    ("v2.0", Cluster((Server("1.2.3.4", (Device(0, 0),), host_ip="1.2.3.4"),)), "no key for host_ip"),
    ("v1.0", Cluster(one_device().servers, options=(("mode", "rdma"),)), "no key for mode"),
    ("v2.0", one_device(), "rank 0: local_id and level_list are missing"),
    ("v2.0", one_device(device_ip="1.2.3.4"), "no key for device_ip"),
    ("v2.0", one_device(options=(("level_list", "["), ("local_id", "0"))), "its first layer is 'None'"),
    ("v2.0", one_device(options=(("level_list", "[]"), ("local_id", "-1"))), "local_id '-1' is not a whole number"),
    ("v1.0", one_device(options=(("level_list", "[]"), ("local_id", "0"))), "no key for local_id"),
    ("nodelist", servers(2, 1), "'a' has 2 and 'b' has 1"),
    ("hostfile", on_a(Device(1, 0)), "rank 0, device 1 of 'a' would become device 0"),
    ("hostfile", servers(1, 1, names=["a b", "c"]), "'a b' is not a valid host name"),
    ("hostfile", servers(1, names=["10.*.*.*"]), "is not a valid host name"),
    ("hostfile", servers(1, names=["a:1"]), "'a:1' is not a valid host name"),
    ("hostfile", Cluster((Server("a", (Device(0, 1),)), Server("b", (Device(0, 0),)))),
        "rank 1, device 0 of 'a' would become rank 0"),
    ("v1.2", Cluster((Server("a", (Device(0, 0),), super_pod_id="p"), Server("b", (Device(0, 1),)))),
        "1 of 2 servers are in no super pod: 'b'"),
])  # fmt: skip
def test_what_would_change_for_the_ranks_is_refused(target, cluster, reason):
    text = refusal(cluster, target)
    assert f"error: {target} cannot express this: " in text
    assert reason in text


def test_all_reasons_are_given_at_once():
    cluster = Cluster((Server("a", (Device(9, 0), Device(HOST_RANK, 1, options=(("bind_device_id", "9"),)))),))
    text = refusal(cluster, "v2.0")
    assert text.count("cannot express this") == 3
    assert "use --drop bind_device_id to leave it out" in text


def test_what_is_dropped_is_left_out():
    cluster = Cluster((Server("a", (Device(0, 0, "1.1.1.1", "5", (("host_port", "6"),)),), super_pod_id="p"),))
    converted = convert_cluster(cluster, "v1.0", ["super_pod"])
    assert converted.cluster == Cluster((Server("a", (Device(0, 0, "1.1.1.1", None, (("host_port", "6"),)),)),))
    assert "host_port" not in convert_cluster(cluster, "v1.2", ["host_port"]).text
    assert convert_cluster(cluster, "hostfile", ["super_pod", "host_port", "device_ip"]).left_behind == ()


def test_a_misspelt_drop_is_refused():
    with pytest.raises(UsageError, match="--drop super_pot") as caught:
        convert_cluster(one_device(), "v1.0", ["super_pot"])
    assert caught.value.hint == "did you mean super_pod?"
    for key in ("level_list", "mode", "bind_device_id", "board_id"):
        assert convert_cluster(one_device(), "v1.0", [key]).cluster == one_device()


def test_what_no_program_reads_is_left_behind_with_a_note():
    """HCCL would ignore it: no reason to refuse, but to say so."""
    server = Server("a", LAYERED.servers[0].devices, "reserve", options=(("container_ip", "1.2.3.4"),))
    converted = convert_cluster(Cluster((replace(server, server_id="x"),)), "v2.0")
    assert converted.left_behind == ("host_nic_ip", "container_ip")
    assert "host_nic_ip, container_ip" in converted.notes[0]


def test_a_hostfile_leaves_addresses_in_the_table():
    converted = convert_cluster(one_device(device_ip="1.1.1.1"), "hostfile")
    assert converted.left_behind == ("device_ip",)
    assert "keep the table" in converted.notes[0]


@pytest.mark.parametrize(("name", "expected"), [("1.0", "v1.0"), ("v2.0", "v2.0"), ("rankfile", "rankfile")])
def test_versions_are_named_with_or_without_v(name, expected):
    assert format_named(name, TARGETS) == expected


def test_an_unknown_target_is_refused():
    with pytest.raises(UsageError) as caught:
        format_named("hostfle", TARGETS)
    assert caught.value.hint.startswith("did you mean hostfile? use one of v1.0, ")


@pytest.mark.parametrize("name", ["v1.1", "1.1", "legacy-lab", "legacy-cloud"])
def test_some_formats_are_only_read(name):
    with pytest.raises(UsageError, match="is read but not written"):
        format_named(name, TARGETS)
    full = format_named(name, SOURCES)
    assert [rewritten_format(each) for each in (full, "v1.2")] == ["v1.0", "v1.2"]


names = st.sampled_from(
    ["10.0.0.1", "10.0.0.10", "10.0.0.2", "fe80::1", "node-01", "node-2", "é", "h", "n[1]", 'a "name"']
)
names |= st.text("abc.-0123é", min_size=1, max_size=12)
ports = st.integers(1, 65535).map(str)


def _options(draw, **choices):
    keys = draw(st.sets(st.sampled_from(sorted(choices)))) if draw(st.booleans()) else ()
    return tuple((key, draw(choices[key])) for key in sorted(keys))


def _address(number, rank):
    return f"192.{number}.{rank // 250}.{rank % 250 + 1}"


def _level_list(server_id, rank):
    address = {"addr": f"{rank:032x}", "addr_type": "EID", "plane_id": "0", "ports": ["0/0"]}
    level = {"net_attr": "", "net_instance_id": server_id, "net_layer": 0, "net_type": "TOPO_FILE_DESC"}
    return json.dumps([{**level, "rank_addr_list": [address]}], sort_keys=True, separators=(",", ":"))


def _device(draw, kind, place, server_id):
    number, slot, rank, addressed = place
    address = _address(number, rank) if addressed else None
    if kind == "concise":
        choices = dict.fromkeys(("device_port", "host_port", "device_vnic_port"), ports)
        choices |= {"net_position": st.just("device"), "net_protocol": st.sampled_from(["rdma", "tcp"])}
        return Device(slot, rank, address, options=_options(draw, **choices))
    if kind == "super pods":
        return Device(slot, rank, address, str(rank))
    if kind == "a5":
        options = {"level_list": _level_list(server_id, rank), "local_id": str(slot)}
        options |= dict(_options(draw, device_port=ports, host_port=ports))
        return Device(slot, rank, options=tuple(sorted(options.items())))
    port = _options(draw, device_port=ports) if kind in ("heterogeneous", "bound") else ()
    if kind == "heterogeneous" and draw(st.booleans()):
        return Device(HOST_RANK, rank, address, options=port)
    if kind == "bound" and draw(st.booleans()):
        return Device(HOST_RANK, rank, address, options=(("bind_device_id", "0"), *port))
    return Device(slot, rank, address, str(rank) if kind == "bound" else None, port)


def _server(draw, kind, number, server_id, *, ranks, addressed):
    slots = draw(st.permutations(range(8)))[: len(ranks)] if draw(st.booleans()) else range(len(ranks))
    places = [(number, slot, rank, addressed) for slot, rank in zip(slots, sorted(ranks), strict=True)]
    devices = tuple(_device(draw, kind, place, server_id) for place in places)
    if kind == "super pods":
        return Server(server_id, devices, super_pod_id=f"pod{number // 2}")
    if kind != "concise":
        return Server(server_id, devices)
    never_read = _options(
        draw, container_ip=st.just("172.17.0.2"), pod_ip=st.just("172.17.0.3"), hardware_type=st.just("gpu")
    )
    host_ip = draw(st.sampled_from([None, None, f"10.9.0.{number}"]))
    return Server(server_id, devices, draw(st.none() | st.just("reserve")), host_ip, options=never_read)


KINDS = ("plain", "plain", "concise", "super pods", "heterogeneous", "bound", "a5")


@st.composite
def clusters(draw):
    """Clusters of every kind that some format can express: in and out of order, equal and unequal, with extras."""
    kind = draw(st.sampled_from(KINDS))
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 4]), min_size=1, max_size=3))
    if draw(st.booleans()):
        sizes = [sizes[0]] * len(sizes)
    ids = draw(st.lists(names, min_size=len(sizes), max_size=len(sizes), unique=True))
    if draw(st.booleans()):
        ids = [f"10.0.0.{number}" for number in range(len(sizes))]
    total = sum(sizes)
    ranks = draw(st.permutations(range(total))) if draw(st.booleans()) else list(range(total))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    addressed = draw(st.booleans())
    options = _options(draw, mode=st.sampled_from(["tcp", "rdma"])) if kind == "heterogeneous" else ()
    made = [
        _server(draw, kind, number, ids[number], ranks=ranks[start : start + size], addressed=addressed)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    return Cluster(tuple(made), options=options)


def converted_or_none(cluster, target):
    try:
        return convert_cluster(cluster, target)
    except RefusedTableError:
        return None


def read(converted, target):
    """The cluster that a reader finds in the text: what the text was made of, so that it makes the same text.

    Ascend's own rules are warnings, as the command has them.
    """
    if TARGETS[target].is_table:
        report = parse_rank_table(converted.text.encode(), Path("table.json"), Profile(chip="none"))
        assert report.format.value == target
        assert report.valid, report.render()
        again = report.cluster
    else:
        devices = len(converted.cluster.servers[0].devices) if target == "nodelist" else None
        again, _ = read_plain(converted.text.encode(), target.removeprefix("mpich-"), target, devices)
    assert again == converted.cluster
    assert convert_cluster(again, target).text == converted.text
    return again


COUNTED = Cluster(
    (
        Server("10.0.0.0", (Device(0, 0, "192.0.0.0"), Device(1, 1, "192.0.1.0"))),
        Server("10.0.0.1", (Device(0, 2, "192.0.0.1"), Device(1, 3, "192.0.1.1"))),
    )
)
ON_HOST = Cluster((Server("10.0.0.1", (Device(0, 0), Device(HOST_RANK, 1), Device(HOST_RANK, 2))),))
LAYERED = Cluster((Server("x", (Device(3, 0, options=(("level_list", _level_list("x", 0)), ("local_id", "3"))),)),))


@pytest.mark.parametrize("first", TARGETS)
def test_what_is_written_is_read_back_also_by_way_of_any_other_format(first):
    seen = Counter()

    @settings(max_examples=15)
    @example(cluster=COUNTED)
    @example(cluster=ON_HOST)
    @example(cluster=LAYERED)
    @given(cluster=clusters())
    def check(cluster):
        start = converted_or_none(cluster, first)
        seen["refused" if start is None else "kept"] += 1
        if start is None:
            assert cluster is not COUNTED or first == "v2.0"
            return
        assert read(start, first) == without(cluster, start.left_behind)
        for second in TARGETS.keys() - {first}:
            there = converted_or_none(start.cluster, second)
            if there is None:
                assert cluster is not COUNTED or second == "v2.0"
                continue
            back, left = converted_or_none(read(there, second), first), set(there.left_behind)
            # Only what was left behind can be missing.
            assert back is not None or (cluster is not COUNTED and left & TARGETS[first].keys)
            if back is not None:
                assert without(read(back, first), left) == without(start.cluster, left)

    check()
    assert seen["kept"]
    assert seen["refused"]


@pytest.mark.parametrize("target", ["v1.0", "v1.2", "rankfile"])
def test_layers_of_the_network_can_be_dropped(target):
    converted = convert_cluster(LAYERED, target, ["level_list", "local_id"])
    assert converted.cluster.servers == (Server("x", (Device(3, 0),)),)
    assert converted.left_behind == ()


def test_every_key_has_a_format():
    kept = set().union(*(target.keys for target in TARGETS.values()))
    assert kept >= NEVER_READ.difference(table_format.LAB_TABLE_OPTIONS, table_format.NODE_TABLE_OPTIONS)
    assert kept >= SUPER_POD
    assert set(table_format.RANK_OPTIONS) <= TARGETS["v2.0"].keys


def test_held_keys_counts_what_a_cluster_has():
    device = Device(0, 0, "1.1.1.1", "2", (("host_port", "6"),))
    server = Server("a", (device, Device(1, 1)), "reserve", "1.2.3.4", "p", (("pod_ip", "1.1.1.2"),))
    expected = {"mode", "host_ip", "host_nic_ip", "super_pod_id", "pod_ip", "device_ip", "super_device_id", "host_port"}
    assert held_keys(Cluster((server,), options=(("mode", "tcp"),))) == dict.fromkeys(expected, 1)


def test_servers_without_addresses_are_marked():
    gpu = Server("b", (Device(0, 1),), options=(("hardware_type", "gpu"),))
    named = Server("a", (Device(0, 0),), options=(("server_ip", "10.0.0.1"),))
    cluster, notes = marked_without_ascend(Cluster((named, gpu)), "v1.0")
    assert cluster.servers[0].options == (("hardware_type", "cpu"), ("server_ip", "10.0.0.1"))
    assert cluster.servers[1] == gpu
    assert len(notes) == 1


@pytest.mark.parametrize(("cluster", "target"), [
    (on_a(Device(0, 0)), "v1.0"),
    (Cluster((Server("a", (Device(0, 0),)), Server("b", (Device(0, 1),)))), "v2.0"),
    (Cluster((Server("a", (Device(0, 0), Device(1, 1, "1.2.3.4"))), Server("b", (Device(0, 2),)))), "v1.0"),
    (
        Cluster((Server("a", (Device(0, 0),), host_ip="1.2.3.4"), Server("b", (Device(0, 1),), host_ip="1.2.3.5"))),
        "v1.2",
    ),
], ids=["one server", "no key for it", "a device has an address", "servers have addresses"])  # fmt: skip
def test_what_hccl_might_use_is_not_marked(cluster, target):
    assert marked_without_ascend(cluster, target) == (cluster, ())
