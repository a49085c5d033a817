"""Sound rank tables of every format, and a seeded stream of copies with one to three things changed in each."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .tables import make_cloud, make_lab, make_nodes, make_pods, make_ranks, make_table

EID = "000000000000002000100000df0010"


class Mutant(NamedTuple):
    """A changed table, the chip to read it for, and the sound table that it was."""

    data: bytes
    chip: str
    seed: str


def host_addresses() -> dict[str, Any]:
    """Servers that talk over their own cards."""
    table = make_table(2, 2)
    for number, server in enumerate(table["server_list"]):
        server["host_ip"] = f"10.9.0.{number + 1}"
        for device in server["device"]:
            del device["device_ip"]
    return table


def two_addresses() -> dict[str, Any]:
    table = make_table(2, 1)
    for number, server in enumerate(table["server_list"]):
        server["device"][0]["device_ip"] = f"fd00::{number + 1},fd01::{number + 1}%eth0"
    return table


def with_host_ranks() -> dict[str, Any]:
    """Each node has a device's rank and one on the host, and no super pods."""
    table = make_nodes(2, 2, "1.2")
    del table["heterog_sub_version"]
    return table


def with_backup() -> dict[str, Any]:
    """A spare device in place of a broken one, a control plane, and addresses that stand in for others."""
    table = make_ranks(1, 2)
    table["rank_list"][1].update(local_id=64, replaced_local_id=1, device_id=64, device_port=16666, host_port=60001)
    table["rank_list"][0]["control_plane"] = {"addr_type": "IPV4", "addr": "10.0.0.1", "listen_port": 60000}
    for rank in table["rank_list"]:
        for level in rank["level_list"]:
            level["rank_addr_list"][0]["backup_addr"] = ["172.17.0.1"]
    return {**table, "detour": "false"}


LATER, EARLIER = ("auto", "a5"), ("auto", "910", "a2", "a3", "300i")
SEEDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "v1.0 1x1": (make_table(1, 1), EARLIER),
    "v1.0 1x4": (make_table(1, 4), EARLIER),
    "v1.0 1x8": (make_table(1, 8), EARLIER),
    "v1.0 2x2": (make_table(2, 2), EARLIER),
    "v1.0 1x16": (make_table(1, 16), ("auto", "a2", "a3", "300i")),
    "v1.0 2x8": (make_table(2, 8), EARLIER),
    "v1.0 3x1": (make_table(3, 1), EARLIER),
    "v1.0 ports": (make_table(2, 1, device_port="16666", device_vnic_port="16667", host_port="60001"), EARLIER),
    "v1.0 host_ip": (host_addresses(), ("auto", "910", "a3", "300i")),
    "v1.0 two addresses": (two_addresses(), EARLIER),
    "v1.1": (with_host_ranks(), EARLIER),
    "v1.1 one node": (make_nodes(1), EARLIER),
    "v1.1 super pod": (make_nodes(2, 2, "1.2"), EARLIER),
    "v1.2 no pods": (make_pods(0, 2, 2), EARLIER),
    "v1.2 one pod": (make_pods(1, 2, 2), EARLIER),
    "v1.2 two pods": (make_pods(2, 1, 2), EARLIER),
    "v2.0 EID": (make_ranks(2, 2, "EID"), LATER),
    "v2.0 IPV4": (make_ranks(1, 2, "IPV4"), LATER),
    "v2.0 IPV6": (make_ranks(1, 3, "IPV6"), LATER),
    "v2.0 backup": (with_backup(), LATER),
    "lab 1x2": (make_lab(1, 2), EARLIER),
    "lab 2x4": (make_lab(2, 4), EARLIER),
    "lab 2 groups": (make_lab(2, 2, groups=("", "g1")), EARLIER),
    "cloud 1x2": (make_cloud(1, 2), EARLIER),
    "cloud 2x2": (make_cloud(2, 2), EARLIER),
    "cloud 2 groups": (make_cloud(4, 1, groups=("group0", "group1")), EARLIER),
}  # fmt: skip

