"""Claim: no document, however damaged, makes the rank table reader crash, hang or use excessive memory.

Mutates valid tables of every format as bytes, as text and as JSON values, and reads each result. Prints one line of
figures.
Exits with 1 at the first document that breaks the claim, after writing it to the working directory.

    python benchmarks/fuzz_tables.py --documents 200000
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import signal
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.rank_table import CHIPS, CONSUMERS, Profile, Severity, TableReport, parse_rank_table

MAX_S = 10  # for one document of a few kilobytes; a hundred times what it needs on a busy machine
MEMORY_SAMPLE = 50  # every so many documents are read under tracemalloc, which is slow
MEMORY_FLOOR_BYTES = 256 * 1024  # what reading needs whatever the size: patterns, messages, the catalogue
MEMORY_FACTOR = 60  # json.loads alone takes up to 25 times: an empty object is two characters, and 64 bytes
PATH = Path("fuzz.json")

V1_0 = {
    "version": "1.0", "server_count": "2", "status": "completed",
    "server_list": [
        {"server_id": f"10.0.0.{server}", "host_nic_ip": "reserve", "device": [
            {"device_id": str(device), "device_ip": f"192.{device}.0.{server}", "rank_id": str(2 * server + device)}
            for device in range(2)]}
        for server in range(2)],
}  # fmt: skip
V1_2 = {
    "version": "1.2", "server_count": "2", "status": "completed",
    "server_list": [
        {"server_id": f"node_{server}", "device": [
            {"device_id": str(device), "super_device_id": str(2 * server + device), "rank_id": str(2 * server + device)}
            for device in range(2)]}
        for server in range(2)],
    "super_pod_list": [{"super_pod_id": "0", "server_list": [{"server_id": "node_0"}, {"server_id": "node_1"}]}],
}  # fmt: skip
V1_1 = {
    "version": "1.1", "status": "completed", "collective_id": "c-1",
    "node_list": [{"node_addr": "10.0.0.1", "ranks": [
        {"rank_id": "0", "device_id": "0", "rank_ip": "192.1.0.1", "port": "60008"},
        {"rank_id": "1", "device_id": "-1", "port": "5555"}]}],
}  # fmt: skip
V2_0 = {
    "version": "2.0", "status": "completed", "rank_count": 2,
    "rank_list": [
        {"rank_id": rank, "local_id": rank, "device_id": rank, "device_port": 16666, "level_list": [
            {"net_layer": 0, "net_instance_id": "rack0", "net_type": "TOPO_FILE_DESC", "net_attr": "", "rank_addr_list": [
                {"addr_type": "IPV4", "addr": f"10.1.0.{rank}", "ports": ["0/1"], "plane_id": "plane0"}]}]}
        for rank in range(2)],
}  # fmt: skip
CLOUD = {
    "status": "completed", "group_count": "1",
    "group_list": [{"group_name": "g", "instance_count": "2", "device_count": "2", "instance_list": [
        {"pod_name": f"p{pod}", "server_id": f"10.0.0.{pod}", "devices": [
            {"device_id": "0", "device_ip": f"192.1.0.{pod}"}]} for pod in range(2)]}],
}  # fmt: skip
LAB = {
    "status": "completed", "deploy_mode": "lab", "chip_info": "910", "board_id": "0x0000", "group_count": "1",
    "para_plane_nic_location": "device", "para_plane_nic_num": "2", "para_plane_nic_name": ["eth0", "eth1"],
    "group_list": [{"group_name": "", "device_num": "2", "server_num": "1", "instance_count": "2", "instance_list": [
        {"rank_id": str(rank), "server_id": "10.0.0.1", "devices": [
            {"device_id": str(rank), "device_ip": f"192.{rank}.0.1"}]} for rank in range(2)]}],
}  # fmt: skip
SEEDS: tuple[dict[str, Any], ...] = (V1_0, V1_1, V1_2, V2_0, CLOUD, LAB)
ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**30, 2**63, "", " ", "-1", "0x1", "٣", "1" * 400, "10.*.*.*", "::1%", "\0", "\ud800",
    [], {}, [[]], [None], {"": ""}, "completed", "1.2", "2.0", {"version": "1.0"}, ["a"] * 30,
)  # fmt: skip
SNIPPETS: tuple[bytes, ...] = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"'", b"//", b"/*", b"*/", b"#", b"...", b"\xe2\x80\xa6", b"\x00",
    b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xff\xfe", b"NaN", b"Infinity", b"-", b"1e999", b"\\u0000", b"\\ud800", b"\n",
    b"\r", b"\xe2\x80\x9c", b"true", b"null", b"[[[[[[[[", b'{"a":' * 8, b"9" * 40,
)  # fmt: skip
Mutation = Callable[[random.Random, bytearray], None]


def cut(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 1, 1, 3, 20, len(data)))]


def insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(SNIPPETS) * rng.choice((1, 1, 1, 2, 50))


def repeat(rng: random.Random, data: bytearray) -> None:
    at, length = rng.randrange(len(data) + 1), rng.choice((5, 40, 300))
    data[at:at] = data[at : at + length]


def flip(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


MUTATIONS: tuple[Mutation, ...] = (cut, insert, repeat, flip)


def documents(count: int, seed: int) -> Iterator[bytes]:
    """`count` damaged tables, always the same ones for a `seed`."""
    rng = random.Random(seed)
    for _ in range(count):
        values = copy.deepcopy(rng.choice(SEEDS))
        for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
            mutate_values(rng, values)
        data = bytearray(json.dumps(values, indent=rng.choice((None, 1, 4)), ensure_ascii=rng.random() < 0.5).encode(
            "utf-8", "surrogatepass"))  # fmt: skip
        for _ in range(rng.choice((0, 0, 1, 1, 2, 8))):
            rng.choice(MUTATIONS)(rng, data)
        yield bytes(data)


def mutate_values(rng: random.Random, values: dict[str, Any]) -> None:
    """Change, take away, rename or repeat one value anywhere in the document."""
    holders = list(containers(values))
    holder = rng.choice(holders)
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    if not keys:
        return
    key = rng.choice(keys)
    action = rng.randrange(5)
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = (
            copy.deepcopy(rng.choice(holders)) if rng.random() < 0.3 else copy.deepcopy(rng.choice(ODD_VALUES))
        )
    elif action == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif isinstance(holder, dict):
        holder[rng.choice((key + "s", key.upper(), "", "version", "status", "device"))] = holder.pop(key)
    elif isinstance(holder, list):
        rng.shuffle(holder)


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def check(report: TableReport, data: bytes) -> None:
    """What holds for every report, whatever was read."""
    lines = data.count(b"\n") + 1
    errors = [problem for problem in report.problems if problem.severity is Severity.ERROR]
    assert report.valid == (not errors) == (report.cluster is not None)
    assert len(errors) == len({(one.code, one.line, one.column, one.message) for one in errors})
    assert all(1 <= problem.line <= lines and problem.column >= 1 and problem.message for problem in report.problems)
    assert [(problem.line, problem.column) for problem in report.problems] == sorted(
        (problem.line, problem.column) for problem in report.problems
    )
    assert all(char.isprintable() or char == "\n" for char in report.render())
    if report.table is not None:
        assert all(is_there(report.document.value, problem.pointer) for problem in report.problems)


def is_there(value: Any, pointer: str) -> bool:
    """Whether a JSON pointer leads to something, or to a key that is missing in an object that is there."""
    names = [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]
    for depth, name in enumerate(names, 1):
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict):
            if name not in value:
                return depth == len(names)
            value = value[name]
        else:
            return False
    return True


def read_all(count: int, seed: int) -> dict[str, Any]:
    """Read `count` documents; figures of the run. Raises what the reader raises."""
    rng = random.Random(seed + 1)
    chips, consumers = sorted(CHIPS), sorted(CONSUMERS)
    codes: Counter[str] = Counter()
    valid, slowest_s, greediest = 0, 0.0, 0.0
    for values in SEEDS:  # imports are not what is measured
        assert parse_rank_table(json.dumps(values).encode(), PATH).valid
    assert not parse_rank_table(b"node1 slots=2", PATH).valid
    for number, data in enumerate(documents(count, seed)):
        profile = Profile(rng.choice(chips), rng.choice(consumers))
        signal.alarm(MAX_S)
        sampled = number % MEMORY_SAMPLE == 0
        try:
            if sampled:
                tracemalloc.start()
            start = time.process_time()
            report = parse_rank_table(data, PATH, profile)
            slowest_s = max(slowest_s, time.process_time() - start)
            if sampled:
                peak = tracemalloc.get_traced_memory()[1]
                greediest = max(greediest, peak / (len(data) + MEMORY_FLOOR_BYTES / MEMORY_FACTOR))
                assert peak < MEMORY_FLOOR_BYTES + MEMORY_FACTOR * len(data), f"{peak} bytes for {len(data)}"
            check(report, data)
        except BaseException:
            Path(f"fuzz-{seed}-{number}.json").write_bytes(data)
            raise
        finally:
            signal.alarm(0)
            tracemalloc.stop()
        codes.update({problem.code for problem in report.problems})
        valid += report.valid
    return {"documents": count, "valid": valid, "codes": len(codes), "slowest_s": slowest_s, "memory_ratio": greediest}


def _give_up(*_: object) -> None:
    raise TimeoutError(f"one document took more than {MAX_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _give_up)
    start = time.monotonic()
    figures = read_all(arguments.documents, arguments.seed)
    print(
        f"{figures['documents']} documents in {time.monotonic() - start:.0f} s: no crash, no hang; {figures['valid']} valid, "
        f"{figures['codes']} different codes, slowest {figures['slowest_s'] * 1000:.0f} ms, "
        f"memory at most {figures['memory_ratio']:.0f} times the text"
    )


if __name__ == "__main__":
    sys.exit(main())
