"""Large tables: work and memory grow as the file does."""

from __future__ import annotations

import json
import re
import time
import tracemalloc

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import read_rank_table, render_table

SMALL, LARGE = 128, 1024  # servers of eight devices: 1,024 and 8,192 devices
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
    "repeated rank at the end": lambda text: last_replaced(
        text, re.findall('"rank_id": "[0-9]+"', text)[-1], '"rank_id": "0"'
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
    """A table of 8,192 devices costs about eight times one of 1,024, not sixty-four times, valid or broken."""
    times = {}
    for size in (SMALL, LARGE):
        path = tmp_path / f"{size}.json"
        path.write_text(VARIANTS[variant](text_of(size)))
        times[size] = seconds_to_read(path)
    assert times[LARGE] / times[SMALL] < 3 * GROWTH


def test_memory_is_a_small_multiple_of_what_json_needs(tmp_path):
    """Reading and checking a large table holds less than four times what its bare JSON values hold."""
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
    assert read < 4 * bare


def repeated(entry, around='{{"version": "1.0", "status": "completed", "server_list": [{}]}}', times=200_000):
    return around.format(f"{entry}," * times + entry)


MONSTERS = {
    "a million numbers": (repeated("1", times=1_000_000), "RT117"),
    "half a million numbers": (repeated("1", times=500_000), "RT205"),
    "empty servers": (repeated("{}"), "RT204"),
    "empty devices": (repeated("{}", '{{"version": "1.0", "server_list": [{{"device": [{}]}}]}}'), "RT204"),
    "empty ranks": (repeated("{}", '{{"version": "2.0", "rank_list": [{}]}}'), "RT204"),
    "unknown keys": ("{" + ",".join(f'"k{n}": 1' for n in range(200_000)) + ', "version": "1.0"}', "RT401"),
    "one key for ever": ("{" + ",".join('"k": 1' for _ in range(200_000)) + "}", "RT405"),
    "commas": ("[" + "," * 60_000 + "]", "RT114"),
    "a long comment": ("{/*" + "x" * 2_000_000 + '*/"version": "1.0"}', "RT104"),
    "an endless string of escapes": ('{"version": "' + "\\n" * 1_000_000, "RT108"),
    "comments": ("{" + "// no\n" * 70_000 + "}", "RT104"),
    "open brackets": ("[" * 1_000_000, "RT110"),
    "open objects": ('{"a":' * 300_000, "RT110"),
    "quotes": ('"' * 1_000_000, "RT109"),
    "a number without end": ('{"version": "1.0", "server_count": ' + "9" * 1_000_000 + "}", "RT205"),
    "a name without end": ('{"version": "' + "x" * 1_000_000 + '"}', "RT203"),
    "NUL": ("\0" * 1_000_000, "RT101"),
}


@pytest.mark.parametrize("name", MONSTERS)
def test_monsters_get_a_message_and_little_memory(name, tmp_path):
    """A document made to exhaust its reader is refused, within 50 times its own size (json.loads alone may take 25)."""
    text, code = MONSTERS[name]
    path = tmp_path / "table.json"
    path.write_text(text)
    tracemalloc.start()
    try:
        report = read_rank_table(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not report.valid
    assert code in {problem.code for problem in report.problems}
    # One mistake without end is shown in part, and the last problem says that there are more.
    assert name != "half a million numbers" or "more like it" in report.errors[-1].message
    assert peak < 50 * path.stat().st_size + 32 * 1024 * 1024