TEXTS: tuple[str, ...] = (
    "", " ", "0", "1", "2", "3", "4", "7", "8", "15", "16", "31", "32", "64", "65", "512", "65535", "65536", "-1", "-0",
    "+1", " 1", "01", "1x", "0x1", "1.0", "1e1", "4294967295", "4294967296", "18446744073709551615", "99999999999999999999",
    "-18446744073709551615", "٣", "x", "é" * 16, "é" * 33, "a" * 64, "a" * 65, "a" * 127, "a" * 128, "é" * 513,
    "10.0.0.1", "10.0.0.2", "10.0.0.01", "10.0.0.256", "10.0.0", "10.*.*.*", "-.-.-.-", "0.0.0.0", "0.0.0.0%eth0", "::",
    "::1", "fd00::1", "FD00::1", "fe80::1%eth0", "fe80::1%", "%eth0", "1:2:3::5:6:7:8", "1::2:3:4:5:6:7", "::10.0.0.1",
    "1:2:3:4:5:6:10.0.0.1", "1:2:3:4:5:6:7:8:9", "127.0.0.1", "10.0.0.1,10.0.0.2", "10.0.0.1,", ",", "10.0.0.1, 10.0.0.2",
    "completed", "initializing", "1.1", "1.2", "2.0", "Standard", "host", "device", "reserved", "tcp", "rdma", "TCP",
    "true", "false", "EID", "IPV4", "IPV6", "CLOS", "2DMESH", "910", "910B", "310P3", EID + "ff", EID + "fg", "a\0b", "0\0x",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, 7, 8, 63, 64, 65, 512, 513, 16666, 65535, 65536, 2**32 - 1, 2**32, 2**63, -1, 0.5, 1.0,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], [""], {"": ""}, ["0/1"] * 17, ["p" * 33], ["é" * 17],
)  # fmt: skip
MORE_KEYS: dict[str, tuple[Any, ...]] = {
    "host_ip": ("10.0.0.1", "0.0.0.0", "fd00::1", "", "node", 1),
    "device_ip": ("192.1.0.1", "0.0.0.0", "::", "", None),
    "device_port": ("16666", "0", "65536", "", 1, 16666, 0),
    "device_vnic_port": ("16667", "0", 1),
    "host_port": ("60000", "0", 60000, 0),
    "net_position": ("host", "device", "", 1),
    "net_protocol": ("tcp", "udp", None),
    "super_device_id": ("0", "1", "", "4294967295", 1),
    "super_pod_list": ([], None, [{"super_pod_id": "9", "server_list": [{"server_id": "10.0.0.1"}]}]),
    "server_count": ("1", "2", "", 1),
    "version": ("1.0", "1.2", "2.0", "1.1", 1, None, []),
    "deploy_mode": ("lab", None),
    "chip_info": ("910", "910B", "310P3", "910_93", "moon"),
    "heterog_sub_version": ("1.2", "1.1", ""),
    "mode": ("tcp", "rdma", "udp", ""),
    "sdid": ("0", "-1", "", 1),
    "bind_device_id": ("0", "", 0),
    "rank_ip": ("192.1.0.1", "0.0.0.0", "x", ""),
    "port": ("0", "-1", "70000", "x"),
    "detour": ("true", "TRUE", "", None),
    "backup_addr": ([], ["10.1.0.1"], ["fd00::1"], ["x"], "10.1.0.1", ["10.1.0.1"] * 17, [None], None),
    "pcie_fallback": (True, False, "true", None, 1),
    "net_attr": ("", "x", None, 1),
    "net_type": ("CLOS", "clos", None),
    "plane_id": ("p" * 1024, "p" * 1025, "é" * 513, None),
    "control_plane": ({"addr_type": "IPV4", "addr": "10.0.0.1", "listen_port": 1}, {"addr_type": "IPV4"}, None, []),
    "replaced_local_id": (0, 63, 64, None),
    "remark": ("x", [1], {"a": None}),
}  # fmt: skip
Change = Callable[[random.Random, Any], None]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys or indices."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def objects(value: Any) -> list[dict[str, Any]]:
    found = [holder[key] for holder, key in places(value) if isinstance(holder[key], dict)]
    return [value, *found]


def replace_alike(rng: random.Random, table: Any) -> None:
    """A value by another one of its type."""
    holder, key = rng.choice(list(places(table)))
    if isinstance(holder[key], str):
        holder[key] = rng.choice(TEXTS)
    elif isinstance(holder[key], int):
        holder[key] = rng.choice(NUMBERS)
    elif isinstance(holder[key], list):
        holder[key] = holder[key][: rng.randrange(len(holder[key]) + 1)]


