"""Sound rank tables of every format as plain JSON values, and changed ones; nothing of it is the launcher's own.

Values of a table are named in short:

    s1/host_ip       server 1                                   d1.0/rank_id    its device 0
    p0/super_pod_id  super pod 0                                m0.1/server_id  its member 1
    n1/node_addr     node 1 (v1.1)                              r1.0/rank_id    its rank 0
    r0/rank_id       rank 0 (v2.0)    l0.1/net_type  its layer 1    a0.1.2/addr     address 2 of that
    g0/group_name    group 0          i0.1/pod_name  its instance 1   d0.1.0/device_ip  device 0 of that
"""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

from hypothesis import strategies as st

DROP = object()  # the key is taken away
SHORT = {
    "s": "/server_list/{}",
    "p": "/super_pod_list/{}",
    "m": "/super_pod_list/{}/server_list/{}",
    "n": "/node_list/{}",
    "l": "/rank_list/{}/level_list/{}",
    "a": "/rank_list/{}/level_list/{}/rank_addr_list/{}",
    "g": "/group_list/{}",
    "i": "/group_list/{}/instance_list/{}",
    # One letter, and what it means by the number of indices.
    "d": {2: "/server_list/{}/device/{}", 3: "/group_list/{}/instance_list/{}/devices/{}"},
    "r": {1: "/rank_list/{}", 2: "/node_list/{}/ranks/{}"},
}


def address(device, server):
    """Devices i and i + 4 of every server share a network when there are eight, as on a 910."""
    return f"192.{device % 4 + 1 if device < 8 else device + 1}.{device // 4 if device < 8 else 0}.{server + 1}"


def make_table(servers=1, devices=2, **more):
    """A valid v1.0 table; on a 910, too, where a server has 1, 2, 4 or 8 devices. Each device has `more` keys."""
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
                        **more,
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
    """A valid v1.2 table: `pods` super pods of `servers` servers each. Every super pod counts its devices from 0.

    Where `pods` is 0, there are servers, and no super pods are named.
    """
    table = make_table(max(pods, 1) * servers, devices)
    table["version"] = "1.2"
    for number, server in enumerate(table["server_list"]):
        for index, device in enumerate(server["device"]):
            device["super_device_id"] = str(number % servers * devices + index)
    names = [server["server_id"] for server in table["server_list"]]
    if pods:
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


def make_address(number, kind="IPV4"):
    written = {
        "IPV4": f"172.16.{number // 250}.{number % 250 + 1}",
        "IPV6": f"fd00::{number + 1:x}",
        "EID": f"{number:032x}",
    }
    return {"addr_type": kind, "addr": written[kind], "ports": ["0/1", "1/1"], "plane_id": "p"}


def make_level(layer, instance, number, addresses=1, kind="IPV4"):
    """A layer of a v2.0 rank with addresses counted from `number`."""
    return {
        "net_layer": layer,
        "net_instance_id": instance,
        "net_type": "CLOS" if layer else "TOPO_FILE_DESC",
        "net_attr": "",
        "rank_addr_list": [make_address(at, kind) for at in range(number, number + addresses)],
    }


def make_ranks(servers=1, devices=2, kind="IPV4"):
    """A valid v2.0 table: each rank in a network of its server and in one of all servers."""
    ranks = [
        {
            "rank_id": server * devices + device,
            "device_id": device,
            "local_id": device,
            "level_list": [
                make_level(0, f"rack{server}", server * 100 + device, 1, kind),
                make_level(1, "all", device, 2, kind),
            ],
        }
        for server in range(servers)
        for device in range(devices)
    ]
    return {"version": "2.0", "status": "completed", "rank_count": len(ranks), "rank_list": ranks}


