"""Claim: checking a rank table costs a small multiple of parsing its JSON, and grows linearly with the table.

The tables are valid v1.0 tables with 16,384 and 131,072 devices. A ratio is the CPU time of `read_rank_table` over
that of `json.load` of the same file, as the median of neighbouring pairs. The growth from the smaller to the larger
table follows. The larger table is also checked with a problem at every device: a warning or an error must cost no
more than the table itself.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import read_rank_table, render_table

# What is said about every device, by what makes it so.
VARIANTS: dict[str, Callable[[str], str]] = {
    "an oddly written rank each": lambda text: text.replace('"rank_id": "', '"rank_id": "0'),
    "a rank that all share": lambda text: re.sub(r'"rank_id": "\d+"', '"rank_id": "0"', text),
    "an address that is none each": lambda text: re.sub(r'"device_ip": "[^"]*"', '"device_ip": "10.*.*.*"', text),
    "an unknown key each": lambda text: text.replace('"rank_id"', '"rank": "0", "rank_id"'),
    "a key twice each": lambda text: text.replace('"rank_id"', '"device_id": "0", "rank_id"'),
}
DEVICES_PER_SERVER = 8
SERVERS = (2_048, 16_384)
ROUNDS = 5


def text_of(servers: int) -> str:
    """A valid table without any warning: devices i and i + 4 of all servers are in one network."""
    rows = []
    for server in range(servers):
        hosts = (2 * server, 2 * server + 1)
        devices = tuple(
            Device(
                device, DEVICES_PER_SERVER * server + device,
                f"192.{device % 4 + 1}.{hosts[device // 4] >> 8}.{hosts[device // 4] & 255}",
            )
            for device in range(DEVICES_PER_SERVER)
        )  # fmt: skip
        rows.append(Server(f"node-{server:05}", devices))
    return render_table(Cluster(tuple(rows)))


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    result = work()
    spent = time.process_time() - start
    del result  # what it frees is not what is measured
    return spent


def load(path: Path) -> object:
    with path.open("rb") as file:
        return json.load(file)


def ratio(path: Path) -> tuple[float, float]:
    """How many times as long as `json.load` reading takes, and the seconds of it."""
    pairs = [(seconds(lambda: load(path)), seconds(lambda: read_rank_table(path))) for _ in range(ROUNDS)]
    return statistics.median(read / bare for bare, read in pairs), statistics.median(read for _, read in pairs)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    spent: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        for servers in SERVERS:
            path.write_text(text_of(servers), encoding="utf-8")
            assert not read_rank_table(path).problems
            times, spent[servers] = ratio(path)
            devices = servers * DEVICES_PER_SERVER
            print(f"{devices:7} devices: {spent[servers]:.2f} s, {times:.1f} times json.load")
        for name, change in VARIANTS.items():
            path.write_text(change(text_of(SERVERS[1])), encoding="utf-8")
            assert read_rank_table(path).problems
            times, taken = ratio(path)
            print(f"        {name}: {taken:.2f} s, {times:.1f} times json.load")
    small, large = (spent[servers] for servers in SERVERS)
    print(f"{SERVERS[1] / SERVERS[0]:.0f} times the devices take {large / small:.1f} times as long")


if __name__ == "__main__":
    main()
