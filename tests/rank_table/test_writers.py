"""The text that each format is written as."""

import json

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import render_table
from launcher.rank_table.convert import TARGETS, convert_cluster


def on_one(server_id, *devices, options=(), **more):
    return Cluster((Server(server_id, devices, **more),), options=options)


def joined(*clusters):
    return Cluster(tuple(server for cluster in clusters for server in cluster.servers))


FIRST = on_one("10.0.0.1", Device(0, 0, "192.1.0.1"), Device(1, 1, "192.2.0.1"))
TWO = joined(FIRST, on_one("10.0.0.2", Device(0, 2, "192.1.0.2"), Device(1, 3, "192.2.0.2")))
PODS = [
    on_one(name, Device(0, rank, super_device_id=str(rank)), super_pod_id=pod)
    for rank, (name, pod) in enumerate([("a", "p1"), ("b", "p0"), ("c", "p1")])
]
ADDRESSED = Server(
    "node",
    (Device(3, 0, "192.1.0.1", options=(("device_port", "16666"), ("host_port", "60001"))),),
    "reserve",
    "10.0.0.9",
    options=(("container_ip", "172.0.0.1"),),
)
LEVELS = '[{"net_instance_id":"10.0.0.1","net_layer":0,"rank_addr_list":[]}]'
LAYERED = Device(4, 0, options=(("level_list", LEVELS), ("local_id", "4")))
CLUSTERS = {
    "two servers": (TWO, TARGETS.keys() - {"v2.0"}),
    # Keys stand in a fixed order, options after the addresses.
    "all that a server may have": (Cluster((ADDRESSED,)), {"v1.0", "v1.2"}),
    # Pods come in the order of their first server; each device has its number in the pod.
    "super pods": (joined(*PODS), {"v1.2"}),
    # Numbers are JSON integers, and the layers of the network are the very values that were read.
    "layers": (on_one("10.0.0.1", LAYERED, options=(("detour", "true"),)), {"v2.0"}),
}


def written(cluster, name):
    return convert_cluster(cluster, name).text


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_text_of_each_format(name, snapshot):
    cluster, targets = CLUSTERS[name]
    assert "".join(f"--- {target}\n{written(cluster, target)}" for target in sorted(targets)) == snapshot


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "v2.0"])
def test_an_address_is_never_invented(name):
    assert "_ip" not in written(Cluster.local(2), name)


def test_render_table_takes_v1_2_for_super_pods():
    pod = on_one("a", Device(0, 0, super_device_id="5"), super_pod_id="p")
    assert json.loads(render_table(pod))["super_pod_list"] == [
        {"super_pod_id": "p", "server_list": [{"server_id": "a"}]}
    ]
    assert json.loads(render_table(TWO))["version"] == "1.0"
    # A device may have its number where there are no pods: HCCL does not read it there, and it is kept.
    numbered = json.loads(render_table(on_one("a", Device(0, 0, super_device_id="5"))))
    assert (numbered["version"], numbered["server_list"][0]["device"][0]["super_device_id"]) == ("1.0", "5")


def test_any_text_can_be_a_name():
    """Letters of any script stay as they are; half a surrogate pair, which UTF-8 cannot hold, becomes an escape."""
    cluster = joined(on_one("nœud", Device(0, 0)), on_one("\ud800", Device(0, 1)))
    text = written(cluster, "v1.0")
    assert '"nœud"' in text
    assert text.encode()
    assert [server["server_id"] for server in json.loads(text)["server_list"]] == ["nœud", "\ud800"]