def replace_any(rng: random.Random, table: Any) -> None:
    holder, key = rng.choice(list(places(table)))
    holder[key] = copy.deepcopy(rng.choice(rng.choice((TEXTS, NUMBERS, OTHERS))))


def count_on(rng: random.Random, table: Any) -> None:
    """A number, written either way, by its neighbour."""
    numbers = [(holder, key) for holder, key in places(table) if str(holder[key]).isdecimal()]
    if numbers:
        holder, key = rng.choice(numbers)
        by = rng.choice((-1, 1, 1, 2))
        holder[key] = str(int(holder[key]) + by) if isinstance(holder[key], str) else holder[key] + by


def copy_alike(rng: random.Random, table: Any) -> None:
    """A value from another object with the same key."""
    first, key = rng.choice([(holder, key) for holder, key in places(table) if isinstance(holder, dict)])
    others = [one for one in objects(table) if key in one and one is not first]
    if others:
        first[key] = copy.deepcopy(rng.choice(others)[key])


def remove(rng: random.Random, table: Any) -> None:
    holder, key = rng.choice(list(places(table)))
    del holder[key]


def add(rng: random.Random, table: Any) -> None:
    key = rng.choice(tuple(MORE_KEYS))
    near = [one for one in objects(table) if key in one] or objects(table)
    holder = rng.choice(near if rng.random() < 0.5 else objects(table))
    holder[key] = copy.deepcopy(rng.choice(MORE_KEYS[key]))


def reshape(rng: random.Random, table: Any) -> None:
    """Repeat, move or exchange entries of lists."""
    lists = [holder[key] for holder, key in places(table) if isinstance(holder[key], list) and holder[key]]
    if not lists:
        return
    chosen, action = rng.choice(lists), rng.randrange(3)
    if action == 0:
        chosen.append(copy.deepcopy(rng.choice(chosen)))
    elif action == 1:
        rng.shuffle(chosen)
    else:
        entry = chosen.pop(rng.randrange(len(chosen)))
        alike = [one for one in lists if one and isinstance(one[0], type(entry))] or lists
        rng.choice(alike).append(entry)


CHANGES: tuple[Change, ...] = (
    replace_alike, replace_alike, replace_alike, count_on, count_on, copy_alike, copy_alike, remove, add, add, replace_any,
    reshape,
)  # fmt: skip
ODD_TEXT: tuple[tuple[str, str], ...] = (
    ("}", ",}"), ("]", ",]"), (",", ",,"), ("{", "{// x\n"), ("]", "] /* x */"), ("{", '{"x": 1e999, '), ("{", '{"x": -1e400, '),
    ("{", '{"x": 1' + "0" * 309 + ", "), ("{", '{"x": 1e308, '), ("{", '{"x": NaN, '), ("{", '{"x": 01, '), ('"', "'"),
    ("{", '{"x": "\\ud800", '), ("{", '{"x": "\\u0000", '), ("{", '{"x": "a\tb", '), ("{", '{"x": [[[[[]]]]], '), (":", " "),
)  # fmt: skip
ENDINGS = ("}", "x", "[]", " \n", "1e999", "{}")


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    """`count` of them, always the same ones for a `seed`."""
    rng = random.Random(seed)
    names = tuple(SEEDS)
    for _ in range(count):
        name = rng.choice(names)
        sound, chips = SEEDS[name]
        table = copy.deepcopy(sound)
        for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3))):
            if table:
                rng.choice(CHANGES)(rng, table)
        chip = rng.choice((*chips, "auto", "a5" if rng.random() < 0.05 else "auto"))
        yield Mutant(written(rng, table), chip, name)


def written(rng: random.Random, table: Any) -> bytes:
    """As JSON in UTF-8, one in twelve with a fault in its text."""
    text = json.dumps(table, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5)
    kind = rng.randrange(24)
    if kind == 0:
        old, new = rng.choice(ODD_TEXT)
        parts = text.split(old)
        at = rng.randrange(1, len(parts)) if len(parts) > 1 else 0
        text = old.join(parts[:at]) + new + old.join(parts[at:]) if at else text
    elif kind == 1:
        text = rng.choice((text + rng.choice(ENDINGS), text[: rng.randrange(len(text))], "\ufeff" + text))
    data = text.encode("utf-8", "surrogatepass")
    return data + b"\xff" if kind == 2 and rng.random() < 0.2 else data
