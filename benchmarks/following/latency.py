"""Measure the delay between the write of a line and its output."""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import time
from collections.abc import Sequence

from common.checks import Bound, Checks, median_ratio
from common.processes import running

from following.bench import BLOCK_BYTES, FOLLOWED, TAIL, Bench

RANKS = (8, 256)
LINES, LINE_EVERY_S = 100, 0.05
MIN_LINES = 20
BOUND = Bound(must=0.1, aim=0.01)


def measure(bench: Bench, rounds: int, checks: Checks) -> None:
    for ranks in RANKS:
        with bench.sleepers(ranks):
            peers = {FOLLOWED: bench.logs_argv("-f"), TAIL: ["tail", "-q", "-n", "+1", "-F", *bench.files(ranks)]}
            rows = [{name: latencies(bench, ranks, argv) for name, argv in peers.items()} for _ in range(rounds)]
        print(f"from the write of a line to a pipe, {ranks} logs:")
        tell(rows, checks)


def tell(rows: Sequence[dict[str, list[float]]], checks: Checks) -> None:
    for name in rows[0]:
        all_s = sorted(each for row in rows for each in row[name])
        median_s, late_s = statistics.median(all_s), all_s[len(all_s) * 95 // 100]
        print(f"  {name}: median {median_s * 1e3:.2f} ms, 95th percentile {late_s * 1e3:.2f} ms")
    medians = [{name: statistics.median(column) for name, column in row.items()} for row in rows]
    print(f"  median, {FOLLOWED} / {TAIL}: {median_ratio(medians, FOLLOWED, TAIL):.2f}")
    checks.tell(f"median of {FOLLOWED}, seconds", statistics.median(row[FOLLOWED] for row in medians), BOUND)


def latencies(bench: Bench, ranks: int, argv: Sequence[str]) -> list[float]:
    """Seconds, of lines that are written to all logs in turn."""
    files = bench.files(ranks)
    with running(argv, subprocess.PIPE) as process:
        assert process.stdout is not None
        arrived(process.stdout.fileno(), files[0], b"the first line\n")  # it follows
        time.sleep(1.5)  # tail has told of all files, we have looked at all
        drain(process.stdout.fileno())
        took = []
        for number in range(max(MIN_LINES, bench.times(LINES))):
            line = b"%d\n" % time.time_ns()
            took.append(arrived(process.stdout.fileno(), files[number * 7 % ranks], line))
            time.sleep(LINE_EVERY_S)
    return took


def arrived(pipe: int, file: str, line: bytes) -> float:
    """How long until a line that is written now comes out of the pipe."""
    writer = os.open(file, os.O_WRONLY | os.O_APPEND)
    started_s = time.perf_counter()
    os.write(writer, line)
    seen = b""
    while line not in seen:
        block = os.read(pipe, BLOCK_BYTES)
        assert block, "the follower has ended"
        seen += block
    took_s = time.perf_counter() - started_s
    os.close(writer)
    return took_s


def drain(pipe: int) -> None:
    while select.select([pipe], [], [], 0)[0] and os.read(pipe, BLOCK_BYTES):
        pass
