"""The text that each format is written as."""

from __future__ import annotations

import json

import pytest

from launcher.core.records import HOST_RANK, Cluster, Device, Server
from launcher.rank_table import render_table
from launcher.rank_table.convert import TARGETS, convert_cluster

TWO = Cluster(
    (
        Server("10.0.0.1", (Device(0, 0, "192.1.0.1"), Device(1, 1, "192.2.0.1"))),
        Server("10.0.0.2", (Device(0, 2, "192.1.0.2"), Device(1, 3, "192.2.0.2"))),
    )
)
LEVELS = '[{"net_instance_id":"10.0.0.1","net_layer":0,"rank_addr_list":[]}]'
LAYERED = Cluster(
    (Server("10.0.0.1", (Device(4, 0, options=(("level_list", LEVELS), ("local_id", "4"))),)),),
    options=(("detour", "true"),),
)


def written(cluster, name):
    return convert_cluster(cluster, name).text


def test_v1_0_has_one_line_per_device():
    """Keys stand in a fixed order, options after the addresses, and the text ends with a newline."""
    device = Device(3, 0, "192.1.0.1", options=(("device_port", "16666"), ("host_port", "60001")))
    server = Server("node", (device,), "reserve", "10.0.0.9", options=(("container_ip", "172.0.0.1"),))
    assert written(Cluster((server,)), "v1.0") == (
        "{\n"
        '  "version": "1.0",\n'
        '  "server_count": "1",\n'
        '  "server_list": [\n'
        "    {\n"
        '      "server_id": "node",\n'
        '      "device": [\n'
        '        {"device_id": "3", "device_ip": "192.1.0.1", "device_port": "16666", "host_port": "60001", '
        '"rank_id": "0"}\n'
        "      ],\n"
        '      "host_ip": "10.0.0.9",\n'
        '      "host_nic_ip": "reserve",\n'
        '      "container_ip": "172.0.0.1"\n'
        "    }\n"
        "  ],\n"
        '  "status": "completed"\n'
        "}\n"
    )


def test_v1_2_lists_the_servers_of_each_super_pod():
    """Pods come in the order of their first server; each device has its number in the pod."""
    servers = [
        Server(name, (Device(0, rank, super_device_id=str(rank)),), super_pod_id=pod)
        for rank, (name, pod) in enumerate([("a", "p1"), ("b", "p0"), ("c", "p1")])
    ]
    table = json.loads(written(Cluster(tuple(servers)), "v1.2"))
    assert table["version"] == "1.2"
    assert table["super_pod_list"] == [
        {"super_pod_id": "p1", "server_list": [{"server_id": "a"}, {"server_id": "c"}]},
        {"super_pod_id": "p0", "server_list": [{"server_id": "b"}]},
    ]
    assert table["server_list"][2]["device"] == [{"device_id": "0", "super_device_id": "2", "rank_id": "2"}]


def test_v1_1_has_the_ranks_of_a_host():
    """A host rank has device_id -1; with numbers in a super pod every key has to be there."""
    options = (("bind_device_id", "0"), ("device_port", "40000"))
    devices = (Device(0, 0, super_device_id="7"), Device(HOST_RANK, 1, options=options))
    table = json.loads(written(Cluster((Server("10.0.0.1", devices),)), "v1.1"))
    assert table["heterog_sub_version"] == "1.2"
    assert table["node_list"] == [
        {
            "node_addr": "10.0.0.1",
            "ranks": [
                {"rank_id": "0", "device_id": "0", "rank_ip": "", "port": "0", "sdid": "7"},
                {
                    "rank_id": "1",
                    "device_id": "-1",
                    "rank_ip": "",
                    "port": "40000",
                    "sdid": "-1",
                    "bind_device_id": "0",
                },
            ],
        }
    ]


def test_v1_1_without_super_pods_is_short():
    """What is not known is left out; the table's name follows from its content and is the same on every node."""
    first, again = written(TWO, "v1.1"), written(Cluster(TWO.servers), "v1.1")
    assert first == again
    table = json.loads(first)
    assert table["node_list"][0]["ranks"][1] == {"rank_id": "1", "device_id": "1", "rank_ip": "192.2.0.1"}
    assert table["collective_id"].startswith("tlaunch-")
    other = Cluster((TWO.servers[0],))
    assert json.loads(written(other, "v1.1"))["collective_id"] != table["collective_id"]


