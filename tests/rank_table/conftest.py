"""Builders of tables and reports that the tests of this room share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import Profile, read_rank_table
from launcher.rank_table.formats.group_list.write import write_cloud, write_lab


def address(device, server):
    """Devices i and i + 4 of every server share a network when there are eight, as on a 910."""
    return f"192.{device % 4 + 1 if device < 8 else device + 1}.{device // 4 if device < 8 else 0}.{server + 1}"


def make_table(servers=1, devices=2):
    """A valid v1.0 table as plain JSON values, to be broken by a test."""
    return {
        "version": "1.0",
        "server_count": str(servers),
        "server_list": [
            {
                "server_id": f"10.0.0.{server + 1}",
                "device": [
                    {
                        "device_id": str(device),
                        "device_ip": address(device, server),
                        "rank_id": str(server * devices + device),
                    }
                    for device in range(devices)
                ],
                "host_nic_ip": "reserve",
            }
            for server in range(servers)
        ],
        "status": "completed",
    }


def make_pods(pods=2, servers=2, devices=2):
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


def make_nodes(nodes=1, ranks=2, sub_version=None):
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


def make_level(layer, instance, number, addresses=1):
    """A layer of a v2.0 rank with addresses counted from `number`."""
    return {
        "net_layer": layer,
        "net_instance_id": instance,
        "net_type": "CLOS" if layer else "TOPO_FILE_DESC",
        "net_attr": "",
        "rank_addr_list": [
            {
                "addr_type": "IPV4",
                "addr": f"172.16.{at // 250}.{at % 250 + 1}",
                "ports": ["0/1", "1/1"],
                "plane_id": "p",
            }
            for at in range(number, number + addresses)
        ],
    }


def make_ranks(servers=1, devices=2):
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


def make_group_list(write, servers=1, devices=2, groups=("",)):
    """A valid table without a version, its instances dealt out evenly to the `groups`."""
    of_server = [
        tuple(
            Device(device, server * devices + device, f"192.{device % 4 + 1}.0.{server * 8 + device + 1}")
            for device in range(devices)
        )
        for server in range(servers)
    ]
    cluster = Cluster(tuple(Server(f"10.0.0.{number + 1}", each) for number, each in enumerate(of_server)))
    table = json.loads(write(cluster))
    (whole,) = table["group_list"]
    size = len(whole["instance_list"]) // len(groups)
    table["group_list"], table["group_count"] = [], str(len(groups))
    for number, name in enumerate(groups):
        instances = whole["instance_list"][number * size :][:size] if len(groups) > 1 else whole["instance_list"]
        count = str(sum(len(instance["devices"]) for instance in instances))
        counts = {"instance_count": str(len(instances)), "device_num": count, "device_count": count}
        counts["server_num"] = str(len({instance["server_id"] for instance in instances}))
        known = {key: value for key, value in counts.items() if key in whole}
        table["group_list"].append({"group_name": name, **known, "instance_list": instances})
    return table


MAKERS = {
    "servers": make_table,
    "pods": make_pods,
    "nodes": make_nodes,
    "ranks": make_ranks,
    "lab": lambda *size, **options: make_group_list(write_lab, *size, **options),
    "cloud": lambda *size, **options: make_group_list(write_cloud, *size, **options),
}


@pytest.fixture
def table():
    return make_table


@pytest.fixture
def pods():
    return make_pods


@pytest.fixture
def nodes():
    return make_nodes


@pytest.fixture
def ranks():
    return make_ranks


@pytest.fixture(scope="session")
def makers():
    """What makes a valid table of each format, by the name that the table of cases uses."""
    return MAKERS


@pytest.fixture
def report(tmp_path):
    """Read JSON values, a text or bytes as a table: the report."""

    def read(content, *, chip="auto", name="table.json", profile=None, mode=0o640):
        path = Path(tmp_path) / name
        if not isinstance(content, str | bytes):
            content = json.dumps(content, indent=2)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return read_rank_table(path, profile or Profile(chip))

    return read
