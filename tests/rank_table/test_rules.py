"""Every rule of the catalogue: small tables that break it and nothing else, and twins that do not.

A case is a code, a valid table, what is changed in it so that the rule speaks, and what else may be changed, or a whole
table, that it has nothing to say about: its twin, the nearest valid one. How values of a table are named is said in tables.py.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any, NamedTuple

import pytest

from launcher.rank_table import Profile, Severity
from launcher.rank_table.catalogue import CATALOGUE
from launcher.rank_table.model import read_decimal
from launcher.rank_table.profile import CHIPS

from .tables import (
    DROP,
    Table,
    backwards,
    cloud,
    find,
    lab,
    nodes,
    pods,
    pointer_of,
    ranks,
    servers,
    steps,
    without_first,
    without_last,
)

MARK = "the value that is shown stands here"
AT_KEY = {"RT401", "RT423"}  # shown at the key of the value


class Case(NamedTuple):
    code: str
    table: Table
    bad: dict[str, Any]
    good: dict[str, Any]
    twin: Table
    pointer: str
    profile: Profile

    def __str__(self):
        return f"{self.code}-{self.table.kind}-{self.pointer.rpartition('/')[2]}"


def place_of(values, pointer, *, at_key):
    """The line and the column of a value, or of its key, in the text that the fixture makes of these values."""
    if not pointer:
        return 1, 1
    marked, (*way, last) = copy.deepcopy(values), steps(pointer)
    find(marked, way)[last] = MARK
    before = json.dumps(marked, indent=2).partition(json.dumps(MARK))[0]
    if at_key:
        before = before.removesuffix(f"{json.dumps(last)}: ")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def case(code, table, bad, good=None, *, twin=None, at=None, chip="auto", reader="hccl"):
    """The problem shows `at` a value: the last one that is changed, unless said."""
    pointer = pointer_of([*bad][-1] if at is None else at)
    return Case(code, table, bad, good or {}, twin or table, pointer, Profile(chip, reader))


def changed(table, changes):
    return table._replace(changes=changes)


def numbers(prefix, count):
    return [f"{prefix}{number}" for number in range(count)]


def layers(*numbers):
    return lambda old: [{**old[0], "net_layer": number, "net_instance_id": "all"} for number in numbers]


def addresses(count):
    return lambda old: [old[0]] * count


def plane(addr_type="IPV4", addr="10.0.0.1", listen_port=8000):
    return {"addr_type": addr_type, "addr": addr, "listen_port": listen_port}


HOSTS = {"d0.0/device_ip": DROP, "d1.0/device_ip": DROP, "s0/host_ip": "10.0.0.1", "s1/host_ip": "10.0.0.2"}
# Devices 0 1 4 5 of a 910, with 4 in the network of 0 and 5 in that of 1.
RING = {"d0.2/device_id": "4", "d0.2/device_ip": "192.1.0.3", "d0.3/device_id": "5", "d0.3/device_ip": "192.2.0.4"}
A2 = {"at": "s0/device", "chip": "a2"}
BACKUP, PORT = "d0.0/backup_device_ip", "d0.0/backup_device_port"
LATER_FIRST = {"d0.0/rank_id": "2", "d0.1/rank_id": "3", "d1.0/rank_id": "0", "d1.1/rank_id": "1"}
SWAPPED_NAMES = {"s0/server_id": "10.0.0.2", "s1/server_id": "10.0.0.1"}
REVERSED_DEVICES = {"s0/device": backwards}
PODS = {"s0/pod_ip": "10.0.0.1"}
V1_0_SERVERS = {"server_list": [{"server_id": "10.0.0.1", "device": [{"device_id": "0", "rank_id": "0"}]}]}
MIXED_PODS = {
    "m0.1/server_id": "10.0.0.3",
    "m1.0/server_id": "10.0.0.2",
    "d1.0/super_device_id": "0",
    "d2.0/super_device_id": "1",
}
UNBOUND = "r0.1/bind_device_id"
SPARE, REPLACED = {"r1/local_id": 64, "r1/replaced_local_id": 1}, "r1/replaced_local_id"
PLANE, KIND, ADDR, BACKUPS = "r0/control_plane", "a0.0.0/addr_type", "a0.0.0/addr", "a0.0.0/backup_addr"
EID = "000000000000002000100000df001001"
V6_BACKUP = {KIND: "IPV6", ADDR: "fd00::8", BACKUPS: ["fd00::9"]}
MOVED = {"i0.1/server_id": "10.0.0.2", "d0.1.0/device_id": "2"}
SAME_SERVER = {"i0.1/server_id": "10.0.0.1", "d0.1.0/device_id": "1"}
FEWER = {"g0/instance_list": lambda old: old[:4], "g0/instance_count": "4", "g0/device_num": "4"}
TWO_IN_ONE = {
    "i0.0/devices": lambda old: [*old, {"device_id": "1", "device_ip": ""}],
    "g0/instance_list": without_last,
    "g0/instance_count": "1",
    "g0/device_num": "1",
}
LAST_IP = "d0.1.0/device_ip"
FIRST_IP, HOST, PORTS, ADDRS = "d0.0/device_ip", {"s0/host_ip": "10.0.0.1"}, "d0.0/host_port", "l1.0/rank_addr_list"
LONE_PODS = cloud(2, 1, groups=("", "b"))
AS_V1_0 = {"twin": servers(1, 1), "at": "version"}

CASES = [
    # v1.0
    case("RT301", servers(1, 2), {"d0.1/rank_id": "2"}),
    case("RT302", servers(2, 2), {"d1.0/rank_id": "1"}),
    case("RT311", servers(1, 2), {"status": "initializing"}),
    case("RT312", servers(2, 1), {"server_count": "1"}),
    case("RT312", servers(1, 1), {"server_count": "one"}),
    case("RT313", servers(1, 1), {"s0/server_id": ""}, {"s0/server_id": "any name"}),
    case("RT313", servers(1, 1), {"s0/server_id": "é" * 33}, {"s0/server_id": "é" * 32}),
    case("RT314", servers(2, 1), {"s1/server_id": "10.0.0.1"}, {"s0/server_id": "node-01", "s1/server_id": "node-1"}),
    case("RT321", servers(1, 2), {"d0.1/device_id": "one"}),
    case("RT321", servers(1, 1), {"d0.0/rank_id": "-1"}),
    case("RT321", servers(1, 1), {"d0.0/rank_id": "4294967296"}),
    case("RT322", servers(1, 1), {"d0.0/device_id": "32"}, {"d0.0/device_id": "31"}),
    case("RT322", servers(1, 1), {"d0.0/device_id": "8"}, {"d0.0/device_id": "7"}, chip="910"),
    case("RT323", servers(2, 2), {"d1.1/device_id": "0"}),
    case("RT324", servers(1, 1), {"d0.0/device_port": "0"}, {"d0.0/device_port": "1"}),
    case("RT324", servers(1, 1), {"d0.0/host_port": "65536"}, {"d0.0/host_port": "65535"}),
    case("RT331", servers(1, 1), {"d0.0/device_ip": "192.1.*.6"}, {"d0.0/device_ip": ""}),
    case("RT331", servers(1, 1), {"d0.0/device_ip": "10.1.0.1,,10.2.0.1"}, {"d0.0/device_ip": "10.1.0.1,10.2.0.1,"}),
    case("RT331", servers(1, 1), {"d0.0/device_ip": "1:2:3:4:5:6:7:8:9"}, {"d0.0/device_ip": "fe80::1%eth0"}),
    case("RT331", servers(1, 1), {"d0.0/device_ip": "fe80::1%"}, {"d0.0/device_ip": "fe80::1"}),
    case("RT331", servers(1, 1), {"s0/host_ip": ""}, {"s0/host_ip": "10.0.0.1"}),
    case("RT332", servers(2, 2), {"d1.0/device_ip": "192.2.0.1"}, {"d1.0/device_ip": "192.2.0.9"}),
    case("RT332", servers(1, 1), {"d0.0/device_ip": "10.1.0.1,10.1.0.1"}, {"d0.0/device_ip": "10.1.0.1,10.1.0.2"}),
    case("RT333", servers(2, 1), {"d1.0/device_ip": DROP}, at="d1.0"),
    case("RT333", servers(2, 1), {"d1.0/device_ip": ""}, HOSTS),
    case("RT334", servers(1, 2), {"d0.1/device_ip": "192.2.0.1,192.2.0.2"}, {"d0.1/device_ip": ""}),
    case("RT335", servers(2, 1), {"d1.0/device_ip": "fd00::2"}, {FIRST_IP: "fd00::1", "d1.0/device_ip": "fd00::2"}),
    case("RT336", servers(2, 1), {FIRST_IP: DROP} | HOST, HOST, at="s1"),
    case("RT341", servers(1, 3), {}, {"s0/device": without_last}, at="s0/device", chip="910"),
    case("RT342", servers(2, 2), {"s1/device": without_last}, chip="910"),
    case("RT343", servers(1, 4), {"d0.2/device_id": "6", "d0.3/device_id": "7"}, RING, at="s0/device", chip="910"),
    case("RT428", servers(1, 3), {"d0.2/device_id": "8"}, twin=changed(servers(1, 2), {"d0.1/device_id": "8"}), **A2),
    case("RT428", servers(1, 2), {"d0.1/device_id": "9"}, {"d0.0/device_id": "9", "d0.1/device_id": "8"}, **A2),
    case("RT401", servers(1, 2), {"d0.1/device_prt": "1"}, {"d0.1/device_port": "1"}),
    case("RT402", servers(2, 1), {"s0/server_id": "10.0.0.9", "s1/server_id": "10.0.0.10"}, {"server_list": backwards}),
    case("RT403", servers(2, 2), {"d1.0/rank_id": "1", "d0.1/rank_id": "2"}, REVERSED_DEVICES),
    case("RT404", servers(1, 2), {"d0.1/rank_id": "01"}),
    case("RT404", servers(1, 1), {"server_count": "1 server"}),
    case("RT407", servers(1, 1), {"server_count": DROP}, at=""),
    case("RT408", servers(1, 1), {"s0/server_id": "10.*.*.*"}, {"s0/server_id": "any-name"}),
    case("RT408", servers(1, 1), {"s0/server_id": "xx.xx.xx.xx"}, {"s0/server_id": "xx.example.com"}),
    case("RT408", servers(1, 1), {"s0/server_id": "10.xxx.xxx.1"}, {"s0/server_id": "10.x1.x2.1"}),
    case("RT408", servers(1, 1), {"s0/server_id": "<ip>"}, {"s0/server_id": "ip"}),
    case("RT413", servers(2, 1), {"s1/server_id": "10.277.0.10"}, {"s1/server_id": "10.27.0.10"}),
    case("RT413", servers(2, 1), {"s1/server_id": "10.0.9"}, {"s1/server_id": "server-10-0-9"}),
    case("RT413", servers(2, 1), {"s1/server_id": "10.0.O.1"}, {"s1/server_id": "a10.0.O.1"}),
    case("RT413", servers(2, 1), {"s1/server_id": "10.0.0.1.2"}, {"s1/server_id": "10.example.com"}),
    case("RT413", servers(2, 1), {"s1/server_id": "fe80::1::2"}, {"s1/server_id": "fe80::1"}),
    case("RT413", servers(2, 1), {"s1/server_id": "10.0.0.l0"}, {"s1/server_id": "10.0.0.node5"}),
    case("RT413", servers(2, 1), {"s1/server_id": "1:2:3:4:5:6"}, {"s1/server_id": "aa:1a:2b:3c:4d:5e"}),
    case("RT409", servers(2, 1), {"s1/server_id": "127.0.1.1"}, {"s1/server_id": "127-0-1-1"}),
    case("RT409", servers(2, 1), {"s1/server_id": "localhost"}, {"s1/server_id": "localhost2"}),
    case("RT424", servers(2, 1), {"d1.0/device_ip": "127.0.0.1"}, {"d1.0/device_ip": "128.0.0.1"}),
    case("RT425", servers(1, 2), {PORTS: "1", "d0.1/host_port": "1"}, {PORTS: "1", "d0.1/host_port": "2"}),
    case("RT426", servers(1, 2), {BACKUP: "192.1.0.1"}, {BACKUP: "192.2.0.1", "d0.1/backup_device_ip": "192.1.0.1"}),
    case("RT426", servers(1, 2), {BACKUP: "-.-.-.-"}, {BACKUP: "10.1.1.1", "d0.1/backup_device_ip": ""}),
    case("RT426", servers(1, 2), {BACKUP: "0.0.0.0"}, {BACKUP: "10.1.1.1"}),
    case("RT426", servers(1, 2), {"d0.0/backup_device_ip": 7}, {"d0.0/backup_device_ip": "192.2.0.1"}),
    case("RT426", servers(1, 2), {BACKUP: "10.1.1.1", "d0.1/backup_device_ip": "10.1.1.1"}),
    case("RT426", servers(1, 3), {"d0.0/backup_device_ip": "192.3.0.1"}, {"d0.0/backup_device_ip": "192.2.0.1"}),
    case("RT426", servers(1, 2), {BACKUP: "192.2.0.1", PORT: "0"}, {BACKUP: "192.2.0.1", PORT: "16667"}),
    case("RT205", servers(2, 2), {"d1.0/device_id": 1.5}),
    case("RT205", servers(1, 2), {"d0.1/rank_id": None}),
    case("RT205", servers(1, 2), {"s0/server_id": 5}),
    case("RT205", servers(1, 2), {"server_list": None}),
    # what single readers ask for
    case("RT501", servers(2, 2), LATER_FIRST, LATER_FIRST | SWAPPED_NAMES, at="s0/server_id", reader="mindspore"),
    case("RT502", servers(1, 2), {"d0.0/device_id": "0x"}, reader="mindspore"),
    case("RT511", servers(1, 2), {}, {"s0/pod_ip": "10.0.0.1"}, at="s0", reader="msrun"),
    case("RT512", servers(1, 2), {"s0/pod_ip": "reserve"}, {"s0/pod_ip": "10.0.0.1"}, reader="msrun"),
    case("RT513", servers(1, 2), PODS | REVERSED_DEVICES, PODS, at="d0.0/device_id", reader="msrun"),
    # v1.2
    case("RT301", pods(), {"d3.1/rank_id": "8"}),
    case("RT302", pods(), {"d3.1/rank_id": "1"}),
    case("RT311", pods(), {"status": ""}),
    case("RT323", pods(), {"d3.1/device_id": "0"}),
    case("RT331", pods(), {"d3.1/device_ip": "[device_ip]"}),
    case("RT205", pods(), {"d3.1/rank_id": 7}),
    case("RT205", pods(), {"server_list": {}}),
    case("RT345", pods(), {"d0.1/super_device_id": "one"}, {"d0.1/super_device_id": "7"}),
    case("RT345", pods(), {"d0.1/super_device_id": ""}),
    case("RT345", pods(), {"d3.1/super_device_id": "4294967295"}, {"d3.1/super_device_id": "4294967294"}),
    case("RT346", pods(), {"d2.0/super_device_id": DROP}, at="d2.0"),
    case("RT347", pods(), {"d1.0/super_device_id": "1"}),
    case("RT348", pods(), {"p1/super_pod_id": ""}),
    case("RT348", pods(), {"p1/super_pod_id": "p" * 128}, {"p1/super_pod_id": "p" * 127}),
    case("RT349", pods(), {"p1/super_pod_id": "0"}),
    case("RT350", pods(), {"m1.0/server_id": "10.0.0.33"}),
    case("RT631", pods(), {"p1/server_list": [{"server_id": "10.0.0.3"}]}, at="s3/server_id"),
    case("RT421", pods(), {"p1/server_list": lambda old: [{"server_id": "10.0.0.4"}, *old]}, at="m1.2/server_id"),
    case("RT333", pods(), {"d1.1/device_ip": DROP}, at="d1.1"),
    case("RT404", pods(), {"d0.1/super_device_id": "01"}),
    case("RT205", pods(), {"d0.1/super_device_id": 1}),
    case("RT204", pods(), {"p0/super_pod_id": DROP}, at="p0"),
    case("RT206", pods(), {"p1/server_list": []}),
    case("RT206", pods(), {"super_pod_list": []}, {"super_pod_list": DROP}),
    # v1.1
    case("RT205", nodes(2, 1), {"r1.0/rank_id": True}),
    case("RT205", nodes(2, 1), {"r1.0/device_id": 0}),
    case("RT205", nodes(2, 1), {"node_list": "1"}),
    case("RT207", nodes(1, 2), {}, at="version", chip="a5"),
    case("RT301", nodes(2, 1), {"r1.0/rank_id": "2"}),
    case("RT302", nodes(2, 1), {"r1.0/rank_id": "0"}, {"node_list": backwards}),
    case("RT311", nodes(1, 1), {"status": "initializing"}),
    case("RT314", nodes(2, 1), {"n1/node_addr": "10.0.0.1"}, {"n1/node_addr": "10.0.0.10"}),
    case("RT321", nodes(1, 1), {"r0.0/device_id": "-2"}, {"r0.0/device_id": "-1"}),
    case("RT321", nodes(1, 1), {"r0.0/device_id": "-1", "r0.0/rank_id": "first"}, {"r0.0/device_id": "-1"}),
    case("RT322", nodes(1, 1), {"r0.0/device_id": "32"}, {"r0.0/device_id": "31"}),
    case("RT331", nodes(2, 1), {"r0.0/rank_ip": "192.0.*.*"}, {"r0.0/rank_ip": ""}),
    case("RT331", nodes(1, 1), {"r0.0/rank_ip": "192.0.0.1,192.0.0.2"}, {"r0.0/rank_ip": "fe80::1%eth0"}),
    case("RT351", nodes(1, 1), {"collective_id": DROP, "node_list": DROP} | V1_0_SERVERS, **AS_V1_0),
    case("RT352", nodes(1, 1), {"collective_id": "c" * 128}, {"collective_id": "c" * 127}),
    case("RT353", nodes(1, 2, "1.2"), {"heterog_sub_version": "1.3"}),
    case("RT354", nodes(1, 1), {"mode": "TCP"}, {"mode": "rdma"}),
    case("RT355", nodes(1, 1), {"n0/node_addr": "worker-0"}, {"n0/node_addr": "fd00::1"}),
    case("RT355", nodes(1, 1), {"n0/node_addr": ""}),
    case("RT355", nodes(2, 1), {"n0/node_addr": "0.0.0.0"}, {"n0/node_addr": "0.0.0.0", "node_list": without_last}),
    case("RT356", nodes(1, 1), {"r0.0/port": "65536"}, {"r0.0/port": "65535"}),
    case("RT356", nodes(1, 2, "1.2"), {"r0.0/port": ""}),
    case("RT357", nodes(1, 2, "1.2"), {"r0.0/sdid": ""}, {"r0.0/sdid": "-1"}),
    case("RT358", nodes(1, 2, "1.2"), {UNBOUND: DROP}, {UNBOUND: DROP, "heterog_sub_version": DROP}, at="r0.1"),
    case("RT358", nodes(1, 2, "1.2"), {"r0.1/bind_device_id": 0}, {"r0.0/bind_device_id": 0}),
    case("RT359", nodes(2, 1), {"n1/node_addr": "fd00::1"}, {"n0/node_addr": "fd00::1", "n1/node_addr": "fd00::2"}),
    case("RT359", nodes(2, 1), {"r1.0/rank_ip": "fd00::1"}, {"r0.0/rank_ip": "fd00::1", "r1.0/rank_ip": "fd00::1"}),
    case("RT402", nodes(2, 1), {"n0/node_addr": "10.0.0.9", "n1/node_addr": "10.0.0.10"}),
    case("RT403", nodes(2, 2), {"r1.0/rank_id": "1", "r0.1/rank_id": "2"}, {"n0/ranks": backwards}),
    case("RT404", nodes(1, 1), {"r0.0/device_id": "-01"}, {"r0.0/device_id": "-1"}),
    # v2.0
    case("RT205", ranks(1, 2), {"r1/rank_id": "1"}),
    case("RT205", ranks(1, 2), {"r1/device_id": None}),
    case("RT205", ranks(1, 2), {"rank_list": 1}),
    case("RT205", ranks(1, 2), {"r1/local_id": 10**30}),
    case("RT207", ranks(1, 1), {}, at="version", chip="a3"),
    case("RT301", ranks(1, 2), {"r1/rank_id": 2}),
    case("RT301", ranks(1, 2), {"r1/rank_id": -1}, {"rank_list": backwards}),
    case("RT302", ranks(1, 2), {"r1/rank_id": 0}),
    case("RT427", ranks(1, 1), {"status": "initializing"}, {"status": DROP}),
    case("RT351", ranks(1, 1), {"rank_count": DROP, "rank_list": DROP} | V1_0_SERVERS, **AS_V1_0),
    case("RT371", ranks(1, 2), {"rank_count": 3}),
    case("RT372", ranks(1, 1), {"r0/rank_id": 4294967296}),
    case("RT372", ranks(1, 1), {"r0/device_id": 65}, {"r0/device_id": 64}),
    case("RT372", ranks(1, 1), {"r0/local_id": 65}, {"r0/local_id": 63}),
    case("RT372", ranks(1, 1), {"r0/device_port": 0}, {"r0/device_port": 1}),
    case("RT372", ranks(1, 1), {"r0/host_port": 65536}, {"r0/host_port": 65535}),
    case("RT372", ranks(1, 1), {PLANE: plane(listen_port=0)}, {PLANE: plane()}, at=f"{PLANE}/listen_port"),
    case("RT373", ranks(1, 3), SPARE | {"r2/replaced_local_id": 2, "r2/local_id": 64}, SPARE),
    case("RT374", ranks(1, 2), {"r1/local_id": 64}, {"r1/replaced_local_id": 10}, at="r1"),
    case("RT374", ranks(1, 2), {"r1/local_id": 64, REPLACED: "1"}, SPARE),
    case("RT374", ranks(1, 2), {"r1/local_id": 64, REPLACED: 64}, {"r1/local_id": 64, REPLACED: 63}),
    case("RT375", ranks(1, 2), {"r1/local_id": 64, REPLACED: 0}, SPARE),
    case("RT376", ranks(2, 2), {"r1/local_id": 0}, {"r1/device_id": 0}),
    case("RT377", ranks(1, 1), {"r0/level_list": layers(*range(8), 7)}, {"r0/level_list": layers(*range(8))}),
    case("RT378", ranks(1, 1), {"l0.1/net_layer": 8}, {"l0.1/net_layer": 7}),
    case("RT378", ranks(1, 1), {"l0.0/net_layer": -1}),
    case("RT379", ranks(1, 1), {"l0.1/net_layer": 0}, {"l0.1/net_layer": 3}),
    case("RT379", ranks(1, 1), {"r0/level_list": backwards}, {"r0/level_list": without_last}, at="l0.1/net_layer"),
    case("RT380", ranks(1, 1), {"l0.0/net_instance_id": ""}, {"l0.0/net_instance_id": "n"}),
    case("RT380", ranks(1, 1), {"l0.0/net_instance_id": "n" * 1025}, {"l0.0/net_instance_id": "n" * 1024}),
    case("RT381", ranks(1, 1), {"l0.1/net_type": "clos"}, {"l0.1/net_type": DROP}),
    case("RT382", ranks(1, 1), {KIND: "ipv4"}, {KIND: "EID", ADDR: EID}),
    case("RT382", ranks(1, 1), {BACKUPS: ["172.16.9.9"], KIND: "ipv4"}, {BACKUPS: ["172.16.9.9"]}),
    case("RT382", ranks(1, 1), {PLANE: plane("IP")}, {PLANE: plane("IPV6", "fd00::1")}, at=f"{PLANE}/addr_type"),
    case("RT383", ranks(1, 1), {"a0.0.0/addr": "fd00::1"}, {"a0.0.0/addr_type": "IPV6", "a0.0.0/addr": "fd00::1"}),
    case("RT383", ranks(1, 1), {KIND: "IPV6", ADDR: "fe80::1%eth0"}, {KIND: "IPV6", ADDR: "fe80::1"}),
    case("RT383", ranks(1, 1), {KIND: "IPV6", ADDR: "1:2:3::5:6:7:8"}, {KIND: "IPV6", ADDR: "1:2:3::6:10.0.0.1"}),
    case("RT383", ranks(1, 1), {KIND: "EID", ADDR: EID[1:]}, {KIND: "EID", ADDR: EID.upper()}),
    case("RT383", ranks(1, 1), {KIND: "EID", ADDR: EID[:-1] + "g"}, {KIND: "EID", ADDR: EID}),
    case("RT384", ranks(1, 1), {"l0.0/rank_addr_list": addresses(25)}, {"l0.0/rank_addr_list": addresses(24)}),
    case("RT385", ranks(1, 2), {ADDRS: addresses(2)}, {"l0.0/rank_addr_list": [], ADDRS: []}),
    case("RT386", ranks(1, 1), {"a0.0.0/ports": []}, {"a0.0.0/ports": ["d2h"]}),
    # equal ones count once
    case("RT386", ranks(1, 1), {"a0.0.0/ports": numbers("0/", 17)}, {"a0.0.0/ports": [*numbers("0/", 16), "0/0"]}),
    case("RT386", ranks(1, 1), {"a0.0.0/ports/1": 4}, {"a0.0.0/ports/1": "pppppppppppppppppppppppppppppppp"}),
    case("RT386", ranks(1, 1), {"a0.0.0/ports": ["é" * 16 + "p"]}, {"a0.0.0/ports": ["é" * 16]}, at="a0.0.0/ports/0"),
    case("RT392", ranks(1, 1), {"a0.0.0/backup_addr": "172.16.9.9"}, {"a0.0.0/backup_addr": ["172.16.9.9"]}),
    case("RT392", ranks(1, 1), {BACKUPS: numbers("172.16.9.", 17)}, {BACKUPS: numbers("172.16.9.", 16)}),
    case("RT392", ranks(1, 1), {KIND: "EID", ADDR: EID, BACKUPS: [EID]}, {KIND: "EID", ADDR: EID, BACKUPS: []}),
    case("RT392", ranks(1, 1), {BACKUPS: ["172.16.9.9", "fd00::9"]}, V6_BACKUP, at=f"{BACKUPS}/1"),
    case("RT392", ranks(1, 1), {"a0.0.0/backup_addr": [None]}, at="a0.0.0/backup_addr/0"),
    case("RT205", ranks(1, 1), {"l0.0/pcie_fallback": "true"}, {"l0.0/pcie_fallback": True}),
    case("RT380", ranks(1, 1), {"l0.0/net_instance_id": "é" * 512 + "p"}, {"l0.0/net_instance_id": "é" * 512}),
    case("RT387", ranks(1, 1), {"a0.0.0/plane_id": "é" * 512 + "p"}, {"a0.0.0/plane_id": "é" * 512}),
    case("RT387", ranks(1, 1), {"a0.0.0/plane_id": "p" * 1025}, {"a0.0.0/plane_id": DROP}),
    case("RT388", ranks(1, 1), {"detour": "True"}, {"detour": "true"}),
    case("RT391", ranks(1, 1), {"r0/level_list": without_first}, {"r0/level_list": without_last}, at="l0.0/net_layer"),
    case("RT403", ranks(2, 2), {"r2/rank_id": 1, "r1/rank_id": 2}, {"rank_list": backwards}),
    # legacy-lab and legacy-cloud
    case("RT601", cloud(2, 1), {"group_count": "2"}, twin=cloud(2, 1, groups=("", "b"))),
    case("RT601", lab(1, 1), {"group_count": "0"}),
    case("RT602", cloud(2, 1), {"g0/instance_count": "1"}),
    case("RT602", lab(1, 2), {"g0/instance_count": "two"}),
    case("RT603", lab(1, 2), {"g0/device_num": "4"}),
    case("RT603", cloud(2, 2), {"g0/device_count": "2"}, twin=cloud(2, 2, groups=("", "b"))),
    case("RT604", lab(2, 2), {"g0/server_num": "1"}),
    case("RT604", lab(2, 2), {"g0/server_num": "0"}, chip="a2"),
    case("RT604", lab(2, 2), {"g0/server_num": "1"}, chip="a2"),
    case("RT604", lab(1, 4), {"g0/server_num": "2"}, chip="a3"),
    case("RT604", lab(2, 2), MOVED | {"g0/server_num": "4"}, MOVED, chip="a2"),
    case("RT605", lab(2, 3), {}, FEWER, at="g0/server_num", chip="a3"),
    case("RT604", lab(2, 4), {"g0/server_num": "3"}, chip="a2"),
    case("RT606", lab(1, 2, groups=("", "b")), {}, {"i1.0/server_id": "10.0.0.2"}, at="i1.0/server_id"),
    case("RT606", lab(1, 2, groups=("", "b")), {}, {"i1.0/server_id": "10.0.0.2"}, at="i1.0/server_id", chip="a3"),
    case("RT205", lab(1, 1), {"version": 1}),
    case("RT205", lab(1, 2), {"i0.1/rank_id": 1}),
    case("RT205", lab(1, 2), {"d0.1.0/device_id": 1.5}),
    case("RT205", lab(1, 2), {"group_list": None}),
    case("RT205", cloud(1, 1), {"version": None}),
    case("RT205", cloud(1, 2), {"d0.0.1/device_id": 1}),
    case("RT205", cloud(1, 2), {"group_list": {}}),
    case("RT311", lab(1, 1), {"status": "Completed"}),
    case("RT607", lab(1, 2), TWO_IN_ONE, at="i0.0/devices"),
    case("RT611", cloud(2, 1, groups=("a", "a")), {}, {"g1/group_name": ""}, at="g1/group_name"),
    case("RT611", lab(2, 1, groups=("", "")), {}, {"g0/group_name": "group1"}, at="g1/group_name"),
    case("RT612", cloud(2, 1), {"i0.1/pod_name": "10.0.0.1"}, {"i0.1/pod_name": "10.0.0.10"}),
    case("RT612", cloud(2, 1, groups=("", "b")), {"i1.0/pod_name": "10.0.0.1"}),
    case("RT613", cloud(1, 1), {"i0.0/pod_name": ""}, {"i0.0/pod_name": "0"}),
    case("RT614", cloud(1, 1), {"i0.0/pod_name": "é" * 64}, {"i0.0/pod_name": "e" * 127}),
    case("RT614", lab(1, 1), {"g0/group_name": "g" * 128}, {"g0/group_name": "g" * 127}),
    case("RT615", lab(1, 1), {"para_plane_nic_location": "host"}, chip="300i"),
    case("RT615", lab(1, 1), {"para_plane_nic_location": "reserved"}, chip="300i"),
    case("RT615", lab(1, 1), {"para_plane_nic_location": "reserved"}),
    case("RT411", lab(1, 1), {"chip_info": "Ascend910"}, {"chip_info": DROP}),
    case("RT412", lab(1, 2), {"para_plane_nic_num": "8"}, {"para_plane_nic_name": []}),
    case("RT302", lab(1, 2), {"i0.1/rank_id": "0"}),
    case("RT301", lab(2, 1), {"i0.1/rank_id": "2"}),
    case("RT321", lab(1, 2), {"i0.1/rank_id": "one"}),
    case("RT311", cloud(1, 1), {"status": "initializing"}),
    case("RT313", cloud(1, 1), {"i0.0/server_id": ""}, {"i0.0/server_id": "any name"}),
    case("RT322", cloud(1, 1), {"d0.0.0/device_id": "8"}, {"d0.0.0/device_id": "7"}, chip="a2"),
    case("RT323", lab(1, 2), {"d0.1.0/device_id": "0"}),
    case("RT323", cloud(2, 1), {"i0.1/server_id": "10.0.0.1"}, SAME_SERVER, at="d0.1.0/device_id"),
    case("RT331", lab(1, 1), {"d0.0.0/device_ip": "192.1.0.1,192.1.0.2"}, {"d0.0.0/device_ip": ""}),
    case("RT331", lab(1, 2), {"d0.1.0/device_ip": "0.0.0.0"}, {"d0.1.0/device_ip": ""}),
    case("RT331", cloud(2, 1), {"d0.1.0/device_ip": "::"}, {"d0.1.0/device_ip": ""}),
    case("RT331", cloud(2, 1), {LAST_IP: "-.-.-.-"}, twin=changed(LONE_PODS, {"d1.0.0/device_ip": "-.-.-.-"})),
    case("RT204", cloud(2, 1), {LAST_IP: DROP}, twin=changed(LONE_PODS, {"d1.0.0/device_ip": DROP}), at="d0.1.0"),
    case("RT341", lab(1, 3), {}, {"chip_info": "310P3"}, at="i0.0/server_id"),
    case("RT342", cloud(2, 2), {"g0/device_count": "3", "i0.1/devices": without_last}),
    case("RT204", lab(2, 4), {"i0.5/server_id": DROP}, at="i0.5"),
    case("RT206", lab(2, 4), {"i0.7/devices": []}),
    case("RT206", cloud(2, 2), {"i0.1/devices": []}),
    case("RT404", cloud(1, 1), {"g0/device_count": "01"}),
    case("RT422", pods(2, 2, 1), MIXED_PODS, at="s2/server_id"),
    case("RT423", pods(), {"version": "1.0"}, at="super_pod_list"),
    case("RT514", nodes(1, 1), {}, twin=changed(servers(1, 1), PODS), at="", reader="msrun"),
]
NAMED_VALUE = re.compile(r'(?:write|add "(?P<key>\w+)":) (?P<value>"[^"]*"|\d+\b)')
# The hints of these say what to write; all others ask for what only people know.
SAID = "301 302 311 312 323 324 348 349 350 351 353 354 356 357 358 371 376 381 382 388 404 407 411 412 427 502 522 533"
SAID += " 601 602 603 604 611 615"
# Rules with tests of their own below, or in the file of their format.
ELSEWHERE = {"RT389", "RT410"}


@pytest.mark.parametrize("one", CASES, ids=str)
def test_broken_table_shows_one_problem_and_its_twin_none(one, report):
    values = one.table.make(one.bad)
    found = report(values, profile=one.profile)
    assert [(problem.code, problem.pointer) for problem in found.problems] == [(one.code, one.pointer)]
    (problem,) = found.problems
    severity = CATALOGUE[one.code].severity_on(CHIPS[one.profile.chip])
    assert (problem.severity, found.valid) == (severity, severity is Severity.WARNING)
    assert problem.hint
    assert (problem.line, problem.column) == place_of(values, one.pointer, at_key=one.code in AT_KEY)
    assert one.profile.consumer == "hccl" or not report(values).errors
    chip = "auto" if one.code == "RT207" else one.profile.chip
    found = report(one.twin.make(one.good), profile=Profile(chip, one.profile.consumer))
    assert found.problems == ()
    assert found.cluster is not None
    if one.code[2:] in SAID.split():
        named = NAMED_VALUE.match(problem.hint)
        *way, key = [*steps(problem.pointer), *([named["key"]] if named["key"] else [])]
        find(values, way)[key] = json.loads(named["value"])
        found = report(values, profile=one.profile)
        assert found.valid, found.render()
        assert one.code not in {other.code for other in found.problems}


ENTRIES = {
    "servers": ["s0", "d0.1"],
    "pods": ["s0", "d0.1", "p0", "m0.0"],
    "nodes": ["n0", "r0.1"],
    "ranks": ["r0", "l0.1", "a0.1.0"],
    "lab": ["g0", "i0.1", "d0.1.0"],
    "cloud": ["g0", "i0.1", "d0.1.0"],
}


@pytest.mark.parametrize(("kind", "short"), [(kind, short) for kind, each in ENTRIES.items() for short in each])
@pytest.mark.parametrize("entry", [7, "server", None, []])
def test_an_entry_that_is_no_object_is_named(kind, short, entry, report):
    broken = Table(kind, (2, 2), {}, {}).make({short: entry})
    assert ("RT205", pointer_of(short)) in [(one.code, one.pointer) for one in report(broken).problems]


def test_every_rule_has_a_case():
    assert {entry.code for entry in CATALOGUE.values() if entry.check} - ELSEWHERE <= {one.code for one in CASES}


@pytest.mark.parametrize(("written", "number"), [
    *(("0", 0), ("7", 7), ("007", 7), (" +7", 7), ("\t7", 7), ("7x", 7), ("0" * 5000 + "7", 7)),
    *((str(2**32 - 1), 2**32 - 1), (str(2**32), None), ("9" * 5000, None)),
    *(("", None), ("-1", None), ("x7", None), ("+ 7", None), ("\N{ARABIC-INDIC DIGIT SEVEN}", None)),
])  # fmt: skip
def test_numbers_are_read_as_hccl_reads_them(written, number):
    assert read_decimal(written) == number


def test_every_rule_explains_itself():
    for entry in CATALOGUE.values():
        assert entry.title
        assert entry.check is None or len(entry.explanation) > 40


def test_several_misplaced_ranks_get_different_hints(report):
    shifted = {f"d0.{number}/rank_id": str(number + 2) for number in range(3)}
    problems = report(servers(1, 3).make(shifted)).problems
    assert [problem.code for problem in problems] == ["RT301", "RT301"]
    assert [problem.hint.split(",")[0] for problem in problems] == ['write "0"', 'write "1"']


def test_second_use_names_the_line_of_the_first(report):
    found = report(servers(1, 2).make({"d0.1/device_ip": "192.1.0.1"}))
    (problem,) = found.problems
    first = next(n for n, line in enumerate(found.document.text.split("\n"), 1) if "192.1.0.1" in line)
    assert problem.message.endswith(f"first on line {first}")


@pytest.mark.parametrize("changes", [
    *({"d0.1/device_ip": value} for value in ("", DROP)),
    *({"s0/server_id": name, "d0.1/device_ip": "127.0.0.1"} for name in ("127.0.0.1", "localhost")),
])  # fmt: skip
def test_single_server_needs_no_address(changes, report):
    found = report(servers(1, 2).make(changes))
    assert found.problems == ()
    written = changes["d0.1/device_ip"]
    expected = None if written is DROP else written or None
    assert [one.device_ip for one in found.cluster.servers[0].devices] == ["192.1.0.1", expected]


def test_unknown_key_on_every_device_is_said_once(report):
    (problem,) = report(servers(1, 4).make({f"d0.{number}/devce_port": "1" for number in range(4)})).problems
    assert "and 3 more like it" in problem.message
    assert 'did you mean "device_port"?' in problem.hint


def test_unset_address_gets_a_hint_of_its_own(report):
    unset = {f"d{number}.0/device_ip": "-.-.-.-" for number in range(2)}
    problems = report(servers(2, 1).make(unset)).problems
    assert [problem.code for problem in problems] == ["RT331", "RT331"]
    assert all("hccn_tool -i 0 -ip -s address" in problem.hint for problem in problems)


@pytest.mark.parametrize("code", ["RT346", "RT605", "RT615"])
def test_what_only_an_accelerator_asks_for_is_a_warning_without_one(code, report):
    one = next(one for one in CASES if one.code == code)
    found = report(one.table.make(one.bad), chip="none")
    assert [problem.code for problem in found.warnings] == [code]
    assert found.cluster is not None


# What the segments look like, devices on each server, and which chips find that unusual.
SEGMENTS = {
    "four segments, pairs in each": (lambda s, d: f"192.{d % 4 + 1}.{s}.{d + 1}", 8, set()),
    "the same, but close together": (lambda s, d: f"10.0.0.{d % 4 * 64 + s * 8 + d + 1}", 8, set()),
    "all in one segment": (lambda s, d: f"10.0.0.{s * 8 + d + 1}", 8, {"910"}),
    "a segment for each server": (lambda s, d: f"10.{s}.0.{d + 1}", 8, {"910"}),
    "eight segments": (lambda s, d: f"192.{d + 1}.0.{s + 1}", 8, {"910", "auto"}),
    "positions of another server elsewhere": (lambda s, d: f"10.{s * 100 + d % 4}.0.{d + 1}", 8, {"910", "auto"}),
    "four devices in four segments": (lambda s, d: f"192.{d + 1}.0.{s + 1}", 4, set()),
    "four devices in one segment": (lambda s, d: f"10.0.0.{s * 4 + d + 1}", 4, {"910"}),
}


def addressed(pattern, count=2, devices=8):
    """A table whose device_ip follow `pattern`, given the index of the server and of the device."""
    pairs = [(server, device) for server in range(count) for device in range(devices)]
    return changed(servers(count, devices), {f"d{s}.{d}/device_ip": pattern(s, d) for s, d in pairs})


@pytest.mark.parametrize("name", list(SEGMENTS))
@pytest.mark.parametrize("chip", ["910", "auto", "a2", "a3"])
def test_segments_are_unusual_where_no_netmask_fits(name, chip, report):
    pattern, devices, unusual = SEGMENTS[name]
    found = report(addressed(pattern, devices=devices).make(), chip=chip)
    assert [problem.code for problem in found.problems] == (["RT410"] if chip in unusual else [])
    assert found.valid


def test_unusual_segments_name_the_devices(report):
    (problem,) = report(addressed(lambda s, d: f"192.{d + 1}.0.{s + 1}").make()).problems
    assert "192.4.0.1 (device 3) and 192.8.0.2 (device 7) in one subnet" in problem.message
    assert "192.2.0.1 (device 1) and 192.3.0.1 (device 2) in two subnets" in problem.message


@pytest.mark.parametrize("written", ["", "fd00::1", "10.0.0.1"])
def test_segments_say_nothing_about_what_cannot_be_compared(written, report):
    single = addressed(lambda _, d: f"192.{d + 1}.0.1", 1)
    values = single.make({"d0.0/device_ip": written, "d0.1/device_ip": "10.0.0.1"})
    assert "RT410" not in {problem.code for problem in report(values, chip="910").problems}
