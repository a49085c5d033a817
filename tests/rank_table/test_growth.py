"""Large tables: work and memory grow as the file does."""

from __future__ import annotations

import json
import re
import time
import tracemalloc

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import read_rank_table, render_table

SMALL, LARGE = 256, 2048  # servers of eight devices: 2,048 and 16,384 devices
GROWTH = LARGE / SMALL


def text_of(servers):
    return render_table(
        Cluster(
            tuple(
                Server(f"node-{server:05}", tuple(
                    Device(device, 8 * server + device, f"10.{server >> 8}.{server & 255}.{device}")
                    for device in range(8)
                ))
                for server in range(servers)
            )
        )
    )  # fmt: skip


def last_replaced(text, old, new):
    before, after = text.rsplit(old, 1)
    return before + new + after


VARIANTS = {
    "valid": lambda text: text,
    "a warning at the end": lambda text: last_replaced(text, '"rank_id": "', '"rank_id": "0'),
    "repeated rank at the end": lambda text: (
        last_replaced(text, '"rank_id": "16383"', '"rank_id": "0"')
        if "16383" in text
        else last_replaced(text, '"rank_id": "2047"', '"rank_id": "0"')
    ),
    "cut off": lambda text: text[:-40],
    "every comma trailing": lambda text: text.replace('"}\n', '"},\n'),
    "a comment on every line": lambda text: text.replace(",\n", ", // more\n"),
    "every number bare": lambda text: text.replace('"device_id": "0"', '"device_id": 0'),
    "every address the same": lambda text: re.sub('"10[.0-9]*"', '"10.0.0.1"', text),
}


def seconds_to_read(path):
    """The least processor time of three readings: other work on the machine only ever adds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        read_rank_table(path)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("variant", VARIANTS)
def test_work_grows_with_the_file_and_not_with_its_square(variant, tmp_path):
    """A table of 16,384 devices costs about eight times one of 2,048, not sixty-four times, valid or broken."""
    times = {}
    for size in (SMALL, LARGE):
        path = tmp_path / f"{size}.json"
        path.write_text(VARIANTS[variant](text_of(size)))
        times[size] = seconds_to_read(path)
    assert times[LARGE] / times[SMALL] < 3 * GROWTH


def test_memory_is_a_small_multiple_of_what_json_needs(tmp_path):
    """Reading and checking a large table holds less than six times what its bare JSON values hold."""
    path = tmp_path / "table.json"
    path.write_text(text_of(LARGE))
    read_rank_table(path)  # imports are not what is measured
    tracemalloc.start()
    try:
        json.loads(path.read_bytes())
        bare = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        report = read_rank_table(path)
        read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.cluster.device_count == 8 * LARGE
    assert read < 6 * bare


def test_huge_lists_and_deep_nesting_get_a_message(tmp_path):
    """A list of a million numbers and a million open brackets are refused, each with one position."""
    path = tmp_path / "table.json"
    path.write_text('{"version": "1.0", "status": "completed", "server_list": [' + "1," * 1_000_000 + "1]}")
    report = read_rank_table(path)
    assert {problem.code for problem in report.errors} == {"RT205"}
    assert "more like it" in report.errors[-1].message
    path.write_text("[" * 1_000_000)
    assert [problem.code for problem in read_rank_table(path).errors] == ["RT110"]
