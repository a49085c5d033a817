"""Large tables: work and memory grow as the file does."""

import json
import re
import subprocess
import sys
import time
import tracemalloc

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import read_rank_table, render_table

SMALL, LARGE = 64, 512  # servers of eight devices: 512 and 4,096 devices
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
    """The less processor time of two readings: other work on the machine only ever adds."""
    times = []
    for _ in range(2):
        start = time.process_time()
        read_rank_table(path)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("variant", VARIANTS)
def test_work_grows_with_the_file_and_not_with_its_square(variant, tmp_path):
    times = {}
    for size in (SMALL, LARGE):
        path = tmp_path / f"{size}.json"
        path.write_text(VARIANTS[variant](text_of(size)))
        times[size] = seconds_to_read(path)
    assert times[LARGE] / times[SMALL] < 3 * GROWTH


def test_memory_is_a_small_multiple_of_what_json_needs(tmp_path):
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


def repeated(entry, around='{{"version": "1.0", "status": "completed", "server_list": [{}]}}', times=100_000):
    return around.format(f"{entry}," * times + entry)


SIZE = 2 << 20
# What reading a document may take: a multiple of its size, and bytes whatever its size. For each object and each problem
# that is more: json.loads alone makes 25 times their text of the first.
TEXT, OBJECTS = (10, 4 << 20), (50, 48 << 20)
# Documents made to exhaust their reader, each with a code that it gets.
MONSTERS = {
    "a million numbers": (repeated("1", times=1_000_000), "RT117", TEXT),
    "half a million numbers": (repeated("1", times=500_000), "RT205", OBJECTS),
    "long numbers": ("[" + "1234," * (SIZE // 5) + "1]", "RT201", TEXT),
    "empty lists": ("[" + "[]," * 1_400_000 + "[]]", "RT117", TEXT),
    "empty servers": (repeated("{}"), "RT204", OBJECTS),
    "empty devices": (repeated("{}", '{{"version": "1.0", "server_list": [{{"device": [{}]}}]}}'), "RT204", OBJECTS),
    "empty ranks": (repeated("{}", '{{"version": "2.0", "rank_list": [{}]}}'), "RT204", OBJECTS),
    "unknown keys": ("{" + ",".join(f'"k{n}": 1' for n in range(100_000)) + ', "version": "1.0"}', "RT401", OBJECTS),
    "one key for ever": ("{" + ",".join('"k": 1' for _ in range(SIZE // 8)) + "}", "RT405", TEXT),
    "commas": ("[" + "," * 60_000 + "]", "RT114", OBJECTS),
    "a long comment": ("{/*" + "x" * SIZE + '*/"version": "1.0"}', "RT104", TEXT),
    "comments": ("{" + "// no\n" * 20_000 + "}", "RT104", OBJECTS),
    "an endless string of escapes": ('["' + "\\n" * (SIZE // 2), "RT108", TEXT),
    "open brackets": ("[" * 1_000_000, "RT110", TEXT),
    "open objects": ('{"a":' * 300_000, "RT110", TEXT),
    "quotes": ('"' * 1_000_000, "RT109", TEXT),
    "a number without end": ('{"version": "1.0", "server_count": ' + "9" * 1_000_000 + "}", "RT205", TEXT),
    "a name without end": ('{"version": "' + "x" * 1_000_000 + '"}', "RT203", TEXT),
    "NUL": ("\0" * 1_000_000, "RT101", TEXT),
    "newlines": ("\n" * SIZE, "RT111", TEXT),
    "newlines in braces": ("{" + "\n" * SIZE + "}", "RT203", TEXT),
    "newlines in a table": ('{"version": "1.0",' + "\n" * SIZE + "}", "RT103", TEXT),
    "blanks": (" " * SIZE, "RT111", TEXT),
    "words on lines": ("ab\n" * (SIZE // 3), "RT107", TEXT),
}
# In a process of its own, which has read a table: reads each document in a copy of itself that has read no other, and
# prints the codes that it got, its last message, and what it held at most beyond what it held before, in bytes.
PROGRAM = """
import json, os, resource, sys
from pathlib import Path
from launcher.rank_table import read_rank_table

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

read_rank_table(Path("small.json")).render()
for path in sys.argv[1:]:
    if os.fork() == 0:
        before = peak()
        report = read_rank_table(Path(path))
        report.render()
        found = sorted({problem.code for problem in report.problems}), report.errors[-1:]
        print(json.dumps([found[0], [one.message for one in found[1]], report.valid, peak() - before]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What became of each of the monsters, by its name."""
    folder = tmp_path_factory.mktemp("monsters")
    (folder / "small.json").write_text('{"version": "1.0"}')  # so faulty that everything is loaded
    for name, (text, *_) in MONSTERS.items():
        (folder / name).write_text(text)
    argv = [sys.executable, "-c", PROGRAM, *MONSTERS]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    return dict(zip(MONSTERS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", MONSTERS)
def test_monsters_get_a_message_and_little_memory(name, told):
    text, code, (factor, floor) = MONSTERS[name]
    codes, last, valid, peak = told[name]
    assert not valid
    assert code in codes
    # One mistake without end is shown in part, and the last problem says that there are more.
    assert name != "half a million numbers" or "more like it" in last[0]
    assert peak < factor * len(text) + floor
