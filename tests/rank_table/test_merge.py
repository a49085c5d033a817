"""Tables of several servers as one."""

import json
import random

import pytest

from launcher.core.errors import RefusedTableError, UsageError
from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import Profile, parse_rank_table, render_table
from launcher.rank_table.convert import convert_cluster
from launcher.rank_table.table_merge import merge_tables

from .tables import cloud, lab, nodes


@pytest.fixture
def reports(tmp_path):
    def read(*clusters, name="v1.0", profile=None):
        made = []
        for number, cluster in enumerate(clusters):
            text = cluster if isinstance(cluster, str) else convert_cluster(cluster, name).text
            made.append(parse_rank_table(text.encode(), tmp_path / f"{number}.json", profile or Profile()))
        return made

    return read


def one(number, devices=2):
    made = tuple(Device(index, index, f"192.{index}.0.{number}") for index in range(devices))
    return Cluster((Server(f"10.0.0.{number}", made),))


def test_ranks_are_counted_in_the_order_of_the_files(reports):
    merged = merge_tables(reports(one(2), one(1, devices=1)))
    assert [
        (server.server_id, [device.global_rank for device in server.devices]) for server in merged.cluster.servers
    ] == [("10.0.0.2", [0, 1]), ("10.0.0.1", [2])]
    assert "ranks follow the order of the files, '10.0.0.2' before '10.0.0.1'" in merged.notes[0]
    assert merge_tables(reports(one(1), one(2))).notes == ()


def test_text_is_the_same_whatever_the_layout(reports):
    pair = Cluster(
        (
            Server("b", (Device(0, 2, "192.0.0.3"), Device(1, 3, "192.0.0.4"))),
            Server("a", (Device(5, 0, "192.0.0.1"), Device(4, 1, "192.0.0.2"))),
        )
    )
    table = json.loads(render_table(pair))
    shuffled = dict(random.Random(1).sample(sorted(table.items()), len(table)))
    shuffled["server_list"] = [
        {**server, "device": server["device"][::-1]} for server in reversed(table["server_list"])
    ]
    texts = {merge_tables(reports(text, one(7))).text for text in (json.dumps(table), json.dumps(shuffled, indent=7))}
    assert len(texts) == 1
    assert list(json.loads(texts.pop())["server_list"][0]) == ["server_id", "device"]


def test_a_repeated_address_is_refused(reports):
    other = Cluster((Server("10.0.0.9", (Device(0, 0, "192.9.9.9"), Device(1, 1, "192.1.0.1"))),))
    with pytest.raises(RefusedTableError, match=r"1\.json:9: error: device_ip '192\.1\.0\.1' is also in .*0\.json:9"):
        merge_tables(reports(one(1), other))


@pytest.mark.parametrize("name", ["127.0.1.1", "127.0.0.1", "localhost"])
def test_a_server_that_each_server_calls_itself_is_refused(reports, name):
    local = Cluster((Server(name, one(1).servers[0].devices),))
    with pytest.raises(RefusedTableError, match=r"0\.json:6: error: .* refers to a different machine on each server"):
        merge_tables(reports(local, one(2)))
    assert merge_tables(reports(local)).cluster == local


def test_different_formats_are_refused(reports):
    mixed = [*reports(one(1)), *reports(one(2), name="v1.2")]
    with pytest.raises(RefusedTableError, match=r"different formats: .* is v1\.0, .* is v1\.2") as caught:
        merge_tables(mixed)
    assert "convert FILE --to v1.0" in caught.value.hint


def test_a_table_with_errors_is_not_merged(reports):
    with pytest.raises(UsageError, match="has errors"):
        merge_tables(reports(one(1), "{}"))


def test_super_pods_are_kept(reports):
    devices = [Device(0, 0, f"192.0.0.{number}", str(number)) for number in range(3)]
    pods = [
        Cluster((Server(f"10.0.0.{number}", (device,), super_pod_id=f"pod{number // 2}"),))
        for number, device in enumerate(devices)
    ]
    merged = merge_tables(reports(*pods, name="v1.2"))
    assert [server.super_pod_id for server in merged.cluster.servers] == ["pod0", "pod0", "pod1"]
    assert [pod["super_pod_id"] for pod in json.loads(merged.text)["super_pod_list"]] == ["pod0", "pod1"]


@pytest.mark.parametrize("kind", [lab, cloud, nodes])
def test_tables_in_formats_that_are_only_read_are_merged_as_v1_0(reports, kind):
    first, second = of_two_servers(kind)
    first["board_id" if kind is lab else "collective_id"] = "mine"
    merged = merge_tables(reports(json.dumps(second), json.dumps(first)))
    assert json.loads(merged.text)["version"] == "1.0"
    assert [server.server_id for server in merged.cluster.servers] == ["10.0.0.2", "10.0.0.1"]
    assert any("dropped" in note for note in merged.notes) == (kind is not cloud)


def test_what_tables_say_about_the_whole_must_agree(reports):
    first, second = of_two_servers(nodes)
    first["mode"], second["mode"] = "tcp", "rdma"
    with pytest.raises(RefusedTableError, match=r"mode is 'tcp' in .*0\.json and 'rdma' in .*1\.json"):
        merge_tables(reports(json.dumps(first), json.dumps(second)))


def of_two_servers(kind):
    text = json.dumps(kind(1, 1).make())
    return [
        json.loads(text.replace("10.0.0.1", f"10.0.0.{number}").replace('"192', f'"19{number}')) for number in (1, 2)
    ]


def test_keys_that_no_program_reads_make_no_difference(reports):
    texts = []
    for number in (1, 2):
        values = json.loads(render_table(one(number)))
        values["net_instance_id"] = "x"
        values["comment"] = {"server_id": "the same"}
        texts.append(json.dumps(values))
    assert merge_tables(reports(*texts)).cluster.device_count == 4