def make_groups(groups, *counts):
    """A valid table without a version: the names of groups with their instances, and those `counts` that its form has."""
    made = []
    for name, instances in groups:
        devices = str(sum(len(instance["devices"]) for instance in instances))
        servers = str(len({instance["server_id"] for instance in instances}))
        known = {"device_num": devices, "device_count": devices, "server_num": servers}
        group = {"group_name": name, "instance_count": str(len(instances)), **{key: known[key] for key in counts}}
        made.append({**group, "instance_list": instances})
    return {"status": "completed", "group_count": str(len(made)), "group_list": made}


def dealt_out(instances, names):
    size = len(instances) // len(names)
    return [(name, instances[number * size :][:size]) for number, name in enumerate(names)]


def make_lab(servers=1, devices=2, groups=("",)):
    """A valid table of a lab, its instances dealt out evenly to the `groups`."""
    instances = [
        {
            "rank_id": str(number),
            "server_id": f"10.0.0.{number // devices + 1}",
            "devices": [group_device(number // devices, number % devices)],
        }
        for number in range(servers * devices)
    ]
    return {**BOARD, **make_groups(dealt_out(instances, groups), "device_num", "server_num")}


def make_cloud(servers=1, devices=2, groups=("",)):
    """A valid table of a cloud, a pod on each server, dealt out evenly to the `groups`."""
    instances = [
        {
            "pod_name": f"10.0.0.{server + 1}",
            "server_id": f"10.0.0.{server + 1}",
            "devices": [group_device(server, device) for device in range(devices)],
        }
        for server in range(servers)
    ]
    return make_groups(dealt_out(instances, groups), "device_count")


def group_device(server, device):
    return {"device_id": str(device), "device_ip": f"192.{device % 4 + 1}.0.{server * 8 + device + 1}"}


BOARD = {
    "deploy_mode": "lab",
    "board_id": "0x0000",
    "chip_info": "910",
    "para_plane_nic_location": "device",
    "para_plane_nic_name": ["eth0", "eth1"],
    "para_plane_nic_num": "2",
}
MAKERS = {
    "servers": make_table,
    "pods": make_pods,
    "nodes": make_nodes,
    "ranks": make_ranks,
    "lab": make_lab,
    "cloud": make_cloud,
}


class Table(NamedTuple):
    """A valid table, made anew for each test, and what is changed in it."""

    kind: str
    size: tuple[Any, ...]
    options: dict[str, Any]
    changes: dict[str, Any]

    def make(self, changes=None):
        values = MAKERS[self.kind](*self.size, **self.options)
        for short, value in {**self.changes, **(changes or {})}.items():
            *way, key = steps(pointer_of(short))
            holder = find(values, way)
            if value is DROP:
                del holder[key]
            else:
                holder[key] = value(holder[key]) if callable(value) else copy.deepcopy(value)
        return values


def pointer_of(short):
    match = re.fullmatch(r"([a-z])([0-9.]+)(/.*)?", short)
    if match is None:
        return f"/{short}" if short else ""
    numbers, form = match[2].split("."), SHORT[match[1]]
    form = form[len(numbers)] if isinstance(form, dict) else form
    return form.format(*numbers) + (match[3] or "")


def steps(pointer):
    return [int(step) if step.isdigit() else step for step in pointer.split("/")[1:]]


def find(values, way):
    for step in way:
        values = values[step]
    return values


def table_of(kind):
    return lambda *size, **options: Table(kind, size, options, {})


servers, pods, nodes, ranks, lab, cloud = map(table_of, ("servers", "pods", "nodes", "ranks", "lab", "cloud"))


# Changes of a list.


def backwards(entries):
    return entries[::-1]


def without_first(entries):
    return entries[1:]


def without_last(entries):
    return entries[:-1]


def mangled(text, pieces):
    """A strategy: the text, at up to four places of which some characters are replaced by some of the `pieces`."""
    places = st.tuples(st.integers(0, len(text)), st.integers(0, 3), st.lists(pieces, max_size=3).map("".join))

    def with_edits(edits):
        changed = text
        for at, removed, inserted in edits:
            changed = changed[:at] + inserted + changed[at + removed :]
        return changed

    return st.lists(places, max_size=4).map(with_edits)


# A strategy: any JSON value.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=15,
)