def test_v1_1_keeps_the_name_it_had():
    """A collective_id that the table has is never replaced."""
    cluster = Cluster(TWO.servers, options=(("collective_id", "mine"), ("mode", "rdma")))
    table = json.loads(written(cluster, "v1.1"))
    assert (table["collective_id"], table["mode"]) == ("mine", "rdma")


def test_v2_0_has_numbers_and_layers():
    """Numbers are JSON integers, and the layers of the network are the very values that were read."""
    table = json.loads(written(LAYERED, "v2.0"))
    assert table["rank_count"] == 1
    assert table["detour"] == "true"
    assert table["rank_list"] == [{"rank_id": 0, "device_id": 4, "local_id": 4, "level_list": json.loads(LEVELS)}]


def test_lab_has_one_instance_per_device():
    """Counts are strings and agree; ranks are written down."""
    table = json.loads(written(TWO, "legacy-lab"))
    assert (table["deploy_mode"], table["chip_info"], table["para_plane_nic_location"]) == ("lab", "910", "device")
    assert (table["para_plane_nic_num"], table["para_plane_nic_name"]) == ("2", ["eth0", "eth1"])
    group = table["group_list"][0]
    assert (group["device_num"], group["server_num"], group["instance_count"]) == ("4", "2", "4")
    assert group["instance_list"][2] == {
        "devices": [{"device_id": "0", "device_ip": "192.1.0.2"}],
        "rank_id": "2",
        "server_id": "10.0.0.2",
    }


def test_cloud_has_one_instance_per_server():
    """There are no ranks; instances are called like their servers."""
    table = json.loads(written(TWO, "legacy-cloud"))
    assert "version" not in table
    assert "deploy_mode" not in table
    group = table["group_list"][0]
    assert (table["group_count"], group["instance_count"], group["device_count"]) == ("1", "2", "4")
    assert group["instance_list"][1] == {
        "pod_name": "10.0.0.2",
        "server_id": "10.0.0.2",
        "devices": [{"device_id": "0", "device_ip": "192.1.0.2"}, {"device_id": "1", "device_ip": "192.2.0.2"}],
    }


def test_plain_lists():
    """Hosts with counts, ranks with slots, and a compressed list, each ending with a newline."""
    assert written(TWO, "hostfile") == "10.0.0.1 slots=2\n10.0.0.2 slots=2\n"
    assert written(TWO, "rankfile") == (
        "rank 0=10.0.0.1 slot=0\nrank 1=10.0.0.1 slot=1\nrank 2=10.0.0.2 slot=0\nrank 3=10.0.0.2 slot=1\n"
    )
    assert written(TWO, "nodelist") == "10.0.0.[1-2]\n"


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in ("v1.1", "v2.0")])
def test_an_address_is_never_invented(name):
    """What has no address gets none, in any format."""
    text = written(Cluster.local(2), name).replace('"device_ip": ""', "")
    assert "_ip" not in text


def test_render_table_takes_v1_2_for_super_pods():
    """What `tlaunch run` writes keeps the pods of the table that it was given."""
    pod = Cluster((Server("a", (Device(0, 0, super_device_id="5"),), super_pod_id="p"),))
    assert json.loads(render_table(pod))["super_pod_list"] == [
        {"super_pod_id": "p", "server_list": [{"server_id": "a"}]}
    ]
    assert json.loads(render_table(TWO))["version"] == "1.0"
    # A device may have its number where there are no pods: HCCL does not read it there, and it is kept.
    numbered = json.loads(render_table(Cluster((Server("a", (Device(0, 0, super_device_id="5"),)),))))
    assert (numbered["version"], numbered["server_list"][0]["device"][0]["super_device_id"]) == ("1.0", "5")


def test_any_text_can_be_a_name():
    """Letters of any script stay as they are; half a surrogate pair, which UTF-8 cannot hold, becomes an escape."""
    cluster = Cluster((Server("nœud", (Device(0, 0),)), Server("\ud800", (Device(0, 1),))))
    text = written(cluster, "v1.0")
    assert '"nœud"' in text
    assert text.encode()
    assert [server["server_id"] for server in json.loads(text)["server_list"]] == ["nœud", "\ud800"]
